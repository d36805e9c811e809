"""``python -m headgate.server.worker``: one of a service's worker processes, started by its supervisor.

They communicate over a socket, the worker's standard input. The supervisor sends the orders, as one line. To a worker
that serves it sends one byte when enforcement is turned off or on, when the end is announced, and when to drain: two
signals could arrive in the wrong order. The stream ends when the supervisor dies. The worker replies with one line,
when it serves or why it cannot, and then with an empty line every second, its heartbeat. All else are signals.
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

from headgate.core.errors import HeadgateError, UsageError
from headgate.messages import not_installed
from headgate.observe import logs
from headgate.server.process import Shutdown, run, serve
from headgate.server.settings import Settings

if TYPE_CHECKING:
    from headgate.server.node import Node

_LOG = logging.getLogger("headgate.server")
LONGEST_LINE = 1_048_576
"""Bytes of orders, or of a report."""
_LONGEST_ERROR = 10_000
SWITCH = {False: b"0", True: b"1"}
"""Sent to turn enforcement off or on."""
ANNOUNCE, DRAIN = b"a", b"d"
"""Sent when the service is about to end, and when to drain."""
_HEARTBEAT = b"\n"
_HEARTBEAT_SECONDS = 1.0


class Orders(msgspec.Struct, frozen=True):
    settings: Settings
    sockets: dict[str, int]
    """File descriptors of listening sockets, by protocol: "http" or "grpc"."""
    number: int
    """Its number, from 0; a replacement has the number of the worker it replaces."""
    folder: str
    """Where the workers share their measurements."""


class Report(msgspec.Struct, frozen=True):
    rules: int = 0
    """The number of rules in force."""
    error: str = ""
    """Why it cannot serve; empty if it serves."""
    is_usage: bool = False
    """Whether the user can fix the error, such as an invalid file."""

    @classmethod
    def of_failure(cls, error: Exception) -> Report:
        if isinstance(error, ModuleNotFoundError):
            error = UsageError(not_installed(error.name, "server"))
        text = str(error) or type(error).__name__
        return cls(error=text[:_LONGEST_ERROR], is_usage=isinstance(error, UsageError | ImportError))


def encode_line(message: Orders | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def main() -> int:
    with socket.socket(fileno=0) as channel:
        orders = msgspec.json.decode(_read_line(channel), type=Orders)
        try:
            logs.setup(orders.settings.log_format, orders.settings.log_level, worker=orders.number)
            run(_work(orders, channel))
        except (HeadgateError, OSError, ImportError) as error:
            channel.setblocking(True)
            with suppress(ConnectionError):  # the supervisor may have died
                channel.sendall(encode_line(Report.of_failure(error)))
            return 1
    return 0


def _read_line(channel: socket.socket) -> bytes:
    """Read one line; nothing follows it before the worker replies."""
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(LONGEST_LINE)
        if not part:
            raise SystemExit("`headgate serve --workers N` starts this program; do not start it by hand")
        line += part
    return line


async def _work(orders: Orders, channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    shutdown, is_orphaned = Shutdown(orders.settings.drain_delay), False
    heartbeats: list[asyncio.Task[None]] = []
    commands: dict[bytes, Callable[[], None]] = {ANNOUNCE: shutdown.announce, DRAIN: shutdown.drain}

    def receive() -> None:
        nonlocal is_orphaned
        try:
            received = channel.recv(LONGEST_LINE)
        except ConnectionError:  # the supervisor died before it read everything
            received = b""
        for code in received:
            commands[bytes((code,))]()
        if not received:
            loop.remove_reader(channel)  # it would be called again and again
            is_orphaned = True
            if not shutdown.draining.is_set():
                _LOG.error("the supervisor has died: draining")
                shutdown.drain()

    def serving(node: Node) -> None:
        commands.update({byte: partial(node.enforce, enforcing=on) for on, byte in SWITCH.items()})
        if not is_orphaned:
            channel.send(encode_line(Report(node.rules)))
            heartbeats.append(loop.create_task(_send_heartbeats(channel)))

    loop.add_reader(channel, receive)
    sockets = {name: socket.socket(fileno=number) for name, number in orders.sockets.items()}
    try:
        await serve(orders.settings, sockets, serving, worker=orders.number, folder=orders.folder, shutdown=shutdown)
    finally:
        loop.remove_reader(channel)
        for task in heartbeats:
            task.cancel()
        if is_orphaned:  # no other process removes it
            shutil.rmtree(orders.folder, ignore_errors=True)


async def _send_heartbeats(channel: socket.socket) -> None:
    while True:
        try:
            channel.send(_HEARTBEAT)
        except BlockingIOError:
            pass  # the supervisor is busy, and has unread heartbeats
        except ConnectionError:
            return  # it has died, which `receive` notices
        await asyncio.sleep(_HEARTBEAT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
