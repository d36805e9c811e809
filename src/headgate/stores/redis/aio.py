"""The Redis store for callers in an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from copy import copy
from functools import partial

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.plan import Call, Family, shadowed
from headgate.flows import drive_async
from headgate.stores.base import AsyncCheck
from headgate.stores.redis import spread
from headgate.stores.redis.address import Address, Cluster, Place
from headgate.stores.redis.answers import Answer, answer_to
from headgate.stores.redis.cluster_aio import AsyncCluster
from headgate.stores.redis.discovery import Sentinels, SlotMap
from headgate.stores.redis.flights import Flights
from headgate.stores.redis.scripts import Question, question_of
from headgate.stores.traffic import Traffic, TrafficStatistics
from headgate.stores.wrapping import plain_async_check


class AsyncRedisStore:
    """Keeps the state of limits in Redis or Valkey.

    Args:
        place: the servers, and how to talk to them.
        clock: only for tests: makes the script decide at this clock's time rather than at the server's.
    """

    def __init__(self, place: Place, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._slots = SlotMap(place) if isinstance(place, Cluster) else None
        if self._slots:  # otherwise there are no servers to be told apart
            self.servers_of, self.servers = partial(spread.servers_of, self._slots), self._slots.servers
        self._timeout = _timeout_of(place)
        self._within = 0.0  # seconds that callers wait, if not the usual
        self._traffic = Traffic()
        self._connections = _Connections(place, clock, self._slots, self._traffic)

    def within(self, seconds: float) -> AsyncRedisStore:
        """Return the same store for callers that wait no longer than so many seconds.

        The connection is given up only after the `timeout` of the address, which is also the most they wait. What
        comes until then is told late (`OutcomeUnknown.told_late`).
        """
        hurried = copy(self)
        hurried._within = min(seconds, self._timeout)  # noqa: SLF001  it is one of us
        return hurried

    async def run(self, call: Call) -> Decision:
        if call.shadow:
            return await drive_async(shadowed(call), self.run)
        if self._slots is not None and spread.is_spread(call.plan):
            return await self._spread(call)
        return answer_to(call, await self._ask(question_of(call)))

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        """Run the script on every server that decides. Raises StoreError."""
        await self._connections.here().ready()

    def traffic(self) -> TrafficStatistics:
        """Return what came back from the servers so far, for metrics."""
        return self._traffic.statistics()

    async def close(self) -> None:
        await self._connections.close()

    async def _spread(self, call: Call) -> Decision:
        servers = self._connections.here()
        deadline = asyncio.get_running_loop().time() + (self._within or self._timeout)

        async def ask(step: spread.Step) -> Answer:
            return await servers.ask(step.question, 0 if step.late else deadline)

        return await drive_async(spread.flow_of(call), ask)

    def _ask(self, asked: Question) -> Awaitable[Answer]:
        if self._within:
            return self._connections.here().ask(asked, asyncio.get_running_loop().time() + self._within)
        return self._connections.here().ask(asked)


def _timeout_of(place: Place) -> float:
    if isinstance(place, Cluster):
        return place.seeds[0].timeout
    return place.timeout if isinstance(place, Address) else place.primary.timeout


class _Connections:
    """Those of the event loop that the store is used in; they belong to the loop that made them."""

    def __init__(self, place: Place, clock: Clock | None, slots: SlotMap | None, traffic: Traffic) -> None:
        self._place, self._clock, self._slots, self._traffic = place, clock, slots, traffic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: Flights | AsyncCluster | None = None
        self._process = os.getpid()

    async def close(self) -> None:
        here = self._loop is asyncio.get_running_loop()
        ending = self._leave()
        if ending and here:
            await asyncio.wait(ending)
        await asyncio.sleep(0)  # sockets are closed in the next turn of the loop

    def here(self) -> Flights | AsyncCluster:
        """Return the connections of this event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._servers is None:
            self._leave()
            self._loop, self._process = loop, os.getpid()
            self._servers = self._connected(loop)
        return self._servers

    def _connected(self, loop: asyncio.AbstractEventLoop) -> Flights | AsyncCluster:
        place = self._place
        if isinstance(place, Cluster):
            assert self._slots is not None  # noqa: S101  a cluster has them
            return AsyncCluster(place, self._clock, loop, self._slots, self._traffic)
        if isinstance(place, Address):
            return Flights(place, self._clock, loop, traffic=self._traffic)
        return Flights(place.primary, self._clock, loop, Sentinels(place), self._traffic)

    def _leave(self) -> list[asyncio.Task[None]]:
        """Give up the event loop that the store was used in; returns what is still to end there."""
        loop, servers = self._loop, self._servers
        # In a loop that is closed nobody waits; and a forked child must not disturb its parent's.
        reachable = loop is not None and not loop.is_closed() and self._process == os.getpid()
        if reachable and loop and loop.is_running() and loop is not asyncio.get_running_loop():
            raise UsageError("a store serves one event loop at a time, and this one is in use: make another")
        self._loop, self._servers = None, None
        return servers.close() if reachable and servers else []
