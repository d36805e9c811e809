"""Makes the calls of a flow, for callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.core.plan import Call
from headgate.stores.base import AsyncStore
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.wrapping import run_async

T = TypeVar("T")


async def driven(store: AsyncStore, flow: Generator[Sequence[Call], Sequence[Decision], T]) -> T:
    """Return what a flow returns; calls that it yields together are made at the same time, unless nobody waits."""
    waits = not isinstance(store, AsyncMemoryStore)
    try:
        calls = next(flow)
        while True:
            if waits and len(calls) > 1:
                calls = flow.send(await asyncio.gather(*[run_async(store, call) for call in calls]))
            else:
                calls = flow.send([await run_async(store, call) for call in calls])
    except StopIteration as stop:
        answer: T = stop.value
        return answer
