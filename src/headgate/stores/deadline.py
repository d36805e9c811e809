"""A store around a store, which does not wait for ever: after a deadline, the outcome counts as unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown
from headgate.core.plan import Family, Plan
from headgate.stores.base import AsyncCheck, AsyncStore
from headgate.stores.inner import microseconds

T = TypeVar("T")


class Timely:
    """An `AsyncStore` each call of which takes at most `seconds`, or raises OutcomeUnknown.

    It is there for the failover store, around stores that have no deadline of their own. The inner call is cancelled.
    """

    def __init__(self, store: AsyncStore, seconds: float) -> None:
        microseconds("deadline", seconds)
        self._store, self._seconds = store, seconds
        self.clock = store.clock

    async def check(self, plan: Plan, cost: int) -> Decision:
        return await self._within(self._store.check(plan, cost))

    async def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        return await self._within(self._store.check_once(plan, cost, token))

    async def peek(self, plan: Plan, cost: int) -> Decision:
        return await self._within(self._store.peek(plan, cost))

    async def refund(self, plan: Plan, cost: int) -> Decision:
        return await self._within(self._store.refund(plan, cost))

    async def reset(self, plan: Plan) -> None:
        await self._within(self._store.reset(plan))

    def bind(self, family: Family) -> AsyncCheck:
        bound = self._store.bind(family)

        async def check(key: str, cost: int = 1) -> Decision:
            return await self._within(bound(key, cost))

        return check

    async def ready(self) -> None:
        await self._within(self._store.ready())

    async def close(self) -> None:
        await self._store.close()

    async def _within(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await answer
        except TimeoutError:
            if limit.expired():
                raise OutcomeUnknown(f"no answer in {self._seconds:g} s") from None
            raise
