"""The life of one process that serves: from its start to the signal that ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Mapping
from socket import socket
from typing import Any, TypeVar

from headgate.server import signals
from headgate.server.node import Node
from headgate.server.settings import Settings

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


async def serve(
    settings: Settings,
    sockets: Mapping[str, socket],
    serving: Callable[[Node], object],
    *,
    slot: int = 0,
    folder: str = "",
    orphaned: asyncio.Event | None = None,
) -> None:
    """Serve until a signal says otherwise, then drain.

    Args:
        settings: of the service.
        sockets: to listen on, by what is spoken there: "http" and "grpc".
        serving: called when the node serves.
        slot: which of the workers this is.
        folder: where the workers share what they measure; empty if this process is alone.
        orphaned: set when the supervisor is gone, which is a reason to drain as well.
    """
    loop = asyncio.get_running_loop()
    node = Node(settings, slot=slot, folder=folder)
    drain, end = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (end if drain.is_set() else drain).set()

    def enforce(enforcing: bool) -> None:  # noqa: FBT001  a signal has one argument
        node.enforce(enforcing=enforcing)
        if orphaned is None:  # else the supervisor says so, once for all
            signals.tell_enforcement(_LOG, enforcing=enforcing)

    try:
        signals.heed(loop, stop, node.reload, enforce)  # now: when it listens, a signal must not cut off a request
        if await _done_before(drain, node.open(sockets)):
            gc.collect()
            gc.freeze()  # what is there now stays: no need to look at it again
            serving(node)
            await _first_of(drain, orphaned)
        if orphaned is None:  # else the supervisor has said so, unless it is gone
            _LOG.info("draining: requests in progress get up to %g s to end", settings.drain_seconds)
        elif orphaned.is_set() and not drain.is_set():
            _LOG.error("the supervisor is gone: draining")
        draining = loop.create_task(node.drain(settings.drain_seconds))
        ending = loop.create_task(end.wait())
        await asyncio.wait({draining, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            _LOG.warning("stopped at once: requests in progress are cut off")
        for task in (draining, ending):
            task.cancel()
        await asyncio.wait({draining, ending})
        if not draining.cancelled():
            draining.result()
    finally:
        await node.close()


async def _done_before(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do a work, unless an event comes first: then it is left undone."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    is_done = doing.done()
    for task in (doing, waiting):
        task.cancel()
    await asyncio.wait({doing, waiting})
    if not doing.cancelled():
        doing.result()
    return is_done


async def _first_of(*events: asyncio.Event | None) -> None:
    waits = {asyncio.ensure_future(event.wait()) for event in events if event is not None}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
