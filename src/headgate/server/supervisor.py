"""Workers of one service: started, watched, replaced when they die, and ended together.

::

    supervisor ── binds the ports, keeps their sockets ──┬── worker 0 ── serves its own socket of each port
                                                         ├── worker 1
                                                         └── ...

*   A worker that dies is replaced at once, or after a pause that grows if it dies young. Its clients lose their
    connections; connections that had not been accepted yet wait for the one that takes its place, and all others do
    not notice.
*   A worker that cannot start ends the service with its reason, unless the service has served before: then it is tried
    again and again.
*   SIGTERM and SIGINT drain all workers and end the service; the second of them ends it at once. SIGHUP makes all look
    at their rules, certificates and keys again.
*   Workers notice when the supervisor is gone, and end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.core.errors import HeadgateError
from headgate.server import signals
from headgate.server.orders import Orders, Report, decode_report, encode
from headgate.server.ports import Port, deafen
from headgate.server.settings import Settings

_LOG = logging.getLogger("headgate.server")
_COMMAND = (sys.executable, "-P", "-m", "headgate.server.worker")
_YOUNG = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_GRACE = 5.0
"""Seconds that a worker gets beyond the time for draining."""


class CannotStart(HeadgateError):
    """A worker cannot serve; the message says why."""


class Supervisor:
    """Runs the workers of a service.

    Args:
        settings: of the service.
        ports: what to listen on; there is a socket for each worker in each.
        folder: where the workers share what they measure.
        serving: called once, when all workers serve, with what one of them reported.
    """

    def __init__(
        self, settings: Settings, ports: Sequence[Port], folder: str, serving: Callable[[Report], object]
    ) -> None:
        self._settings, self._ports, self._folder, self._serving = settings, ports, folder, serving
        self._workers: dict[int, _Worker] = {}
        self._stopping = asyncio.Event()
        self._yet_to_serve = set(range(settings.workers))

    async def run(self) -> None:
        """Return when all workers have ended after SIGTERM or SIGINT. Raises CannotStart."""
        signals.heed(asyncio.get_running_loop(), self._stop, self._reload)
        try:
            async with asyncio.TaskGroup() as places:
                for slot in range(self._settings.workers):
                    places.create_task(self._tend(slot))
        except* CannotStart as group:
            raise CannotStart(str(group.exceptions[0])) from None

    async def _tend(self, slot: int) -> None:
        """Keep one place filled."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while not self._stopping.is_set():
            born = loop.time()
            worker = self._workers[slot] = await self._start(slot)
            try:
                if self._stopping.is_set():  # the signal came in between
                    worker.send(signal.SIGTERM)
                self._note(slot, await worker.report())
                await worker.process.wait()
            finally:
                worker.close()
                del self._workers[slot]
            if self._stopping.is_set():
                break
            _LOG.error("worker %d (process %d) %s: another takes its place", slot, worker.process.pid, worker.fate)
            lived = loop.time() - born
            pause = 0.0 if lived > _YOUNG else min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * pause))
            await self._rest(pause)

    async def _start(self, slot: int) -> _Worker:
        ours, theirs = socket.socketpair()
        sockets = {port.name: port.sockets[slot].fileno() for port in self._ports}
        with theirs:  # a group of its own: what is typed at the terminal is for the supervisor
            process = await asyncio.create_subprocess_exec(
                *_COMMAND, stdin=theirs.fileno(), pass_fds=tuple(sockets.values()), process_group=0
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        writer.write(encode(Orders(self._settings, sockets, slot, self._folder)))
        return _Worker(process, reader, writer)

    def _note(self, slot: int, report: Report) -> None:
        """Take note of how a worker began."""
        if not report.error:
            self._workers[slot].serves = True
            if self._yet_to_serve:
                self._yet_to_serve.discard(slot)
                if not self._yet_to_serve:
                    self._serving(report)
        elif self._yet_to_serve and not self._stopping.is_set():
            raise CannotStart(report.error)
        else:
            _LOG.error("worker %d cannot start: %s", slot, report.error)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _stop(self) -> None:
        """Drain all workers; when asked again, end them."""
        if self._stopping.is_set():
            _LOG.warning("stopped at once: requests in progress are cut off")
            self._kill()
            return
        self._stopping.set()
        _LOG.info("draining: requests in progress get up to %g s to end", self._settings.drain_seconds)
        for port in self._ports:
            for each in port.sockets:
                deafen(each)
        for worker in self._workers.values():
            worker.send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._settings.drain_seconds + _GRACE, self._kill)

    def _reload(self) -> None:
        for worker in self._workers.values():
            if worker.serves:  # before, it would be its end
                worker.send(signal.SIGHUP)

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.send(signal.SIGKILL)


@dataclass(slots=True)
class _Worker:
    """One process."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    serves: bool = False

    async def report(self) -> Report:
        """Return how it began."""
        try:
            return decode_report(await self.reader.readline())
        except ConnectionError:
            return decode_report(b"")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """See to it that it ends."""
        self.send(signal.SIGKILL)
        self.writer.close()

    @property
    def fate(self) -> str:
        """How it ended."""
        code = self.process.returncode
        if code is not None and code < 0:
            return f"died by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
