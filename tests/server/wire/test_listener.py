"""A listener on real sockets, with real clients."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from headgate.server.wire import socket_end
from headgate.server.wire.grpc.calls import Methods
from headgate.server.wire.http1.protocol import Http1Protocol
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import HttpRequest, HttpResponse
from tests.server.serving import start
from tests.servers import until

from .http1.conversation import request, statuses
from .serving import (
    PATIENCE,
    Admissions,
    Http2Client,
    Server,
    connect,
    curl,
    read_all,
    read_responses,
    serving,
    waiting,
)

GET = request(line="GET / HTTP/1.1")
BOTH = pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
_LEAST_REQUEST = 75
"""Bytes. A request of curl has more, the beginning of HTTP/2 fewer."""


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_it_serves_both_versions_on_one_port(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with serving(new_loop=new_loop) as server:
        url = f"http://127.0.0.1:{server.http()}/a/b?c"
        assert curl(url) == "GET /a/b c "
        assert curl("--http1.0", url) == "GET /a/b c "
        assert curl("--http2", url) == "GET /a/b c "
        assert curl("--http2-prior-knowledge", url) == "GET /a/b c "
        assert curl("--http2-prior-knowledge", "--data", "body", url) == "POST /a/b c body"
        assert curl("--header", "Transfer-Encoding: chunked", "--data", "body", url) == "POST /a/b c body"
        assert curl("--header", "Expect: 100-continue", "--data", "x" * 5000, url).endswith("x" * 5000)
        assert "content-length" in curl("--head", url).lower()
        assert "content-length" in curl("--head", "--http2-prior-knowledge", url).lower()


def test_it_serves_sockets_that_are_bound_already_and_shared_ports(tmp_path: Path) -> None:
    path, unix = tmp_path / "socket", socket.socket(socket.AF_UNIX)
    unix.bind(str(path))
    unix.listen()
    bound = [socket.create_server(("127.0.0.1", 0), reuse_port=True)]
    bound.append(socket.create_server(bound[0].getsockname(), reuse_port=True))
    with serving() as one, serving() as other, bound[0].dup() as seen:
        one.http(bound=unix)
        ports = {server.http(bound=each) for server, each in zip((one, other), bound, strict=True)}
        assert curl("--unix-socket", str(path), "http://api/x") == "GET /x  "
        assert curl(f"http://127.0.0.1:{ports.pop()}/") == "GET /  "
        assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "the system probes silent clients"


@pytest.mark.parametrize("ends", [False, True], ids=["and goes on", "and ends its half"])
def test_many_pipelined_requests_are_answered_in_order(ends: object) -> None:
    async def count(received: HttpRequest) -> HttpResponse:
        if received.path.endswith(b"0"):
            await asyncio.sleep(0.01)
        return HttpResponse(200, received.path)

    with serving(WireLimits(pipelined=4)) as server, connect(server.http(count)) as client:
        client.sendall(b"".join([request(line=f"GET /{number} HTTP/1.1") for number in range(100)]))
        if ends:
            client.shutdown(socket.SHUT_WR)
        answers = read_responses(client, 100)
    assert re.findall(rb"\r\n\r\n/(\d+)", answers) == [b"%d" % number for number in range(100)]


def test_a_request_that_arrives_with_the_end_of_the_client_is_answered() -> None:
    """Its turn has not come then."""

    async def arrive(server: Server) -> None:
        (connection,) = [each for each in server.listener._registry.connections if isinstance(each, Http1Protocol)]
        assert connection._end.transport is not None
        connection.data_received(GET)
        if not connection.eof_received():  # as a transport does
            connection._end.transport.close()

    with serving() as server, connect(server.http()) as client:
        client.sendall(GET)
        read_responses(client)
        server.run(arrive(server))
        read_responses(client)


@BOTH
class TestFailures:
    def test_an_exception_of_a_handler_is_500_and_logged_once(
        self, version: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail(received: HttpRequest) -> HttpResponse:
            if received.path == b"/late":
                await asyncio.sleep(0)
            raise LookupError("of all things")

        with serving() as server, caplog.at_level(logging.ERROR):
            port = server.http(fail)
            for path in ("/late", "/some/path"):
                caplog.clear()
                answer = curl(version, "--include", f"http://127.0.0.1:{port}{path}?key=secret")
                assert answer.count(" 500") == 1
                assert "application/problem+json" in answer
                assert "of all things" not in answer
                assert [record.getMessage() for record in caplog.records] == [f"GET {path} failed"]
                assert all(record.exc_info for record in caplog.records)

    def test_a_handler_that_fails_before_it_can_be_awaited_is_let_go(self, version: str) -> None:
        def fail(_: HttpRequest) -> HttpResponse:
            raise LookupError("of all things")

        admissions = Admissions()
        with serving(admit=admissions.admission) as server:
            url = f"http://127.0.0.1:{server.http(fail)}/path"
            assert " 500" in curl(version, "--include", "--header", "please: yes", url)
            until(lambda: server.listener.connections == 0, "the connection is gone")
        assert admissions.seen[:2] == ["connect 127.0.0.1", "admit /path"]
        assert not {"hold", "release"} & {*admissions.seen}

    def test_a_response_that_cannot_be_sent_is_500(self, version: str) -> None:
        wrong = [None, HttpResponse(99), HttpResponse(200, b"", ((b"x-a", b"b\r\nc: d"),))]
        wrong.append(HttpResponse(200, cast("bytes", "text")))

        async def answer(received: HttpRequest) -> object:
            return wrong[int(received.path[1:])]

        with serving() as server:
            port = server.http(answer)
            for place in range(len(wrong)):
                assert " 500" in curl(version, "--include", f"http://127.0.0.1:{port}/{place}"), wrong[place]


@BOTH
@pytest.mark.parametrize("is_late", [False, True])
def test_admission_sees_requests_come_and_go(version: str, is_late: object) -> None:
    async def serve(_: HttpRequest) -> HttpResponse:
        if is_late:
            await asyncio.sleep(0.01)
        return HttpResponse(200, b"in")

    admissions = Admissions()
    with serving(admit=admissions.admission) as server:
        url = f"http://127.0.0.1:{server.http(serve)}/path?key"
        assert curl(version, "--header", "please: yes", url) == "in"
        until(lambda: "forget" in admissions.seen, "the connection is gone")
        held = ["hold", "release"] if is_late else []
        assert admissions.seen == ["connect 127.0.0.1", "admit /path", *held, "forget"]
        admissions.seen.clear()
        refused = curl(version, "--include", url)
        assert [text in refused for text in (" 503", "retry-after: 1", "Say please.")] == [True] * 3
        until(lambda: "forget" in admissions.seen, "the connection is gone")
        assert admissions.seen == ["connect 127.0.0.1", "admit /path", "forget"]


def test_a_connection_is_forgotten_when_the_last_request_is_over_and_not_before() -> None:
    admissions = Admissions()
    with waiting(admissions.admission) as (server, latch):
        with connect(server.http(latch.answer)) as client:
            client.sendall(request("please: yes", line="GET / HTTP/1.1"))
            latch.wait()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset
        until(lambda: server.listener.connections == 0, "it is gone")
        assert admissions.seen[-2:] == ["admit /", "hold"]
        latch.open()
        until(lambda: admissions.seen[-2:] == ["release", "forget"], "all is released")


class TestPatience:
    """Slow clients are cut off, and others do not notice."""

    @pytest.mark.parametrize(
        ("sent", "answer"),
        [
            (b"GET / HT", b"HTTP/1.1 408 "),
            (request("Content-Length: 10") + b"1", b"HTTP/1.1 408 "),
            (request("Transfer-Encoding: chunked") + b"1", b"HTTP/1.1 408 "),
            (b"PR", b""),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", b"\x07\0\0\0\0\0"),  # GOAWAY
        ],
    )
    def test_a_request_that_trickles(self, sent: bytes, answer: bytes) -> None:
        with serving(WireLimits(header_time=0.1, body_time=0.1)) as server:
            port = server.http()
            with connect(port) as slow:
                slow.sendall(sent)
                assert curl(f"http://127.0.0.1:{port}/") == "GET /  "
                found = read_all(slow)
        assert answer in found
        assert bool(found) == bool(answer)

    def test_headers_that_never_stop_trickling(self) -> None:
        """Each byte does not buy more time."""
        with serving(WireLimits(header_time=0.2)) as server, connect(server.http()) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nX-A: ")
            slow.settimeout(0.02)
            answer = b""
            for _ in range(1000):
                try:
                    slow.sendall(b"a")
                    answer = slow.recv(1000)
                except TimeoutError:
                    continue
                break
            assert statuses(answer) == [408]

    def test_an_http2_body_that_trickles(self) -> None:
        with serving(WireLimits(body_time=0.1)) as server, Http2Client(server.http()) as slow:
            stream = slow.ask("/")
            other = slow.ask("/other", method="GET", end=True)
            slow.send(stream, b"a bit")
            assert slow.head(other)[":status"] == "200"
            assert slow.head(stream)[":status"] == "408"

    def test_nothing_at_all(self) -> None:
        with serving() as server:
            port = server.http()
            with connect(port) as silent, connect(port) as idle:
                idle.sendall(GET)
                assert statuses(read_responses(idle)) == [200]
                until(lambda: server.listener.connections == 2, "both are there")
                server.pass_time(DEFAULT.idle_time + 1)
                assert read_all(silent) == read_all(idle) == b""

    def test_a_client_that_does_not_read(self) -> None:
        """It is not read from either, so its requests do not pile up here; in the end it is cut off."""

        async def much(received: HttpRequest) -> HttpResponse:
            return HttpResponse(200, b"x" * 100_000 if received.path == b"/" else b"little")

        with serving(WireLimits(write_time=0.1, outgoing_bytes=100_000)) as server:
            port = server.http(much)
            with connect(port) as greedy:
                greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                greedy.sendall(GET * 1000)
                until(lambda: server.listener.connections == 0, "the connection is gone")
                assert curl(f"http://127.0.0.1:{port}/other") == "little"

    def test_a_handler_has_the_time_it_needs_also_for_a_client_that_ends_its_half(self) -> None:
        with waiting() as (server, latch), ExitStack() as clients:
            port = server.http(latch.answer)
            first, second = (clients.enter_context(connect(port)) for _ in range(2))
            first.sendall(GET)
            first.shutdown(socket.SHUT_WR)
            latch.wait()
            until(lambda: server.listener.connections == 2, "both are there")
            server.pass_time(10_000)
            assert read_all(second) == b"", "the other is idle"
            latch.open()
            assert read_all(first).endswith(b"late")


def test_connections_are_bounded() -> None:
    with serving(WireLimits(connections=2)) as server:
        port = server.http()
        with connect(port) as one, connect(port) as two:
            for client in (one, two):
                client.sendall(GET)
                read_responses(client)
            with connect(port) as three:
                assert statuses(read_all(three)) == [503]
            one.sendall(GET)
            read_responses(one)
        until(lambda: server.listener.connections == 0, "they are gone")
        assert curl(f"http://127.0.0.1:{port}/") == "GET /  "


@pytest.mark.parametrize("how", ["some", "much, with its head", "much, after its head"])
def test_the_answer_to_a_bad_request_arrives_while_the_client_still_sends(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket closed with unread bytes would be reset, and the answer lost."""
    monkeypatch.setattr(socket_end, "_LINGER", PATIENCE)  # as much time as the rest takes on a busy machine
    go, head = threading.Event(), request("Content-Length: 30000000")
    with serving(WireLimits(body_bytes=10)) as server, connect(server.http()) as client:
        if how == "some":
            client.sendall(head + b"x" * 300_000)
        else:
            if how == "much, after its head":
                client.sendall(head)
                until(lambda: client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 413", "it is refused")
            server.loop.call_soon_threadsafe(go.wait, PATIENCE)  # so that the loop finds more than it usually does
            client.setblocking(False)
            with suppress(BlockingIOError):  # there is no more room
                client.send(b"" if how == "much, after its head" else head)
                while True:
                    client.send(b"x" * 100_000)
            go.set()
            client.settimeout(PATIENCE)
            client.sendall(b"x" * 10_000_000)
        assert statuses(read_all(client)) == [413]


def test_a_large_last_response_reaches_a_client_that_takes_its_time() -> None:
    async def much(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"x" * 30_000_000)

    with serving(WireLimits(write_time=1000)) as server, connect(server.http(much)) as client:
        client.sendall(request("Connection: close", line="GET / HTTP/1.1"))
        begun = client.recv(100)
        server.pass_time(DEFAULT.idle_time + 1)
        assert len(begun + read_all(client)) > 30_000_000


def test_the_grpc_port_explains_itself_to_other_clients() -> None:
    with serving() as server:
        url = f"http://127.0.0.1:{server.grpc(Methods())}/"
        assert "This port serves gRPC" in curl(url)
        assert "HTTP/1.1 505" in curl("--include", url)
        assert "HTTP/2 415" in curl("--include", "--http2-prior-knowledge", url)


def arrived_at(port: int) -> int:
    """Return how many unread bytes have arrived at a port, even on connections in its queue."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    lines = [line.split() for line in table]
    return sum(int(line[4].partition(":")[2], 16) for line in lines if line[1].endswith(f":{port:04X}"))


def tried(port: int) -> None:
    """Connect, and hang up. Whoever comes while the port is being closed may be reset before it is refused."""
    with suppress(ConnectionResetError):
        connect(port).close()


def curling(version: str, port: int) -> subprocess.Popen[bytes]:
    command = ["curl", "-s", "--max-time", str(PATIENCE), version, f"http://127.0.0.1:{port}/"]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


class TestDraining:
    @BOTH
    def test_requests_in_flight_are_answered_and_new_connections_refused(self, version: str) -> None:
        with waiting() as (server, latch):
            port = server.http(latch.answer)
            with curling(version, port) as client:
                latch.wait()
                drained = server.begin(server.listener.drain(PATIENCE))
                with pytest.raises(ConnectionRefusedError):
                    until(lambda: tried(port), "the port is closed")
                latch.open()
                assert client.communicate(timeout=PATIENCE)[0] == b"late"
            assert drained()
            assert server.listener.connections == 0

    def test_idle_connections_are_closed(self) -> None:
        with serving() as server:
            port = server.http()
            with connect(port) as silent, connect(port) as idle:
                idle.sendall(GET)
                read_responses(idle)
                assert server.run(server.listener.drain(PATIENCE))
                assert read_all(silent) == read_all(idle) == b""

    def test_a_close_resets_the_connections_in_the_queue(self) -> None:
        async def close(server: Server, port: int) -> socket.socket:
            client = connect(port)  # and the loop is busy with this
            await server.listener.close()
            return client

        with serving() as server, server.run(close(server, server.http())) as client:
            assert read_all(client) == b""
            gc.collect()  # a socket that was accepted, and is lost, would warn

    def test_after_the_grace_the_rest_is_cut_off(self) -> None:
        with waiting() as (server, latch), connect(server.http(latch.answer)) as client:
            client.sendall(GET)
            latch.wait()
            assert not server.run(server.listener.drain(0.05))
            assert read_all(client) == b""
            latch.open()

    @BOTH
    def test_a_connection_that_waits_to_be_accepted_is_served(self, version: str) -> None:
        """For its client, it is established."""
        with serving() as server:
            port, busy, drained = server.http(), threading.Event(), Future[bool]()

            def leave() -> None:
                busy.wait(PATIENCE)
                start(server.listener.drain(PATIENCE), drained.set_result, drained.set_exception)

            server.loop.call_soon_threadsafe(leave)
            with curling(version, port) as client:
                until(lambda: arrived_at(port) > _LEAST_REQUEST, "all of it has arrived")
                busy.set()
                assert client.communicate(timeout=PATIENCE)[0] == b"GET /  "
            assert drained.result(PATIENCE)


def unfinished(version: str) -> bytes:
    piece = b"x" * 100_000
    if version == "HTTP/1.1":
        return request("Content-Length: 200000") + piece
    if version == "in chunks":
        return request("Transfer-Encoding: chunked") + b"%x\r\n" % len(piece) + piece
    block = encode([(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")])
    return b"".join([frames.PREFACE, frames.settings([]), frames.headers(1, block), frames.data(1, b"x" * 10_000) * 10])


@pytest.mark.parametrize("version", ["HTTP/1.1", "in chunks", "HTTP/2"])
def test_clients_that_do_not_end_their_requests_are_closed_and_others_are_served(version: str) -> None:
    """The memory of all connections together is bounded."""
    with serving(WireLimits(held_bytes=300_000, header_time=0.1)) as server, ExitStack() as clients:
        port = server.http()
        for _ in range(20):
            client = clients.enter_context(connect(port))
            with suppress(ConnectionError):  # the first of them may be closed already
                client.sendall(unfinished(version))
        until(lambda: server.listener.connections <= 3, "most of them are closed")
        assert curl(f"http://127.0.0.1:{port}/") == "GET /  "
