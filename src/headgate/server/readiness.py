"""The state of a node for load balancers, over HTTP and gRPC: whether it can serve, and whether its store works.

Without its store, a node stays ready and decides by the modes of the rules: if a whole fleet became unready because its
store is down, nothing would be limited. It reports *degraded* instead. Only a node that drains is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headgate.core.errors import StoreError
from headgate.engine import AsyncEngine

_PROBE_SECONDS = 1.0
"""The longest wait for the store."""


class Readiness:
    """The state that a process reports on all its ports.

    Args:
        engine: whose store is probed.
        fresh: seconds for which a probe's result is reused, so that health checks cannot flood the store.
        enforcing: returns whether limits refuse.
        stale: returns whether the rules may be outdated, since their database is unavailable.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        fresh: float = 1.0,
        *,
        enforcing: Callable[[], bool] = lambda: True,
        stale: Callable[[], bool] = lambda: False,
    ) -> None:
        self.enforcing, self.stale = enforcing, stale
        self._engine, self._fresh, self._until = engine, fresh, 0.0
        self._drained = asyncio.Event()
        self._probe: asyncio.Task[str] | None = None

    @property
    def is_draining(self) -> bool:
        """Whether the node should receive no new requests."""
        return self._drained.is_set()

    @property
    def nodes(self) -> int:
        """How many processes share the limits in the mode local; 0 in memory, where they share none."""
        store = self._engine.statistics()
        return store.nodes if store is not None else 0

    def drain(self) -> None:
        self._drained.set()

    async def degraded(self) -> str:
        """Return why the store is unavailable; empty if it works. Concurrent callers share one probe."""
        loop = asyncio.get_running_loop()
        if self._probe is None or (self._probe.done() and loop.time() >= self._until):
            self._probe, self._until = loop.create_task(self._probe_store()), loop.time() + self._fresh
        return await asyncio.shield(self._probe)

    async def drains(self, seconds: float) -> bool:
        """Wait until the node drains, at most this long; returns whether it drains."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        return self.is_draining

    async def _probe_store(self) -> str:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._engine.ready()
        except (TimeoutError, StoreError):
            return "storage_unavailable"  # details are for logs: anyone may send this request
        return ""
