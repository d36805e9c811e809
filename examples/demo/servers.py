"""What the demo starts, a Redis and services, and how it talks to their admin plane. All of it ends with the demo."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import randrange
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE = 60.0
"""Seconds that anything may take, on a machine that is busy with other things."""
USUAL_PORTS = {"--http-port": 8080, "--grpc-port": 8081, "--admin-port": 8082}
_ATTEMPTS = 5


class Redis:
    """A redis-server on a free port, which keeps nothing on disk.

    Args:
        folder: where it runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """What services are given as their store."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers; on the port that it had before."""
        program = shutil.which("redis-server") or "redis-server"
        for _ in range(1 if self.port else _ATTEMPTS):
            port = self.port or _free_port()
            command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder)]
            with (self._folder / "redis.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
            self._process = process
            until(lambda: process.poll() is not None or _answers(port), "Redis answers")  # noqa: B023  awaited here
            if process.poll() is None:
                self.port = port
                return
        raise SystemExit(f"redis-server does not start; it says why in {self._folder / 'redis.log'}")

    def stop(self) -> None:
        """Stop it at once; what it had counted is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Node:
    """A ``headgate serve`` on the database of the demo.

    Args:
        name: of its log and its folder.
        folder: where they are.
        store: the address of the store.
        ports: the options that name its ports; those that are not there are chosen by the system.
    """

    def __init__(self, name: str, folder: Path, store: str, ports: dict[str, int]) -> None:
        options = [word for option in USUAL_PORTS for word in (option, str(ports.get(option, 0)))]
        command = [sys.executable, "-m", "headgate", "serve", "--workers", "1", "--store", store, *options]
        command += ["--database", f"sqlite:///{folder / 'headgate.db'}", "--data-dir", str(folder / name)]
        command += ["--log-principals", "plain", "--log-denials", "1"]
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._log, self._output = folder / f"{name}.log", folder / f"{name}.out"
        self.http = self.admin = self.first_key = ""

    def start(self) -> None:
        """Start it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
        with self._log.open("wb") as err, self._output.open("wb") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=err, process_group=0, env=environment | {"PYTHONUNBUFFERED": "1"}
            )

    def wait(self) -> None:
        """Wait until it serves."""

        def has_greeted() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise SystemExit(f"a service does not start: {self._log.read_text()}")
            return "try it:" in self._output.read_text()

        until(has_greeted, "the service serves")
        text = self._output.read_text()
        self._output.unlink()  # it has a key in it
        self.http = re.findall(r"HTTP +(http://\S+)", text)[0]
        self.admin = re.findall(r"admin +(http://\S+)", text)[0]
        self.first_key = next(iter(re.findall(r"(hg_\S+)", text)), "")

    def stop(self) -> None:
        """End it, and wait for that."""
        for ending in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if self._process is None or self._process.poll() is not None:
                return
            self._process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)


class Refused(Exception):
    """The admin plane refused a request, or did not answer; the text says why."""


class Colleague:
    """Somebody with a key of the admin plane.

    Args:
        url: of the admin plane.
        key: theirs.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url, self._key = url, key

    def ask(self, method: str, path: str, body: Any = None, reason: str = "") -> Any:
        """Send a request to the REST API, and return the answer. Raises Refused."""
        headers = {"authorization": f"Bearer {self._key}", "x-reason": reason}
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        headers["content-type"] = "application/yaml" if isinstance(body, str) else "application/json"
        if method == "PATCH":
            headers["content-type"] = "application/merge-patch+json"
        request = Request(f"{self.url}/api/v1/{path}", data, headers, method=method)  # noqa: S310  our own
        try:
            with urlopen(request, timeout=PATIENCE) as response:  # noqa: S310
                text = response.read().decode()
        except HTTPError as error:
            raise Refused(f"{method} {path}: {error.read().decode()}") from error
        except OSError as error:
            raise Refused(f"{method} {path}: {error}") from error
        return json.loads(text) if "json" in response.headers.get("content-type", "") else text


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    give_up = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(f"waited {PATIENCE:g} s in vain: {what}")
        time.sleep(0.02)


def usual_ports() -> dict[str, int]:
    """Return the usual ports of a service, those that are taken left out."""
    return {option: port for option, port in USUAL_PORTS.items() if _is_free(port)}


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    """Return a port that nothing else gets while Redis is stopped: not one that systems give to clients."""
    return next(port for port in iter(lambda: randrange(10_000, 32_000), 0) if _is_free(port))


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
