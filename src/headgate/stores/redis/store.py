"""The Redis store, blocking and for an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from copy import copy
from functools import partial
from time import monotonic

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.plan import Call
from headgate.flows import drive, drive_async
from headgate.stores.base import plain_async_check, plain_check
from headgate.stores.redis import spread
from headgate.stores.redis.address import Cluster, Location, Service
from headgate.stores.redis.batching import Batcher
from headgate.stores.redis.cluster import AsyncCluster, BlockingCluster
from headgate.stores.redis.discovery import Sentinels, SlotMap
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.script import Query, query
from headgate.stores.traffic import Traffic, TrafficStatistics


class RedisStore:
    """Keeps the state of limits in Redis or Valkey, for callers that may block.

    Args:
        location: the servers, and the parameters of connections.
        clock: only for tests: the script decides at its time instead of the server's.
    """

    def __init__(self, location: Location, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._slots: SlotMap | None = None
        self._servers: BlockingCluster | Pool
        if isinstance(location, Cluster):
            self._servers = BlockingCluster(location, clock)
            self._slots, self._timeout = self._servers.slots, location.seeds[0].timeout
            self.servers_of, self.servers = partial(spread.servers_of, self._slots), self._slots.servers
        elif isinstance(location, Service):
            self._servers = Pool(location.primary, clock, Sentinels(location))
        else:
            self._servers = Pool(location, clock)

    def run(self, call: Call) -> Decision:
        if self._slots is None or not spread.is_spread(call):
            return self._servers.run(query(call))
        give_up = monotonic() + self._timeout
        return drive(spread.decide(call), lambda step: self._servers.run(_query(step), 0 if step.late else give_up))

    bind = plain_check

    def ready(self) -> None:
        """Run the script on every server that decides. Raises StoreError."""
        self._servers.ready()

    def close(self) -> None:
        self._servers.close()


class AsyncRedisStore:
    """The same for an event loop, one at a time; concurrent calls share connections."""

    def __init__(self, location: Location, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._traffic = Traffic()
        self._slots: SlotMap | None = None
        begin: Callable[[asyncio.AbstractEventLoop], Batcher | AsyncCluster]
        if isinstance(location, Cluster):
            address, slots = location.seeds[0], SlotMap(location)
            self._slots, self.servers_of, self.servers = slots, partial(spread.servers_of, slots), slots.servers
            begin = partial(AsyncCluster, location, clock, slots=slots, traffic=self._traffic)
        else:
            sentinels = Sentinels(location) if isinstance(location, Service) else None
            address = location.primary if isinstance(location, Service) else location
            begin = partial(Batcher, address, clock, sentinels=sentinels, traffic=self._traffic)
        self._within = self._timeout = address.timeout
        """The callers' deadline in seconds, and the longest."""
        self._connections = _Connections(begin)

    def within(self, seconds: float) -> AsyncRedisStore:
        """Return the same store for callers that wait at most `seconds`.

        The connection is closed only after the `timeout` of the address, which also bounds the wait. Answers until then
        are passed to `OutcomeUnknown.on_late_answer`.
        """
        copied = copy(self)
        copied._within = min(seconds, self._timeout)  # noqa: SLF001  of the same class
        return copied

    async def run(self, call: Call) -> Decision:
        loop = asyncio.get_running_loop()
        servers, until = self._connections.of(loop), loop.time() + self._within
        if self._slots is None or not spread.is_spread(call):
            return await servers.run(query(call), until)
        return await drive_async(spread.decide(call), lambda step: servers.run(_query(step), 0 if step.late else until))

    bind = plain_async_check

    async def ready(self) -> None:
        """Run the script on every server that decides, on every connection. Raises StoreError.

        A service that calls this before it listens has open connections for the first request.
        """
        await self._connections.of(asyncio.get_running_loop()).ready()

    def traffic(self) -> TrafficStatistics:
        return self._traffic.statistics()

    async def close(self) -> None:
        await self._connections.close()


def _query(step: spread.Step) -> Query:
    return query(step.call, attempt=step.attempt)


class _Connections:
    """The connections of the event loop that the store is used in, which they belong to."""

    def __init__(self, begin: Callable[[asyncio.AbstractEventLoop], Batcher | AsyncCluster]) -> None:
        self._begin = begin
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
        if loop is not self._loop or self._servers is None:
            self._leave()
            self._loop, self._process = loop, os.getpid()
            self._servers = self._begin(loop)
        return self._servers

    def _leave(self) -> list[asyncio.Task[None]]:
        """Leave the event loop that the store was used in; returns tasks that have yet to end there."""
        loop, servers = self._loop, self._servers
        # In a closed loop nothing waits; and a forked child must not disturb its parent's.
        reachable = loop is not None and not loop.is_closed() and self._process == os.getpid()
        if reachable and loop and loop.is_running() and loop is not asyncio.get_running_loop():
            raise UsageError("a store can be used in one event loop at a time, and this one is in use: create another")
        self._loop, self._servers = None, None
        return servers.close() if reachable and servers else []
