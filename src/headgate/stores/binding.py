"""The plain way to bind a family of limits to a store, for stores that have no quicker one."""

from __future__ import annotations

from typing import Protocol

from headgate.core.decision import Decision
from headgate.core.plan import Family, Plan
from headgate.stores.base import AsyncCheck, Check


class Decides(Protocol):
    """What is needed of a store."""

    def check(self, plan: Plan, cost: int) -> Decision: ...

    def peek(self, plan: Plan, cost: int) -> Decision: ...


class AsyncDecides(Protocol):
    """The same, awaited."""

    async def check(self, plan: Plan, cost: int) -> Decision: ...

    async def peek(self, plan: Plan, cost: int) -> Decision: ...


def plain_check(store: Decides, family: Family) -> Check:
    """Return the function that checks keys of `family`."""

    def check(key: str, cost: int = 1) -> Decision:
        plan = family.plan(key)
        if type(cost) is int and cost == 0:
            return store.peek(plan, 1)
        return store.check(plan, family.checked_cost(cost))

    return check


def plain_async_check(store: AsyncDecides, family: Family) -> AsyncCheck:
    """Do the same for callers in an event loop."""

    async def check(key: str, cost: int = 1) -> Decision:
        plan = family.plan(key)
        if type(cost) is int and cost == 0:
            return await store.peek(plan, 1)
        return await store.check(plan, family.checked_cost(cost))

    return check
