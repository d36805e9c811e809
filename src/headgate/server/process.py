"""The life cycle of a process that serves, from its start to the signal that ends it.

=================  ===========================================================================================
SIGTERM            announce the end (health checks fail, requests are served), then drain and end
SIGINT             drain and end, as does a second SIGTERM. Any signal while draining ends the process at once
SIGHUP             read all files again; if the terminal of the process was closed, the same as SIGINT
SIGUSR1, SIGUSR2   turn enforcement off (limits refuse nothing), and on
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
    """Run a coroutine in the fastest installed event loop."""
    try:
        import uvloop  # noqa: PLC0415  it is optional, and takes time to load
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Shutdown:
    """The stages of a shutdown: announced, draining, at once. Each is an event; a later one implies those before it.

    `delay`, in seconds, separates the announcement from draining: load balancers notice that health checks fail.
    """

    def __init__(self, delay: float) -> None:
        self.announced, self.draining, self.at_once = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._delay = delay

    def request(self, number: int = signal.SIGTERM) -> None:
        """Handle a signal: SIGTERM announces, others drain, and each further one moves to the next stage."""
        if self.draining.is_set():
            self.at_once.set()
        elif self.announced.is_set() or number != signal.SIGTERM:
            self.drain()
        else:
            self.announce()

    def announce(self) -> None:
        """Announce the end, once, and drain after the delay."""
        if not self._delay:
            self.drain()
        elif not self.announced.is_set():
            self.announced.set()
            asyncio.get_running_loop().call_later(self._delay, self.drain)

    def drain(self) -> None:
        self.announced.set()
        self.draining.set()


async def serve(
    settings: Settings,
    sockets: Mapping[str, socket],
    serving: Callable[[Node], object],
    *,
    worker: int = 0,
    folder: str = "",
    shutdown: Shutdown | None = None,
    beside: Callable[[Node], AbstractAsyncContextManager[object]] | None = None,
) -> None:
    """Serve until a signal, then drain. `serving` is called when the node serves, and `beside` runs while it does.

    `sockets` are listening, by protocol: "http" and "grpc". A worker has a `shutdown`: its supervisor controls it as
    well, and logs for all workers.
    """
    from headgate.server.node import Node  # noqa: PLC0415  slow to load, and a supervisor does not need it

    loop = asyncio.get_running_loop()
    node = Node(settings, worker=worker, folder=folder)
    is_worker, shutdown = shutdown is not None, shutdown or Shutdown(settings.drain_delay)

    def enforce(enforcing: bool) -> None:  # noqa: FBT001  a signal has one argument
        node.enforce(enforcing=enforcing)
        if not is_worker:
            log_enforcement(_LOG, enforcing=enforcing)

    try:
        # Before it listens: no signal may cut off a request.
        handle_signals(loop, shutdown.request, node.reload, enforce)
        async with AsyncExitStack() as stack:
            if await _run_unless(shutdown.announced, node.open(sockets)):
                if beside:  # it records decisions, so it outlives them
                    await stack.enter_async_context(beside(node))
                serving(node)
                await shutdown.announced.wait()
                node.announce_end()
                if not (is_worker or shutdown.draining.is_set()):
                    log_announcement(_LOG, settings.drain_delay)
                await shutdown.draining.wait()
            if not is_worker:
                _LOG.info("draining: requests in progress get up to %g s to end", settings.drain_seconds)
            if not await _run_unless(shutdown.at_once, node.drain(settings.drain_seconds)):
                _LOG.warning("stopping immediately: requests in progress are aborted")
    finally:
        await node.close()


async def _run_unless(event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Run `work` unless an event comes first, which cancels it. Returns whether it was done."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        is_done = doing.done()
    finally:  # neither outlives this call, even if that is cancelled
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
    """Call `stop` with SIGTERM or SIGINT, `reload` on SIGHUP, and `enforce` with False on SIGUSR1, True on SIGUSR2.

    Closing the terminal of a service also sends SIGHUP: that calls `stop` (not under nohup).
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
    """Ignore SIGUSR1 and SIGUSR2, in this process and its children, until they are handled: by default they kill."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def log_announcement(log: logging.Logger, seconds: float) -> None:
    log.info("health checks fail from now on, and requests are served for another %g s", seconds)


def log_enforcement(log: logging.Logger, *, enforcing: bool) -> None:
    """Log the switch: the log shows since when limits refused nothing."""
    if enforcing:
        log.warning("enforcement is on: limits refuse again")
    else:
        log.warning("enforcement is off: limits are counted and reported, but refuse nothing until SIGUSR2")


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
