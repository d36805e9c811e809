"""A worker as its supervisor sees it: a process that was given orders, says how it began, and then that it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headgate.server.orders import LONGEST_REPORT, Orders, Report, decode_report, encode

_LOG = logging.getLogger("headgate.server")
_COMMAND = (sys.executable, "-P", "-m", "headgate.server.worker")
PATIENCE = 30.0
"""Seconds without a sign of life after which a worker that serves is taken to hang. It gives one every second."""
_LOOKS = 10
_SIGNS = 4096
_NAMES = {int(each): each.name for each in signal.Signals}


@dataclass(slots=True)
class Child:
    """One process."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    serves: bool = False

    @classmethod
    async def start(cls, orders: Orders) -> Self:
        """Start a process, and tell it what to do. Raises OSError, for instance if there are too many processes."""
        _restore(orders.folder)
        ours, theirs = socket.socketpair()
        try:
            with theirs:  # a group of its own: what is typed at the terminal is for the supervisor
                process = await asyncio.create_subprocess_exec(
                    *_COMMAND, stdin=theirs.fileno(), pass_fds=tuple(orders.sockets.values()), process_group=0
                )
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_REPORT)
        writer.write(encode(orders))
        return cls(process, reader, writer)

    async def report(self) -> Report:
        """Return how it began; of one that ended before it could say so, how it ended."""
        with suppress(ConnectionError):
            line = await self.reader.readline()
            if line:
                return decode_report(line)
        await self.process.wait()
        return Report(error=f"its process {self.process.pid} {self.fate} before it served")

    async def ended(self) -> None:
        """Wait for its end. One that gives no sign of life is ended: it would leave its clients waiting forever."""
        silent = 0
        while silent < _LOOKS:  # many short waits: time in which this process itself did not run counts little
            try:
                async with asyncio.timeout(PATIENCE / _LOOKS):
                    if not await self.reader.read(_SIGNS):
                        break
                silent = 0
            except ConnectionError:
                break
            except TimeoutError:
                silent += 1
        else:
            _LOG.error("process %d has given no sign of life for %g s: it is ended", self.process.pid, PATIENCE)
            self.send(signal.SIGKILL)
        await self.process.wait()

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
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        return f"died by {_NAMES.get(-code, f'signal {-code}')}"


def _restore(folder: str) -> None:
    """Make the folder of the counters anew, should somebody have cleared it away. Raises OSError."""
    try:
        Path(folder).mkdir(0o700)
    except FileExistsError:
        if Path(folder).lstat().st_uid != os.geteuid():
            raise PermissionError(f"{folder}, where workers count, belongs to somebody else") from None
    else:
        _LOG.error("%s, where workers count, was removed: metrics begin anew with each worker that is replaced", folder)
