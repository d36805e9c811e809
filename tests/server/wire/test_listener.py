"""A listener on real sockets, with real clients."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import shutil
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from headgate.server.wire import socket_end
from headgate.server.wire.admission import NotAdmitted
from headgate.server.wire.grpc.calls import Methods, StatusCode
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import Headers, HttpRequest, HttpResponse, Peer
from tests.server.starting import start
from tests.servers import until

from .http1.conversation import request, statuses
from .serving import PATIENCE, Http2Client, Server, Turnstile, connect, curl, echo, read_all, read_responses, serving

GET = request(line="GET / HTTP/1.1")
_LEAST_REQUEST = 75
"""Bytes. A request of curl has more; and what HTTP/2 begins with has fewer."""


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


def test_it_serves_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.listen()
    with serving() as server:
        server.run(server.listener.serve_http(echo, bound))
        assert curl("--unix-socket", str(path), "http://api/x") == "GET /x  "


def test_the_system_probes_clients_that_are_silent() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    with bound.dup() as seen, serving() as server:
        server.run(server.listener.serve_http(echo, bound))
        with connect(seen.getsockname()[1]) as client:
            client.sendall(GET)
            read_responses(client)
            assert seen.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_it_serves_a_socket_that_is_bound_already() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    with serving() as server:
        server.run(server.listener.serve_http(echo, bound))
        assert curl(f"http://127.0.0.1:{port}/") == "GET /  "


def test_a_port_can_be_shared_by_listeners() -> None:
    shared = [socket.create_server(("127.0.0.1", 0), reuse_port=True)]
    port = shared[0].getsockname()[1]
    shared.append(socket.create_server(("127.0.0.1", port), reuse_port=True))
    with serving() as one, serving() as other:
        for server, bound in zip((one, other), shared, strict=True):
            server.run(server.listener.serve_http(echo, bound))
        assert curl(f"http://127.0.0.1:{port}/") == "GET /  "


@pytest.mark.parametrize("ends", [False, True], ids=["and goes on", "and ends its half"])
def test_many_pipelined_requests_are_answered_in_order(ends: object) -> None:
    async def count(asked: HttpRequest) -> HttpResponse:
        if asked.path.endswith(b"0"):
            await asyncio.sleep(0.01)
        return HttpResponse(200, asked.path)

    with serving(WireLimits(pipelined=4)) as server, connect(server.http(count)) as client:
        client.sendall(b"".join([request(line=f"GET /{number} HTTP/1.1") for number in range(100)]))
        if ends:
            client.shutdown(socket.SHUT_WR)
        answers = read_responses(client, 100)
    assert re.findall(rb"\r\n\r\n/(\d+)", answers) == [b"%d" % number for number in range(100)]


def test_a_client_that_ends_its_half_is_still_answered() -> None:
    async def late(_: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0.01)
        return HttpResponse(200, b"late")

    with serving() as server, connect(server.http(late)) as client:
        client.sendall(GET)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).endswith(b"late")


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
class TestFailures:
    """A handler that fails is answered for, and the connection goes on."""

    @pytest.mark.parametrize("is_late", [False, True])
    def test_what_a_handler_raises_is_500_and_logged_once(
        self, version: str, is_late: object, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail(_: HttpRequest) -> HttpResponse:
            if is_late:
                await asyncio.sleep(0)
            raise LookupError("of all things")

        with serving() as server, caplog.at_level(logging.ERROR):
            url = f"http://127.0.0.1:{server.http(fail)}/some/path?key=secret"
            answer = curl(version, "--include", url)
        assert answer.count(" 500") == 1
        assert "application/problem+json" in answer
        assert "of all things" not in answer
        assert [record.getMessage() for record in caplog.records] == ["GET /some/path failed"]
        assert all(record.exc_info for record in caplog.records)

    def test_a_handler_that_fails_before_it_can_be_awaited_is_let_go(self, version: str) -> None:
        def fail(_: HttpRequest) -> HttpResponse:
            raise LookupError("of all things")

        door = Bouncer()
        with serving(admit=door.admission) as server:
            url = f"http://127.0.0.1:{server.http(fail)}/door"
            assert " 500" in curl(version, "--include", "--header", "please: yes", url)
            until(lambda: server.listener.connections == 0, "the connection is gone")
        assert door.seen[:2] == ["connect 127.0.0.1", "admit /door"]
        assert not {"hold", "release"} & {*door.seen}

    @pytest.mark.parametrize(
        "response",
        [
            None,
            HttpResponse(99),
            HttpResponse(200, b"", ((b"x-a", b"b\r\nc: d"),)),
            HttpResponse(200, cast("bytes", "text")),
        ],
    )
    def test_a_response_that_cannot_be_sent_is_500(self, version: str, response: object) -> None:
        async def wrong(_: HttpRequest) -> object:
            return response

        with serving() as server:
            assert " 500" in curl(version, "--include", f"http://127.0.0.1:{server.http(wrong)}/")


class Bouncer:
    """Admits who says please, and notes what happens on all connections, also when one is forgotten."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def admission(self, peer: Peer) -> BouncerAdmission:
        self.seen.append(f"connect {peer.address}")
        return BouncerAdmission(self.seen)


class BouncerAdmission:
    """The admission of one connection."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen
        weakref.finalize(self, seen.append, "forget")

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        self._seen.append(f"admit {path.decode()}")
        if (b"please", b"yes") in headers:
            return None
        return NotAdmitted(503, StatusCode.RESOURCE_EXHAUSTED, "Say please.", ((b"retry-after", b"1"),))

    def hold(self) -> None:
        self._seen.append("hold")

    def release(self) -> None:
        self._seen.append("release")

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        return self.admit(path, headers)

    def release_stream(self) -> None:
        self.release()


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
@pytest.mark.parametrize("is_late", [False, True])
def test_admission_sees_requests_come_and_go(version: str, is_late: object) -> None:
    async def serve(_: HttpRequest) -> HttpResponse:
        if is_late:
            await asyncio.sleep(0.01)
        return HttpResponse(200, b"in")

    door = Bouncer()
    with serving(admit=door.admission) as server:
        url = f"http://127.0.0.1:{server.http(serve)}/door?key"
        assert curl(version, "--header", "please: yes", url) == "in"
        until(lambda: "forget" in door.seen, "the connection is gone")
        held = ["hold", "release"] if is_late else []
        assert door.seen == ["connect 127.0.0.1", "admit /door", *held, "forget"]
        door.seen.clear()
        refused = curl(version, "--include", url)
        assert " 503" in refused
        assert "retry-after: 1" in refused
        assert "Say please." in refused
        until(lambda: "forget" in door.seen, "the connection is gone")
        assert door.seen == ["connect 127.0.0.1", "admit /door", "forget"]


class TestPatience:
    """Who is slow is cut off, and others do not notice."""

    def test_headers_that_trickle(self) -> None:
        with serving(WireLimits(header_time=0.1)) as server:
            port = server.http()
            with connect(port) as slow:
                slow.sendall(b"GET / HT")
                assert curl(f"http://127.0.0.1:{port}/") == "GET /  "
                assert statuses(read_all(slow)) == [408]

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

    @pytest.mark.parametrize("head", [request("Content-Length: 10"), request("Transfer-Encoding: chunked")])
    def test_a_body_that_trickles(self, head: bytes) -> None:
        with serving(WireLimits(body_time=0.1)) as server:
            port = server.http()
            with connect(port) as slow:
                slow.sendall(head + b"1")
                assert curl(f"http://127.0.0.1:{port}/") == "GET /  "
                assert statuses(read_all(slow)) == [408]

    @pytest.mark.parametrize("sent", [b"", GET])
    def test_nothing_at_all(self, sent: bytes) -> None:
        with serving() as server, connect(server.http()) as idle:
            until(lambda: server.listener.connections == 1, "it is there")
            idle.sendall(sent)
            answer = read_responses(idle) if sent else b""
            assert statuses(answer) == ([200] if sent else [])
            server.pass_time(DEFAULT.idle_time + 1)
            assert read_all(idle) == b""

    def test_a_preface_that_trickles(self) -> None:
        with serving(WireLimits(header_time=0.1)) as server, connect(server.http()) as slow:
            slow.sendall(b"PR")
            assert read_all(slow) == b""

    def test_an_http2_client_that_never_gets_to_the_point(self) -> None:
        with serving(WireLimits(header_time=0.1)) as server, connect(server.http()) as slow:
            slow.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0")
            assert b"\x07\0\0\0\0\0" in read_all(slow), "GOAWAY"

    def test_an_http2_body_that_trickles(self) -> None:
        with serving(WireLimits(body_time=0.1)) as server, Http2Client(server.http()) as slow:
            stream = slow.ask("/")
            other = slow.ask("/other", method="GET", end=True)
            slow.send(stream, b"a bit")
            assert slow.head(other)[":status"] == "200"
            assert slow.head(stream)[":status"] == "408"

    def test_a_client_that_does_not_read(self) -> None:
        """It is not read from either, so its requests do not pile up here; in the end it is cut off."""

        async def much(asked: HttpRequest) -> HttpResponse:
            return HttpResponse(200, b"x" * 100_000 if asked.path == b"/" else b"little")

        with serving(WireLimits(write_time=0.1, outgoing_bytes=100_000)) as server:
            port = server.http(much)
            with connect(port) as greedy:
                greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                greedy.sendall(GET * 1000)
                until(lambda: server.listener.connections == 0, "the connection is gone")
                assert curl(f"http://127.0.0.1:{port}/other") == "little"

    def test_a_handler_has_the_time_it_needs(self) -> None:
        with serving() as server:
            turnstile = Turnstile(server)

            async def serve(_: HttpRequest) -> HttpResponse:
                await turnstile.pass_through()
                return HttpResponse(200, b"late")

            port = server.http(serve)
            with connect(port) as first, connect(port) as second:
                first.sendall(GET)
                turnstile.wait()
                until(lambda: server.listener.connections == 2, "both are there")
                server.pass_time(10_000)
                assert read_all(second) == b"", "the other is idle"
                turnstile.open()
                assert read_responses(first).endswith(b"late")


def test_there_are_no_more_connections_than_may_be() -> None:
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


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client that is told the end have as much time for the rest as it takes on a busy machine."""
    monkeypatch.setattr(socket_end, "_LINGER", PATIENCE)


@pytest.mark.usefixtures("lingering")
def test_the_answer_to_a_bad_request_arrives_while_the_client_still_sends() -> None:
    """A socket closed with unread bytes would be reset, and the answer lost."""
    with serving(WireLimits(body_bytes=10)) as server, connect(server.http()) as client:
        client.sendall(request("Content-Length: 3000000") + b"x" * 300_000)
        assert statuses(read_all(client)) == [413]


@pytest.mark.usefixtures("lingering")
@pytest.mark.parametrize("is_apart", [False, True], ids=["with its body", "and then its body"])
def test_the_answer_to_a_bad_request_arrives_while_the_client_sends_much_at_once(is_apart: object) -> None:
    go = threading.Event()
    head = request("Content-Length: 30000000")
    with serving(WireLimits(body_bytes=10)) as server, connect(server.http()) as client:
        if is_apart:
            client.sendall(head)
            until(lambda: client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 413", "it is refused")
        server.loop.call_soon_threadsafe(go.wait, PATIENCE)  # so that the loop finds more than it usually does
        client.setblocking(False)
        with suppress(BlockingIOError):  # there is no more room
            client.send(b"" if is_apart else head)
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


def test_the_grpc_port_tells_other_clients_what_it_is() -> None:
    with serving() as server:
        url = f"http://127.0.0.1:{server.grpc(Methods())}/"
        assert "This port speaks gRPC" in curl(url)
        assert "HTTP/1.1 505" in curl("--include", url)
        assert "HTTP/2 415" in curl("--include", "--http2-prior-knowledge", url)


def arrived_at(port: int) -> int:
    """Return how many bytes have come to a port on connections that nobody has accepted, or read from."""
    table = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    lines = [line.split() for line in table]
    return sum(int(line[4].partition(":")[2], 16) for line in lines if line[1].endswith(f":{port:04X}"))


def tried(port: int) -> None:
    """Connect, and hang up. Whoever comes while the port is being closed may be reset before it is refused."""
    with suppress(ConnectionResetError):
        connect(port).close()


class TestDraining:
    @pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
    def test_requests_in_flight_are_answered_and_new_connections_refused(self, version: str) -> None:
        with serving() as server:
            turnstile = Turnstile(server)

            async def serve(_: HttpRequest) -> HttpResponse:
                await turnstile.pass_through()
                return HttpResponse(200, b"late")

            port = server.http(serve)
            command = ["curl", "-s", "--max-time", str(PATIENCE), version, f"http://127.0.0.1:{port}/"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
                turnstile.wait()
                drained = server.begin(server.listener.drain(PATIENCE))
                with pytest.raises(ConnectionRefusedError):
                    until(lambda: tried(port), "the port is closed")
                turnstile.open()
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
                assert read_all(silent) == b""
                assert read_all(idle) == b""

    def test_who_waits_to_be_accepted_is_reset_by_a_close(self) -> None:
        async def close(server: Server, port: int) -> socket.socket:
            client = connect(port)  # and the loop is busy with this
            await server.listener.close()
            return client

        with serving() as server, server.run(close(server, server.http())) as client:
            assert read_all(client) == b""
            gc.collect()  # a socket that was accepted, and is lost, would warn

    def test_after_the_grace_the_rest_is_cut_off(self) -> None:
        with serving() as server:
            turnstile = Turnstile(server)

            async def serve(_: HttpRequest) -> HttpResponse:
                await turnstile.pass_through()
                return HttpResponse(200)

            with connect(server.http(serve)) as client:
                client.sendall(GET)
                turnstile.wait()
                assert not server.run(server.listener.drain(0.05))
                assert read_all(client) == b""
                turnstile.open()

    @pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
    def test_a_connection_that_waits_to_be_accepted_is_served(self, version: str) -> None:
        """It reached the system, and the client does not know that nobody has looked at it."""
        with serving() as server:
            port = server.http()
            busy = threading.Event()
            drained: Future[bool] = Future()

            def leave() -> None:
                busy.wait(PATIENCE)
                start(server.listener.drain(PATIENCE), drained.set_result, drained.set_exception)

            server.loop.call_soon_threadsafe(leave)
            command = ["curl", "-s", "--max-time", str(PATIENCE), version, f"http://127.0.0.1:{port}/"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
                until(lambda: arrived_at(port) > _LEAST_REQUEST, "all of it has arrived")
                busy.set()
                assert client.communicate(timeout=PATIENCE)[0] == b"GET /  "
            assert drained.result(PATIENCE)

    @pytest.mark.parametrize("options", [["--h1"], ["-m", "10"]], ids=["HTTP/1.1", "HTTP/2"])
    def test_no_request_under_load_fails(self, options: list[str]) -> None:
        """All that a client has begun are answered; what it could not begin any more it reports as not started."""
        program = shutil.which("h2load")
        assert program, "h2load is needed: apt-get install nghttp2-client"
        served = 0

        async def serve(_: HttpRequest) -> HttpResponse:
            nonlocal served
            served += 1
            if served % 3 == 0:
                await asyncio.sleep(0.001)
            return HttpResponse(200, b"yes")

        with serving() as server:
            url = f"http://127.0.0.1:{server.http(serve)}/"
            command = [program, "-c", "8", "-n", "2000000", *options, url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
                until(lambda: served > 500, "there is load")
                assert server.run(server.listener.drain(PATIENCE))
                report = load.communicate(timeout=PATIENCE)[0]
        counts = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", report)
        assert counts, report
        codes = re.search(r"status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx", report)
        assert codes, report
        assert int(codes[1]) == served


class TestMemory:
    """What is kept for all connections together has an end."""

    LIMITS = WireLimits(held_bytes=300_000, header_time=0.1)

    def body(self, version: str, piece: bytes) -> bytes:
        """Return the beginning of a request that goes on with 100 000 bytes, in one version or another of HTTP."""
        if version == "HTTP/1.1":
            return b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + piece
        if version == "in chunks":
            return b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(piece) + piece
        block = encode([(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")])
        parts = [piece[start : start + 10_000] for start in range(0, len(piece), 10_000)]
        sent = [
            frames.PREFACE,
            frames.settings([]),
            frames.headers(1, block),
            *[frames.data(1, part) for part in parts],
        ]
        return b"".join(sent)

    @pytest.mark.parametrize("version", ["HTTP/1.1", "in chunks", "HTTP/2"])
    def test_clients_that_do_not_end_their_requests_are_closed_and_others_are_served(self, version: str) -> None:
        with serving(self.LIMITS) as server, ExitStack() as clients:
            port = server.http()
            for _ in range(20):
                client = clients.enter_context(connect(port))
                with suppress(ConnectionError):  # the first of them may be closed already
                    client.sendall(self.body(version, b"x" * 100_000))
            until(lambda: server.listener.connections <= 3, "most of them are closed")
            assert curl(f"http://127.0.0.1:{port}/") == "GET /  "
