"""Real gateways for tests: the command in a process of its own, with Envoy and Headgate under it; and services."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import yaml

from tests.server.hostile import serving
from tests.servers import Reply, fetched, free_port, launched, until

SECONDS = 120
"""How long a test waits for an event that should be quick."""
PATIENT = {"timeout": "10s"}
"""A timeout of decisions that a busy machine does not reach."""


def _command(pid: int) -> bytes:
    """The command of a process; nothing if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class Gateway:
    """``headgate gateway`` with a file in a folder, once `started`."""

    def __init__(self, folder: Path, file: dict[str, Any]) -> None:
        self.folder, self.data = folder, file
        self.file = folder / "gateway.yaml"
        self.out, self.err = folder / "out", folder / "err"
        self.write(file)
        self.process = launched([sys.executable, "-m", "headgate.cli", "gateway", str(self.file)], folder)

    @property
    def port(self) -> int:
        """Of its first listener."""
        return int(self.data["listeners"][0]["port"])

    @property
    def admin(self) -> int:
        return int(self.data["admin"]["port"])

    def write(self, file: dict[str, Any]) -> None:
        """Replace its file in one step."""
        new = self.folder / "new.yaml"
        new.write_text(yaml.safe_dump(file))
        new.rename(self.file)
        self.data = file

    def changed(self, **fields: Any) -> None:
        """Change its file, and wait until that is in force."""
        before = self.loads()
        self.write({**self.data, **fields})
        until(lambda: self.loads() > before, "the change is in force", SECONDS)

    def loads(self, outcome: str = "in_force") -> int:
        """How many versions of its file were put in force, or refused."""
        return int(self.metric(f'headgate_gateway_loads_total{{outcome="{outcome}"}}'))

    def metrics(self) -> str:
        return self.get("/metrics", port=self.admin).body.decode()

    def metric(self, name: str) -> float:
        lines = self.metrics().splitlines()
        found = [line.rpartition(" ")[2] for line in lines if line.startswith((f"{name} ", f"{name}{{}} "))]
        return float(found[0]) if found else 0.0

    def started(self) -> Self:
        until(lambda: "try it" in self.out.read_text() or self.has_ended, "the gateway serves", SECONDS)
        assert not self.has_ended, self.err.read_text()
        return self

    def get(self, path: str = "/", method: str = "GET", *, port: int = 0, body: Any = None, **headers: Any) -> Reply:
        return fetched(port or self.port, path, method, body=body, **headers)

    def logged(self, text: str) -> dict[str, Any]:
        """Wait until the access log has a line with a text, and return it."""
        until(lambda: any(text in line for line in self._log()), f"{text!r} is logged", SECONDS)
        line: dict[str, Any] = json.loads(next(line for line in self._log() if text in line))
        return line

    def _log(self) -> list[str]:
        return [line for line in self.out.read_text().splitlines() if line.startswith("{") and line.endswith("}")]

    def children(self, name: str) -> list[int]:
        """The child processes of a program or module."""
        pid = self.process.pid
        found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [each for each in found if name.encode() in _command(each)]

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        until(lambda: self.has_ended, "it ends", SECONDS)
        code = self.process.returncode
        assert code is not None
        return code

    def stop(self) -> None:
        give_up = time.monotonic() + 10
        while not self.has_ended and time.monotonic() < give_up:
            self.process.send_signal(signal.SIGTERM)  # the second one ends it at once
            time.sleep(0.1)
        if not self.has_ended:
            self.process.kill()
            self.process.wait()


@contextmanager
def gateway(file: dict[str, Any], *, files: dict[str, str] | None = None) -> Iterator[Gateway]:
    """A gateway that is being started, for the length of a with block, with other files in its folder."""
    with TemporaryDirectory(prefix="headgate-gateways-") as folder:
        for name, text in (files or {}).items():
            (Path(folder) / name).write_text(text)
        found = Gateway(Path(folder), file)
        try:
            yield found
        finally:
            found.stop()


class Upstream(ThreadingHTTPServer):
    """A service: returns the request that it received, as JSON, and keeps its path."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Service)
        self.name = name
        self.port = int(self.server_address[1])
        self.served: list[str] = []
        self.held = threading.Event()
        """Requests for /held are answered when it is set."""

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections may be cut off, as when a proxy is killed."""


class _Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def do_GET(self) -> None:
        self.server.served.append(self.path)
        size = len(self.rfile.read(int(self.headers.get("content-length", 0))))
        if "/held" in self.path:
            self.server.held.wait(SECONDS)
        if "/stream" in self.path:
            self._stream()
            return
        fields = {name.lower(): value for name, value in self.headers.items()}
        received = {
            "service": self.server.name,
            "path": self.path,
            "method": self.command,
            "headers": fields,
            "size": size,
        }
        body = json.dumps(received).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if (cost := self.headers.get("x-tell-cost")) is not None:
            self.send_header("x-cost", cost)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_OPTIONS = do_GET  # noqa: N815  the names of the standard library

    def _stream(self) -> None:
        """Send a part, wait, and send another."""
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.wfile.flush()
        self.server.held.wait(SECONDS)
        self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the standard library
        pass


@contextmanager
def upstream(name: str) -> Iterator[Upstream]:
    """A service for the length of a with block."""
    with serving(Upstream(name)) as server:
        try:
            yield server
        finally:
            server.held.set()


class KeyServer(ThreadingHTTPServer):
    """Serves the keys of an issuer, or `answer`; if that is None, it does not respond."""

    daemon_threads = True

    def __init__(self, key: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Keys)
        self.good = json.dumps({"keys": [key]}).encode()
        self.answer: bytes | None = self.good
        self.status = 200
        self.requested = threading.Event()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_address[1]}/keys"


class _Keys(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        self.server.requested.set()
        if self.server.answer is None:
            self.server.ended.wait(SECONDS)
            return
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the standard library
        pass


@contextmanager
def key_server(key: dict[str, Any]) -> Iterator[KeyServer]:
    """The keys of an issuer, for the length of a with block: a public key, as a JWK."""
    with serving(KeyServer(key)) as server:
        try:
            yield server
        finally:
            server.ended.set()


def minimal(port: int, **fields: Any) -> dict[str, Any]:
    """A minimal file, with free ports, for one service."""
    return {
        "version": 1,
        "listeners": [{"port": free_port()}],
        "services": {"orders": {"endpoints": [f"127.0.0.1:{port}"]}},
        "routes": [{"path": "/", "service": "orders"}],
        "rules": {"rules": [{"id": "per-address", "dimension": "ip", "limit": 1000, "window": "1m"}]},
        "decisions": PATIENT,
        "admin": {"port": free_port()},
        "threads": 1,
        "drain_delay": 0,
        **fields,
    }
