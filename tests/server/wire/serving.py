"""A listener in a thread of its own, for clients that block: sockets, programs, grpcio."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, PingAckReceived, ResponseReceived, TrailersReceived
from h2.settings import SettingCodes, Settings

from headgate.server.wire.admission import Admit
from headgate.server.wire.grpc.calls import Methods
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.listener import Listener
from headgate.server.wire.messages import HttpRequest, HttpResponse
from headgate.server.wire.tls import Tls

T = TypeVar("T")
E = TypeVar("E", bound=Event)
PATIENCE = 60.0
"""Seconds after which a test has failed."""


class Server:
    """A listener, and the loop it runs in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        self.loop, self.listener = loop, listener

    def http(self, handler: Any = None, tls: Tls | None = None) -> int:
        """Serve HTTP on a free port; return its number."""
        bound = socket.create_server(("127.0.0.1", 0), backlog=512)
        port: int = bound.getsockname()[1]
        self.run(self.listener.serve_http(handler or echo, bound, tls))
        return port

    def grpc(self, methods: Methods, tls: Tls | None = None) -> int:
        """Serve gRPC on a free port; return its number."""
        bound = socket.create_server(("127.0.0.1", 0), backlog=512)
        port: int = bound.getsockname()[1]
        self.run(self.listener.serve_grpc(methods, bound, tls))
        return port

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the listener."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def pass_time(self, seconds: float) -> None:
        """Look at all connections as they are now, and as if so many seconds had passed since."""

        async def look() -> None:
            now = self.loop.time()
            for moment in (now, now + seconds):
                for connection in list(self.listener._registry.connections):
                    connection.look(moment)

        self.run(look())

    def begin(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Begin to run a coroutine; what is returned waits for its end."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        return lambda: future.result(PATIENCE)


@contextmanager
def serving(
    limits: WireLimits = DEFAULT,
    admit: Admit | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[Server]:
    """Run a listener without ports."""
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


class Turnstile:
    """Lets handlers wait until a test lets them go; awaited in the server's loop, opened from the test."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._event = server.run(self._make())
        self.entered = threading.Semaphore(0)

    async def _make(self) -> asyncio.Event:
        return asyncio.Event()

    async def pass_through(self) -> None:
        self.entered.release()
        await self._event.wait()

    def wait(self, count: int = 1) -> None:
        """Wait until so many are waiting."""
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE)

    def open(self) -> None:
        self._server.loop.call_soon_threadsafe(self._event.set)


async def echo(request: HttpRequest) -> HttpResponse:
    """Answer with what was asked."""
    text = b" ".join([request.method, request.path, request.query, request.body])
    return HttpResponse(200, text, ((b"content-type", b"text/plain"),))


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
    """Read so many responses that have a length."""
    data = b""
    while True:
        ends = [match.end() + int(match[1]) for match in re.finditer(rb"content-length: (\d+)\r\n\r\n", data)]
        if len(ends) >= count and len(data) >= ends[count - 1]:
            return data
        part = client.recv(65536)
        assert part, data
        data += part


class Http2Client:
    """A connection that speaks HTTP/2, by the h2 package, and keeps its events."""

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
        """Begin a request; return the number of its stream."""
        stream = self.machine.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "http", ":authority": "api", ":path": path, **(headers or {})}
        self.machine.send_headers(stream, list(fields.items()), end_stream=end)
        self.flush()
        return stream

    def head(self, stream: int) -> dict[Any, Any]:
        """Return the headers of a response, when they are there."""
        return dict(self.until(ResponseReceived, stream).headers)

    def trailers(self, stream: int) -> dict[Any, Any]:
        """Return the trailers of a response, when they are there."""
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
        """Read until something has happened."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream in {None, getattr(event, "stream_id", None)}:
                    return event
            data = self.socket.recv(65536)
            assert data, self.events
            self.events += self.machine.receive_data(data)
            self.flush()


def curl(*arguments: str) -> str:
    """Return what curl prints."""
    program = shutil.which("curl")
    assert program, "curl is needed: apt-get install curl"
    command = [program, "--silent", "--show-error", "--max-time", str(PATIENCE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
