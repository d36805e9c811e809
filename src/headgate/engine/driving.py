"""Makes the calls of a flow, for callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.engine.flow import Call, Verb
from headgate.stores.base import AsyncStore
from headgate.stores.memory import AsyncMemoryStore

T = TypeVar("T")


async def driven(store: AsyncStore, flow: Generator[Sequence[Call], Sequence[Decision], T]) -> T:
    """Return what a flow returns; calls that it yields together are made at the same time, unless nobody waits."""
    waits = not isinstance(store, AsyncMemoryStore)
    try:
        calls = next(flow)
        while True:
            if waits and len(calls) > 1:
                calls = flow.send(await asyncio.gather(*[_made(store, call) for call in calls]))
            else:
                calls = flow.send([await _made(store, call) for call in calls])
    except StopIteration as stop:
        answer: T = stop.value
        return answer


async def _made(store: AsyncStore, call: Call) -> Decision:
    if call.verb is Verb.CHECK:
        return await store.check(call.plan, call.cost)
    if call.verb is Verb.CHECK_ONCE:
        return await store.check_once(call.plan, call.cost, call.token)
    if call.verb is Verb.PEEK:
        return await store.peek(call.plan, call.cost)
    return await store.refund(call.plan, call.cost)
