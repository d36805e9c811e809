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
_ATTEMPTS = 5


def _program(name: str) -> str:
    """Return where a program is: Debian's is a wrapper on the path, which takes longer to start."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = str(installed[0]) if installed else shutil.which(name)
    assert found, f"{name} is needed: apt-get install postgresql"
    return found


class PostgresServer:
    """A server whose only user needs no password. It does not run as root, so that root lends it another user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder / "data", free_port()
        self._user: str | None = "postgres" if os.getuid() == 0 else None
        self.process: subprocess.Popen[bytes] | None = None
        self._may_move = True
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
            "--no-locale",  # that of the environment may not be installed
            "--no-sync",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=self._user, cwd=folder)

    def start(self) -> None:
        for _ in range(_ATTEMPTS):
            self._launch()
            until(lambda: self._is_ready() or not self._lives(), "PostgreSQL")
            if self._lives():
                self._may_move = False
                return
            assert self._may_move, "PostgreSQL does not start again"
            self.port = free_port()  # another process took the first one
        raise AssertionError("PostgreSQL does not start")

    def _launch(self) -> None:
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": ""}
        options |= {"fsync": "off", "autovacuum": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self.process = subprocess.Popen(
            [_program("postgres"), "-D", str(self.folder), *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd=self.folder,
        )

    def _lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _is_ready(self) -> bool:
        """Whether its file has that status: the server at the port may be another one."""
        try:
            process, *_, status = (self.folder / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, ValueError):  # there is none yet, or not all of it
            return False
        return self.process is not None and (process, status.strip()) == (str(self.process.pid), "ready")

    def database(self, like: str = "") -> str:
        """Make a new database, empty or a copy of the one with a URL, and return its URL."""
        name, template = f"test{next(_NUMBERS)}", like.rpartition("/")[2] or "template1"
        server = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "headgate"]
        subprocess.run([_program("createdb"), *server, "-T", template, name], check=True)
        return f"postgresql://headgate@127.0.0.1:{self.port}/{name}"

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it; if it is killed, its children end a moment later."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    with TemporaryDirectory(prefix="headgate-postgres-") as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
