"""gRPC on real sockets: by grpcio, and by hand for violations of the protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import pytest
from h2.events import ResponseReceived, StreamEnded

from headgate.server.wire.grpc.calls import MessageStream, Methods, RpcError, StatusCode, UnaryCall
from headgate.server.wire.grpc.framing import framed
from headgate.server.wire.limits import DEFAULT, WireLimits
from tests.server.wire.serving import PATIENCE, Admissions, Http2Client, serving, waiting
from tests.servers import until

Method = TypeVar("Method", bound=Callable[..., Any])
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


def named(*methods: Method) -> dict[bytes, Method]:
    return {f"/t.T/{method.__name__}".encode(): method for method in methods}


METHODS = Methods(
    named(echo, echo_later, refuse, fail, wrong, wrong_trailers, who),
    named(echo_all, count, flood, silence, break_off, fail_late),
)


@contextmanager
def channel(port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_retries", 0)]) as opened:
        yield opened


@contextmanager
def calling(limits: WireLimits = DEFAULT, methods: Methods = METHODS) -> Iterator[Any]:
    with serving(limits) as server, channel(server.grpc(methods)) as opened:
        yield opened


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with calling() as opened:
        yield opened


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as server:
        yield server.grpc(METHODS)


def failure(call: Callable[..., object], *arguments: Any, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **options)
    return raised.value


def ends(call: Any, *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    error = failure(call, *arguments, timeout=PATIENCE, **options)
    return error.code(), error.details()


class TestUnary:
    @pytest.mark.parametrize("method", ["echo", "echo_later"])
    def test_a_message_is_answered_whatever_its_size_and_many_at_once(self, client: Any, method: str) -> None:
        call = client.unary_unary(f"/t.T/{method}")
        for size in (0, 1, 100, 16_384, 100_000, DEFAULT.message_bytes):
            assert call(b"x" * size, timeout=PATIENCE) == b"x" * size
        calls = [call.future(b"%d" % number, timeout=PATIENCE) for number in range(300)]
        assert [each.result() for each in calls] == [b"%d" % number for number in range(300)]

    def test_a_method_gets_metadata_and_the_peer(self, client: Any) -> None:
        answer = client.unary_unary("/t.T/who")(b"", metadata=[("x-key", "1"), ("x-key", "2")], timeout=PATIENCE)
        assert answer == b"('127.0.0.1', [b'1', b'2'])"

    def test_an_error_has_its_code_text_and_trailers(self, client: Any) -> None:
        error = failure(client.unary_unary("/t.T/refuse"), b"", timeout=PATIENCE)
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "not här: 100 %")
        assert ("grpc-retry-pushback-ms", "-1") in [tuple(each) for each in error.trailing_metadata()]
        missing = grpc.StatusCode.UNIMPLEMENTED, "There is no method '/t.T/Nothing'."
        assert ends(client.unary_unary("/t.T/Nothing"), b"") == missing

    def test_an_exception_of_a_method_is_internal_and_logged_once(
        self, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        for message in (b"", b"late"):
            caplog.clear()
            code, text = ends(client.unary_unary("/t.T/fail"), message)
            assert (code, "of all things" in text) == (grpc.StatusCode.INTERNAL, False)
            assert [record.getMessage() for record in caplog.records] == ["/t.T/fail failed"]

    def test_an_answer_that_cannot_be_sent_is_internal_and_others_go_on(self, client: Any) -> None:
        for method in ("wrong", "wrong_trailers"):
            assert ends(client.unary_unary(f"/t.T/{method}"), b"")[0] is grpc.StatusCode.INTERNAL
            assert client.unary_unary("/t.T/echo")(b"still here", timeout=PATIENCE) == b"still here"

    def test_a_message_that_is_too_large_is_refused_and_others_go_on(self) -> None:
        with calling(WireLimits(message_bytes=1000)) as client:
            for size in (1001, 5_242_880):
                assert ends(client.unary_unary("/t.T/echo"), b"x" * size)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert client.unary_unary("/t.T/echo")(b"x" * 1000, timeout=PATIENCE) == b"x" * 1000
            answers = client.stream_stream("/t.T/echo_all")(iter([b"x" * 1001]), timeout=PATIENCE)
            assert failure(list, answers).code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_metadata_without_end_is_refused_and_others_go_on(self, client: Any) -> None:
        ends(client.unary_unary("/t.T/echo"), b"", metadata=[("x-bomb", "x" * 4000)] * 10)
        assert client.unary_unary("/t.T/echo")(b"x", timeout=PATIENCE) == b"x"

    @pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    def test_a_compressed_message_is_read_up_to_the_largest_that_there_may_be(
        self, client: Any, compression: grpc.Compression
    ) -> None:
        echo, many = client.unary_unary("/t.T/echo"), client.stream_stream("/t.T/echo_all")
        assert echo(b"x" * 100_000, timeout=PATIENCE, compression=compression) == b"x" * 100_000
        sent = [b"x" * 200_000] * 30
        assert list(many(iter(sent), timeout=PATIENCE, compression=compression)) == sent
        code, text = ends(echo, b"x" * 1_000_000, compression=compression)
        assert (code, "larger than 262144 bytes" in text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


class TestDeadlines:
    def test_a_call_that_waits_too_long_ends_and_its_answer_is_dropped(self) -> None:
        with waiting() as (server, latch):
            methods = Methods({b"/t.T/wait": latch.call, **named(echo)})
            with Http2Client(server.grpc(methods)) as client:
                stream = client.ask("/t.T/wait", GRPC | {"grpc-timeout": "20m"})
                client.send(stream, framed(b"x"), end=True)
                assert client.head(stream)["grpc-status"] == "4"
                latch.open()
                other = client.ask("/t.T/echo", GRPC)
                client.send(other, framed(b"x"), end=True)
                client.until(StreamEnded, other)
                assert sum(isinstance(event, ResponseReceived) for event in client.events) == 2

    def test_a_call_in_time_is_answered_and_one_without_time_is_not(self, client: Any, port: int) -> None:
        assert client.unary_unary("/t.T/echo_later")(b"x", timeout=PATIENCE) == b"x"
        with Http2Client(port) as by_hand:
            stream = by_hand.ask("/t.T/echo", GRPC | {"grpc-timeout": "0n"})
            by_hand.send(stream, framed(b"x"), end=True)
            assert by_hand.head(stream)["grpc-status"] == "4"

    def test_the_time_that_a_message_takes_to_arrive_counts(self) -> None:
        called: list[bytes] = []

        async def note(call: UnaryCall) -> bytes:
            called.append(call.message)
            return b""

        async def now() -> float:
            return asyncio.get_running_loop().time()

        methods = Methods({b"/t.T/note": note})
        with serving() as server, Http2Client(server.grpc(methods)) as client:
            stream = client.ask("/t.T/note", GRPC | {"grpc-timeout": "1n"})
            client.send(stream, framed(b"x")[:3])
            client.until_settled()
            begun = server.run(now())
            until(lambda: server.run(now()) > begun, "the clock of the loop, which is coarse, goes on")
            client.send(stream, framed(b"x")[3:], end=True)
            assert client.head(stream)["grpc-status"] == "4"
            assert called == []

    def test_a_stream_ends_at_its_deadline(self, client: Any) -> None:
        over = threading.Event()

        def silent() -> Iterator[bytes]:
            over.wait(PATIENCE)
            yield b""

        error = failure(list, client.stream_stream("/t.T/echo_all")(silent(), timeout=0.05))
        over.set()
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    def test_a_message_that_trickles(self) -> None:
        with serving(WireLimits(body_time=0.1)) as server, Http2Client(server.grpc(METHODS)) as client:
            stream = client.ask("/t.T/echo", GRPC)
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
def test_calls_that_are_not_as_they_should_be(
    port: int, headers: dict[str, str], data: bytes, expected: tuple[str, str]
) -> None:
    for pieces in ((data,), (data[:2], data[2:])):
        with Http2Client(port) as client:
            stream = client.begin("/t.T/echo", headers)
            for piece in pieces:
                client.machine.send_data(stream, piece)
            client.machine.end_stream(stream)
            client.flush()
            name, value = expected
            assert client.head(stream)[name] == value


def test_kinds_of_content_that_are_grpc_and_get_which_is_not_a_call(port: int) -> None:
    with Http2Client(port) as client:
        for content_type in ("application/grpc+proto", "application/grpc; charset=utf-8", "Application/GRPC"):
            stream = client.ask("/t.T/echo", {"content-type": content_type})
            client.send(stream, framed(b"x"), end=True)
            assert client.trailers(stream)["grpc-status"] == "0"
        head = client.head(client.ask("/t.T/echo", GRPC, method="GET", end=True))
        assert (head[":status"], head["allow"]) == ("405", "POST")


def test_calls_that_the_clients_of_a_proxy_give_up_do_not_end_its_connection(port: int) -> None:
    """All their calls travel on one. Were it closed, those of everybody else would fail, and a proxy lets them pass."""
    with Http2Client(port) as client:
        for _ in range(4):
            for _ in range(DEFAULT.resets):
                stream = client.begin("/t.T/echo_later", GRPC)
                client.machine.send_data(stream, framed(b"x"), end_stream=True)
                client.machine.reset_stream(stream, 8)
            client.flush()
        stream = client.ask("/t.T/echo", GRPC)
        client.send(stream, framed(b"x"), end=True)
        assert client.trailers(stream)["grpc-status"] == "0"


class TestStreaming:
    def test_messages_go_both_ways_as_many_as_a_method_likes(self, client: Any) -> None:
        sizes = [0, 1, 16_384, 100_000, DEFAULT.message_bytes]
        answers = client.stream_stream("/t.T/echo_all")(iter([b"x" * size for size in sizes]), timeout=PATIENCE)
        assert [len(answer) for answer in answers] == sizes
        assert client.stream_unary("/t.T/count")(iter([b"x" * 1000] * 2000), timeout=PATIENCE) == b"2000"
        assert sum(map(len, client.unary_stream("/t.T/flood")(b"", timeout=PATIENCE))) == 2_000_000
        assert list(client.unary_stream("/t.T/silence")(b"", timeout=PATIENCE)) == []

    def test_an_error_after_an_answer(self, client: Any) -> None:
        for method, code in (("break_off", "ABORTED"), ("fail_late", "INTERNAL")):
            answers = client.unary_stream(f"/t.T/{method}")(b"", timeout=PATIENCE)
            assert next(answers) == b"one"
            assert failure(next, answers).code().name == code

    def test_a_method_that_does_not_read_stops_the_client(self) -> None:
        """What is sent and not taken is bounded by the window of the stream."""
        with waiting() as (server, latch):
            seen: list[int] = []

            async def idle(stream: MessageStream) -> None:
                await latch.hold()
                async for message in stream:
                    seen.append(len(message))  # noqa: PERF401  each when it comes

            with Http2Client(server.grpc(Methods({}, named(idle)))) as client:
                stream = client.ask("/t.T/idle", GRPC)
                latch.wait()
                message = framed(b"x" * 10_000)
                sent = 0
                client.until_settled()
                while client.machine.local_flow_control_window(stream) >= len(message):
                    client.send(stream, message)
                    sent += 1
                assert sent * len(message) <= 1 << 20
                latch.open()
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
            methods = Methods({b"/t.T/echo": echo}, {b"/t.T/endless": endless})
            with Http2Client(server.grpc(methods)) as client:
                client.ask("/t.T/endless", GRPC)
                other = client.ask("/t.T/echo", GRPC)
                client.send(other, framed(b""), end=True)
                client.until(ResponseReceived, other)
                until(lambda: sent >= 6, "the window is used up")
                assert sent <= 7

    @pytest.mark.parametrize("how", ["reset", "disconnect", "end", "deadline"])
    def test_the_method_is_cancelled_when_its_client_is_gone(self, how: str) -> None:
        ended: list[str] = []

        async def wait(stream: MessageStream) -> None:
            try:
                async for _ in stream:
                    ended.append("message")  # noqa: PERF401  each when it comes
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        with serving() as server:
            with Http2Client(server.grpc(Methods({}, named(wait)))) as client:
                stream = client.ask("/t.T/wait", GRPC | {"grpc-timeout": "1S" if how == "deadline" else "1H"})
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

        with serving() as server, Http2Client(server.grpc(Methods({}, named(wait)))) as client:
            stream = client.ask("/t.T/wait", GRPC | {"grpc-timeout": "10m"})
            assert client.head(stream)["grpc-status"] == "4"

    def test_one_that_is_reset_before_it_began(self) -> None:
        """Nothing of it remains."""
        admissions = Admissions()
        with serving(admit=admissions.admission) as server, Http2Client(server.grpc(METHODS)) as client:
            client.machine.reset_stream(client.begin("/t.T/echo_all", GRPC | {"please": "yes"}))
            client.flush()
            until(lambda: "release" in admissions.seen, "it is over")


def test_admission_sees_calls_come_and_go() -> None:
    admissions = Admissions()
    with serving(admit=admissions.admission) as server:
        with channel(server.grpc(METHODS)) as client:
            please = [("please", "yes")]
            for method in ("echo", "echo_later"):
                assert client.unary_unary(f"/t.T/{method}")(b"x", metadata=please, timeout=PATIENCE) == b"x"
            assert list(client.stream_stream("/t.T/echo_all")(iter([b"x"]), metadata=please, timeout=PATIENCE)) == [
                b"x"
            ]
            assert ends(client.unary_unary("/t.T/echo"), b"") == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Say please.")
            failure(list, client.stream_stream("/t.T/echo_all")(iter([b"x"]), timeout=PATIENCE))
        until(lambda: "forget" in admissions.seen, "the connection is gone")
    assert [seen for seen in admissions.seen if seen not in {"hold", "release"}] == [
        "connect 127.0.0.1",
        *[f"admit /t.T/{method}" for method in ("echo", "echo_later", "echo_all", "echo", "echo_all")],
        "forget",
    ]
    assert (admissions.seen.count("hold"), admissions.seen.count("release")) == (
        1,
        2,
    )  # one that waits, and one that lasts


class TestDraining:
    def test_endless_streams_end_with_unavailable(self) -> None:
        async def watch(stream: MessageStream) -> None:
            await stream.send(b"one")
            await asyncio.Event().wait()

        with serving() as server, channel(server.grpc(Methods({}, named(watch)))) as client:
            answers = client.unary_stream("/t.T/watch")(b"", timeout=PATIENCE)
            assert next(answers) == b"one"
            assert server.run(server.listener.drain(PATIENCE))
            error = failure(next, answers)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "This server is shutting down: call another one."
