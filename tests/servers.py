"""Real servers for tests: each on a free port of the loopback, in a folder of its own, ended by its process id.

They end with the process that started them, even if that is killed. All parts of a test run, and several runs at once,
may start servers: none gets the port of another, also while that one is not running.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import hiredis
import msgspec

START_SECONDS = 60
"""How long a test waits for what should come soon; never what it is about."""
_ATTEMPTS = 20
_LAUNCHER = ThreadPoolExecutor(1, "servers")
"""Starts all servers: the kernel ends a child when the thread that started it is gone, and this one stays."""
_RESERVED: dict[int, socket.socket] = {}
"""What keeps a port from others, by port."""
_AT_EXIT = ExitStack()
"""Closes those that were not released."""
atexit.register(_AT_EXIT.close)


def launched(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    out: Path | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process; its output goes to `out` and `err` of a folder, or to a file."""
    if protector := shutil.which("setpriv"):
        command = [protector, "--pdeathsig", "TERM", *command]
    with (out or folder / "out").open("wb") as output, (folder / "err").open("wb") as err:
        return _LAUNCHER.submit(
            subprocess.Popen, command, stdout=output, stderr=err, env={**os.environ, **(environment or {})}, cwd=cwd
        ).result()


class Reply(NamedTuple):
    """The response of a server."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body) if self.body else None


def fetched(port: int, path: str = "/", method: str = "GET", *, body: object = None, **headers: Any) -> Reply:
    """Send a request on a new connection, with a body of bytes, in chunks, or as JSON.

    An underscore in the name of a header stands for a hyphen.
    """
    if body is not None and not isinstance(body, bytes | Iterator):
        body, headers = msgspec.json.encode(body), {"content-type": "application/json", **headers}
    with closing(HTTPConnection("127.0.0.1", port, timeout=2 * START_SECONDS)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): text for name, text in response.getheaders()}, response.read())


def free_port() -> int:
    """Return a port that was free, and not one that the system might give to a client's end of a connection.

    No other process gets it from here until this one ends or releases it. Whoever connects to it is refused until a
    server listens there, which may be any that binds with SO_REUSEADDR, as servers do.
    """
    while True:
        port, reserved = random.randrange(10_000, 32_000), socket.socket()
        try:
            reserved.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind, which had to be exclusive
        _RESERVED[port] = _AT_EXIT.enter_context(reserved)
        return port


def release_port(port: int) -> None:
    if reserved := _RESERVED.pop(port, None):
        reserved.close()


def until(seen: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    give_up = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < give_up, f"{what}: not in {seconds} s"
        time.sleep(0.01)


class RedisServer:
    """A redis-server without persistence.

    Args:
        folder: where it runs.
        options: more lines of its configuration, such as ``"maxmemory 1mb"``. In them ``{bus}`` is another free port,
            that of the cluster bus where there is one.
        password: what it wants to hear from its clients.
        in_cluster: it is to become a node of a cluster.
        sentinel: it is a sentinel, and keeps no data.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int | None = None,
        password: str = "",
        in_cluster: bool = False,
        sentinel: bool = False,
    ) -> None:
        program = shutil.which("redis-server")
        assert program, "redis-server is needed: apt-get install redis-server"
        self.program, self.folder, self.options, self.password = program, folder, options, password
        self.in_cluster, self.sentinel = in_cluster, sentinel
        self.port, self.bus = port or free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._may_move = port is None

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?connect_timeout=20&timeout=5"

    @property
    def socket(self) -> Path:
        return self.folder / f"redis-{self.port}.sock"

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> Self:
        """Start it; again on the same port if it ran before."""
        for _ in range(_ATTEMPTS):
            if self._started():
                self._may_move = False
                return self
            log = self._file("log").read_text()
            assert self._may_move, log
            assert "Failed listening on port" in log or "bind: Address already in use" in log, log
            self._release()
            self.port, self.bus = free_port(), free_port()
        raise AssertionError("no port is free")

    def _started(self) -> bool:
        configuration = self._file("conf")
        configuration.write_text("\n".join(self._lines()))
        command = [self.program, str(configuration), *["--sentinel"] * self.sentinel]
        if protector := shutil.which("setpriv"):
            command = [protector, "--pdeathsig", "KILL", *command]
        with self._file("log").open("ab") as log:
            self.process = _LAUNCHER.submit(subprocess.Popen, command, stdout=log, stderr=log).result()
        until(lambda: self._answers() or not self._lives(), "redis-server answers")
        if self._lives():
            return True
        self.process = None
        return False

    def _lines(self) -> Iterable[str]:
        yield from (f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}")
        yield from (f"unixsocket {self.socket}", f"pidfile {self._file('pid')}")
        if not self.sentinel:
            yield from ("save ''", "enable-debug-command local")
            yield from ("repl-diskless-sync-delay 0", "repl-ping-replica-period 1")
        if self.password:
            yield from (f"requirepass {self.password}", f"masterauth {self.password}")
        if self.in_cluster:
            yield from ("cluster-enabled yes", f"cluster-port {self.bus}", f"cluster-config-file {self.port}.nodes")
        yield from (line.replace("{bus}", str(self.bus)) for line in self.options)

    def _file(self, kind: str) -> Path:
        return self.folder / f"redis-{self.port}.{kind}"

    def _lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _answers(self) -> bool:
        try:
            self.ask("PING")  # through the socket, which can be no other's: the port may be another server's
        except OSError:
            return False
        except hiredis.ReplyError as error:
            return str(error).startswith("NOAUTH")
        return True

    def ask(self, *words: str | bytes | int) -> Any:
        """Run a command; a reply has bytes, and one that is an error is raised."""
        commands = [_packed("AUTH", self.password)] * bool(self.password) + [_packed(*words)]
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(self.socket))
            connection.sendall(b"".join(commands))
            for _ in commands:
                while (reply := reader.gets()) is False:
                    data = connection.recv(65_536)
                    if not data:
                        raise ConnectionResetError("closed by the server")
                    reader.feed(data)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def facts(self, *words: str) -> dict[str, str]:
        """Return the facts that an INFO command prints."""
        try:
            text = self.ask(*words).decode()
        except ConnectionError:  # a server that is made a replica hangs up on everybody, once
            text = self.ask(*words).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def immortal(self) -> list[bytes]:
        keys, cursor = [], b"0"
        while True:
            cursor, found = self.ask("SCAN", cursor, "COUNT", 1000)
            keys += found
            if cursor == b"0":
                return [key for key in keys if self.ask("PTTL", key) == -1]

    def send(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stop(self) -> None:
        """End it by SIGKILL."""
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """Stop it for good."""
        self.stop()
        self._release()

    def _release(self) -> None:
        for port in (self.port, self.bus):
            release_port(port)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    with own_folder() as folder, ending([server := RedisServer(folder, *options)]):
        yield server.start()


def _packed(*words: str | bytes | int) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def places(servers: Iterable[RedisServer]) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def leader_of(server: RedisServer) -> int:
    """Return the port of the primary that a server follows, or 0."""
    return int(server.facts("INFO", "replication").get("master_port", "0"))


def is_in_step(server: RedisServer) -> bool:
    """Is the server no replica, or one that has what its primary has?"""
    facts = server.facts("INFO", "replication")
    return facts["role"] == "master" or facts["master_link_status"] == "up"


@contextmanager
def own_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="headgate-redis-") as folder:
        yield Path(folder)


@contextmanager
def ending(servers: list[RedisServer]) -> Iterator[None]:
    """End all servers of a list, also those that are added meanwhile, after a with block."""
    try:
        yield
    finally:
        for server in servers:
            server.end()
