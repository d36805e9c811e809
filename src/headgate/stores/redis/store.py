"""The Redis store, blocking and for an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from copy import copy
from functools import partial
from time import monotonic

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.plan import Call, Family
from headgate.flows import drive, drive_async
from headgate.stores.base import AsyncCheck, Check
from headgate.stores.redis import spread
from headgate.stores.redis.address import Address, Cluster, Place, Service
from headgate.stores.redis.batching import Batcher
from headgate.stores.redis.cluster import AsyncCluster, BlockingCluster
from headgate.stores.redis.discovery import Sentinels, SlotMap
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.script import Query, query
from headgate.stores.traffic import Traffic, TrafficStatistics
from headgate.stores.wrapping import plain_async_check, plain_check


class RedisStore:
    """Keeps the state of limits in Redis or Valkey, for callers that may block.

    Args:
        place: the servers, and the parameters of connections.
        clock: only for tests: the script decides at its time instead of the server's.
    """

    def __init__(self, place: Place, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._slots: SlotMap | None = None
        self._servers: BlockingCluster | Pool
        if isinstance(place, Cluster):
            self._servers = BlockingCluster(place, clock)
            self._slots, self._timeout = self._servers.slots, place.seeds[0].timeout
            self.servers_of, self.servers = partial(spread.servers_of, self._slots), self._slots.servers
        elif isinstance(place, Service):
            self._servers = Pool(place.primary, clock, Sentinels(place))
        else:
            self._servers = Pool(place, clock)

    def run(self, call: Call) -> Decision:
        if self._slots is None or not spread.is_spread(call):
            return self._servers.ask(query(call))
        give_up = monotonic() + self._timeout
        return drive(spread.decide(call), lambda step: self._servers.ask(_query(step), 0 if step.late else give_up))

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)

    def ready(self) -> None:
        """Run the script on every server that decides. Raises StoreError."""
        self._servers.ready()

    def close(self) -> None:
        self._servers.close()


class AsyncRedisStore:
    """The same for an event loop, one at a time; concurrent calls share connections."""

    def __init__(self, place: Place, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._slots = SlotMap(place) if isinstance(place, Cluster) else None
        if self._slots:  # otherwise servers have no names
            self.servers_of, self.servers = partial(spread.servers_of, self._slots), self._slots.servers
        self._within = self._timeout = _timeout_of(place)
        """The callers' deadline in seconds, and the longest."""
        self._traffic = Traffic()
        self._connections = _Connections(place, clock, self._slots, self._traffic)

    def within(self, seconds: float) -> AsyncRedisStore:
        """Return the same store for callers that wait at most so many seconds.

        The connection is closed only after the `timeout` of the address, which also bounds the wait. Answers until then
        are passed to `OutcomeUnknown.told_late`.
        """
        copied = copy(self)
        copied._within = min(seconds, self._timeout)  # noqa: SLF001  of the same class
        return copied

    async def run(self, call: Call) -> Decision:
        loop = asyncio.get_running_loop()
        servers, until = self._connections.of(loop), loop.time() + self._within
        if self._slots is None or not spread.is_spread(call):
            return await servers.ask(query(call), until)
        return await drive_async(spread.decide(call), partial(_run_step, servers, until))

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        """Run the script on every server that decides, on every connection. Raises StoreError.

        A service that calls this before it listens has open connections for the first request.
        """
        await self._connections.of(asyncio.get_running_loop()).ready()

    def traffic(self) -> TrafficStatistics:
        return self._traffic.statistics()

    async def close(self) -> None:
        await self._connections.close()


def _run_step(servers: Batcher | AsyncCluster, until: float, step: spread.Step) -> Awaitable[Decision]:
    return servers.ask(_query(step), 0.0 if step.late else until)


def _query(step: spread.Step) -> Query:
    return query(step.call, attempt=step.attempt)


def _timeout_of(place: Place) -> float:
    if isinstance(place, Cluster):
        return place.seeds[0].timeout
    return place.timeout if isinstance(place, Address) else place.primary.timeout


class _Connections:
    """The connections of the event loop that the store is used in, which they belong to."""

    def __init__(self, place: Place, clock: Clock | None, slots: SlotMap | None, traffic: Traffic) -> None:
        self._place, self._clock, self._slots, self._traffic = place, clock, slots, traffic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: Batcher | AsyncCluster | None = None
        self._process = os.getpid()

    async def close(self) -> None:
        here = self._loop is asyncio.get_running_loop()
        ending = self._leave()
        if ending and here:
            await asyncio.wait(ending)
        await asyncio.sleep(0)  # sockets close in the next turn of the loop

    def of(self, loop: asyncio.AbstractEventLoop) -> Batcher | AsyncCluster:
        """Return the connections of the running event loop."""
        if loop is not self._loop or self._servers is None:
            self._leave()
            self._loop, self._process = loop, os.getpid()
            self._servers = self._connected(loop)
        return self._servers

    def _connected(self, loop: asyncio.AbstractEventLoop) -> Batcher | AsyncCluster:
        place = self._place
        if isinstance(place, Cluster):
            assert self._slots is not None  # noqa: S101  a cluster has them
            return AsyncCluster(place, self._clock, loop, self._slots, self._traffic)
        if isinstance(place, Address):
            return Batcher(place, self._clock, loop, traffic=self._traffic)
        return Batcher(place.primary, self._clock, loop, Sentinels(place), self._traffic)

    def _leave(self) -> list[asyncio.Task[None]]:
        """Leave the event loop that the store was used in; returns tasks that have yet to end there."""
        loop, servers = self._loop, self._servers
        # In a closed loop nothing waits; and a forked child must not disturb its parent's.
        reachable = loop is not None and not loop.is_closed() and self._process == os.getpid()
        if reachable and loop and loop.is_running() and loop is not asyncio.get_running_loop():
            raise UsageError("a store can be used in one event loop at a time, and this one is in use: create another")
        self._loop, self._servers = None, None
        return servers.close() if reachable and servers else []
