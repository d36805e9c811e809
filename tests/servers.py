"""Real servers for tests: each on a free port of the loopback, in a folder of its own, ended by its process id."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

START_SECONDS = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A redis-server without persistence.

    Args:
        folder: where it runs.
        options: more lines of its configuration, such as ``"maxmemory 1mb"``.
    """

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        program = shutil.which("redis-server")
        assert program, "redis-server is needed: apt-get install redis-server"
        self.program, self.folder, self.options = program, folder, options
        self.port = port or free_port()
        self.socket = folder / f"redis-{self.port}.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0?timeout=5"

    def start(self) -> Self:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            "save ''",
            f"dir {self.folder}",
            "enable-debug-command local",
            *self.options,
        ]
        configuration = self.folder / f"redis-{self.port}.conf"
        configuration.write_text("\n".join(lines))
        log = (self.folder / f"redis-{self.port}.log").open("ab")
        with log:
            self.process = subprocess.Popen([self.program, str(configuration)], stdout=log, stderr=log)
        give_up = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, (self.folder / f"redis-{self.port}.log").read_text()
            assert time.monotonic() < give_up, "redis-server does not start"
            time.sleep(0.01)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> str:
        """Run a command through redis-cli, and return what it prints."""
        client = Path(self.program).with_name("redis-cli")
        result = subprocess.run([str(client), "-p", str(self.port), *words], capture_output=True, text=True, check=True)
        return result.stdout.strip()

    def send(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server for the length of a with block."""
    with TemporaryDirectory(prefix="headgate-redis-") as folder:
        server = RedisServer(Path(folder), *options)
        try:
            yield server.start()
        finally:
            server.stop()
