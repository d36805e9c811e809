"""HTTP/2 on transports: deadlines, back-pressure, and closing."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from h2.events import ConnectionTerminated, DataReceived, StreamEnded, StreamReset

from headgate.server.wire.grpc.calls import MessageStream, Methods
from headgate.server.wire.grpc.framing import framed
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.protocol import _TURN, Http2Protocol
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import HttpRequest, HttpResponse
from tests.server.wire.serving import PATIENCE, Admissions, Http2Client, Server, curl, read_all, serving, waiting
from tests.servers import until

WIDE = 2**31 - 1
GRPC = {"content-type": "application/grpc"}


def widen(client: Http2Client) -> None:
    """Open the windows of HTTP/2, so only the unread socket holds data back."""
    client.machine.increment_flow_control_window(WIDE - 65_535)
    client.flush()


async def much(_: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"x" * 100_000)


def test_the_host_is_a_header_as_in_the_older_version() -> None:
    async def host(arrived: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"", ((b"x-host", arrived.header(b"host") or b""), (b"x-path", arrived.path)))

    with serving() as server, Http2Client(server.http(host)) as client:
        for number in range(200):
            head = client.head(client.ask(f"/{number}?a", end=True))
            assert (head["x-host"], head["x-path"]) == ("api", f"/{number}")


class TestBodies:
    def test_one_that_is_too_long_is_refused_as_soon_as_that_is_known(self) -> None:
        with serving(WireLimits(body_bytes=10)) as server, Http2Client(server.http()) as client:
            stream = client.ask("/", {"content-length": "11"})
            assert client.head(stream)[":status"] == "413"
            for pieces in ([b"x" * 11], [b"x" * 6, b"x" * 5], [b"x"] * 11):
                stream = client.ask("/")
                for piece in pieces:
                    client.machine.send_data(stream, piece)
                client.flush()
                assert client.head(stream)[":status"] == "413", pieces

    def test_a_body_in_many_pieces_is_joined_and_an_abandoned_one_is_dropped(self) -> None:
        with serving() as server, Http2Client(server.http()) as client:
            given_up, stream = client.ask("/given-up"), client.ask("/")
            client.send(given_up, b"a bit")
            client.machine.reset_stream(given_up)
            for number in range(2000):
                client.machine.send_data(stream, b"%d" % (number % 10), end_stream=number == 1999)
            client.flush()
            client.until(StreamEnded, stream)
            data = b"".join([event.data or b"" for event in client.events if isinstance(event, DataReceived)])
            assert data == b"POST /  " + b"0123456789" * 200


class TestPatience:
    def test_idle_connections_and_those_that_open_no_window_are_closed_with_goaway(self) -> None:
        with serving() as server:
            port = server.http()
            for window, seconds in ((65_535, DEFAULT.idle_time), (0, DEFAULT.write_time)):
                with Http2Client(port, initial_window_size=window) as client:
                    client.head(client.ask("/", end=True))
                    client.until_settled()
                    server.pass_time(seconds + 1)
                    assert client.until(ConnectionTerminated).error_code == 0
                    assert read_all(client.socket) == b""
            assert curl(f"http://127.0.0.1:{port}/") == "GET /  "

    def test_while_much_data_waits_for_a_window_requests_are_refused(self) -> None:
        limits = WireLimits(outgoing_bytes=150_000)
        with serving(limits) as server, Http2Client(server.http(much), initial_window_size=0) as client:
            for _ in range(2):
                client.head(client.ask("/", end=True))
            refused = client.ask("/", end=True)
            assert client.until(StreamReset, refused).error_code == 7

    def test_a_client_that_does_not_read_is_not_read_from_and_closed(self) -> None:
        with serving(WireLimits(outgoing_bytes=200_000)) as server:
            port = server.http(much)
            with Http2Client(port, initial_window_size=WIDE) as client:
                widen(client)
                for _ in range(400):
                    client.ask("/", end=True)
                until(lambda: is_paused(server), "it is not read from")
                server.pass_time(DEFAULT.write_time + 1)
                until(lambda: server.listener.connections == 0, "it is gone")
                assert len(curl(f"http://127.0.0.1:{port}/")) == 100_000

    def test_a_client_that_takes_a_message_at_a_time_is_served(self) -> None:
        """Always as much waits for it, and yet it goes on."""

        async def steady(stream: MessageStream) -> None:
            while True:
                await stream.send(b"x" * 995)

        async def look(server: Server, later: float) -> None:
            registry = server.listener._registry
            assert registry._timer is not None
            registry._timer.cancel()  # it would look in between, at what is the past by then
            for connection in list(registry.connections):
                connection.enforce_timeouts(server.loop.time() + later)

        with serving() as server:
            port = server.grpc(Methods({}, {b"/t.T/Steady": steady}))
            with Http2Client(port, initial_window_size=1000) as client:
                stream = client.ask("/t.T/Steady", GRPC)
                for count in range(10):
                    client.until(DataReceived)
                    client.events = [event for event in client.events if not isinstance(event, DataReceived)]
                    server.run(look(server, count * DEFAULT.write_time * 0.9))
                    client.machine.acknowledge_received_data(1000, stream)
                    client.flush()
                client.until(DataReceived)
                client.until_settled()  # what the last window let through is sent, and the next message waits
                for later in (1000.0, 2000.0):
                    server.run(look(server, later))
                client.until(ConnectionTerminated)

    def test_a_client_that_reads_late_gets_everything(self) -> None:
        limits = WireLimits(outgoing_bytes=200_000)
        with serving(limits) as server, Http2Client(server.http(much), initial_window_size=WIDE) as client:
            widen(client)
            streams = [client.ask("/", end=True) for _ in range(300)]
            until(lambda: is_paused(server), "it is not read from")
            for stream in streams:
                client.until(StreamEnded, stream)


def is_paused(server: Server) -> bool:
    return any(getattr(connection, "is_blocked", False) for connection in server.listener._registry.connections)


def test_a_client_that_ends_its_half_is_still_answered_and_then_closed() -> None:
    with waiting() as (server, latch), Http2Client(server.http(latch.answer)) as client:
        stream = client.ask("/", end=True)
        latch.wait()
        client.socket.shutdown(socket.SHUT_WR)
        latch.open()
        while data := client.socket.recv(65536):
            client.events += client.machine.receive_data(data)
        assert any(isinstance(event, StreamEnded) and event.stream_id == stream for event in client.events)


@contextmanager
def nothing_read(server: Server) -> Iterator[None]:
    """Block the loop: all that is sent meanwhile arrives before any of it is read."""
    blocked, go = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go.wait(PATIENCE)

    server.loop.call_soon_threadsafe(block)
    assert blocked.wait(PATIENCE)
    try:
        yield
    finally:
        go.set()


class TestTurns:
    """A client that sends a lot at once waits for its turn like all others."""

    MANY = 3000

    def flood(self, client: Http2Client) -> bytes:
        block = encode([(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"api"), (b":path", b"/flood")])
        first = client.machine.get_next_available_stream_id()
        return b"".join([frames.headers(first + 2 * number, block, end=True) for number in range(self.MANY)])

    def test_others_are_answered_in_between(self) -> None:
        seen: list[bytes] = []

        async def note(request: HttpRequest) -> HttpResponse:
            seen.append(request.path)
            return HttpResponse(200)

        with serving() as server:
            port = server.http(note)
            with Http2Client(port) as flooding, Http2Client(port) as other:
                for client in (flooding, other):
                    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    client.head(client.ask("/first", end=True))
                with nothing_read(server):
                    flooding.socket.sendall(self.flood(flooding))
                    stream = other.ask("/other", end=True)
                assert other.head(stream)[":status"] == "200"
                until(lambda: seen.count(b"/flood") == self.MANY, "all of them are answered")
        assert seen.index(b"/other") < len(seen) // 2

    def test_a_client_that_sends_much_and_ends_its_half_gets_everything(self) -> None:
        async def empty(_: HttpRequest) -> HttpResponse:
            return HttpResponse(200)

        with serving() as server, Http2Client(server.http(empty)) as client:
            client.socket.sendall(self.flood(client))
            client.socket.shutdown(socket.SHUT_WR)
            answers = read_all(client.socket)
            assert answers.count(encode([(b":status", b"200")])[:1] + b"\x0f\x12\x1d") == self.MANY

    def test_a_client_that_sends_much_and_leaves_is_removed(self) -> None:
        with serving() as server:
            with Http2Client(server.http(much)) as client:
                client.socket.sendall(self.flood(client))
            until(lambda: server.listener.connections == 0, "it is gone")

    def test_after_the_last_turn_a_client_that_does_not_take_the_answer_is_not_read_from(self) -> None:
        """With the loop of asyncio, which reports within the turn that writing pauses."""
        unknown = frames.frame(0xFA, 0, 0, bytes(_TURN - 9))  # a turn of its own, and nothing to answer
        states: list[bool] = []

        async def huge(_: HttpRequest) -> HttpResponse:
            return HttpResponse(200, bytes(30_000_000))

        async def look() -> bool:
            (connection,) = [each for each in server.listener._registry.connections if isinstance(each, Http2Protocol)]
            assert connection._end.transport is not None
            if connection.is_blocked:
                states.append(connection._end.transport.is_reading())
            return connection.is_blocked

        with (
            serving(new_loop=asyncio.new_event_loop) as server,
            Http2Client(server.http(huge), initial_window_size=WIDE) as client,
        ):
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            widen(client)
            client.until_settled()
            with nothing_read(server):
                client.socket.sendall(unknown)
                stream = client.ask("/", end=True)
            until(lambda: server.run(look()), "it is not written to")
            assert states == [False]
            client.until(StreamEnded, stream)
            client.until_settled()  # it is read from again


@pytest.mark.parametrize("is_streaming", [False, True], ids=["request", "stream"])
def test_a_connection_that_is_gone_leaves_nothing_for_the_collector_of_garbage(is_streaming: object) -> None:
    async def wait(stream: MessageStream) -> None:
        await stream.send(b"I am waiting")
        await asyncio.get_running_loop().create_future()

    def count() -> int:
        return sum(type(each) is Http2Protocol for each in gc.get_objects())

    with serving() as server:
        port = server.grpc(Methods({}, {b"/t.T/Wait": wait})) if is_streaming else server.http()
        gc.collect()
        gc.disable()
        try:
            before = count()
            with Http2Client(port) as client:
                client.head(client.ask("/t.T/Wait", GRPC, end=True))
                assert count() > before
            until(lambda: count() == before, "it is forgotten")
        finally:
            gc.enable()


@pytest.mark.parametrize("is_grpc", [False, True], ids=["HTTP", "gRPC"])
def test_handlers_of_a_client_that_has_left_end_quietly(is_grpc: object) -> None:
    admissions = Admissions()
    with waiting(admissions.admission) as (server, latch):
        call, answer = Methods({b"/t.T/Call": latch.call}), latch.answer
        port = server.grpc(call) if is_grpc else server.http(answer)
        with Http2Client(port) as client:
            headers = GRPC | {"please": "yes", "grpc-timeout": "1H"}
            streams = [client.ask("/t.T/Call", headers) for _ in range(2)]
            for stream in streams:
                client.send(stream, framed(b""), end=True)
            latch.wait(2)
            client.machine.reset_stream(streams[0])
            client.flush()
        until(lambda: server.listener.connections == 0, "it is gone")
        assert "forget" not in admissions.seen
        latch.open()
        until(lambda: admissions.seen[-3:] == ["release", "release", "forget"], "all is released")


@pytest.mark.parametrize("reads", [False, True])
def test_a_method_waits_for_a_client_that_does_not_read_and_is_cancelled_when_that_takes_too_long(
    reads: object,
) -> None:
    seen: list[str] = []

    async def lots(stream: MessageStream) -> None:
        try:
            for _ in range(300 if reads else 1_000_000):
                await stream.send(b"x" * 100_000)
                seen.append("sent")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with serving(WireLimits(outgoing_bytes=200_000)) as server:
        port = server.grpc(Methods({}, {b"/t.T/Lots": lots}))
        with Http2Client(port, initial_window_size=WIDE) as client:
            widen(client)
            stream = client.ask("/t.T/Lots", GRPC)
            until(lambda: is_paused(server), "it is not read from")
            if reads:
                client.until(StreamEnded, stream)
                assert client.trailers(stream)["grpc-status"] == "0"
            else:
                server.pass_time(DEFAULT.write_time + 1)
                until(lambda: "cancelled" in seen, "it is given up")
                assert len(seen) < 1000
