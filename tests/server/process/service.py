"""A real ``headgate serve`` in separate processes, and clients that load it."""

from __future__ import annotations

import os
import re
import shlex
import signal
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
from tests.servers import fetched, launched, until

CHECK = "/api/v1/rate-limit/check"
SECONDS = 120
"""How long a test waits at most."""
PATIENCE = 10
"""How long a service may take to end at once."""


def _rules(options: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    given = {"--rules", "--database", "--envoy-config"} & set(options)
    return () if given or {"HEADGATE_RULES", "HEADGATE_DATABASE"} & set(environment) else ("--rules", str(EXAMPLE))


class Service:
    """A service on free ports, once `started`.

    Args:
        folder: for what it writes.
        options: of the command.
        environment: in addition to this process's.
        program: arguments of Python instead of the usual command.
        out: for its output, instead of a file.
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
        self._heard = 0
        ports = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")
        at_once = () if "--drain-delay" in options else ("--drain-delay", "0")
        command = [sys.executable, *program, "serve", *ports, *at_once, *_rules(options, environment or {}), *options]
        self.process = launched(command, folder, environment, out=self.out, cwd=cwd)

    def started(self) -> Self:
        until(lambda: "curl" in self.said or self.has_ended, "it serves", SECONDS)
        assert not self.has_ended, self.complained
        return self

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def complained(self) -> str:
        return self.err.read_text()[self._heard :]

    def forget_complaints(self) -> None:
        """Start `complained` here."""
        self._heard += len(self.complained)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def suggested(self, words: str = "curl ") -> list[str]:
        (line,) = [line for line in self.said.splitlines() if words in line]
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
        pid = self.process.pid
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def check(self, user: str, endpoint: str = "/api/v1/orders", **headers: str) -> dict[str, Any]:
        answer: dict[str, Any] = fetched(self.http_port, CHECK, "POST", body=_body(user, endpoint), **headers).json
        return answer

    def get(self, path: str) -> tuple[int, bytes]:
        return fetched(self.http_port, path)[::2]

    def post(self, path: str, body: object) -> tuple[int, bytes]:
        return fetched(self.http_port, path, "POST", body=body)[::2]

    def admin(self, key: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        reply = fetched(self.admin_port, f"/api/v1{path}", method, body=body, authorization=f"Bearer {key}")
        return reply.status, reply.json

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        until(lambda: self.has_ended, "it ends", SECONDS)
        code = self.process.returncode
        assert code is not None
        return code

    def stop(self) -> None:
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
    """Return the arguments of Python for the command with other constants, by their full names."""
    lines = ["from importlib import import_module", "from headgate.cli.__main__ import main"]
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        lines += [
            f"module = import_module({module!r})",
            f"assert hasattr(module, {constant!r}), {name!r}",
            f"module.{constant} = {value!r}",
        ]
    return "-c", "\n".join([*lines, "raise SystemExit(main())"])


def sent_check(connection: HTTPConnection, user: str, endpoint: str = "/api/v1/orders", /, **headers: str) -> bytes:
    """Check on a connection, which is made if needed. Raises OSError or HTTPException."""
    body = msgspec.json.encode(_body(user, endpoint))
    connection.request("POST", CHECK, body, {"content-type": "application/json", **headers})
    return connection.getresponse().read()


def _body(user: str, endpoint: str) -> dict[str, object]:
    return {"principal": {"user": user}, "endpoint": endpoint, "method": "POST"}


def written(path: Path, text: str) -> None:
    """Replace a watched file at once."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(path)


@contextmanager
def service(*options: str, **how: Any) -> Iterator[Service]:
    with TemporaryDirectory(prefix="headgate-serve-") as folder:
        found = Service(Path(folder), *options, **how)
        try:
            yield found
        finally:
            found.stop()


class Client(threading.Thread):
    """Sends checks on one connection, and connects again when the service has closed it.

    A refused connection is no failure; a request without a response is.
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
                self.answers.append(msgspec.json.decode(sent_check(connection, self._user, **self._headers)))
            except (OSError, HTTPException, msgspec.DecodeError) as error:
                self.failures.append(error)
                connection.close()
        connection.close()

    def end(self) -> None:
        self._end.set()
        self.join(SECONDS)
        assert not self.is_alive(), "the client hangs"


class Clients:
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
        wanted = [(client, len(client.answers) + more) for client in self.all]
        until(
            lambda: all(len(client.answers) >= count or client.was_refused for client, count in wanted),
            f"{more} answers for each client",
            SECONDS,
        )
