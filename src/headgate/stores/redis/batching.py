"""Concurrent calls to one server, sent in batches.

A call is sent at once if a connection is idle, otherwise with the next *batch*: all calls that came meanwhile, in one
call of the script. No timer decides; a batch is sent when a connection has the replies to the last one. One script call
that decides a hundred plans costs the server, and this process, a fraction of a hundred calls. (In a cluster a script
call reaches only one slot, so a batch has one for each slot, and these are sent together.)

Callers never touch a connection. If a caller is cancelled, its reply is discarded; the stream continues.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from functools import partial
from math import inf
from operator import attrgetter

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreUnavailable
from headgate.stores.deadlines import ServerTime
from headgate.stores.redis import script
from headgate.stores.redis.address import Address
from headgate.stores.redis.connection import LOOK_EVERY, LOOK_FROM, LOOKS, SOON, AsyncConnection, Pending, fail
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.script import Query
from headgate.stores.traffic import Traffic

CONNECTIONS = 2
LARGEST_BATCH = 128
LONGEST_QUEUE = 20_000
SENT_EARLY = 32
"""Calls that are enough for a batch if a connection is free: the server decides while others still come."""

_deadline = attrgetter("deadline")


class Batcher:
    """The calls of one server.

    Args:
        address: of the server, unless the `sentinels` name it for each new connection.
        clock: if given, the script decides at its time instead of the server's.
        replicas: how many must have the writes of an answer; default: as in the address.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        loop: asyncio.AbstractEventLoop,
        sentinels: Sentinels | None = None,
        traffic: Traffic | None = None,
        *,
        replicas: int = 0,
    ) -> None:
        self._address, self._loop, self._replicas = address, loop, replicas or address.replicas
        self._timeout = address.timeout
        self._time = ServerTime(loop, self._has_calls)
        self._more = partial(Batcher, address, clock, loop, sentinels, traffic)
        self._durable: dict[int, Batcher] = {}  # for more replicas: only their callers wait for these
        self._queue: deque[Pending] = deque()  # by deadline
        self._dispatching = False
        self._watch_until = 0.0  # the deadline that the timer is set for; 0 with an empty queue
        self._looks = 0  # since then
        self._unreached = ""  # the error of callers that got no connection in time, until the attempt has ended
        self._alone = False  # whether the last batch had only one call: then the next is sent at once, too
        count = address.connections or CONNECTIONS
        self.connections = [
            AsyncConnection(address, clock, self._time, self._free, sentinels, traffic=traffic, replicas=self._replicas)
            for _ in range(count)
        ]

    def run(
        self, query: Query, deadline: float = 0, slot: int = 0, *, asking: bool = False, alone: bool = False
    ) -> asyncio.Future[Decision]:
        """Return the future decision; `deadline` is by the loop's clock, default: as in the address.

        In a cluster, the query goes with others of the same `slot`, unless it must be `alone`. If the slot is moving to
        the server, it goes alone as well, after the command ASKING.
        """
        if query.replicas > self._replicas:
            return self._for(query.replicas).run(query, deadline, slot, asking=asking, alone=alone)
        answer: asyncio.Future[Decision] = self._loop.create_future()
        queue = self._queue
        waiting = len(queue)
        if waiting >= LONGEST_QUEUE:
            answer.set_exception(StoreBusy(f"{self._address}: {LONGEST_QUEUE} calls are waiting already"))
            return answer
        if self._unreached:  # no connection could be made in time for others
            answer.set_exception(StoreUnavailable(self._unreached))
            return answer
        left = deadline - self._loop.time() if deadline else self._timeout
        if left <= 0:  # redirections have taken all of its time
            answer.set_exception(self._not_reached())
            return answer
        self._time.watch()
        now = self._time.time()
        pending = Pending(query, answer, now, now + left, slot, asking, alone)
        if waiting and pending.deadline < queue[-1].deadline:  # it was redirected, or has a shorter deadline
            queue.insert(bisect_right(queue, pending.deadline, key=_deadline), pending)
        else:
            queue.append(pending)
        if self._alone and not waiting:
            self._dispatch()
        elif not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)
        elif waiting + 1 == SENT_EARLY and any(each.is_free for each in self.connections):
            self._dispatch()
        return answer

    def _for(self, replicas: int) -> Batcher:
        """Return the batcher of calls that need this many replicas."""
        durable = self._durable.get(replicas)
        if durable is None:
            durable = self._durable[replicas] = self._more(replicas=replicas)
        return durable

    async def ready(self) -> None:
        """Raise StoreError unless the server could decide; opens and uses all connections."""
        await self.run(script.query(script.probe()))
        for connection in self.connections:
            connection.connect()
        opening = [each.connecting for each in self.connections if each.connecting]
        if opening:
            await asyncio.wait(opening, timeout=self._timeout)
        await self.vet()

    async def vet(self) -> None:
        for durable in tuple(self._durable.values()):
            await durable.vet()
        try:
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(*[each.vet() for each in self.connections if each.is_open])
        except TimeoutError:
            raise self._not_reached() from None

    @property
    def is_idle(self) -> bool:
        return not self._has_calls() and all(durable.is_idle for durable in self._durable.values())

    def _has_calls(self) -> bool:
        return bool(self._queue) or any(connection.batch for connection in self.connections)

    def close(self) -> list[asyncio.Task[None]]:
        """Close all connections, failing all calls. Returns tasks that have yet to end."""
        waiting = list(self._queue)
        connecting = [each.connecting for each in self.connections if each.connecting]
        self._queue.clear()
        for connection in self.connections:
            connection.close()
        fail(waiting, StoreUnavailable(f"{self._address}: the store was closed"))
        return connecting + [task for durable in self._durable.values() for task in durable.close()]

    def _dispatch(self) -> None:
        """Send the queue over free connections; connect if there are too few."""
        self._dispatching = False
        for connection in self.connections:
            if not self._queue:
                return
            if connection.is_free and (batch := self._next_batch()):
                self._alone = len(batch) == 1
                connection.send(batch)
        if self._queue:
            for connection in self.connections:
                connection.connect()
            if not any(each.is_open or each.is_connecting for each in self.connections):
                waiting = list(self._queue)
                self._queue.clear()
                fail(waiting, StoreUnavailable(str(self.connections[0].last_error)))
            self._watch()

    def _next_batch(self) -> list[Pending]:
        queue = self._queue
        if len(queue) <= LARGEST_BATCH:
            batch = [each for each in queue if not each.answer.done()]
            queue.clear()
            return batch
        batch = []
        while queue and len(batch) < LARGEST_BATCH:
            first = queue.popleft()
            if not first.answer.done():
                batch.append(first)
        return batch

    def _watch(self) -> None:
        if self._queue and (self._watch_until == 0 or self._queue[0].deadline < self._watch_until):
            self._watch_until = self._queue[0].deadline
            self._loop.call_later(self._watch_until - LOOK_FROM - self._time.time(), self._expire)

    def _expire(self) -> None:
        if self._queue and self._looks < LOOKS:  # a connection may soon be free
            self._looks += 1
            self._loop.call_later(LOOK_EVERY, self._expire)
            return
        self._looks, self._watch_until = 0, 0.0
        self._give_up_late()
        self._watch()

    def _give_up_late(self) -> None:
        if not self._queue:
            return
        now, late = self._time.time() + SOON, []
        while self._queue and self._queue[0].deadline <= now:
            late.append(self._queue.popleft())
        if not late:
            return
        error = self._not_reached(late[0].since)
        error.incident = error  # shared by all that waited for the same connections
        if self._is_still_connecting():
            self._unreached = str(error)
        fail(late, error)

    def _is_still_connecting(self) -> bool:
        """Whether no connection is open, and one is being made."""
        connections = self.connections
        return not any(each.is_open for each in connections) and any(each.is_connecting for each in connections)

    def _not_reached(self, since: float = inf) -> StoreUnavailable:
        """Return the reason why a call that has waited since then was not sent."""
        if any(connection.awaits_replicas for connection in self.connections):
            return StoreBusy(f"{self._address}: all connections wait for replicas")
        if any(connection.answered_at > since for connection in self.connections):
            return StoreBusy(f"{self._address}: not called in time, since it has too many calls")
        if any(connection.is_open for connection in self.connections):
            return StoreUnavailable(f"{self._address}: not called in time, since it has not answered earlier calls")
        return StoreUnavailable(f"{self._address}: not reached in {self._timeout:g} s")

    def _free(self) -> None:
        """Handle a connection that is free, or cannot be opened."""
        if self._unreached and not self._is_still_connecting():
            self._unreached = ""
        if self._queue and not self._dispatching:
            self._dispatch()
