"""The Redis store for an event loop: concurrent questions travel together.

A question is sent at once when a connection is idle, and otherwise with the next *flight*: all questions that came
meanwhile, in one call of the script. No timer decides; a flight leaves when a connection has its answer. One script
call that decides a hundred plans costs the server, and this process, a fraction of a hundred calls.

Callers never touch a connection. A caller that is cancelled leaves its answer unread by anybody; the stream goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from random import uniform
from typing import NamedTuple, cast

import hiredis

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable, UsageError
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
    answer: asyncio.Future[Sequence[int]]
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
        self._process = os.getpid()
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
        here = self._loop is asyncio.get_running_loop()
        connecting = [lane.connecting for lane in self._lanes if lane.connecting and here]
        self._leave()
        if connecting:
            await asyncio.wait(connecting)
        await asyncio.sleep(0)  # sockets are closed in the next turn of the loop

    def _ask(self, question: scripts.Question) -> asyncio.Future[Sequence[int]]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._settle_in(loop)
        answer: asyncio.Future[Sequence[int]] = loop.create_future()
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
        self._leave()
        self._loop, self._process, self._dispatching, self._watching = loop, os.getpid(), False, False
        self._lanes = [_Lane(self, self._address, loop) for _ in range(self._address.connections or CONNECTIONS)]

    def _leave(self) -> None:
        """Give up the event loop that the store was used in. Whoever still waits there is told."""
        loop, lanes, waiting = self._loop, self._lanes, list(self._queue)
        # In a loop that is closed nobody waits; and a forked child must not disturb its parent's.
        reachable = loop is not None and not loop.is_closed() and self._process == os.getpid()
        if reachable and loop and loop.is_running() and loop is not asyncio.get_running_loop():
            raise UsageError("a store serves one event loop at a time, and this one is in use: make another")
        self._loop, self._lanes = None, []
        self._queue.clear()
        if reachable:
            for lane in lanes:
                lane.close()
            fail(waiting, StoreUnavailable(f"{self._address}: the store was closed"))

    def _dispatch(self) -> None:
        """Send what waits, as far as connections are free; where none is, open one."""
        self._dispatching = False
        self._give_up_late()
        for lane in self._lanes:
            if lane.is_free and (asked := self._boarding()):
                lane.fly(asked)
        if self._queue:
            for lane in self._lanes:
                lane.connect()
            if not any(lane.is_open or lane.is_connecting for lane in self._lanes):
                waiting = list(self._queue)
                self._queue.clear()
                fail(waiting, StoreUnavailable(str(self._lanes[0].last_error)))
            self._watch()

    def _boarding(self) -> list[_Asked]:
        """Take the questions of the next flight from the queue, but not those whose callers are gone."""
        asked: list[_Asked] = []
        while self._queue and len(asked) < LARGEST_FLIGHT:
            first = self._queue.popleft()
            if not first.answer.done():
                asked.append(first)
        return asked

    def _watch(self) -> None:
        """See to it that nobody waits in the queue beyond the deadline."""
        if self._queue and not self._watching and self._loop:
            self._watching = True
            self._loop.call_at(self._queue[0].deadline, self._expire)

    def _expire(self) -> None:
        self._watching = False
        self._give_up_late()
        self._watch()

    def _give_up_late(self) -> None:
        if not (self._loop and self._queue):
            return
        now, late = self._loop.time(), []
        while self._queue and self._queue[0].deadline <= now:
            late.append(self._queue.popleft())
        fail(late, StoreUnavailable(f"{self._address}: not reached in {self._address.timeout:g} s"))

    def free(self) -> None:
        """A lane is free, or cannot be opened: see to those who wait."""
        if self._queue and not self._dispatching:
            self._dispatch()


def fail(asked: list[_Asked], error: StoreError) -> None:
    """Tell all who asked that there is no answer; each with an exception of their own, since raising one changes it."""
    for _, answer, _ in asked:
        if not answer.done():
            answer.set_exception(type(error)(str(error)))


class _Lane(asyncio.Protocol):
    """One connection, with at most one flight in the air; connects again by itself when needed."""

    def __init__(self, store: AsyncRedisStore, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._address, self._loop = store, address, loop
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._expected: deque[asyncio.Future[object] | None] = deque()  # None: the flight's answer
        self._flight: list[_Asked] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._reloads = 0
        self._failures, self._retry_at = 0, 0.0
        self.is_open = False
        self.connecting: asyncio.Task[None] | None = None
        self.last_error: StoreError = StoreUnavailable(f"{address}: not connected")

    @property
    def is_free(self) -> bool:
        """Could a flight leave now?"""
        return self.is_open and not self._flight

    @property
    def is_connecting(self) -> bool:
        return self.connecting is not None and not self.connecting.done()

    def fly(self, asked: list[_Asked]) -> None:
        """Send questions, all in one call of the script."""
        self._flight, self._reloads = asked, 0
        self._deadline = self._loop.call_at(asked[0].deadline, self._late)
        self._send()

    def _send(self, before: bytes = b"") -> None:
        assert self._transport is not None  # noqa: S101  only an open lane flies
        self._expected.append(None)
        questions = [asked.question for asked in self._flight]
        self._transport.write(before + scripts.evaluation(questions, self._store.manual_now()))

    def _landed(self, reply: object) -> None:
        if wire.is_forgotten(reply) and self._reloads < wire.RELOADS:  # nothing was done: load it, ask again
            self._reloads += 1
            self._expected.append(self._loop.create_future())
            self._send(wire.LOAD)
            return
        flight, self._flight = self._flight, []
        if self._deadline:
            self._deadline.cancel()
        if isinstance(reply, Exception):
            fail(flight, wire.refusal(self._address, reply))
        else:
            self._answer(flight, reply)

    def _answer(self, flight: list[_Asked], reply: object) -> None:
        try:
            answers = scripts.answers(reply, [asked.question for asked in flight])
        except OutcomeUnknown as error:
            fail(flight, error)
            return
        for (_, waiting, _), answer in zip(flight, answers, strict=True):
            if not waiting.done():
                waiting.set_result(answer)

    def _late(self) -> None:
        """Tell those whose time is up. The last of them takes the connection along, as its answer may still come."""
        now, error = self._loop.time(), OutcomeUnknown(f"{self._address}: no answer in {self._address.timeout:g} s")
        waiting = [asked for asked in self._flight if asked.deadline > now]
        if waiting:
            fail([asked for asked in self._flight if asked.deadline <= now], error)
            self._deadline = self._loop.call_at(waiting[0].deadline, self._late)
        else:
            self._drop(error)

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
        self.last_error = error
        fail(flight, error)
        self._store.free()

    def connect(self) -> None:
        """Begin to connect, unless that is under way or has just failed."""
        if not self.is_open and not self.is_connecting and self._loop.time() >= self._retry_at:
            self.connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        address = self._address
        try:
            async with asyncio.timeout(address.connect_timeout):
                if address.path:
                    await self._loop.create_unix_connection(lambda: self, address.path)
                else:
                    await self._loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)
                await self._greet()
        except (OSError, ValueError, StoreError) as error:  # ValueError: a host that cannot be a name
            self._failed(error if isinstance(error, StoreError) else wire.unconnected(address, error))
        except asyncio.CancelledError:
            self._failed(StoreUnavailable(f"{address}: not connected"))
            raise
        else:
            self.connecting, self.is_open, self._failures = None, True, 0
            self._store.free()

    def _failed(self, error: StoreError) -> None:
        """Rest before the next attempt, longer each time and not in step with other processes."""
        self._failures = min(self._failures + 1, 10)
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
        self._retry_at = self._loop.time() + uniform(pause / 2, pause)
        self.connecting = None
        self._drop(error)

    async def _greet(self) -> None:
        for command in wire.greeting(self._address):
            waiting: asyncio.Future[object] = self._loop.create_future()
            self._connected().write(command)
            self._expected.append(waiting)
            if error := wire.objection(self._address, command, await waiting):
                raise error
        self._connected()

    def _connected(self) -> asyncio.Transport:
        if self._transport is None:
            raise StoreUnavailable(str(self.last_error))
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            for _ in range(len(self._expected)):  # only what was asked before this came can be answered by it
                if (reply := self._reader.gets()) is False:
                    break
                waiting = self._expected.popleft()
                if waiting is None:
                    self._landed(reply)
                elif not waiting.done():
                    waiting.set_result(reply)
            else:
                if self._reader.has_data():
                    self._drop(OutcomeUnknown(f"{self._address}: not a Redis server: it answers what nobody asked"))
        except hiredis.ProtocolError as error:
            self._drop(wire.lost(self._address, error))
        if self.is_free:
            self._store.free()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._drop(wire.lost(self._address, exc))

    def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        if self.connecting:
            self.connecting.cancel()
        self._drop(OutcomeUnknown(f"{self._address}: the store was closed"))
