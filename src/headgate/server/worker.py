"""``python -m headgate.server.worker``: one of several processes of a service, started by its supervisor.

The two talk over a socket that is the worker's standard input. The supervisor sends the orders, one line, and to a
worker that serves a byte whenever enforcement is turned off or on, when the end is announced, and when it is to drain:
of two signals, a process that has to wait for its turn may get the later one first. The end of the stream tells that
the supervisor is gone. The worker answers with one line, when it serves, or why it cannot; from then on it sends an
empty line every second, its heartbeat. Everything else is said by signals.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headgate.core.errors import HeadgateError, UsageError, not_installed
from headgate.observe import logs
from headgate.server.process import Shutdown, run, serve
from headgate.server.settings import Settings

if TYPE_CHECKING:
    from headgate.server.node import Node

_LOG = logging.getLogger("headgate.server")
LONGEST_LINE = 1_048_576
"""Bytes of orders, and of a report."""
_LONGEST_ERROR = 10_000
SWITCH = {False: b"0", True: b"1"}
"""What tells a worker whether limits refuse."""
ANNOUNCE, DRAIN = b"a", b"d"
"""What tells it that the service is about to end, and that it is to drain."""
_HEARTBEAT = b"\n"
_HEARTBEAT_EVERY = 1.0
"""Seconds."""


class Orders(msgspec.Struct, frozen=True):
    """What a worker is to do."""

    settings: Settings
    sockets: dict[str, int]
    """File descriptors of listening sockets, by what is spoken there: "http" or "grpc"."""
    slot: int
    """Which of the workers it is, counted from 0; one that replaces another has its number."""
    folder: str
    """Where the workers share what they measure."""


class Report(msgspec.Struct, frozen=True):
    """How it began."""

    rules: int = 0
    """How many rules are in force."""
    error: str = ""
    """Why it cannot serve; empty if it does."""
    is_usage: bool = False
    """Whether that is for the user to put right, as in a file that is wrong."""

    @classmethod
    def of_failure(cls, error: Exception) -> Report:
        """Return the report of a worker that cannot serve."""
        if isinstance(error, ModuleNotFoundError):
            error = UsageError(not_installed(error.name, "server"))
        text = str(error) or type(error).__name__
        return cls(error=text[:_LONGEST_ERROR], is_usage=isinstance(error, UsageError | ImportError))


def line_of(message: Orders | Report) -> bytes:
    """Write a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def main() -> int:
    """Do as the supervisor says; returns the exit code."""
    with socket.socket(fileno=0) as channel:
        orders = msgspec.json.decode(_read_line(channel), type=Orders)
        try:
            logs.setup(orders.settings.log_format, orders.settings.log_level, worker=orders.slot)
            run(_work(orders, channel))
        except (HeadgateError, OSError, ImportError) as error:
            channel.setblocking(True)
            with suppress(ConnectionError):  # if the supervisor is gone, nobody wants to know
                channel.sendall(line_of(Report.of_failure(error)))
            return 1
    return 0


def _read_line(channel: socket.socket) -> bytes:
    """Read one line, and nothing after it: nothing comes before it is answered."""
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(LONGEST_LINE)
        if not part:
            raise SystemExit("this is started by `headgate serve --workers N`, not by hand")
        line += part
    return line


async def _work(orders: Orders, channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    shutdown, is_orphaned = Shutdown(orders.settings.drain_delay), False
    heartbeats: list[asyncio.Task[None]] = []
    commands: dict[bytes, Callable[[], None]] = {ANNOUNCE: shutdown.announce, DRAIN: shutdown.drain}

    def heard() -> None:
        nonlocal is_orphaned
        said = _received(channel)
        for code in said:
            commands[bytes((code,))]()
        if not said:
            loop.remove_reader(channel)  # it would be told again and again
            is_orphaned = True
            if not shutdown.draining.is_set():
                _LOG.error("the supervisor is gone: draining")
                shutdown.drain()

    def serving(node: Node) -> None:
        commands.update({byte: partial(node.enforce, enforcing=on) for on, byte in SWITCH.items()})
        if not is_orphaned:
            channel.send(line_of(Report(node.rules)))
            heartbeats.append(loop.create_task(_send_heartbeats(channel)))

    loop.add_reader(channel, heard)
    sockets = {name: socket.socket(fileno=number) for name, number in orders.sockets.items()}
    try:
        await serve(orders.settings, sockets, serving, slot=orders.slot, folder=orders.folder, shutdown=shutdown)
    finally:
        loop.remove_reader(channel)
        for task in heartbeats:
            task.cancel()
        if is_orphaned:  # so is the folder
            shutil.rmtree(orders.folder, ignore_errors=True)


def _received(channel: socket.socket) -> bytes:
    """Return what the supervisor has sent; nothing if it is gone."""
    try:
        return channel.recv(LONGEST_LINE)
    except ConnectionError:  # it ended before it had read all that was sent to it
        return b""


async def _send_heartbeats(channel: socket.socket) -> None:
    while True:
        try:
            channel.send(_HEARTBEAT)
        except BlockingIOError:
            pass  # the supervisor is busy, and has enough of them
        except ConnectionError:
            return  # it is gone, which is noticed elsewhere
        await asyncio.sleep(_HEARTBEAT_EVERY)


if __name__ == "__main__":
    sys.exit(main())
