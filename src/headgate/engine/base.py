"""What engines for callers in an event loop have in common, whatever decides which limits apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from types import TracebackType
from typing import Any, Self, TypedDict

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import StoreUnavailable
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit
from headgate.engine.verbs import Flow, T
from headgate.flows import drive, drive_async
from headgate.stores.base import AsyncStore
from headgate.stores.cached import PEEKS, AsyncCachedStore, CacheStatistics
from headgate.stores.failover import AsyncFailoverStore, Statistics
from headgate.stores.memory import AsyncMemoryStore, MemoryStore
from headgate.stores.traffic import Networked, TrafficStatistics

DENIALS = 1.0
"""Seconds for which a refusal is repeated: so soon a reset or a refund by another node is noticed."""
LONGEST_MS = 1000
"""No caller's deadline is longer, in milliseconds. So there are only so many different ones."""


class StoreOptions(TypedDict, total=False):
    """How an engine treats a store that is not in memory."""

    peeks: float
    """Seconds for which the answer to a peek is repeated; 0 for never."""
    denials: float
    """Seconds for which a refusal is repeated at most; 0 for never."""
    fewest: int
    """How many processes share the limits at least, where they are counted."""
    failures: int
    """So many failures in a row open the circuit of a server."""
    pause: float
    """Seconds until the first probe of a server whose circuit is open, doubled by each that fails."""
    longest_pause: float
    """The most they grow to."""


class AsyncEngineBase:
    """An engine without rules or descriptors: its store, which answers also while it is away, and the driver of flows.

    Args:
        store: an opened one.
        mode: what is answered while it is away, for all limits or for each.
        nodes: how many processes share the limits, this one included, for the mode "local"; None: those that live.
        shared: what these share, by name.
        is_cached: whether peeks and refusals are repeated for a moment, where the store is elsewhere; see
            `headgate.stores.cached`.
        options: see `StoreOptions`.
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
        """What time it is for the limits."""
        self.store = store
        """What keeps the state, as it was given: unlike checks, it fails while the store is down."""
        self._networked = store if isinstance(store, Networked) else None
        self._failover: AsyncFailoverStore | None = None
        self._cached: AsyncCachedStore | None = None
        self._memory: MemoryStore | None = None
        """The store itself, if it is in memory: it is never away, and there is nothing to wait for."""
        if isinstance(store, AsyncMemoryStore):
            self._memory = store.store
        else:
            store = self._failover = AsyncFailoverStore(store, mode=mode, nodes=nodes, shared=shared, **breaker)
            if is_cached and (peeks or denials):  # outside: what is repeated says nothing about how the store is
                store = self._cached = AsyncCachedStore(store, peeks=peeks, denials=denials)
        self._store: AsyncStore = store
        self._by_deadline: dict[int, Self] = {}

    def within(self, seconds: float) -> Self:
        """Return the same engine for callers that wait no longer than so many seconds for the store."""
        store = self._cached or self._failover
        if store is None:
            return self
        ms = max(1, min(int(seconds * 1000), LONGEST_MS))
        copied = self._by_deadline.get(ms)
        if copied is None:
            copied = self._by_deadline[ms] = self._copied()
            copied._store = store.within(ms / 1000)  # noqa: SLF001  of the same class
        return copied

    async def ready(self) -> None:
        """Raise StoreError unless the store can decide now."""
        await self._store.ready()

    async def meet(self, seconds: float) -> None:
        """Connect to the store before the first request does, in so many seconds at most.

        Raises:
            StoreError: it cannot decide. If it does not even answer, requests do not wait for it until a probe finds
                that it does.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._store.ready()
        except TimeoutError:
            silent = StoreUnavailable(f"no answer in {seconds:g} s")
            if self._failover is not None:
                self._failover.trip(silent)
            raise silent from None

    def beat(self) -> None:
        """Be counted among the processes that share the limits, if that is due."""
        if self._failover is not None:
            self._failover.beat()

    def statistics(self) -> Statistics | None:
        """Return how the store did so far, for metrics; None in memory, which is never away."""
        return self._failover.statistics() if self._failover else None

    def cache_statistics(self) -> CacheStatistics | None:
        """Return what was answered without asking the store, for metrics; None where nothing is cached."""
        return self._cached.statistics() if self._cached else None

    def traffic(self) -> TrafficStatistics | None:
        """Return what came back from the servers of the store so far, for metrics; None in memory."""
        return self._networked.traffic() if self._networked else None

    async def close(self) -> None:
        """Stop watching what decides, and release what the store holds."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _copied(self) -> Self:
        """Return an engine that is the same but for what is changed now."""
        copied = copy(self)
        copied._by_deadline = {}  # noqa: SLF001  of the same class
        return copied

    async def _drive(self, flow: Flow[T]) -> T:
        """Return what a flow returns; calls that it yields together are made at the same time."""
        memory = self._memory
        if memory is not None:
            return drive(flow, lambda calls: [memory.run(call) for call in calls])
        return await drive_async(flow, self._made)

    async def _made(self, calls: Sequence[Call]) -> Sequence[Decision]:
        if len(calls) == 1:
            return (await self._store.run(calls[0]),)
        return await asyncio.gather(*map(self._store.run, calls))
