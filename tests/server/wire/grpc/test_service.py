"""gRPC over real sockets: with grpcio, and by hand where grpcio would not do wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.events import ResponseReceived, StreamEnded

from headgate.server.wire import listener
from headgate.server.wire.grpc.calls import MessageStream, Methods, RpcError, StatusCode, UnaryCall
from headgate.server.wire.grpc.framing import framed
from headgate.server.wire.limits import DEFAULT, WireLimits
from tests.server.wire.serving import PATIENCE, Http2Client, Turnstile, serving
from tests.server.wire.test_listener import Bouncer
from tests.servers import until

GRPC = {"content-type": "application/grpc", "te": "trailers"}


async def echo(call: UnaryCall) -> bytes:
    return call.message


async def echo_later(call: UnaryCall) -> bytes:
    await asyncio.sleep(0.001)
    return call.message


async def refuse(_: UnaryCall) -> bytes:
    raise RpcError(StatusCode.NOT_FOUND, "not här: 100 %", ((b"grpc-retry-pushback-ms", b"-1"),))


async def fail(call: UnaryCall) -> bytes:
    if call.message:
        await asyncio.sleep(0)
    raise LookupError("of all things")


async def wrong(_: UnaryCall) -> Any:
    return None


async def wrong_trailers(_: UnaryCall) -> bytes:
    raise RpcError(StatusCode.NOT_FOUND, "", ((b"x-a", b"b\r\nc"),))


async def who(call: UnaryCall) -> bytes:
    return repr((call.peer.address, [value for name, value in call.metadata if name == b"x-key"])).encode()


async def echo_all(stream: MessageStream) -> None:
    async for message in stream:
        await stream.send(message)


async def count(stream: MessageStream) -> None:
    total = 0
    async for _ in stream:
        total += 1
    await stream.send(b"%d" % total)


async def flood(stream: MessageStream) -> None:
    for _ in range(200):
        await stream.send(b"x" * 10_000)


async def silence(_: MessageStream) -> None:
    return


async def break_off(stream: MessageStream) -> None:
    await stream.send(b"one")
    raise RpcError(StatusCode.ABORTED, "enough")


async def fail_late(stream: MessageStream) -> None:
    await stream.send(b"one")
    raise LookupError("of all things")


METHODS = Methods(
    {
        b"/t.T/Echo": echo,
        b"/t.T/EchoLater": echo_later,
        b"/t.T/Refuse": refuse,
        b"/t.T/Fail": fail,
        b"/t.T/Wrong": wrong,
        b"/t.T/WrongTrailers": wrong_trailers,
        b"/t.T/Who": who,
    },
    {
        b"/t.T/EchoAll": echo_all,
        b"/t.T/Count": count,
        b"/t.T/Flood": flood,
        b"/t.T/Silence": silence,
        b"/t.T/BreakOff": break_off,
        b"/t.T/FailLate": fail_late,
    },
)


@contextmanager
def channel(port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_retries", 0)]) as opened:
        yield opened


@contextmanager
def calling(limits: WireLimits = DEFAULT, methods: Methods = METHODS) -> Iterator[Any]:
    with serving(limits) as server, channel(server.grpc(methods)) as opened:
        yield opened


def failure(call: Callable[..., object], *arguments: Any, **options: Any) -> Any:
    """Return what a call that fails ends with."""
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **options)
    return raised.value


def ends(call: Any, *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    """Return the status of a unary call that fails."""
    error = failure(call, *arguments, timeout=PATIENCE, **options)
    return error.code(), error.details()


class TestUnary:
    @pytest.mark.parametrize("method", ["Echo", "EchoLater"])
    def test_a_message_is_answered_whatever_its_size(self, method: str) -> None:
        with calling() as client:
            call = client.unary_unary(f"/t.T/{method}")
            for size in (0, 1, 100, 16_384, 100_000, DEFAULT.message_bytes):
                assert call(b"x" * size, timeout=PATIENCE) == b"x" * size

    def test_many_calls_at_once(self) -> None:
        with calling() as client:
            call = client.unary_unary("/t.T/EchoLater")
            calls = [call.future(b"%d" % number, timeout=PATIENCE) for number in range(300)]
            assert [each.result() for each in calls] == [b"%d" % number for number in range(300)]

    def test_a_method_sees_metadata_and_who_calls(self) -> None:
        with calling() as client:
            answer = client.unary_unary("/t.T/Who")(b"", metadata=[("x-key", "1"), ("x-key", "2")], timeout=PATIENCE)
        assert answer == b"('127.0.0.1', [b'1', b'2'])"

    def test_an_error_has_its_code_text_and_trailers(self) -> None:
        with calling() as client:
            error = failure(client.unary_unary("/t.T/Refuse"), b"", timeout=PATIENCE)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "not här: 100 %"
        assert ("grpc-retry-pushback-ms", "-1") in [tuple(each) for each in error.trailing_metadata()]

    @pytest.mark.parametrize("message", [b"", b"late"])
    def test_what_a_method_raises_is_internal_and_logged_once(
        self, message: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR), calling() as client:
            code, text = ends(client.unary_unary("/t.T/Fail"), message)
        assert code is grpc.StatusCode.INTERNAL
        assert "of all things" not in text
        assert [record.getMessage() for record in caplog.records] == ["/t.T/Fail failed"]

    @pytest.mark.parametrize("method", ["Wrong", "WrongTrailers"])
    def test_an_answer_that_cannot_be_sent_is_internal(self, method: str) -> None:
        with calling() as client:
            assert ends(client.unary_unary(f"/t.T/{method}"), b"")[0] is grpc.StatusCode.INTERNAL
            assert client.unary_unary("/t.T/Echo")(b"still here", timeout=PATIENCE) == b"still here"

    def test_a_method_that_is_not_there_is_unimplemented(self) -> None:
        with calling() as client:
            code, text = ends(client.unary_unary("/t.T/Nothing"), b"")
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert text == "There is no method '/t.T/Nothing'."

    def test_a_message_that_is_too_large_is_refused_and_others_go_on(self) -> None:
        with calling(WireLimits(message_bytes=1000)) as client:
            assert ends(client.unary_unary("/t.T/Echo"), b"x" * 1001)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert ends(client.unary_unary("/t.T/Echo"), b"x" * 5_242_880)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert client.unary_unary("/t.T/Echo")(b"x" * 1000, timeout=PATIENCE) == b"x" * 1000

    def test_metadata_without_end_is_refused_and_others_go_on(self) -> None:
        with calling() as client:
            bomb = [("x-bomb", "x" * 4000)] * 10
            ends(client.unary_unary("/t.T/Echo"), b"", metadata=bomb)
            assert client.unary_unary("/t.T/Echo")(b"x", timeout=PATIENCE) == b"x"

    @pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    def test_a_compressed_message_is_read_up_to_the_largest_that_there_may_be(
        self, compression: grpc.Compression
    ) -> None:
        with calling() as client:
            echo, many = client.unary_unary("/t.T/Echo"), client.stream_stream("/t.T/EchoAll")
            assert echo(b"x" * 100_000, timeout=PATIENCE, compression=compression) == b"x" * 100_000
            sent = [b"x" * 200_000] * 30
            assert list(many(iter(sent), timeout=PATIENCE, compression=compression)) == sent
            code, text = ends(echo, b"x" * 1_000_000, compression=compression)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than 262144 bytes" in text


class TestDeadlines:
    def test_a_call_that_waits_too_long_ends_and_its_answer_is_dropped(self) -> None:
        with serving() as server:
            turnstile = Turnstile(server)

            async def wait(call: UnaryCall) -> bytes:
                await turnstile.pass_through()
                return call.message

            methods = Methods({b"/t.T/Wait": wait, b"/t.T/Echo": echo})
            with Http2Client(server.grpc(methods)) as client:
                stream = client.ask("/t.T/Wait", GRPC | {"grpc-timeout": "20m"})
                client.send(stream, framed(b"x"), end=True)
                assert client.head(stream)["grpc-status"] == "4"
                turnstile.open()
                other = client.ask("/t.T/Echo", GRPC)
                client.send(other, framed(b"x"), end=True)
                client.until(StreamEnded, other)
                assert sum(isinstance(event, ResponseReceived) for event in client.events) == 2

    def test_a_call_in_time_is_answered(self) -> None:
        with calling() as client:
            assert client.unary_unary("/t.T/EchoLater")(b"x", timeout=PATIENCE) == b"x"

    def test_no_time_at_all(self) -> None:
        with serving() as server, Http2Client(server.grpc(METHODS)) as client:
            stream = client.ask("/t.T/Echo", GRPC | {"grpc-timeout": "0n"})
            client.send(stream, framed(b"x"), end=True)
            assert client.head(stream)["grpc-status"] == "4"

    def test_the_time_that_a_message_takes_to_arrive_counts(self) -> None:
        called: list[bytes] = []

        async def note(call: UnaryCall) -> bytes:
            called.append(call.message)
            return b""

        async def now() -> float:
            return asyncio.get_running_loop().time()

        methods = Methods({b"/t.T/Note": note})
        with serving() as server, Http2Client(server.grpc(methods)) as client:
            stream = client.ask("/t.T/Note", GRPC | {"grpc-timeout": "1n"})
            client.send(stream, framed(b"x")[:3])
            client.until_settled()
            begun = server.run(now())
            until(lambda: server.run(now()) > begun, "the clock of the loop, which is coarse, goes on")
            client.send(stream, framed(b"x")[3:], end=True)
            assert client.head(stream)["grpc-status"] == "4"
            assert called == []

    def test_a_stream_ends_at_its_deadline(self) -> None:
        over = threading.Event()

        def silent() -> Iterator[bytes]:
            over.wait(PATIENCE)
            yield b""

        with calling() as client:
            answers = client.stream_stream("/t.T/EchoAll")(silent(), timeout=0.05)
            error = failure(list, answers)
            over.set()
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    def test_a_message_that_trickles(self) -> None:
        with serving(WireLimits(body_time=0.1)) as server, Http2Client(server.grpc(METHODS)) as client:
            stream = client.ask("/t.T/Echo", GRPC)
            client.send(stream, framed(b"x" * 10)[:7])
            assert client.head(stream)["grpc-status"] == "4"


@pytest.mark.parametrize(
    ("headers", "data", "expected"),
    [
        ({"content-type": "application/json"}, b"", (":status", "415")),
        ({}, b"", (":status", "415")),
        ({"content-type": "application/grpc-web"}, b"", (":status", "415")),
        (GRPC | {"grpc-timeout": "1s"}, framed(b""), ("grpc-status", "3")),
        (GRPC, b"", ("grpc-status", "12")),
        (GRPC, framed(b"") * 2, ("grpc-status", "12")),
        (GRPC, framed(b"x")[:3], ("grpc-status", "12")),
        (GRPC, framed(b"xyz")[:-1], ("grpc-status", "12")),
        (GRPC, b"\1" + framed(b"x")[1:], ("grpc-status", "13")),
        (GRPC, b"\0\xff\xff\xff\xff", ("grpc-status", "8")),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_calls_that_are_not_as_they_should_be(
    headers: dict[str, str], data: bytes, expected: tuple[str, str], pieces: int
) -> None:
    with serving() as server, Http2Client(server.grpc(METHODS)) as client:
        stream = client.machine.get_next_available_stream_id()
        fields = {":method": "POST", ":scheme": "http", ":authority": "api", ":path": "/t.T/Echo", **headers}
        client.machine.send_headers(stream, list(fields.items()))
        for piece in (data,) if pieces == 1 else (data[:2], data[2:]):
            client.machine.send_data(stream, piece)
        client.machine.end_stream(stream)
        client.flush()
        name, value = expected
        assert client.head(stream)[name] == value


@pytest.mark.parametrize(
    "content_type", ["application/grpc+proto", "application/grpc; charset=utf-8", "Application/GRPC"]
)
def test_kinds_of_content_that_are_grpc(content_type: str) -> None:
    with serving() as server, Http2Client(server.grpc(METHODS)) as client:
        stream = client.ask("/t.T/Echo", {"content-type": content_type})
        client.send(stream, framed(b"x"), end=True)
        assert client.trailers(stream)["grpc-status"] == "0"


def test_calls_that_the_clients_of_a_proxy_give_up_do_not_end_its_connection() -> None:
    """All their calls travel on one. Were it closed, those of everybody else would fail, and a proxy lets them pass."""
    with serving() as server, Http2Client(server.grpc(METHODS)) as client:
        for _ in range(4):
            for _ in range(DEFAULT.resets):
                stream = client.machine.get_next_available_stream_id()
                fields = {":method": "POST", ":scheme": "http", ":authority": "api", ":path": "/t.T/EchoLater", **GRPC}
                client.machine.send_headers(stream, list(fields.items()))
                client.machine.send_data(stream, framed(b"x"), end_stream=True)
                client.machine.reset_stream(stream, 8)
            client.flush()
        stream = client.ask("/t.T/Echo", GRPC)
        client.send(stream, framed(b"x"), end=True)
        assert client.trailers(stream)["grpc-status"] == "0"


def test_get_is_not_a_call() -> None:
    with serving() as server, Http2Client(server.grpc(METHODS)) as client:
        stream = client.ask("/t.T/Echo", GRPC, method="GET", end=True)
        assert client.head(stream)[":status"] == "405"
        assert client.head(stream)["allow"] == "POST"


class TestStreaming:
    def test_messages_go_both_ways(self) -> None:
        sizes = [0, 1, 16_384, 100_000, DEFAULT.message_bytes]
        with calling() as client:
            answers = client.stream_stream("/t.T/EchoAll")(iter([b"x" * size for size in sizes]), timeout=PATIENCE)
            assert [len(answer) for answer in answers] == sizes

    def test_many_messages_and_one_answer(self) -> None:
        with calling() as client:
            answer = client.stream_unary("/t.T/Count")(iter([b"x" * 1000] * 2000), timeout=PATIENCE)
            assert answer == b"2000"

    def test_one_message_and_many_answers(self) -> None:
        with calling() as client:
            assert sum(map(len, client.unary_stream("/t.T/Flood")(b"", timeout=PATIENCE))) == 2_000_000

    def test_no_answer_at_all(self) -> None:
        with calling() as client:
            assert list(client.unary_stream("/t.T/Silence")(b"", timeout=PATIENCE)) == []

    @pytest.mark.parametrize(("method", "code"), [("BreakOff", "ABORTED"), ("FailLate", "INTERNAL")])
    def test_an_error_after_an_answer(self, method: str, code: str) -> None:
        with calling() as client:
            answers = client.unary_stream(f"/t.T/{method}")(b"", timeout=PATIENCE)
            assert next(answers) == b"one"
            error = failure(next, answers)
        assert error.code().name == code

    def test_a_message_that_is_too_large_ends_the_call(self) -> None:
        with calling(WireLimits(message_bytes=1000)) as client:
            answers = client.stream_stream("/t.T/EchoAll")(iter([b"x" * 1001]), timeout=PATIENCE)
            error = failure(list, answers)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_a_method_that_does_not_read_stops_the_client(self) -> None:
        """What is sent and not taken is bounded by the window of the stream."""
        with serving() as server:
            turnstile = Turnstile(server)
            seen: list[int] = []

            async def idle(stream: MessageStream) -> None:
                await turnstile.pass_through()
                async for message in stream:
                    seen.append(len(message))  # noqa: PERF401  each when it comes

            with Http2Client(server.grpc(Methods({}, {b"/t.T/Idle": idle}))) as client:
                stream = client.ask("/t.T/Idle", GRPC)
                turnstile.wait()
                message = framed(b"x" * 10_000)
                sent = 0
                client.until_settled()
                while client.machine.local_flow_control_window(stream) >= len(message):
                    client.send(stream, message)
                    sent += 1
                assert sent * len(message) <= 1 << 20
                turnstile.open()
                until(lambda: len(seen) == sent, "all is read")
                client.send(stream, b"", end=True)
                client.until(StreamEnded, stream)

    def test_a_client_that_does_not_read_stops_the_method(self) -> None:
        sent = 0

        async def endless(stream: MessageStream) -> None:
            nonlocal sent
            while True:
                await stream.send(b"x" * 10_000)
                sent += 1

        with serving() as server:
            methods = Methods({b"/t.T/Echo": echo}, {b"/t.T/Endless": endless})
            with Http2Client(server.grpc(methods)) as client:
                client.ask("/t.T/Endless", GRPC)
                other = client.ask("/t.T/Echo", GRPC)
                client.send(other, framed(b""), end=True)
                client.until(ResponseReceived, other)
                until(lambda: sent >= 6, "the window is used up")
                assert sent <= 7

    @pytest.mark.parametrize("how", ["reset", "disconnect", "end", "deadline"])
    def test_the_method_is_cancelled_when_nobody_waits_for_it(self, how: str) -> None:
        ended: list[str] = []

        async def wait(stream: MessageStream) -> None:
            try:
                async for _ in stream:
                    ended.append("message")  # noqa: PERF401  each when it comes
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        with serving() as server:
            with Http2Client(server.grpc(Methods({}, {b"/t.T/Wait": wait}))) as client:
                stream = client.ask("/t.T/Wait", GRPC | {"grpc-timeout": "1S" if how == "deadline" else "1H"})
                client.send(stream, framed(b""))
                until(lambda: ended[:1] == ["message"], "it has begun")
                if how == "reset":
                    client.machine.reset_stream(stream)
                    client.flush()
                if how == "end":  # nothing is unread, so the connection is not reset
                    client.until_settled()
                if how not in {"disconnect", "end"}:
                    until(lambda: ended == ["message", "cancelled"], "it is cancelled")
            until(lambda: ended == ["message", "cancelled"], "it is cancelled")

    def test_a_deadline_counts_whatever_the_method_makes_of_it(self) -> None:
        async def wait(stream: MessageStream) -> None:
            try:
                async for _ in stream:
                    pass
            except asyncio.CancelledError:
                raise LookupError("of all things") from None

        with serving() as server, Http2Client(server.grpc(Methods({}, {b"/t.T/Wait": wait}))) as client:
            stream = client.ask("/t.T/Wait", GRPC | {"grpc-timeout": "10m"})
            assert client.head(stream)["grpc-status"] == "4"

    def test_one_that_is_reset_before_it_began(self) -> None:
        """Nothing of it remains."""
        door = Bouncer()
        with serving(admit=door.admission) as server, Http2Client(server.grpc(METHODS)) as client:
            stream = client.machine.get_next_available_stream_id()
            headers = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/t.T/EchoAll")]
            client.machine.send_headers(stream, [*headers, ("content-type", "application/grpc"), ("please", "yes")])
            client.machine.reset_stream(stream)
            client.flush()
            until(lambda: "release" in door.seen, "it is over")


def test_a_gate_sees_calls_come_and_go() -> None:
    door = Bouncer()
    with serving(admit=door.admission) as server:
        with channel(server.grpc(METHODS)) as client:
            please = [("please", "yes")]
            for method in ("Echo", "EchoLater"):
                assert client.unary_unary(f"/t.T/{method}")(b"x", metadata=please, timeout=PATIENCE) == b"x"
            assert list(client.stream_stream("/t.T/EchoAll")(iter([b"x"]), metadata=please, timeout=PATIENCE)) == [b"x"]
            assert ends(client.unary_unary("/t.T/Echo"), b"") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Say please.")
            failure(list, client.stream_stream("/t.T/EchoAll")(iter([b"x"]), timeout=PATIENCE))
        until(lambda: "forget" in door.seen, "the connection is gone")
    assert [seen for seen in door.seen if seen not in {"hold", "release"}] == [
        "connect 127.0.0.1",
        "admit /t.T/Echo",
        "admit /t.T/EchoLater",
        "admit /t.T/EchoAll",
        "admit /t.T/Echo",
        "admit /t.T/EchoAll",
        "forget",
    ]
    assert (door.seen.count("hold"), door.seen.count("release")) == (1, 2)  # one that waits, and one that lasts


class TestDraining:
    def test_calls_in_flight_are_answered(self) -> None:
        with serving() as server:
            turnstile = Turnstile(server)

            async def wait(call: UnaryCall) -> bytes:
                await turnstile.pass_through()
                return call.message

            with channel(server.grpc(Methods({b"/t.T/Wait": wait}))) as client:
                calls = [client.unary_unary("/t.T/Wait").future(b"x", timeout=PATIENCE) for _ in range(3)]
                turnstile.wait(3)
                drained = server.begin(server.listener.drain(PATIENCE))
                turnstile.open()
                assert [call.result() for call in calls] == [b"x"] * 3
                assert drained()

    def test_streams_without_end_are_told_to_go_elsewhere(self) -> None:
        async def watch(stream: MessageStream) -> None:
            await stream.send(b"one")
            await asyncio.Event().wait()

        with serving() as server, channel(server.grpc(Methods({}, {b"/t.T/Watch": watch}))) as client:
            answers = client.unary_stream("/t.T/Watch")(b"", timeout=PATIENCE)
            assert next(answers) == b"one"
            assert server.run(server.listener.drain(PATIENCE))
            error = failure(next, answers)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "This server is going away: call another one."

    def test_no_call_under_load_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client with two servers behind it, as in a rolling restart: one leaves, the other takes over.

        What the one that leaves has taken is answered. A call that it has not taken may fail in the client, which is
        told so (GOAWAY) or cannot connect, and may call the other one.
        """
        monkeypatch.setattr(listener, "_IN_TRANSIT", 1.0)  # longer than a busy machine keeps a client from hearing us
        taken: set[bytes] = set()
        failures: list[object] = []
        numbers = itertools.count()
        answered = 0

        async def take(call: UnaryCall) -> bytes:
            taken.add(call.message)
            return await echo_later(call)

        with serving() as staying:
            port = staying.grpc(METHODS)
            methods = Methods({b"/t.T/EchoLater": take})
            with serving() as leaving, channel(leaving.grpc(methods)) as first, channel(port) as second:
                stop = threading.Event()
                gone = threading.Event()

                def call() -> None:
                    nonlocal answered
                    while not stop.is_set():
                        message = b"%d" % next(numbers)
                        target = second if gone.is_set() else first
                        try:
                            target.unary_unary("/t.T/EchoLater")(message, timeout=PATIENCE)
                        except grpc.RpcError as error:
                            is_told = "refused" in str(error) or "GOAWAY received" in str(error)
                            if message in taken or target is second or not is_told:
                                failures.append(error)
                            gone.set()
                        else:
                            answered += 1

                threads = [threading.Thread(target=call) for _ in range(4)]
                for thread in threads:
                    thread.start()
                until(lambda: answered > 200, "there is load")
                assert leaving.run(leaving.listener.drain(PATIENCE))
                before = answered
                until(lambda: answered > before + 50, "the other took over")
                stop.set()
                for thread in threads:
                    thread.join(PATIENCE)
        assert failures == []


def test_h2load_finds_nothing_wrong(tmp_path: Path) -> None:
    program = shutil.which("h2load")
    assert program, "h2load is needed: apt-get install nghttp2-client"
    message = tmp_path / "message"
    message.write_bytes(framed(b"x" * 40))
    with serving() as server:
        url = f"http://127.0.0.1:{server.grpc(METHODS)}/t.T/Echo"
        command = [program, "-c4", "-m20", "-n5000", "-d", str(message), "-H", "content-type: application/grpc", url]
        report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    assert "5000 succeeded, 0 failed, 0 errored, 0 timeout" in report
