"""A real PostgreSQL for tests: on a free port of the loopback, in a folder of its own, ended by its process id."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers import free_port, until

_NUMBERS = count()


def _program(name: str) -> str:
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    assert found, f"{name} is needed: apt-get install postgresql"
    return found


class PostgresServer:
    """A server whose only user needs no password. It does not run as root, so that root lends it another user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder / "data", free_port()
        self._user: str | None = "postgres" if os.getuid() == 0 else None
        self.process: subprocess.Popen[bytes] | None = None
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        command = [
            _program("initdb"),
            "-D",
            str(self.folder),
            "-U",
            "headgate",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=self._user, cwd=folder)

    def start(self) -> None:
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            [_program("postgres"), "-D", str(self.folder), *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self.folder,
        )
        until(self._answers, "PostgreSQL")

    def _answers(self) -> bool:
        command = [_program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "headgate"]
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0

    def database(self) -> str:
        """Make a new, empty database, and return its URL."""
        name = f"test{next(_NUMBERS)}"
        subprocess.run(
            [_program("createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "headgate", name], check=True
        )
        return f"postgresql://headgate@127.0.0.1:{self.port}/{name}"

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it: at once, unless told to kill it, in which case its children notice by themselves."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server for as long as the block lasts."""
    with TemporaryDirectory(prefix="headgate-postgres-") as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
