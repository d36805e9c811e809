"""The supervisor of a service's workers: starts, watches, replaces and ends them.

::

    supervisor ── binds the ports, keeps their sockets ──┬── worker 0 ── serves its own socket of each port
                                                         ├── worker 1
                                                         └── ...

*   A worker that dies is replaced at once, or after a growing pause if it dies soon. Its clients lose their
    connections; connections in its queue wait for the replacement; others notice nothing. A worker that sends no
    heartbeat for half a minute is killed and replaced as well.
*   A worker that cannot start ends the service with its error, unless the service has served before: then it is
    retried, and meanwhile the others get its connections.
*   SIGTERM announces the end to all workers and drains them after a delay; SIGINT drains them now; a further signal
    hastens the end: see `Shutdown`. A worker that dies meanwhile is not replaced; the others get its connections.
*   SIGHUP makes all workers read their files again. SIGUSR1 turns enforcement off in all of them, SIGUSR2 on; later
    workers start with the last state.
*   Workers notice the death of the supervisor, and end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from headgate.core.errors import HeadgateError
from headgate.server.ports import Port, stop_accepting, stop_listening
from headgate.server.private_folder import PrivateFolder
from headgate.server.process import Shutdown, handle_signals, log_announcement, log_enforcement
from headgate.server.settings import Settings
from headgate.server.worker import ANNOUNCE, DRAIN, LONGEST_LINE, SWITCH, Orders, Report, encode_line

_LOG = logging.getLogger("headgate.server")
_COMMAND = (sys.executable, "-P", "-m", "headgate.server.worker")
PATIENCE = 30.0
"""Seconds without a heartbeat, which comes every second, after which a worker that serves counts as hung."""
_HEARTBEAT_WAITS = 10
_HEARTBEATS = 4096
_SIGNALS = {int(each): each.name for each in signal.Signals}
_STABLE_SECONDS = 10.0
"""A worker that dies earlier is replaced after a pause."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_GRACE = 5.0
"""Seconds that a worker gets beyond the drain time."""


class CannotStart(HeadgateError):
    """A worker cannot serve, for the reason in the message; `is_usage` if the user can fix it."""

    def __init__(self, why: str, *, is_usage: bool = False) -> None:
        super().__init__(why)
        self.is_usage = is_usage


class Supervisor:
    """Runs the workers of a service, which share their measurements in a folder.

    Each port has a socket for every worker. `serving` is called once, when all workers serve, with the report of one;
    `beside` runs in this process while they do.
    """

    def __init__(
        self,
        settings: Settings,
        ports: Sequence[Port],
        folder: PrivateFolder,
        serving: Callable[[Report], object],
        beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self._beside = beside
        self._settings, self._ports, self._folder, self._serving = settings, ports, folder, serving
        self._workers: dict[int, WorkerProcess] = {}
        self._shutdown = Shutdown(settings.drain_delay)
        self._yet_to_serve = set(range(settings.workers))
        self._enforcing = settings.enforcement

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT has ended all workers. Raises CannotStart."""
        handle_signals(asyncio.get_running_loop(), self.stop, self.reload, self.enforce)
        await self.supervise()

    async def supervise(self) -> None:
        """Run until `stop` has ended all workers, without handling signals. Raises CannotStart."""
        refusals: Sequence[BaseException] = ()
        ending = asyncio.create_task(self._end())
        try:
            async with self._beside(), asyncio.TaskGroup() as slots:
                for slot in range(self._settings.workers):
                    slots.create_task(self._keep_running(slot))
        except* CannotStart as group:
            refusals = group.exceptions
        finally:
            ending.cancel()
        if refusals:  # raised here, since before Python 3.11.4 the group would wrap it again
            raise refusals[0]

    async def _keep_running(self, slot: int) -> None:
        """Start a worker in a slot, and another one whenever it has ended."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while not self._shutdown.announced.is_set():
            started_at = loop.time()
            try:
                self._restore_folder()
                worker = self._workers[slot] = await WorkerProcess.start(self._orders(slot))
            except OSError as error:
                self._process_report(slot, Report.of_failure(error))
            else:
                await self._watch(slot, worker)
            pause = restart_pause(pause, loop.time() - started_at)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._shutdown.announced.wait()

    async def _watch(self, slot: int, worker: WorkerProcess) -> None:
        try:
            if self._shutdown.announced.is_set():  # the signal came while it started
                self._send_stage(worker)
            report = await worker.report()
            if worker.process.returncode != 0:  # a clean exit follows a signal: the worker is replaced without a report
                self._process_report(slot, report)
            await worker.ended()
        finally:
            worker.close()
            del self._workers[slot]
        if self._shutdown.announced.is_set():
            self._stop_listening(slot)
        else:
            _LOG.error("worker %d (process %d) %s: replacing it", slot, worker.process.pid, worker.exit_text)

    def _orders(self, slot: int) -> Orders:
        sockets = {port.name: port.sockets[slot].fileno() for port in self._ports}
        return Orders(replace(self._settings, enforcement=self._enforcing), sockets, slot, str(self._folder.path))

    def _restore_folder(self) -> None:
        if self._folder.restore():
            _LOG.error(
                "%s, the folder of the workers' counters, was removed: "
                "the metrics of each replaced worker restart at zero",
                self._folder.path,
            )

    def _process_report(self, slot: int, report: Report) -> None:
        if not report.error:
            self._workers[slot].serves = True
            self._workers[slot].writer.write(SWITCH[self._enforcing])  # it may have changed since the orders
            if self._shutdown.announced.is_set():
                self._send_stage(self._workers[slot])
            if self._yet_to_serve:
                self._yet_to_serve.discard(slot)
                if not self._yet_to_serve:
                    self._serving(report)
        elif self._shutdown.announced.is_set():
            _LOG.debug("worker %d did not start to serve: %s", slot, report.error)
        elif self._yet_to_serve:
            why = report.error if report.is_usage else f"worker {slot} cannot start: {report.error}"
            raise CannotStart(why, is_usage=report.is_usage)
        else:
            self._stop_listening(slot)
            _LOG.error("worker %d cannot start: %s", slot, report.error)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._shutdown.request(number)

    async def _end(self) -> None:
        await self._shutdown.announced.wait()
        if not self._shutdown.draining.is_set():
            log_announcement(_LOG, self._settings.drain_delay)
            for worker in self._workers.values():
                self._send_stage(worker)
        await self._shutdown.draining.wait()
        _LOG.info("draining: requests in progress get up to %g s to end", self._settings.drain_seconds)
        for port in self._ports:
            for each in port.sockets:
                stop_accepting(each)
        for worker in self._workers.values():
            self._send_stage(worker)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds + _GRACE):
                await self._shutdown.at_once.wait()
                _LOG.warning("stopping immediately: requests in progress are aborted")
        for worker in self._workers.values():
            worker.send(signal.SIGKILL)

    def _send_stage(self, worker: WorkerProcess) -> None:
        if worker.serves:
            worker.writer.write(DRAIN if self._shutdown.draining.is_set() else ANNOUNCE)
        else:
            worker.send(signal.SIGTERM)

    def _stop_listening(self, slot: int) -> None:
        """Leave new connections to the workers of other slots."""
        for port in self._ports:
            stop_listening(port.sockets[slot])

    def reload(self) -> None:
        for worker in self._workers.values():
            if worker.serves:  # before, the signal would kill it
                worker.send(signal.SIGHUP)

    def enforce(self, enforcing: bool) -> None:  # noqa: FBT001  a signal has one argument
        """Turn enforcement on or off in all workers; off makes every rule a shadow."""
        self._enforcing = enforcing
        log_enforcement(_LOG, enforcing=enforcing)
        for worker in self._workers.values():
            if worker.serves:
                worker.writer.write(SWITCH[enforcing])


@dataclass(slots=True)
class WorkerProcess:
    """A worker process: it receives orders, reports how it started, and then sends heartbeats."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    serves: bool = False

    @classmethod
    async def start(cls, orders: Orders) -> Self:
        """Start a process and send it orders. Raises OSError, for example if there are too many processes."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:  # its own process group: keys typed at the terminal are for the supervisor
                process = await asyncio.create_subprocess_exec(
                    *_COMMAND, stdin=theirs.fileno(), pass_fds=tuple(orders.sockets.values()), process_group=0
                )
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_LINE)
        writer.write(encode_line(orders))
        return cls(process, reader, writer)

    async def report(self) -> Report:
        """Return how it started; if it ended before that, how it ended."""
        with suppress(ConnectionError):
            line = await self.reader.readline()
            if line:
                return msgspec.json.decode(line, type=Report)
        await self.process.wait()
        return Report(error=f"its process {self.process.pid} {self.exit_text} before it served")

    async def ended(self) -> None:
        """Wait for its end. Without heartbeats it is killed: its clients would wait forever."""
        silent = 0
        while silent < _HEARTBEAT_WAITS:  # many short waits: a pause of this process itself counts little
            try:
                async with asyncio.timeout(PATIENCE / _HEARTBEAT_WAITS):
                    if not await self.reader.read(_HEARTBEATS):
                        break
                silent = 0
            except ConnectionError:
                break
            except TimeoutError:
                silent += 1
        else:
            _LOG.error("process %d has sent no heartbeat for %g s: killing it", self.process.pid, PATIENCE)
            self.send(signal.SIGKILL)
        await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    def close(self) -> None:
        self.send(signal.SIGKILL)
        self.writer.close()

    @property
    def exit_text(self) -> str:
        return exit_text(self.process.returncode)


def exit_text(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {_SIGNALS.get(-code, f'signal {-code}')}"


def restart_pause(before: float, seconds: float) -> float:
    """Return the pause before a process that ran for some seconds is started again, given the last pause."""
    return 0.0 if seconds > _STABLE_SECONDS else min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * before))
