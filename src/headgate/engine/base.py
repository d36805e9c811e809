"""The base of engines for callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Self

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import StoreUnavailable
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit
from headgate.eager import together
from headgate.engine.verbs import Flow, T
from headgate.flows import drive, drive_async
from headgate.stores.base import AsyncStore
from headgate.stores.cached import PEEKS, AsyncCachedStore, CacheStatistics
from headgate.stores.failover import AsyncFailoverStore, OutageOptions, Statistics
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.traffic import TrafficStatistics

DENIALS = 1.0
"""Longest time that a refusal is cached, in seconds. Until then, resets and refunds by other nodes are not noticed."""
LONGEST_MS = 1000
"""Longest deadline of a caller, in milliseconds. It bounds the number of engine copies."""


class StoreOptions(OutageOptions, total=False):
    """Options for a store that is not in memory."""

    peeks: float
    """Seconds that a peek is cached; 0: never."""
    denials: float
    """Longest time that a refusal is cached, in seconds; 0: never."""


class AsyncEngineBase:
    """An engine without rules or descriptors: the store with its failover and cache, and the driver of flows.

    `mode` is how to decide while the store is unavailable; `nodes` the number of processes that share the limits (None:
    they are counted, under the name `shared`). With `is_cached`, peeks and refusals of a remote store are cached.
    """

    def __init__(
        self,
        store: AsyncStore,
        mode: Mode | Callable[[Limit], Mode],
        nodes: int | None,
        shared: str,
        *,
        is_cached: bool = False,
        options: StoreOptions | None = None,
    ) -> None:
        breaker: Any = dict(options or ())
        peeks, denials = breaker.pop("peeks", PEEKS), breaker.pop("denials", DENIALS)
        self.clock: Clock = store.clock
        """The time of the limits."""
        self.store = store
        """The store without failover: unlike checks, it raises errors while it is unavailable."""
        self._traffic: Callable[[], TrafficStatistics] | None = getattr(store, "traffic", None)
        self._failover: AsyncFailoverStore | None = None
        self._cached: AsyncCachedStore | None = None
        self._memory: MemoryStore | None = None
        """The store, if it is in memory: always available, and without waiting."""
        if isinstance(store, AsyncMemoryStore):
            self._memory = store.store
        else:
            store = self._failover = AsyncFailoverStore(store, mode=mode, nodes=nodes, shared=shared, **breaker)
            if is_cached and (peeks or denials):  # outside: cached decisions are no evidence about the store
                store = self._cached = AsyncCachedStore(store, peeks=peeks, denials=denials)
        self._store: AsyncStore = store
        self._by_deadline: dict[int, Self] = {}

    def within(self, seconds: float) -> Self:
        """Return the same engine with a deadline for the store."""
        store = self._cached or self._failover
        if store is None:
            return self
        ms = max(1, min(int(seconds * 1000), LONGEST_MS))
        copied = self._by_deadline.get(ms)
        if copied is None:
            copied = self._by_deadline[ms] = self._copy()
            copied._store = store.within(ms / 1000)  # noqa: SLF001  of the same class
        return copied

    async def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        await self._store.ready()

    async def meet(self, seconds: float) -> None:
        """Connect to the store before the first request. Raises StoreError if it cannot decide.

        If it does not respond in time, its circuit opens: requests do not wait until a probe succeeds.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._store.ready()
        except TimeoutError:
            silent = StoreUnavailable(f"no response within {seconds:g} s")
            if self._failover is not None:
                self._failover.trip(silent)
            raise silent from None

    def beat(self) -> None:
        """Report this process as one of those that share the limits, if that is due."""
        if self._failover is not None:
            self._failover.beat()

    def statistics(self) -> Statistics | None:
        """Return the statistics of the store, for metrics; None in memory, which is always available."""
        return self._failover.statistics() if self._failover else None

    def cache_statistics(self) -> CacheStatistics | None:
        """Return the statistics of the cache, for metrics; None without a cache."""
        return self._cached.statistics() if self._cached else None

    def traffic(self) -> TrafficStatistics | None:
        """Return the statistics of round trips to the store, for metrics; None in memory."""
        return self._traffic() if self._traffic else None

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _copy(self) -> Self:
        """Return a copy, to be changed."""
        copied = copy(self)
        copied._by_deadline = {}  # noqa: SLF001  of the same class
        return copied

    async def _drive(self, flow: Flow[T]) -> T:
        """Drive a flow; calls that it yields together are made concurrently."""
        memory = self._memory
        if memory is not None:
            return drive(flow, lambda calls: [memory.run(call) for call in calls])
        return await drive_async(flow, self._make)

    async def _make(self, calls: Sequence[Call]) -> Sequence[Decision]:
        run = self._store.run
        if len(calls) == 1:
            return (await run(calls[0]),)
        if self._traffic is None:  # a custom store may need tasks
            return await asyncio.gather(*map(run, calls))
        return await together([run(call) for call in calls])
