"""The life of one process that serves: from its start to the signal that ends it.

=================  ===========================================================================================
SIGTERM            announce the end: health checks fail, and everything is served; then drain, and end
SIGINT             drain, and end; so does a second SIGTERM. A signal while it drains ends it at once
SIGHUP             look again at all files; if the terminal in which it was started is gone, the same as SIGINT
SIGUSR1, SIGUSR2   enforcement off: limits refuse nothing; and on again
=================  ===========================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from socket import socket
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.server.settings import Settings

if TYPE_CHECKING:
    from headgate.server.node import Node

_LOG = logging.getLogger("headgate.server")
T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the fastest event loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415  it is optional, and takes time to load
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Shutdown:
    """The stages in which a process ends: announced, draining, at once. Each is an event, and follows those before it.

    Args:
        delay: seconds between the announcement and draining, for balancers to notice that health checks fail.
    """

    def __init__(self, delay: float) -> None:
        self.announced, self.draining, self.at_once = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._delay = delay

    def request(self, number: int = signal.SIGTERM) -> None:
        """Heed a signal: SIGTERM announces, any other one drains, and each that follows moves on to the next stage."""
        if self.draining.is_set():
            self.at_once.set()
        elif self.announced.is_set() or number != signal.SIGTERM:
            self.drain()
        else:
            self.announce()

    def announce(self) -> None:
        """Announce the end, unless that is done, and drain after the delay."""
        if not self._delay:
            self.drain()
        elif not self.announced.is_set():
            self.announced.set()
            asyncio.get_running_loop().call_later(self._delay, self.drain)

    def drain(self) -> None:
        """Drain, unless that is done."""
        self.announced.set()
        self.draining.set()


async def serve(
    settings: Settings,
    sockets: Mapping[str, socket],
    serving: Callable[[Node], object],
    *,
    slot: int = 0,
    folder: str = "",
    shutdown: Shutdown | None = None,
    beside: Callable[[Node], AbstractAsyncContextManager[object]] | None = None,
) -> None:
    """Serve until a signal says otherwise, then drain.

    Args:
        settings: of the service.
        sockets: to listen on, by what is spoken there: "http" and "grpc".
        serving: called when the node serves.
        slot: which of the workers this is.
        folder: where the workers share what they measure; empty if this process is alone.
        shutdown: of a worker, whose supervisor logs what all of them do; it may end the process as well as a signal.
        beside: what else runs while the node serves.
    """
    from headgate.server.node import Node  # noqa: PLC0415  takes time to load, and a supervisor does not serve

    loop = asyncio.get_running_loop()
    node = Node(settings, slot=slot, folder=folder)
    is_worker, shutdown = shutdown is not None, shutdown or Shutdown(settings.drain_delay)

    def enforce(enforcing: bool) -> None:  # noqa: FBT001  a signal has one argument
        node.enforce(enforcing=enforcing)
        if not is_worker:
            log_enforcement(_LOG, enforcing=enforcing)

    try:
        handle_signals(
            loop, shutdown.request, node.reload, enforce
        )  # now: when it listens, a signal must not cut off a request
        async with AsyncExitStack() as stack:
            if await _done_before(shutdown.announced, node.open(sockets)):
                if beside:  # until nothing is decided any more, since it writes down what was
                    await stack.enter_async_context(beside(node))
                serving(node)
                await shutdown.announced.wait()
                node.announce_end()
                if not (is_worker or shutdown.draining.is_set()):
                    log_announcement(_LOG, settings.drain_delay)
                await shutdown.draining.wait()
            if not is_worker:
                _LOG.info("draining: requests in progress get up to %g s to end", settings.drain_seconds)
            if not await _done_before(shutdown.at_once, node.drain(settings.drain_seconds)):
                _LOG.warning("stopped at once: requests in progress are cut off")
    finally:
        await node.close()


async def _done_before(event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do some work, unless an event comes first: then it is cancelled. Returns whether it was done."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        is_done = doing.done()
    finally:  # neither outlives whoever waits, though that be cancelled
        for task in (doing, waiting):
            task.cancel()
        await asyncio.wait({doing, waiting})
    if not doing.cancelled():
        doing.result()
    return is_done


def handle_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[int], object],
    reload: Callable[[], object],
    enforce: Callable[[bool], object],
) -> None:
    """Call `stop` with SIGTERM or SIGINT, `reload` at SIGHUP, and `enforce` with False at SIGUSR1, True at SIGUSR2.

    SIGHUP also comes when the terminal is closed in which a service was started. Then nobody asked for anything, and
    nobody is left: `stop` is called with it (not under nohup).
    """
    had_terminal = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGUSR1, enforce, False)
    loop.add_signal_handler(signal.SIGUSR2, enforce, True)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: stop(signal.SIGHUP) if had_terminal and not _has_terminal() else reload()
    )


def ignore_switches() -> None:
    """Let nothing happen at SIGUSR1 and SIGUSR2, in this process and those it starts, until they are handled.

    They would end a process that does not know them yet.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def log_announcement(log: logging.Logger, seconds: float) -> None:
    """Log that the end is announced."""
    log.info("leaving: health checks fail from now on, and everything is served for %g s", seconds)


def log_enforcement(log: logging.Logger, *, enforcing: bool) -> None:
    """Leave a trace of the switch in the log: who reads it later asks since when limits refused nobody."""
    if enforcing:
        log.warning("enforcement is on: limits refuse again")
    else:
        log.warning("enforcement is off: limits are counted and reported, and refuse nothing until SIGUSR2")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
