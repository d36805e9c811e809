"""``python -m headgate.server.worker``: one of several processes of a service, started by its supervisor."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from contextlib import suppress

from headgate.core.errors import HeadgateError
from headgate.observe import logs
from headgate.server.node import Node
from headgate.server.orders import SIGN_EVERY, SIGN_OF_LIFE, Orders, Report, decode_orders, encode, failed
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
            with suppress(ConnectionError):  # if the supervisor is gone, nobody wants to know
                channel.sendall(encode(failed(error)))
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
    life: list[asyncio.Task[None]] = []

    def ended() -> None:
        loop.remove_reader(channel)  # it would be told again and again
        orphaned.set()

    def serving(node: Node) -> None:
        if not orphaned.is_set():
            channel.send(encode(Report(node.rules)))
            life.append(loop.create_task(_give_signs_of_life(channel)))

    loop.add_reader(channel, ended)  # nothing comes but the end
    sockets = {name: socket.socket(fileno=number) for name, number in orders.sockets.items()}
    try:
        await serve(orders.settings, sockets, serving, slot=orders.slot, folder=orders.folder, orphaned=orphaned)
    finally:
        loop.remove_reader(channel)
        for task in life:
            task.cancel()
        if orphaned.is_set():  # so is the folder
            shutil.rmtree(orders.folder, ignore_errors=True)


async def _give_signs_of_life(channel: socket.socket) -> None:
    while True:
        try:
            channel.send(SIGN_OF_LIFE)
        except BlockingIOError:
            pass  # the supervisor is busy, and has enough of them
        except ConnectionError:
            return  # it is gone, which is noticed elsewhere
        await asyncio.sleep(SIGN_EVERY)


if __name__ == "__main__":
    sys.exit(main())
