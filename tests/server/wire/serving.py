"""A listener in a thread, for blocking clients: sockets, programs, grpcio."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, PingAckReceived, ResponseReceived, TrailersReceived
from h2.settings import SettingCodes, Settings

from headgate.server.wire.admission import Admit, NotAdmitted
from headgate.server.wire.grpc.calls import Methods, StatusCode, UnaryCall
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.listener import Listener
from headgate.server.wire.messages import Headers, HttpRequest, HttpResponse, Peer
from headgate.server.wire.tls import Tls

T = TypeVar("T")
E = TypeVar("E", bound=Event)
PATIENCE = 60.0
"""Seconds after which a test has failed."""


class Server:
    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self.loop, self.listener = loop, listener

    def http(self, handler: Any = None, tls: Tls | None = None, bound: socket.socket | None = None) -> int:
        bound = bound or socket.create_server(("127.0.0.1", 0), backlog=512)
        port: int = bound.getsockname()[1]
        self.run(self.listener.serve_http(handler or echo, bound, tls))
        return port

    def grpc(self, methods: Methods, tls: Tls | None = None) -> int:
        bound = socket.create_server(("127.0.0.1", 0), backlog=512)
        port: int = bound.getsockname()[1]
        self.run(self.listener.serve_grpc(methods, bound, tls))
        return port

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def pass_time(self, seconds: float) -> None:
        """Look at all connections as they are now, and as if so many seconds had passed since."""

        async def look() -> None:
            now = self.loop.time()
            for moment in (now, now + seconds):
                for connection in list(self.listener._registry.connections):
                    connection.enforce_timeouts(moment)

        self.run(look())

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        return lambda: future.result(PATIENCE)


@contextmanager
def serving(
    limits: WireLimits = DEFAULT,
    admit: Admit | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[Server]:
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = asyncio.run_coroutine_threadsafe(_listener(limits, admit), loop).result(PATIENCE)
    server = Server(loop, listener)
    try:
        yield server
    finally:
        server.run(listener.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _listener(limits: WireLimits, admit: Admit | None) -> Listener:
    return Listener(limits, admit)


class Latch:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._event = asyncio.Event()
        self.entered = threading.Semaphore(0)

    async def hold(self) -> None:
        self.entered.release()
        await self._event.wait()

    async def answer(self, _: HttpRequest) -> HttpResponse:
        await self.hold()
        return HttpResponse(200, b"late")

    async def call(self, call: UnaryCall) -> bytes:
        await self.hold()
        return call.message

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE)

    def open(self) -> None:
        self._server.loop.call_soon_threadsafe(self._event.set)


class Admissions:
    """Admits requests with the header ``please``, and records the calls of all connections and their end."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def admission(self, peer: Peer) -> RecordedAdmission:
        self.seen.append(f"connect {peer.address}")
        return RecordedAdmission(self.seen)


class RecordedAdmission:
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

    admit_stream, release_stream = admit, release


async def echo(request: HttpRequest) -> HttpResponse:
    text = b" ".join([request.method, request.path, request.query, request.body])
    return HttpResponse(200, text, ((b"content-type", b"text/plain"),))


@contextmanager
def waiting(admit: Admit | None = None) -> Iterator[tuple[Server, Latch]]:
    with serving(admit=admit) as server:
        yield server, Latch(server)


def connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), PATIENCE)
    client.settimeout(PATIENCE)
    return client


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes; a reset is an end too."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_responses(client: socket.socket, count: int = 1) -> bytes:
    data = b""
    while True:
        ends = [match.end() + int(match[1]) for match in re.finditer(rb"content-length: (\d+)\r\n\r\n", data)]
        if len(ends) >= count and len(data) >= ends[count - 1]:
            return data
        part = client.recv(65536)
        assert part, data
        data += part


class Http2Client:
    def __init__(self, port: int, **settings: int) -> None:
        self.socket = connect(port)
        self.machine = H2Connection(H2Configuration(header_encoding="utf-8"))
        if settings:
            values = {SettingCodes[name.upper()]: value for name, value in settings.items()}
            self.machine.local_settings = Settings(client=True, initial_values=values)
        self.machine.initiate_connection()
        self.events: list[Event] = []
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.machine.data_to_send())

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, *, method: str = "POST", end: bool = False
    ) -> int:
        stream = self.begin(path, headers or {}, method=method, end=end)
        self.flush()
        return stream

    def begin(self, path: str, headers: Mapping[str, str], *, method: str = "POST", end: bool = False) -> int:
        stream = self.machine.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "http", ":authority": "api", ":path": path, **headers}
        self.machine.send_headers(stream, list(fields.items()), end_stream=end)
        return stream

    def head(self, stream: int) -> dict[Any, Any]:
        return dict(self.until(ResponseReceived, stream).headers)

    def trailers(self, stream: int) -> dict[Any, Any]:
        return dict(self.until(TrailersReceived, stream).headers)

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self.machine.send_data(stream, data, end_stream=end)
        self.flush()

    def until_settled(self) -> None:
        """Read until the server has answered a ping, and so all before it."""
        self.machine.ping(b"12345678")
        self.flush()
        self.until(PingAckReceived)

    def until(self, kind: type[E], stream: int | None = None) -> E:
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream in {None, getattr(event, "stream_id", None)}:
                    return event
            data = self.socket.recv(65536)
            assert data, self.events
            self.events += self.machine.receive_data(data)
            self.flush()


def curl(*arguments: str) -> str:
    program = shutil.which("curl")
    assert program, "curl is needed: apt-get install curl"
    command = [program, "--silent", "--show-error", "--max-time", str(PATIENCE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
