"""One connection of an event loop to a server: sends flights, reads their answers, and connects again by itself."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from math import inf
from time import perf_counter_ns
from typing import NamedTuple, cast

import hiredis

from headgate.clock import Clock
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.stores.redis import scripts, wire
from headgate.stores.redis.address import Address, Role
from headgate.stores.redis.answers import Answer, Unconfirmed, decided
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.inquiry import connected, inquire
from headgate.stores.redis.resting import pause_after
from headgate.stores.traffic import Traffic

_BUFFER = 65_536
LOOKS, LOOK_EVERY = 2, 0.002
"""So often, and in so many seconds each, what has arrived is read before a question is given up. When this process is
late, and not the server, the answer is there; the deadline alone would not know, for timers come before reading."""
LOOK_FROM = LOOKS * LOOK_EVERY
"""So many seconds before a deadline that begins: the looks are part of the time that a caller gives."""
SOON = LOOK_EVERY / 2
"""Seconds by which a timer may be early."""


class Asked(NamedTuple):
    """A question and who waits for its answer."""

    question: scripts.Question
    answer: asyncio.Future[Answer]
    deadline: float
    """By the loop's clock."""
    slot: int = 0
    asking: bool = False
    alone: bool = False


def fail(asked: Iterable[Asked], error: StoreError) -> None:
    """Tell all who asked that there is no answer; each with an exception of their own, since raising one changes it."""
    for _, answer, *_ in asked:
        if not answer.done():
            answer.set_exception(copy(error))


class _Leg(NamedTuple):
    """Questions that one call of the script answers."""

    asked: list[Asked]
    asking: bool


class Lane(asyncio.BufferedProtocol):
    """One connection, with at most one flight in the air.

    Args:
        address: whom to connect to.
        clock: makes the script decide at this clock's time rather than at the server's, if given.
        loop: the event loop that all this happens in.
        free: called when the lane is free, and when it cannot be opened.
        sentinels: are asked for each new connection where the server is; unless it is at `address`.
        traffic: counts what comes back.
        replicas: how many must have what an answer wrote.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        loop: asyncio.AbstractEventLoop,
        free: Callable[[], None],
        sentinels: Sentinels | None = None,
        *,
        traffic: Traffic | None = None,
        replicas: int = 0,
    ) -> None:
        self._traffic, self._replicas = traffic or Traffic(), replicas
        self._address, self._clock, self._loop, self._free, self._sentinels = address, clock, loop, free, sentinels
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._expected: deque[Callable[[object], None]] = deque()  # who gets the next reply
        self._conversing: set[asyncio.Future[object]] = set()  # replies to what is not about limits
        self._flight: list[Asked] = []
        self._left_ns = 0  # when it left
        self._left_at = 0.0  # the same by the loop's clock
        self._overdue: dict[asyncio.Future[Answer], OutcomeUnknown] = {}  # those in it whose callers were told so
        self._in_the_air = 0  # legs of the flight that have not landed
        self._forgotten: list[_Leg] = []  # those that found no script
        self._unconfirmed: list[tuple[Asked, Answer]] = []  # answers that wait for replicas
        self._deadline: asyncio.TimerHandle | None = None
        self._reminder: asyncio.TimerHandle | None = None
        self._reloads = 0
        self._looks = 0  # since the deadline
        self._misled: StoreError | None = None  # says why this is not the right server any more
        self._failures, self._retry_at = 0, 0.0
        self.is_open = False
        self.connecting: asyncio.Task[None] | None = None
        self.last_error: StoreError = StoreUnavailable(f"{address}: not connected")

    @property
    def is_free(self) -> bool:
        """Could a flight leave now?"""
        return self.is_open and not self._flight

    @property
    def is_empty(self) -> bool:
        return not self._flight

    @property
    def awaits_replicas(self) -> bool:
        """Has the server decided all that it was sent, and waits for others to have it?"""
        return bool(self._flight) and not self._in_the_air

    @property
    def is_connecting(self) -> bool:
        return self.connecting is not None and not self.connecting.done()

    def fly(self, asked: list[Asked]) -> None:
        """Send questions, in as few calls of the script as can be."""
        self._flight, self._reloads, self._looks, self._left_ns = asked, 0, 0, perf_counter_ns()
        self._left_at = self._loop.time()
        self._deadline = self._loop.call_at(min([each.deadline for each in asked]) - LOOK_FROM, self._look)
        self._send([_Leg(asked, asking=False)] if self._address.role is not Role.NODE else _legs(asked))

    def _send(self, legs: list[_Leg], before: bytes = b"") -> None:
        commands, now = [before], self._clock.now() if self._clock else None
        for leg in legs:
            if leg.asking:
                commands.append(wire.ASKING)
                self._expected.append(_ignored)
            commands.append(scripts.evaluation([asked.question for asked in leg.asked], now))
            self._expected.append(partial(self._landed, leg))
        self._in_the_air = len(legs)
        if self._replicas:
            left = max(LOOK_EVERY, min([asked.deadline for asked in self._flight]) - self._loop.time())
            commands.append(wire.replication(self._replicas, left / 2))
            self._expected.append(self._replicated)
            self._reminder = self._loop.call_later(left / 2 + wire.REMIND_AFTER, self._remind, wire.REMIND_AFTER)
        self._connected().write(b"".join(commands))

    def _landed(self, leg: _Leg, reply: object) -> None:
        self._in_the_air -= 1
        if wire.is_forgotten(reply) and self._reloads < wire.RELOADS:  # nothing was done
            self._forgotten.append(leg)
        elif isinstance(reply, Exception):
            error = wire.refusal(self._address, reply)
            if isinstance(error, wire.Refused) and error.word in wire.MISLED:
                self._misled = error
            fail(leg.asked, error)
        else:
            self._answer(leg.asked, reply)
        if not (self._in_the_air or self._replicas):
            self._ended()

    def _answer(self, asked: list[Asked], reply: object) -> None:
        try:
            answers = scripts.answers(reply, [each.question for each in asked])
        except OutcomeUnknown as error:
            fail(asked, error)
            return
        for each, answer in zip(asked, answers, strict=True):
            if scripts.is_denied(answer):
                fail([each], wire.denied(self._address))
            elif scripts.has_failed(answer):
                fail([each], OutcomeUnknown(f"{self._address}: a key of this limit has something else in it"))
            elif each.answer.done():
                if (overdue := self._overdue.get(each.answer)) and overdue.told_late:
                    overdue.told_late(each.question.plan, decided(each.question.plan, answer))
            elif self._replicas:
                self._unconfirmed.append((each, answer))
            else:
                each.answer.set_result(answer)

    def _replicated(self, reply: object) -> None:
        if self._reminder:
            self._reminder.cancel()
        if wire.is_replicated(self._replicas, reply):
            for asked, answer in self._unconfirmed:
                if not asked.answer.done():
                    asked.answer.set_result(answer)
        self._settle()
        self._ended()

    def _settle(self, until: float = inf) -> None:
        """Give those whose time is up by `until` the answers that came, as not replicated: they were decided."""
        for asked, answer in self._unconfirmed:
            if asked.deadline <= until and not asked.answer.done():
                asked.answer.set_result(Unconfirmed(answer))
        self._unconfirmed = [each for each in self._unconfirmed if not each[0].answer.done()]

    def _remind(self, pause: float) -> None:
        """Wake a server that has nothing else to do, and so does not notice that the wait for replicas is over."""
        if not self._in_the_air:
            self._connected().write(wire.REMINDER)
            self._expected.append(_ignored)
        self._reminder = self._loop.call_later(pause, self._remind, pause * 2)

    def _ended(self) -> None:
        """All legs have landed: send those again that found no script, or be free."""
        if self._forgotten:
            legs, self._forgotten = self._forgotten, []
            self._reloads += 1
            self._expected.append(_ignored)
            self._send(legs, wire.LOAD)
            return
        self._traffic.landed(len(self._flight), perf_counter_ns() - self._left_ns)
        self._flight = []
        self._overdue.clear()
        if self._deadline:
            self._deadline.cancel()
        if self._misled:
            if self._sentinels:
                self._sentinels.doubt(self._address)
            self._drop(self._misled)

    def _look(self) -> None:
        """Let what has arrived be read before anybody is given up."""
        self._looks += 1
        then = self._late if self._looks == LOOKS else self._look
        self._deadline = self._loop.call_later(LOOK_EVERY, then)

    def _late(self) -> None:
        """Tell those whose time is up. Their answers may still come, so the connection is kept, but not for ever."""
        now, self._looks = self._loop.time(), 0
        self._settle(now + SOON)
        hung_at = self._left_at + self._address.timeout
        if self.awaits_replicas and not self._forgotten:
            # All was decided. Only what replicas have is not known, for which nobody waits any more: but the connection
            # is of use again when the server has said it.
            hung_at += self._address.timeout
        waiting = [asked for asked in self._flight if not asked.answer.done()]
        deadlines = [asked.deadline for asked in waiting if asked.deadline > now + SOON]
        error = OutcomeUnknown(f"{self._address}: no answer in {now - self._left_at:.3g} s")
        error.incident = error  # of all who wait for this flight
        if now + SOON >= hung_at and not deadlines:
            self._drop(error)
            return
        for asked in waiting:
            if asked.deadline <= now + SOON:
                own = self._overdue[asked.answer] = copy(error)
                asked.answer.set_exception(own)
        self._deadline = self._loop.call_at(min(deadlines, default=hung_at) - LOOK_FROM, self._look)

    def _drop(self, error: StoreError) -> None:
        self._settle()
        flight, self._flight = self._flight, []
        self._overdue.clear()
        transport, self._transport, self.is_open, self._misled = self._transport, None, False, None
        for timer in (self._deadline, self._reminder):
            if timer:
                timer.cancel()
        if transport:
            transport.abort()
        self._expected.clear()
        self._forgotten = []
        self._reader = hiredis.Reader()
        self.last_error = error
        for reply in [each for each in self._conversing if not each.done()]:
            reply.set_exception(StoreUnavailable(str(error)))
        fail(flight, error)
        self._free()

    def connect(self) -> None:
        """Begin to connect, unless that is under way or has just failed."""
        if not self.is_open and not self.is_connecting and self._loop.time() >= self._retry_at:
            self.connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            if self._sentinels:
                self._address = await inquire(self._sentinels.primary(), self._sentinels.patience)
            address = self._address
            async with asyncio.timeout(address.connect_timeout):
                by_path = partial(self._loop.create_unix_connection, self._itself)
                await connected(address, by_path, partial(self._loop.create_connection, self._itself))
                await self._greet()
        except (OSError, ValueError, StoreError) as error:  # ValueError: a host that cannot be a name
            self._failed(error if isinstance(error, StoreError) else wire.unconnected(self._address, error))
        except asyncio.CancelledError:
            self._failed(StoreUnavailable(f"{self._address}: not connected"))
            raise
        else:
            self.connecting, self.is_open, self._failures = None, True, 0
            self._free()

    def _itself(self) -> Lane:
        return self

    def _failed(self, error: StoreError) -> None:
        """Rest before the next attempt."""
        if self._sentinels:
            self._sentinels.doubt(self._address)
        self._failures += 1
        self._retry_at = self._loop.time() + pause_after(self._failures)
        self.connecting = None
        self._drop(error)

    async def _greet(self) -> None:
        await self._converse(wire.greeting(self._address))
        self._connected()

    async def vet(self) -> None:
        """Raise StoreError if the server would be refused now, were it not in use already."""
        await self._converse(wire.vetting(self._address, self._replicas), strict=True)

    async def _converse(self, commands: Iterable[bytes], *, strict: bool = False) -> None:
        for command in commands:
            answer: asyncio.Future[object] = self._loop.create_future()
            self._connected().write(command)
            self._expected.append(partial(_told, answer))
            self._conversing.add(answer)
            answer.add_done_callback(self._conversing.discard)
            if error := wire.objection(self._address, command, await answer, strict=strict):
                raise error

    def _connected(self) -> asyncio.Transport:
        if self._transport is None:
            raise StoreUnavailable(str(self.last_error))
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  replies are read in pieces of this size
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.feed(cast("bytes", self._buffer), 0, nbytes)  # any buffer will do
        try:
            for _ in range(len(self._expected)):  # only what was asked before this came can be answered by it
                if (reply := self._reader.gets()) is False:
                    break
                self._expected.popleft()(reply)
            else:
                if self._reader.has_data():
                    self._drop(OutcomeUnknown(f"{self._address}: not a Redis server: it answers what nobody asked"))
        except hiredis.ProtocolError as error:
            self._drop(wire.lost(self._address, error))
        if self.is_free:
            self._free()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            error = wire.lost(self._address, exc)
            error.incident = error  # of all who lose their answer by it
            self._drop(error)

    def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        if self.connecting:
            self.connecting.cancel()
        self._drop(OutcomeUnknown(f"{self._address}: the store was closed"))


def _legs(asked: list[Asked]) -> list[_Leg]:
    """Return the questions by slot, since a call of the script reaches no more than one."""
    legs: dict[tuple[int, int], _Leg] = {}
    for number, each in enumerate(asked, 1):
        apart = number if each.alone else 0
        legs.setdefault((each.slot, apart), _Leg([], each.asking)).asked.append(each)
    return list(legs.values())


def _told(answer: asyncio.Future[object], reply: object) -> None:
    if not answer.done():
        answer.set_result(reply)


def _ignored(reply: object) -> None:
    """Take a reply that the next one makes up for: if the script was not loaded, the next says so too."""
