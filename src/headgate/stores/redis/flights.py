"""Connections of an event loop to one server, on which concurrent questions travel together.

A question is sent at once when a connection is idle, and otherwise with the next *flight*: all questions that came
meanwhile, in one call of the script. No timer decides; a flight leaves when a connection has its answer. One script
call that decides a hundred plans costs the server, and this process, a fraction of a hundred calls. (In a cluster a
call reaches one slot only, so there a flight has several *legs*, one for each slot, that leave together.)

Callers never touch a connection. A caller that is cancelled leaves its answer unread by anybody; the stream goes on.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from functools import partial
from operator import attrgetter

from headgate.clock import Clock
from headgate.core.errors import StoreBusy, StoreUnavailable
from headgate.stores.redis import readiness
from headgate.stores.redis.address import Address
from headgate.stores.redis.answers import Answer
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.lane import LOOK_EVERY, LOOK_FROM, LOOKS, SOON, Asked, Lane, fail
from headgate.stores.redis.scripts import Question
from headgate.stores.traffic import Traffic

CONNECTIONS = 2
LARGEST_FLIGHT = 128
LONGEST_QUEUE = 10_000
LEAVES_EARLY = 32
"""So many questions do not wait for more if a connection is free: the server decides while others still ask."""

_deadline = attrgetter("deadline")


class Flights:
    """The questions to one server.

    Args:
        address: how to talk to it.
        clock: makes the script decide at this clock's time rather than at the server's, if given.
        loop: the event loop that all this happens in.
        sentinels: are asked for each new connection where the server is; unless it is at `address`.
        traffic: counts what comes back.
        replicas: how many must have what an answer wrote; default: what the address says.
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
        self._more = partial(Flights, address, clock, loop, sentinels, traffic)
        self._durable: dict[int, Flights] = {}  # for more replicas: nobody else waits behind those who wait for them
        self._queue: deque[Asked] = deque()
        self._dispatching = False
        self._watch_until = 0.0  # when the first of them is looked at; 0: nobody waits
        self._looks = 0  # since then
        self._alone = False  # did the last flight have one question only? Then the next leaves at once, too
        count = address.connections or CONNECTIONS
        self.lanes = [
            Lane(address, clock, loop, self._free, sentinels, traffic=traffic, replicas=self._replicas)
            for _ in range(count)
        ]

    def ask(
        self, question: Question, deadline: float = 0, slot: int = 0, *, asking: bool = False, alone: bool = False
    ) -> asyncio.Future[Answer]:
        """Return the answer to come.

        Args:
            question: what to ask.
            deadline: when to stop waiting for it, by the loop's clock; default: what the address says.
            slot: that of the keys, in a cluster.
            asking: whether the server is asked for what it does not own yet; then it is asked alone.
            alone: whether not to ask together with others about the same slot.
        """
        if question.replicas > self._replicas:
            return self._for(question.replicas).ask(question, deadline, slot, asking=asking, alone=alone)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        queue = self._queue
        if len(queue) >= LONGEST_QUEUE:
            answer.set_exception(StoreBusy(f"{self._address}: {LONGEST_QUEUE} questions are waiting already"))
            return answer
        now = self._loop.time()
        if deadline and deadline <= now:  # it was redirected, and that took all of its time
            answer.set_exception(self._not_reached())
            return answer
        asked = Asked(question, answer, deadline or now + self._address.timeout, slot, asking, alone)
        if queue and asked.deadline < queue[-1].deadline:  # it was redirected, and has waited elsewhere; or is hurried
            queue.insert(bisect_right(queue, asked.deadline, key=_deadline), asked)
        else:
            queue.append(asked)
        if (self._alone and len(queue) == 1) or (
            len(queue) == LEAVES_EARLY and any(each.is_free for each in self.lanes)
        ):
            self._dispatch()
        elif not self._dispatching:
            self._dispatching = True
            self._loop.call_soon(self._dispatch)
        return answer

    def _for(self, replicas: int) -> Flights:
        """Return the flights of questions that need so many replicas."""
        durable = self._durable.get(replicas)
        if durable is None:
            durable = self._durable[replicas] = self._more(replicas=replicas)
        return durable

    async def ready(self) -> None:
        """Raise StoreError unless the server could decide."""
        await self.ask(readiness.probe())
        await self.vet()

    async def vet(self) -> None:
        """Raise StoreError if the server would be refused now, were it not in use already."""
        for durable in tuple(self._durable.values()):
            await durable.vet()
        for lane in self.lanes:
            if lane.is_open:
                try:
                    async with asyncio.timeout(self._address.timeout):
                        await lane.vet()
                except TimeoutError:
                    raise self._not_reached() from None
                return

    @property
    def is_idle(self) -> bool:
        """Does nobody wait for an answer?"""
        others = all(durable.is_idle for durable in self._durable.values())
        return others and not self._queue and all(lane.is_empty for lane in self.lanes)

    def close(self) -> list[asyncio.Task[None]]:
        """Hang up; whoever waits is told. Returns what is still to end."""
        waiting, connecting = list(self._queue), [lane.connecting for lane in self.lanes if lane.connecting]
        self._queue.clear()
        for lane in self.lanes:
            lane.close()
        fail(waiting, StoreUnavailable(f"{self._address}: the store was closed"))
        return connecting + [task for durable in self._durable.values() for task in durable.close()]

    def _dispatch(self) -> None:
        """Send what waits, as far as connections are free; where none is, open one."""
        self._dispatching = False
        for lane in self.lanes:
            if lane.is_free and (asked := self._boarding()):
                self._alone = len(asked) == 1
                lane.fly(asked)
        if self._queue:
            for lane in self.lanes:
                lane.connect()
            if not any(lane.is_open or lane.is_connecting for lane in self.lanes):
                waiting = list(self._queue)
                self._queue.clear()
                fail(waiting, StoreUnavailable(str(self.lanes[0].last_error)))
            self._watch()

    def _boarding(self) -> list[Asked]:
        """Take the questions of the next flight from the queue, but not those whose callers are gone."""
        asked: list[Asked] = []
        while self._queue and len(asked) < LARGEST_FLIGHT:
            first = self._queue.popleft()
            if not first.answer.done():
                asked.append(first)
        return asked

    def _watch(self) -> None:
        """See to it that nobody waits in the queue beyond the deadline."""
        if self._queue and (self._watch_until == 0 or self._queue[0].deadline < self._watch_until):
            self._watch_until = self._queue[0].deadline
            self._loop.call_at(self._watch_until - LOOK_FROM, self._expire)

    def _expire(self) -> None:
        if self._queue and self._looks < LOOKS:  # a connection may be about to be free
            self._looks += 1
            self._loop.call_later(LOOK_EVERY, self._expire)
            return
        self._looks, self._watch_until = 0, 0.0
        self._give_up_late()
        self._watch()

    def _give_up_late(self) -> None:
        if not self._queue:
            return
        now, late = self._loop.time() + SOON, []
        while self._queue and self._queue[0].deadline <= now:
            late.append(self._queue.popleft())
        error = self._not_reached()
        error.incident = error  # of all who have waited for the same connections
        fail(late, error)

    def _not_reached(self) -> StoreUnavailable:
        if any(lane.awaits_replicas for lane in self.lanes):
            return StoreBusy(f"{self._address}: all connections wait for replicas")
        if any(lane.is_open for lane in self.lanes):
            return StoreUnavailable(f"{self._address}: not asked in time, since it does not answer who asked before")
        return StoreUnavailable(f"{self._address}: not reached in {self._address.timeout:g} s")

    def _free(self) -> None:
        """A lane is free, or cannot be opened: see to those who wait."""
        if self._queue and not self._dispatching:
            self._dispatch()
