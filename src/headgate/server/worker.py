"""``python -m headgate.server.worker``: one of several processes of a service, started by its supervisor."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys

from headgate.core.errors import HeadgateError
from headgate.observe import logs
from headgate.server.node import Node
from headgate.server.orders import Orders, Report, decode_orders, encode
from headgate.server.process import run, serve

_LINE = 1_048_576


def main() -> int:
    """Do as the supervisor says; returns the exit code."""
    with socket.socket(fileno=0) as channel:
        orders = decode_orders(_line(channel))
        try:
            logs.setup(orders.settings.log_format, orders.settings.log_level)
            run(_work(orders, channel))
        except (HeadgateError, OSError, ImportError) as error:
            channel.setblocking(True)
            channel.sendall(encode(Report(error=str(error) or type(error).__name__)))
            return 1
    return 0


def _line(channel: socket.socket) -> bytes:
    """Read one line, and nothing after it: nothing comes."""
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(_LINE)
        if not part:
            raise SystemExit("this is started by `headgate serve --workers N`, not by hand")
        line += part
    return line


async def _work(orders: Orders, channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    orphaned = asyncio.Event()
    loop.add_reader(channel, orphaned.set)  # nothing comes but the end

    def serving(node: Node) -> None:
        channel.send(encode(Report(node.rules)))

    sockets = {name: socket.socket(fileno=number) for name, number in orders.sockets.items()}
    try:
        await serve(orders.settings, sockets, serving, slot=orders.slot, folder=orders.folder, orphaned=orphaned)
    finally:
        loop.remove_reader(channel)
        if orphaned.is_set():  # so is the folder
            shutil.rmtree(orders.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
