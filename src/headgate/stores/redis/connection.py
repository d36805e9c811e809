"""One connection of an event loop to a server: sends batches, reads the replies, and connects again by itself."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from functools import partial
from math import inf
from time import perf_counter_ns
from typing import NamedTuple, TypeVar, cast

import hiredis
import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.flows import drive_async
from headgate.stores.deadlines import ServerTime
from headgate.stores.redis import protocol, script
from headgate.stores.redis.address import Address, Role
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.script import Query
from headgate.stores.traffic import Traffic

_BUFFER = 65_536
LOOKS, LOOK_EVERY = 2, 0.002
"""So often, and in so many seconds each, what has arrived is read before a call is given up. When this process is late,
and not the server, the reply is there; the deadline alone would not know, for timers come before reading."""
LOOK_FROM = LOOKS * LOOK_EVERY
"""So many seconds before a deadline that begins: the looks are part of the time that a caller gives."""
SOON = LOOK_EVERY / 2
"""Seconds by which a timer may be early."""

Made = TypeVar("Made")


class Pending(msgspec.Struct, frozen=True):
    """A query whose answer somebody waits for."""

    query: Query
    answer: asyncio.Future[Decision]
    since: float
    """When it was asked, by the `ServerTime` of whoever sends it."""
    deadline: float
    """By the same time."""
    slot: int = 0
    asking: bool = False
    alone: bool = False


def fail(pending: Iterable[Pending], error: StoreError) -> None:
    """Tell all who wait that there is no answer; each with an exception of their own, since raising one changes it."""
    for each in pending:
        if not each.answer.done():
            each.answer.set_exception(copy(error))


class _ScriptCall(NamedTuple):
    """The part of a batch that one call of the script answers."""

    pending: list[Pending]
    queries: list[Query]
    asking: bool


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection, with at most one batch under way.

    Args:
        address: whom to connect to.
        clock: makes the script decide at this clock's time rather than at the server's, if given.
        time: the time by which deadlines are, of the event loop that all this happens in.
        on_free: called when the connection is free, and when it cannot be opened.
        sentinels: are asked for each new connection where the server is; unless it is at `address`.
        traffic: counts what comes back.
        replicas: how many must have what an answer wrote.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        time: ServerTime,
        on_free: Callable[[], None],
        sentinels: Sentinels | None = None,
        *,
        traffic: Traffic | None = None,
        replicas: int = 0,
    ) -> None:
        self._traffic, self._replicas = traffic or Traffic(), replicas
        self._address, self._clock, self._time, self._loop, self._on_free, self._sentinels = (
            address,
            clock,
            time.time,
            time.loop,
            on_free,
            sentinels,
        )
        self._by_slot = address.role is Role.NODE  # a call of the script reaches one slot only
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._expected: deque[Callable[[object], None]] = deque()  # who gets the next reply
        self._conversing: set[asyncio.Future[object]] = set()  # replies to what is not a batch
        self.batch: list[Pending] = []
        """What is under way, the first deadline first."""
        self._sent_ns = 0  # when it was sent
        self._sent_at = 0.0  # the same by the time of deadlines
        self.answered_at = 0.0
        """When all replies to the last batch were there, by the time of deadlines."""
        self._overdue: dict[asyncio.Future[Decision], OutcomeUnknown] = {}  # of the batch: whose callers were told so
        self._unanswered = 0  # script calls of the batch that have no reply yet
        self._forgotten: list[_ScriptCall] = []  # those that found no script
        self._unconfirmed: list[tuple[Pending, Decision]] = []  # answers that wait for replicas
        self._timer: asyncio.TimerHandle | None = None  # for the first deadline; it outlives batches that keep theirs
        self._rings_at = 0.0  # when that is
        self._look_at = 0.0  # when to begin to look at the batch
        self._looks = 0  # since then
        self._reminder: asyncio.TimerHandle | None = None
        self._reloads = 0
        self._misled: StoreError | None = None  # says why this is not the right server any more
        self._failures, self._retry_at = 0, 0.0
        self.is_open = False
        self.connecting: asyncio.Task[None] | None = None
        self.last_error: StoreError = StoreUnavailable(f"{address}: not connected")

    @property
    def is_free(self) -> bool:
        """Could a batch be sent now?"""
        return self.is_open and not self.batch

    @property
    def awaits_replicas(self) -> bool:
        """Has the server decided all that it was sent, and waits for others to have it?"""
        return bool(self.batch) and not self._unanswered

    @property
    def is_connecting(self) -> bool:
        return self.connecting is not None and not self.connecting.done()

    def send(self, batch: list[Pending]) -> None:
        """Send a batch, whose first has the first deadline, in as few calls of the script as can be."""
        self.batch, self._reloads, self._sent_ns, self._sent_at = batch, 0, perf_counter_ns(), self._time()
        self._look_from(batch[0].deadline)
        self._write(_by_slot(batch) if self._by_slot else [_ScriptCall(batch, [each.query for each in batch], False)])

    def _write(self, calls: list[_ScriptCall], before: bytes = b"") -> None:
        commands, now = [before], self._clock.now() if self._clock else None
        for call in calls:
            if call.asking:
                commands.append(protocol.ASKING)
                self._expected.append(_ignored)
            commands.append(script.evaluation(call.queries, now))
            self._expected.append(partial(self._replied, call))
        self._unanswered = len(calls)
        if self._replicas:
            left = max(LOOK_EVERY, self.batch[0].deadline - self._time())
            commands.append(protocol.replication(self._replicas, left / 2))
            self._expected.append(self._replicated)
            self._reminder = self._loop.call_later(
                left / 2 + protocol.REMIND_AFTER, self._remind, protocol.REMIND_AFTER
            )
        self._connected().write(b"".join(commands))

    def _replied(self, call: _ScriptCall, reply: object) -> None:
        self._unanswered -= 1
        if type(reply) is bytes:
            self._answer(call, reply)
        elif protocol.is_forgotten(reply) and self._reloads < protocol.RELOADS:  # nothing was done
            self._forgotten.append(call)
        elif isinstance(reply, Exception):
            error = protocol.refusal(self._address, reply)
            if isinstance(error, protocol.RefusedByServer) and error.word in protocol.MISLED:
                self._misled = error
            fail(call.pending, error)
        else:
            self._answer(call, reply)
        if not (self._unanswered or self._replicas):
            self._ended()

    def _answer(self, call: _ScriptCall, reply: object) -> None:
        try:
            answers = script.decisions(reply, call.queries, self._address)
        except OutcomeUnknown as error:
            fail(call.pending, error)
            return
        for each, answer in zip(call.pending, answers, strict=True):
            if each.answer.done():
                overdue = self._overdue.get(each.answer)
                if overdue and overdue.told_late and isinstance(answer, Decision):
                    overdue.told_late(each.query.call, answer)
            elif isinstance(answer, StoreError):
                each.answer.set_exception(answer)
            elif self._replicas:
                self._unconfirmed.append((each, answer))
            else:
                each.answer.set_result(answer)

    def _replicated(self, reply: object) -> None:
        if self._reminder:
            self._reminder.cancel()
        if protocol.is_replicated(self._replicas, reply):
            for pending, answer in self._unconfirmed:
                if not pending.answer.done():
                    pending.answer.set_result(answer)
        self._settle()
        self._ended()

    def _settle(self, until: float = inf) -> None:
        """Give those whose time is up by `until` the answers that came, as not replicated: they were decided."""
        for pending, answer in self._unconfirmed:
            if pending.deadline <= until and not pending.answer.done():
                pending.answer.set_result(script.unconfirmed(answer))
        self._unconfirmed = [each for each in self._unconfirmed if not each[0].answer.done()]

    def _remind(self, pause: float) -> None:
        """Wake a server that has nothing else to do, and so does not notice that the wait for replicas is over."""
        if not self._unanswered:
            self._connected().write(protocol.REMINDER)
            self._expected.append(_ignored)
        self._reminder = self._loop.call_later(pause, self._remind, pause * 2)

    def _ended(self) -> None:
        """All replies are here: send what found no script again, or be free."""
        if self._forgotten:
            calls, self._forgotten = self._forgotten, []
            self._reloads += 1
            self._expected.append(_ignored)
            self._write(calls, script.LOAD)
            return
        self.answered_at = self._time()
        self._traffic.replied(len(self.batch), perf_counter_ns() - self._sent_ns)
        self.batch = []
        if self._overdue:
            self._overdue.clear()
        if self._misled:
            if self._sentinels:
                self._sentinels.doubt(self._address)
            self._drop(self._misled)

    def _look_from(self, deadline: float) -> None:
        """Have the batch looked at shortly before `deadline`.

        Batches come by the thousand, and hardly ever one is late. So the timer of an earlier one is left where it is:
        when it rings, it is set anew for the batch that is under way then.
        """
        self._look_at, self._looks = deadline - LOOK_FROM, 0
        if self._timer is None or self._rings_at > self._look_at:
            if self._timer:
                self._timer.cancel()
            self._ring(self._look_at, self._look)

    def _ring(self, at: float, then: Callable[[], None]) -> None:
        self._timer, self._rings_at = self._loop.call_later(at - self._time(), then), at

    def _look(self) -> None:
        """Let what has arrived be read before anybody is given up."""
        self._timer = None
        if not self.batch:
            return
        now = self._time()
        if now + SOON < self._look_at:
            self._ring(self._look_at, self._look)
            return
        self._looks += 1
        self._ring(now + LOOK_EVERY, self._late if self._looks == LOOKS else self._look)

    def _late(self) -> None:
        """Tell those whose time is up. Their answers may still come, so the connection is kept, but not for ever."""
        self._timer, now = None, self._time()
        if not self.batch or now + SOON < self._look_at:  # it was answered meanwhile; perhaps there is another one
            self._look()
            return
        self._settle(now + SOON)
        hung_at = self._sent_at + self._address.timeout
        if self.awaits_replicas and not self._forgotten:
            # All was decided. Only what replicas have is not known, for which nobody waits any more: but the connection
            # is of use again when the server has said it.
            hung_at += self._address.timeout
        waiting = [pending for pending in self.batch if not pending.answer.done()]
        deadlines = [pending.deadline for pending in waiting if pending.deadline > now + SOON]
        error = OutcomeUnknown(f"{self._address}: no answer in {now - self._sent_at:.3g} s")
        error.incident = error  # of all who wait for this batch
        if now + SOON >= hung_at and not deadlines:
            self._drop(error)
            return
        for pending in waiting:
            if pending.deadline <= now + SOON:
                own = self._overdue[pending.answer] = copy(error)
                pending.answer.set_exception(own)
        self._look_from(min(deadlines, default=hung_at))

    def _drop(self, error: StoreError) -> None:
        self._settle()
        batch, self.batch = self.batch, []
        self._overdue.clear()
        transport, self._transport, self.is_open, self._misled = self._transport, None, False, None
        for timer in (self._timer, self._reminder):
            if timer:
                timer.cancel()
        self._timer = None
        if transport:
            transport.abort()
        self._expected.clear()
        self._forgotten = []
        self._reader = hiredis.Reader()
        self.last_error = error
        for reply in [each for each in self._conversing if not each.done()]:
            reply.set_exception(StoreUnavailable(str(error)))
        fail(batch, error)
        self._on_free()

    def connect(self) -> None:
        """Begin to connect, unless that is under way or has just failed."""
        if not self.is_open and not self.is_connecting and self._loop.time() >= self._retry_at:
            self.connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            if sentinels := self._sentinels:
                self._address = await drive_async(
                    sentinels.primary(), lambda step: ask_server(*step, sentinels.patience)
                )
            address = self._address
            async with asyncio.timeout(address.connect_timeout):
                by_path = partial(self._loop.create_unix_connection, self._itself)
                await _connected(address, by_path, partial(self._loop.create_connection, self._itself))
                await self._converse(protocol.greeting(address, script.LOAD))
                self._connected()
        except (OSError, ValueError, StoreError) as error:  # ValueError: a host that cannot be a name
            self._failed(error if isinstance(error, StoreError) else protocol.unconnected(self._address, error))
        except asyncio.CancelledError:
            self._failed(StoreUnavailable(f"{self._address}: not connected"))
            raise
        else:
            self.connecting, self.is_open, self._failures = None, True, 0
            self._on_free()

    def _itself(self) -> AsyncConnection:
        return self

    def _failed(self, error: StoreError) -> None:
        """Rest before the next attempt."""
        if self._sentinels:
            self._sentinels.doubt(self._address)
        self._failures += 1
        self._retry_at = self._loop.time() + protocol.pause_after(self._failures)
        self.connecting = None
        self._drop(error)

    async def vet(self) -> None:
        """Raise StoreError if the server would be refused now, were it not in use already."""
        await self._converse(protocol.vetting(self._address, self._replicas), strict=True)

    async def _converse(self, commands: Iterable[bytes], *, strict: bool = False) -> None:
        for command in commands:
            answer: asyncio.Future[object] = self._loop.create_future()
            self._connected().write(command)
            self._expected.append(partial(_told, answer))
            self._conversing.add(answer)
            answer.add_done_callback(self._conversing.discard)
            if error := protocol.objection(self._address, command, await answer, strict=strict):
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
            self._drop(protocol.lost(self._address, error))
        if not self.batch and self.is_open:
            self._on_free()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            error = protocol.lost(self._address, exc)
            error.incident = error  # of all who lose their answer by it
            self._drop(error)

    def close(self) -> None:
        """Hang up; whoever waits for an answer is told."""
        if self.connecting:
            self.connecting.cancel()
        self._drop(OutcomeUnknown(f"{self._address}: the store was closed"))


def _by_slot(batch: list[Pending]) -> list[_ScriptCall]:
    """Return a batch as one call for each slot, and one for each query that is not to be asked together with others."""
    parts: dict[tuple[int, int], list[Pending]] = {}
    for number, each in enumerate(batch, 1):
        apart = number if each.alone else 0
        parts.setdefault((each.slot, apart), []).append(each)
    return [_ScriptCall(part, [each.query for each in part], part[0].asking) for part in parts.values()]


def _told(answer: asyncio.Future[object], reply: object) -> None:
    if not answer.done():
        answer.set_result(reply)


def _ignored(reply: object) -> None:
    """Take a reply that the next one makes up for: if the script was not loaded, the next says so too."""


async def _connected(
    address: Address, by_path: Callable[[str], Awaitable[Made]], by_place: Callable[..., Awaitable[Made]]
) -> Made:
    """Return the connection to a server that one of two functions makes. Raises OSError, ValueError."""
    if address.path:
        return await by_path(address.path)
    options = {"ssl": address.tls.context(), "server_hostname": address.host} if address.tls else {}
    error: OSError = OSError("no address")
    for *_, place in await address.names.places_soon(address.host, address.port):
        try:
            return await by_place(place[0], place[1], **options)
        except OSError as failure:
            error = failure
    raise error


async def ask_server(address: Address, command: bytes, seconds: float) -> object:
    """Return the reply of a server to one command, on a connection of its own, or the exception that came instead."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connected(address, asyncio.open_unix_connection, asyncio.open_connection)
            try:
                return await _replies(address, command, reader, writer)
            finally:
                writer.close()
    except StoreError as error:
        return error
    except (OSError, ValueError, hiredis.ProtocolError) as error:  # ValueError: a host that cannot be a name
        return protocol.unconnected(address, error)


async def _replies(
    address: Address, command: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> object:
    replies, reply = hiredis.Reader(), None
    for each in (*protocol.login(address), command):
        writer.write(each)
        while (reply := replies.gets()) is False:
            data = await reader.read(_BUFFER)
            if not data:
                raise ConnectionResetError("closed by the server")
            replies.feed(data)
        if isinstance(reply, Exception):
            return protocol.refusal(address, reply)
    return reply
