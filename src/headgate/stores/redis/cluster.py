"""Queries to a cluster: routing to the server of a slot, with redirections.

A route is a flow (see `headgate.flows`), the same for both colours. It continues only after errors after which
nothing was done.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator, Iterator
from enum import Enum
from itertools import count
from time import monotonic, sleep
from typing import NamedTuple, TypeAlias, cast

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.flows import drive, drive_async
from headgate.locks import new_lock
from headgate.stores.redis import connection, pool, script
from headgate.stores.redis.address import Address, Cluster
from headgate.stores.redis.batching import Batcher
from headgate.stores.redis.discovery import SLOTS, SlotMap, slot_of
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.protocol import RefusedByServer
from headgate.stores.redis.script import Query
from headgate.stores.traffic import Traffic

ATTEMPTS = 16
PAUSE = 0.01
"""Seconds between attempts while keys move."""
LAST_ATTEMPT = 0.03
"""Seconds before the caller's deadline after which there is no other attempt: its answer would be too late."""
REFRESH_EVERY, HINT_EVERY = 0.1, 1.0
"""Seconds between requests for the slot map: if a query needs it, and if it is only outdated."""


class Pass(Enum):
    """A step without an answer."""

    REFRESH = "read the slot map now"
    HINT = "read it in the background: a part of it is outdated"
    PAUSE = "wait a moment"


class Send(NamedTuple):
    """A step with an answer: query this server."""

    server: Address
    asking: bool
    """Whether to send ASKING first, since the slot is moving to the server."""
    alone: bool = False
    """Whether not to combine it with others: while a slot moves, one call cannot use keys in both places."""


Route: TypeAlias = Generator[Send | Pass, Decision | None, Decision]


def route(slots: SlotMap, slot: int) -> Route:  # noqa: C901  a branch for each answer
    owner, asking, moving, attempts = slots.owner(slot), False, False, 0
    refused: StoreUnavailable | None = None
    while attempts < ATTEMPTS:
        if owner is None:
            yield Pass.REFRESH
            owner = slots.owner(slot)
            if owner is None:
                break
        try:
            return cast("Decision", (yield Send(owner, asking, moving or asking)))
        except StoreError as error:
            error.server = str(owner)
            if isinstance(error, StoreBusy) or not isinstance(error, StoreUnavailable):
                raise
            word, target = (error.word, error.target) if isinstance(error, RefusedByServer) else ("", ("", 0))
            refused = error if word or refused is None else refused
        attempts += not moving  # while keys move, until the caller's deadline
        if word == "MOVED":
            owner, asking = slots.learn(slot, owner, target), False
            yield Pass.HINT
        elif word == "ASK":
            owner, asking = slots.named(owner, target), True
        elif word == "TRYAGAIN":
            yield Pass.PAUSE
            owner, asking, moving = slots.owner(slot), False, True
        elif moving:
            raise StoreBusy(str(refused))
        else:  # down or demoted: another server may have the slot by now
            yield Pass.REFRESH
            before, owner, asking = owner, slots.owner(slot), False
            if owner == before:
                raise refused
    raise refused or StoreUnavailable(slots.trouble or f"no server of the cluster has slot {slot}")


def pause(left: float) -> float:
    """Return how many seconds to wait while keys move, if the caller has `left`."""
    return PAUSE if left > LAST_ATTEMPT else max(0, left)


def query_slot(query: Query) -> int:
    call = query.call
    principal = call.plan[0].principal if call.plan else script.home_of(call)
    return slot_of(script.key_of("", principal))


def probes(slots: SlotMap) -> Iterator[Query]:
    """Return a query for each server of a cluster, after a refresh of its map. Raises StoreUnavailable."""
    if slots.trouble:
        raise StoreUnavailable(slots.trouble)
    missing = [slot for slot in range(SLOTS) if slots.owner(slot) is None]
    if missing:
        raise StoreUnavailable(f"no server of the cluster has slot {missing[0]} and {len(missing) - 1} others")
    unseen = {slots.owner(slot) for slot in range(SLOTS)}
    for number in count():
        if not unseen:
            return
        query = script.query(script.probe(f"headgate-{number}"))
        owner = slots.owner(query_slot(query))
        if owner in unseen:
            unseen.discard(owner)
            yield query


class AsyncCluster:
    """Queries the servers of a cluster, in an event loop."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock | None,
        loop: asyncio.AbstractEventLoop,
        slots: SlotMap,
        traffic: Traffic | None = None,
    ) -> None:
        self._slots, self._clock, self._loop, self._traffic = slots, clock, loop, traffic
        self._timeout = cluster.seeds[0].timeout
        self._batchers: dict[Address, Batcher] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._overdue: asyncio.Task[None] | None = None  # a refresh that did not end before a caller's deadline
        self._refreshed_at = -REFRESH_EVERY
        self._closed = False

    async def run(self, query: Query, deadline: float = 0) -> Decision:
        """Return the answer; `deadline` is by the loop's clock, default: as in the address."""
        slot = query_slot(query)
        deadline = deadline or self._loop.time() + self._timeout

        async def do(step: Send | Pass) -> Decision | None:
            if isinstance(step, Send):
                return await self._to(step.server).run(query, deadline, slot, asking=step.asking, alone=step.alone)
            if step is Pass.PAUSE:
                await asyncio.sleep(pause(deadline - self._loop.time()))
            elif step is Pass.REFRESH:
                await self._refresh(deadline, REFRESH_EVERY)
            else:
                self._refresh_later(HINT_EVERY)
            return None

        return await drive_async(route(self._slots, slot), do)

    async def ready(self) -> None:
        await self._refresh(self._loop.time() + self._timeout, 0)
        await asyncio.gather(*[self.run(probe) for probe in probes(self._slots)])
        await asyncio.gather(*[self._to(server).vet() for server in self._slots.nodes])

    def close(self) -> list[asyncio.Task[None]]:
        """Close all connections, failing all calls. Returns tasks that have yet to end."""
        self._closed = True
        ending = [task for batcher in self._batchers.values() for task in batcher.close()]
        if self._refreshing:
            self._refreshing.cancel()
            ending.append(self._refreshing)
        self._batchers.clear()
        return ending

    async def _refresh(self, deadline: float, every: float) -> None:
        """Wait for a slot map that is at most `every` seconds old; concurrent callers share one refresh."""
        self._refresh_later(every)
        refresh = self._refreshing
        if refresh and refresh is not self._overdue:
            _, waiting = await asyncio.wait([refresh], timeout=max(0, deadline - self._loop.time()))
            self._overdue = refresh if waiting else None

    def _refresh_later(self, every: float) -> None:
        self._check_open()
        under_way = self._refreshing and not self._refreshing.done()
        if not under_way and self._loop.time() >= self._refreshed_at + every:
            self._refreshing = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        slots = self._slots
        await drive_async(slots.refresh(), lambda step: connection.send_to(*step, slots.patience))
        self._refreshed_at = self._loop.time()
        for server in tuple(self._batchers):
            if server not in slots.nodes and self._batchers[server].is_idle:
                self._batchers.pop(server).close()

    def _to(self, server: Address) -> Batcher:
        batcher = self._batchers.get(server)
        if batcher is None:
            self._check_open()
            batcher = self._batchers[server] = Batcher(server, self._clock, self._loop, traffic=self._traffic)
        return batcher

    def _check_open(self) -> None:
        """Open nothing for calls that were in progress when the store was closed."""
        if self._closed:
            raise StoreUnavailable("the store was closed")


class BlockingCluster:
    """Queries the servers of a cluster, for callers that may block."""

    def __init__(self, cluster: Cluster, clock: Clock | None) -> None:
        self.slots = SlotMap(cluster)
        self._clock = clock
        self._timeout = cluster.seeds[0].timeout
        self._pools: dict[Address, Pool] = {}
        self._refreshed_at = -REFRESH_EVERY
        self._lock = new_lock()
        self._begin()

    def _begin(self) -> None:
        """Start without a refresh; again in a forked child, which must not wait for a thread of its parent."""
        self._refreshing = threading.Lock()
        self._process = os.getpid()

    def run(self, query: Query, give_up: float = 0) -> Decision:
        """Return the answer; `give_up` is the deadline by `monotonic`, default: as in the address."""
        if self._process != os.getpid():
            self._begin()
        until = give_up or monotonic() + self._timeout

        def do(step: Send | Pass) -> Decision | None:
            if isinstance(step, Send):
                return self._pool(step.server).run(query, until, asking=step.asking)
            if step is Pass.PAUSE:
                sleep(pause(until - monotonic()))
            elif step is Pass.REFRESH:
                self._refresh(until, REFRESH_EVERY)
            elif monotonic() >= self._refreshed_at + HINT_EVERY and not self._refreshing.locked():
                later = monotonic() + self.slots.patience
                threading.Thread(target=self._refresh, args=(later, HINT_EVERY), daemon=True).start()
            return None

        return drive(route(self.slots, query_slot(query)), do)

    def ready(self) -> None:
        if self._process != os.getpid():
            self._begin()
        self._refresh(monotonic() + self._timeout, 0)
        for probe in probes(self.slots):
            self.run(probe)
        for server in self.slots.nodes:
            self._pool(server).vet()

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for each in pools.values():
            each.close()

    def _refresh(self, give_up: float, every: float) -> None:
        """Read the slot map unless it is less than `every` seconds old; one thread does so for all."""
        asked_at = monotonic()
        if not self._refreshing.acquire(timeout=max(0, give_up - asked_at)):
            return
        try:
            if asked_at >= self._refreshed_at + every:
                self._renew(give_up)
        finally:
            self._refreshing.release()

    def _renew(self, give_up: float) -> None:
        def do(step: tuple[Address, bytes]) -> object:
            return pool.send_to(*step, min(self.slots.patience, max(0.01, give_up - monotonic())))

        drive(self.slots.refresh(), do)
        self._refreshed_at = monotonic()
        with self._lock:
            gone = [self._pools.pop(server) for server in tuple(self._pools) if server not in self.slots.nodes]
        for each in gone:
            each.close()

    def _pool(self, server: Address) -> Pool:
        found = self._pools.get(server)
        if found is None:
            with self._lock:
                found = self._pools.setdefault(server, Pool(server, self._clock))
        return found
