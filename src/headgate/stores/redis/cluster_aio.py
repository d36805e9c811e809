"""A cluster for callers in an event loop: flights to each of its servers, and the way between them."""

from __future__ import annotations

import asyncio

from headgate.clock import Clock
from headgate.core.errors import StoreError, StoreUnavailable
from headgate.stores.redis import readiness
from headgate.stores.redis.address import Address, Cluster
from headgate.stores.redis.answers import Answer
from headgate.stores.redis.discovery import SlotMap, slot_of
from headgate.stores.redis.flights import Flights
from headgate.stores.redis.inquiry import inquire
from headgate.stores.redis.routing import HINT_EVERY, REFRESH_EVERY, Ask, Pass, Route, pause, route
from headgate.stores.redis.scripts import Question
from headgate.stores.traffic import Traffic


class AsyncCluster:
    """Asks the servers of a cluster."""

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
        self._flights: dict[Address, Flights] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at = -REFRESH_EVERY
        self._closed = False

    async def ask(self, question: Question, deadline: float = 0) -> Answer:
        """Return the answer; `deadline` is when to stop waiting for it, by the loop's clock, if not the usual."""
        slot = slot_of(question.keys[0])
        deadline = deadline or self._loop.time() + self._timeout
        return await self._follow(route(self._slots, slot), question, slot, deadline)

    async def ready(self) -> None:
        await self._refresh(self._loop.time() + self._timeout, 0)
        await asyncio.gather(*[self.ask(probe) for probe in readiness.probes(self._slots)])
        await asyncio.gather(*[self._to(server).vet() for server in self._slots.nodes])

    def close(self) -> list[asyncio.Task[None]]:
        """Hang up; whoever waits is told. Returns what is still to end."""
        self._closed = True
        ending = [task for flights in self._flights.values() for task in flights.close()]
        if self._refreshing:
            self._refreshing.cancel()
            ending.append(self._refreshing)
        self._flights.clear()
        return ending

    async def _follow(self, way: Route, question: Question, slot: int, deadline: float) -> Answer:
        try:
            step = next(way)
            while True:
                if isinstance(step, Ask):
                    try:
                        flights = self._to(step.server)
                        answer = await flights.ask(question, deadline, slot, asking=step.asking, alone=step.alone)
                    except StoreError as error:
                        error.server = str(step.server)
                        step = way.throw(error)
                    else:
                        step = way.send(answer)
                    continue
                if step is Pass.PAUSE:
                    await asyncio.sleep(pause(deadline - self._loop.time()))
                elif step is Pass.REFRESH:
                    await self._refresh(deadline, REFRESH_EVERY)
                else:
                    self._refresh_later(HINT_EVERY)
                step = next(way)
        except StopIteration as stop:
            found: Answer = stop.value
            return found

    async def _refresh(self, deadline: float, every: float) -> None:
        """Wait for a slot map that is at most `every` seconds old; one inquiry for all who wait."""
        self._refresh_later(every)
        if self._refreshing:
            await asyncio.wait([self._refreshing], timeout=max(0, deadline - self._loop.time()))

    def _refresh_later(self, every: float) -> None:
        self._check_open()
        under_way = self._refreshing and not self._refreshing.done()
        if not under_way and self._loop.time() >= self._refreshed_at + every:
            self._refreshing = self._loop.create_task(self._renew())

    async def _renew(self) -> None:
        await inquire(self._slots.refresh(), self._slots.patience)
        self._refreshed_at = self._loop.time()
        for server in tuple(self._flights):
            if server not in self._slots.nodes and self._flights[server].is_idle:
                self._flights.pop(server).close()

    def _to(self, server: Address) -> Flights:
        flights = self._flights.get(server)
        if flights is None:
            self._check_open()
            flights = self._flights[server] = Flights(server, self._clock, self._loop, traffic=self._traffic)
        return flights

    def _check_open(self) -> None:
        """Let nobody who was on the way when the store was closed open anything again."""
        if self._closed:
            raise StoreUnavailable("the store was closed")
