"""Whether a node can serve, and whether its store decides: for balancers, which ask over HTTP and gRPC.

A store that is away does not make a node unready: it answers by the modes of the rules, and a fleet that took itself
out of service because its store is away would limit nobody. It is *degraded*, and says so. Only a node that drains is
not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from headgate.core.errors import StoreError
from headgate.engine import AsyncEngine

_PATIENCE = 1.0
"""Seconds that a store has to show that it can decide."""


class Readiness:
    """What a node says of itself. One for each process, shared by all its ports.

    Args:
        engine: what decides.
        enforcing: says whether limits refuse.
        stale: says whether the rules may be old, since their database cannot be followed. It may read a file.
        fresh: seconds for which what the store said is passed on, so that nobody can flood it with this question.
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
        """Whether no new requests should be sent here."""
        return self._drained.is_set()

    @property
    def nodes(self) -> int:
        """How many processes share the limits, for the mode local; 0 in memory, where none does."""
        store = self._engine.statistics()
        return store.nodes if store is not None else 0

    def drain(self) -> None:
        """Say from now on that no new requests should be sent here."""
        self._drained.set()

    async def degraded(self) -> str:
        """Return why the store cannot decide now; empty if it can. Those who ask within a second share one answer."""
        loop = asyncio.get_running_loop()
        if self._probe is None or (self._probe.done() and loop.time() >= self._until):
            self._probe, self._until = loop.create_task(self._asked()), loop.time() + self._fresh
        return await asyncio.shield(self._probe)

    async def drains(self, seconds: float) -> bool:
        """Wait until the node drains, or for so long; only within a task. Returns whether it drains."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        return self.is_draining

    async def _asked(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._engine.ready()
        except (TimeoutError, StoreError):
            return "storage_unavailable"  # which store, and what it said, is for logs: anybody may ask for this
        return ""
