"""The Redis store for an event loop: concurrent questions travel together.

A question is sent at once when a connection is idle, and otherwise with the next *flight*: all questions that came
meanwhile, in one call of the script. No timer decides; a flight leaves when a connection has its answer. One script
call that decides a hundred plans costs the server, and this process, a fraction of a hundred calls.

Callers never touch a connection. A caller that is cancelled leaves its answer unread by anybody; the stream goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import uniform
from typing import NamedTuple

import hiredis

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Family, Plan
from headgate.stores.base import AsyncCheck
from headgate.stores.redis import scripts, wire
from headgate.stores.redis.address import Address

CONNECTIONS = 2
LARGEST_FLIGHT = 128
LONGEST_QUEUE = 10_000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to connect


class _Asked(NamedTuple):
    """A question and who waits for its answer."""

    question: scripts.Question
    answer: asyncio.Future[list[int]]
    deadline: float
    """By the loop's clock."""


class AsyncRedisStore:
    """Keeps the state of limits in one Redis or Valkey server.

    Args:
        address: the server, and how to talk to it.
        clock: only for tests: makes the script decide at this clock's time rather than at the server's.
    """

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self._address = address
        self._manual = clock
        self.clock: Clock = clock or SystemClock()
        self._queue: deque[_Asked] = deque()
        self._lanes: list[_Lane] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dispatching = self._watching = False

    def manual_now(self) -> int | None:
        """Return the time to decide at, in tests; otherwise the server knows it."""
        return self._manual.now() if self._manual else None

    async def check(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, await self._ask(scripts.question(scripts.CHECK, plan, cost)))

    async def peek(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, await self._ask(scripts.question(scripts.PEEK, plan, cost)))

    async def refund(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, await self._ask(scripts.question(scripts.REFUND, plan, cost)))

    async def reset(self, plan: Plan) -> None:
        await self._ask(scripts.question(scripts.RESET, plan, 0))

    def bind(self, family: Family) -> AsyncCheck:
        async def check(key: str, cost: int = 1) -> Decision:
            plan = family.plan(key)
            if cost == 0 and type(cost) is int:
                return await self.peek(plan, 1)
            return await self.check(plan, family.checked_cost(cost))

        return check

    async def close(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.close()
        waiting = list(self._queue)
        self._queue.clear()
        fail(waiting, StoreUnavailable(f"{self._address}: the store was closed"))
        self._loop = None

    def _ask(self, question: scripts.Question) -> asyncio.Future[list[int]]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._settle_in(loop)
        answer: asyncio.Future[list[int]] = loop.create_future()
        if len(self._queue) >= LONGEST_QUEUE:
            answer.set_exception(StoreUnavailable(f"{self._address}: {LONGEST_QUEUE} questions are waiting already"))
            return answer
        self._queue.append(_Asked(question, answer, loop.time() + self._address.timeout))
        if not self._dispatching:
            self._dispatching = True
            loop.call_soon(self._dispatch)
        return answer

    def _settle_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin anew in `loop`; connections belong to the loop that made them."""
        for lane in self._lanes:
            lane.abandon()
        self._loop, self._dispatching, self._watching = loop, False, False
        self._queue.clear()
        self._lanes = [_Lane(self, self._address, loop) for _ in range(self._address.connections or CONNECTIONS)]

    def _dispatch(self) -> None:
        """Send what waits, as far as connections are free; where none is, open one."""
        self._dispatching = False
        for lane in self._lanes:
            if not self._queue:
                return
            if lane.is_free:
                lane.fly([self._queue.popleft() for _ in range(min(len(self._queue), LARGEST_FLIGHT))])
        if self._queue:
            for lane in self._lanes:
                lane.connect()
            self._watch()

    def _watch(self) -> None:
        """See to it that nobody waits in the queue beyond the deadline."""
        if self._queue and not self._watching and self._loop:
            self._watching = True
            self._loop.call_at(self._queue[0].deadline, self._expire)

    def _expire(self) -> None:
        self._watching = False
        if not self._loop:
            return
        now, late = self._loop.time(), []
        while self._queue and self._queue[0].deadline <= now:
            late.append(self._queue.popleft())
        fail(late, StoreUnavailable(f"{self._address}: not reached in {self._address.timeout:g} s"))
        self._watch()

    def free(self) -> None:
        """A lane is free: send what waits."""
        if self._queue and not self._dispatching:
            self._dispatch()

    def unreachable(self, error: StoreError) -> None:
        """The server cannot be reached: tell all who wait, unless another lane is up."""
        if not any(lane.is_open for lane in self._lanes):
            waiting = list(self._queue)
            self._queue.clear()
            fail(waiting, error)


def fail(asked: list[_Asked], error: StoreError) -> None:
    """Tell all who asked that there is no answer."""
    for _, answer, _ in asked:
        if not answer.done():
            answer.set_exception(error)


class _Lane(asyncio.Protocol):
    """One connection, with at most one flight in the air; connects again by itself when needed."""

    def __init__(self, store: AsyncRedisStore, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._address, self._loop = store, address, loop
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reader = hiredis.Reader()
        self._expected: deque[asyncio.Future[object] | None] = deque()  # None: the flight's answer
        self._flight: list[_Asked] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._reloaded = False
        self.is_open = False
        self._failures, self._retry_at = 0, 0.0
        self._last_error: StoreError = StoreUnavailable(f"{address}: not connected")

    @property
    def is_free(self) -> bool:
        """Could a flight leave now?"""
        return self.is_open and not self._flight

    def fly(self, asked: list[_Asked]) -> None:
        """Send questions, all in one call of the script."""
        self._flight, self._reloaded = asked, False
        self._deadline = self._loop.call_at(asked[0].deadline, self._late)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None  # noqa: S101  only an open lane flies
        self._expected.append(None)
        self._transport.write(wire.evaluation([asked.question for asked in self._flight], self._store.manual_now()))

    def _landed(self, reply: object) -> None:
        if wire.is_forgotten(reply) and not self._reloaded and self._transport:  # nothing was done: load it, ask again
            self._reloaded = True
            self._expected.append(self._loop.create_future())
            self._transport.write(wire.LOAD)
            self._send()
            return
        flight, self._flight = self._flight, []
        if self._deadline:
            self._deadline.cancel()
        if isinstance(reply, Exception):
            fail(flight, wire.refusal(self._address, reply))
        else:
            self._answer(flight, reply)
        self._store.free()

    def _answer(self, flight: list[_Asked], reply: object) -> None:
        try:
            numbers = wire.numbers_of(reply, [asked.question for asked in flight])
        except OutcomeUnknown as error:
            fail(flight, error)
            return
        at = 0
        for question, answer, _ in flight:
            size = len(question.plan) * scripts.ANSWER
            if not answer.done():
                answer.set_result(numbers[at : at + size])
            at += size

    def _late(self) -> None:
        """Give up on a flight. Its answer may still come, so the connection cannot be used any more."""
        self._drop(OutcomeUnknown(f"{self._address}: no answer in {self._address.timeout:g} s"))

    def _drop(self, error: StoreError) -> None:
        flight, self._flight = self._flight, []
        transport, self._transport, self.is_open = self._transport, None, False
        if self._deadline:
            self._deadline.cancel()
        if transport:
            transport.abort()
        for waiting in self._expected:
            if waiting is not None and not waiting.done():
                waiting.set_exception(StoreUnavailable(str(error)))
                waiting.exception()  # seen: a reload has no other reader
        self._expected.clear()
        self._reader = hiredis.Reader()
        self._last_error = error
        fail(flight, error)
        self._store.free()

    def connect(self) -> None:
        """Begin to connect, unless that is under way or has just failed."""
        if self.is_open or (self._connecting and not self._connecting.done()):
            return
        if self._loop.time() < self._retry_at:
            self._store.unreachable(self._last_error)
            return
        self._connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        address = self._address
        try:
            async with asyncio.timeout(address.connect_timeout):
                if address.path:
                    await self._loop.create_unix_connection(lambda: self, address.path)
                else:
                    await self._loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)
                await self._greet()
        except (OSError, StoreError) as error:
            self._failures += 1
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
            self._retry_at = self._loop.time() + uniform(pause / 2, pause)
            refused = error if isinstance(error, StoreError) else None
            self._drop(refused or StoreUnavailable(f"{address}: cannot connect: {error or 'no answer'}"))
            self._store.unreachable(self._last_error)
            return
        self.is_open, self._failures = True, 0
        self._store.free()

    async def _greet(self) -> None:
        for command in wire.greeting(self._address):
            waiting: asyncio.Future[object] = self._loop.create_future()
            self._expected.append(waiting)
            if self._transport:
                self._transport.write(command)
            if error := wire.objection(self._address, command, await waiting):
                raise error

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  what create_connection makes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while self._expected and (reply := self._reader.gets()) is not False:
                waiting = self._expected.popleft()
                if waiting is None:
                    self._landed(reply)
                elif not waiting.done():
                    waiting.set_result(reply)
        except hiredis.ProtocolError as error:
            self._drop(OutcomeUnknown(f"{self._address}: not a Redis server: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._drop(OutcomeUnknown(f"{self._address}: connection lost: {exc or 'closed by the server'}"))

    def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        if self._connecting:
            self._connecting.cancel()
        self._drop(OutcomeUnknown(f"{self._address}: the store was closed"))

    def abandon(self) -> None:
        """Forget the connection of an event loop that is gone."""
        if self._transport and not self._loop.is_closed():
            self._transport.abort()
