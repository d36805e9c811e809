"""A real ``headgate serve`` in processes of its own, and clients that load it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import msgspec

from headgate.server.configuration import EXAMPLE
from tests.servers import _LAUNCHER, until

CHECK = "/api/v1/rate-limit/check"
SECONDS = 120
"""How long a test waits for what should come soon."""
PATIENCE = 10
"""How long a service may take to end at once."""


def _rules(options: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    """Return where the rules are, if nobody says: in the example, without a database."""
    given = {"--rules", "--database", "--envoy-config"} & set(options)
    return () if given or {"HEADGATE_RULES", "HEADGATE_DATABASE"} & set(environment) else ("--rules", str(EXAMPLE))


def _exchanged(port: int, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
    """Ask on a connection of its own, and return the status and the content of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        if body is not None:
            headers["content-type"] = "application/json"
        connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Service:
    """A service on free ports, once `started`.

    Args:
        folder: for what it writes.
        options: of the command.
        environment: in addition to this process's.
        program: what Python is to run, rather than the command as it is.
        out: where its output goes, if not into a file.
        cwd: the folder that it runs in, if not this process's.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "headgate.cli"),
        out: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.cwd = cwd
        self.out, self.err = out or folder / "out", folder / "err"
        self.kept = "", ""
        """What it said and complained, where its folder is gone."""
        ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
        at_once = () if "--drain-delay" in options else ("--drain-delay", "0")
        command = [sys.executable, *program, "serve", *ports, *at_once, *_rules(options, environment or {}), *options]
        if protector := shutil.which("setpriv"):
            command = [protector, "--pdeathsig", "TERM", *command]
        with self.out.open("wb") as said, self.err.open("wb") as err:
            self.process: subprocess.Popen[bytes] = _LAUNCHER.submit(
                subprocess.Popen, command, stdout=said, stderr=err, env={**os.environ, **(environment or {})}, cwd=cwd
            ).result()

    def started(self) -> Self:
        """Wait until it serves."""
        until(lambda: "curl" in self.said or self.has_ended, "it serves", SECONDS)
        assert not self.has_ended, self.complained
        return self

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def complained(self) -> str:
        return self.err.read_text()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def trial(self) -> list[str]:
        """The command line of curl that it suggests."""
        (line,) = [line for line in self.said.splitlines() if line.strip().startswith("curl")]
        return shlex.split(line)

    @property
    def own_trial(self) -> list[str]:
        """The command line of our own that it suggests."""
        (line,) = [line for line in self.said.splitlines() if " check " in line]
        return shlex.split(line)

    @property
    def http_port(self) -> int:
        return self._port(r"HTTP +https?://\S+:(\d+)")

    @property
    def grpc_port(self) -> int:
        return self._port(r"gRPC +\S+:(\d+)")

    @property
    def admin_port(self) -> int:
        return self._port(r"admin +https?://\S+:(\d+)")

    def _port(self, pattern: str) -> int:
        found = re.search(pattern, self.said)
        assert found, self.said
        return int(found[1])

    def workers(self) -> set[int]:
        """The processes that the supervisor has."""
        pid = self.process.pid
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def check(self, user: str, endpoint: str = "/api/v1/orders", **headers: str) -> dict[str, Any]:
        """Ask once, on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=SECONDS)
        try:
            answer: dict[str, Any] = msgspec.json.decode(asked(connection, user, endpoint, **headers))
            return answer
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, bytes]:
        return _exchanged(self.http_port, "GET", path)

    def post(self, path: str, body: object) -> tuple[int, bytes]:
        return _exchanged(self.http_port, "POST", path, body)

    def admin(self, key: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask the admin plane."""
        status, content = _exchanged(self.admin_port, method, f"/api/v1{path}", body, authorization=f"Bearer {key}")
        return status, msgspec.json.decode(content) if content else None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        until(lambda: self.has_ended, "it ends", SECONDS)
        code = self.process.returncode
        assert code is not None
        return code

    def stop(self) -> None:
        """End it, whatever it does."""
        give_up = time.monotonic() + PATIENCE
        while not self.has_ended and time.monotonic() < give_up:
            self.process.terminate()  # the second one ends it at once
            time.sleep(0.05)
        if not self.has_ended:
            for worker in self.workers():
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(worker, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def altered(constants: Mapping[str, object]) -> tuple[str, str]:
    """What Python runs for the command with other constants, by their full names; a name that is not there fails."""
    lines = ["from importlib import import_module", "from headgate.cli.__main__ import main"]
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        lines += [
            f"module = import_module({module!r})",
            f"assert hasattr(module, {constant!r}), {name!r}",
            f"module.{constant} = {value!r}",
        ]
    return "-c", "\n".join([*lines, "raise SystemExit(main())"])


def asked(connection: HTTPConnection, user: str, endpoint: str = "/api/v1/orders", /, **headers: str) -> bytes:
    """Ask on a connection that is there, or make it. Raises OSError or HTTPException."""
    body = msgspec.json.encode({"principal": {"user": user}, "endpoint": endpoint, "method": "POST"})
    connection.request("POST", CHECK, body, {"content-type": "application/json", **headers})
    return connection.getresponse().read()


def written(path: Path, text: str) -> None:
    """Put a whole file where it is watched: nobody sees a part of it."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(path)


@contextmanager
def service(*options: str, **how: Any) -> Iterator[Service]:
    """A service for the length of a with block; see `Service`."""
    with TemporaryDirectory(prefix="headgate-serve-") as folder:
        found = Service(Path(folder), *options, **how)
        try:
            yield found
        finally:
            found.stop()


class Client(threading.Thread):
    """Asks one question after the other on one connection, and connects again when the service says that it closes it.

    A service that cannot be connected to is no failure. One that takes a question and does not answer is.
    """

    def __init__(self, port: int, user: str, *, keeps: bool) -> None:
        super().__init__(daemon=True)
        self._headers = {} if keeps else {"connection": "close"}
        self._port, self._user, self._end = port, user, threading.Event()
        self.answers: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self.was_refused = False

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        while not (self._end.is_set() or self.was_refused):
            if connection.sock is None:
                try:
                    connection.connect()
                except OSError:
                    self.was_refused = True
                    continue
            try:
                self.answers.append(msgspec.json.decode(asked(connection, self._user, **self._headers)))
            except (OSError, HTTPException, msgspec.DecodeError) as error:
                self.failures.append(error)
                connection.close()
        connection.close()

    def end(self) -> None:
        self._end.set()
        self.join(SECONDS)
        assert not self.is_alive(), "the client hangs"


class Clients:
    """Several clients for the length of a with block, which keep their connections, or make one for each request."""

    def __init__(self, port: int, users: list[str], *, keeps: bool = True) -> None:
        self.all = [Client(port, user, keeps=keeps) for user in users]

    def __enter__(self) -> Self:
        for client in self.all:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.all:
            client.end()

    @property
    def answered(self) -> int:
        return sum(len(client.answers) for client in self.all)

    @property
    def failures(self) -> list[Exception]:
        return [failure for client in self.all for failure in client.failures]

    def until_answered(self, more: int) -> None:
        """Wait until each client has so many more answers."""
        wanted = [(client, len(client.answers) + more) for client in self.all]
        until(
            lambda: all(len(client.answers) >= count or client.was_refused for client, count in wanted),
            f"{more} answers for each client",
            SECONDS,
        )
