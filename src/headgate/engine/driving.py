"""Makes the calls of a flow, for callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.core.plan import Call
from headgate.flows import drive_async
from headgate.stores.base import AsyncStore
from headgate.stores.memory import AsyncMemoryStore

T = TypeVar("T")


async def driven(store: AsyncStore, flow: Generator[Sequence[Call], Sequence[Decision], T]) -> T:
    """Return what a flow returns; calls that it yields together are made at the same time, unless nobody waits."""
    waits = not isinstance(store, AsyncMemoryStore)

    async def make(calls: Sequence[Call]) -> Sequence[Decision]:
        if waits and len(calls) > 1:
            return await asyncio.gather(*map(store.run, calls))
        return [await store.run(call) for call in calls]

    return await drive_async(flow, make)
