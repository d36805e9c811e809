"""A connection of an event loop to a server: sends batches, reads replies, and reconnects."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from functools import partial
from math import inf
from time import perf_counter_ns
from typing import TypeVar, cast

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
"""How often, and at what interval in seconds, arrived bytes are read before a call times out. If this process is late
rather than the server, the reply has arrived; the deadline alone would miss it, since timers precede reading."""
LOOK_FROM = LOOKS * LOOK_EVERY
"""Seconds before a deadline at which these reads begin: they are part of the caller's time."""
SOON = LOOK_EVERY / 2
"""Seconds by which a timer may be early."""

Made = TypeVar("Made")


class Pending(msgspec.Struct, frozen=True):
    query: Query
    answer: asyncio.Future[Decision]
    since: float
    """When it was queued, by the `ServerTime` of its batcher."""
    deadline: float
    """By the same clock."""
    slot: int = 0
    asking: bool = False
    alone: bool = False


def fail(pending: Iterable[Pending], error: StoreError) -> None:
    """Fail all calls; each gets its own copy of the exception, since raising one changes it."""
    for each in pending:
        if not each.answer.done():
            each.answer.set_exception(copy(error))


class AsyncConnection(asyncio.BufferedProtocol):
    """One connection, with at most one batch in progress.

    It calls `on_free` when it is free, or cannot be opened. The clock of deadlines is `time`; with another `clock`, the
    script decides at its time instead of the server's.
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
        self._address, self._clock, self._sentinels = address, clock, sentinels
        self._time, self._loop, self._on_free = time.time, time.loop, on_free
        self._by_slot = address.role is Role.NODE  # a call of the script reaches only one slot
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._expected: deque[Callable[[object], None]] = deque()  # the handlers of the next replies
        self._conversing: set[asyncio.Future[object]] = set()  # replies to commands outside batches
        self.batch: list[Pending] = []
        """The batch in progress, by deadline."""
        self._sent_ns = 0  # when it was sent
        self._sent_at = 0.0  # the same by the clock of deadlines
        self.answered_at = 0.0
        """When the last batch had all its replies, by the clock of deadlines."""
        self._overdue: dict[asyncio.Future[Decision], OutcomeUnknown] = {}  # timed-out calls of the batch
        self._unanswered = 0  # script calls of the batch without a reply
        self._forgotten: list[list[Pending]] = []  # parts of the batch that found no script
        self._unconfirmed: list[tuple[Pending, Decision]] = []  # answers that wait for replicas
        self._timer: asyncio.TimerHandle | None = None  # for the first deadline; it outlives batches in time
        self._rings_at = 0.0  # when it fires
        self._look_at = 0.0  # when to begin to look at the batch
        self._looks = 0  # since then
        self._reminder: asyncio.TimerHandle | None = None
        self._reloads = 0
        self._misled: StoreError | None = None  # why this is no longer the right server
        self._failures, self._retry_at = 0, 0.0
        self.is_open = False
        self.connecting: asyncio.Task[None] | None = None
        self.last_error: StoreError = StoreUnavailable(f"{address}: not connected")

    @property
    def is_free(self) -> bool:
        return self.is_open and not self.batch

    @property
    def awaits_replicas(self) -> bool:
        """Whether the server has decided the whole batch, and only replicas are missing."""
        return bool(self.batch) and not self._unanswered

    @property
    def is_connecting(self) -> bool:
        return self.connecting is not None and not self.connecting.done()

    def send(self, batch: list[Pending]) -> None:
        """Send a batch, sorted by deadline, in as few calls of the script as possible: its parts."""
        self.batch, self._reloads, self._sent_ns, self._sent_at = batch, 0, perf_counter_ns(), self._time()
        self._look_from(batch[0].deadline)
        self._write(_by_slot(batch) if self._by_slot else [batch])

    def _write(self, parts: list[list[Pending]], before: bytes = b"") -> None:
        commands, now = [before], self._clock.now() if self._clock else None
        for part in parts:
            if part[0].asking:
                commands.append(protocol.ASKING)
                self._expected.append(_discard)
            queries = [each.query for each in part]
            commands.append(script.evaluation(queries, now))
            self._expected.append(partial(self._replied, part, queries))
        self._unanswered = len(parts)
        if self._replicas:
            left = max(LOOK_EVERY, self.batch[0].deadline - self._time())
            commands.append(protocol.replication(self._replicas, left / 2))
            self._expected.append(self._replicated)
            self._reminder = self._loop.call_later(
                left / 2 + protocol.REMIND_AFTER, self._remind, protocol.REMIND_AFTER
            )
        self._connected().write(b"".join(commands))

    def _replied(self, part: list[Pending], queries: list[Query], reply: object) -> None:
        self._unanswered -= 1
        if type(reply) is bytes:
            self._answer(part, queries, reply)
        elif protocol.is_forgotten(reply) and self._reloads < protocol.RELOADS:  # nothing was done
            self._forgotten.append(part)
        elif isinstance(reply, Exception):
            error = protocol.refusal(self._address, reply)
            if isinstance(error, protocol.RefusedByServer) and error.word in protocol.MISLED:
                self._misled = error
            fail(part, error)
        else:
            self._answer(part, queries, reply)
        if not (self._unanswered or self._replicas):
            self._ended()

    def _answer(self, part: list[Pending], queries: list[Query], reply: object) -> None:
        try:
            answers = script.decisions(reply, queries, self._address)
        except OutcomeUnknown as error:
            fail(part, error)
            return
        for each, answer in zip(part, answers, strict=True):
            if each.answer.done():
                overdue = self._overdue.get(each.answer)
                if overdue and overdue.on_late_answer and isinstance(answer, Decision):
                    overdue.on_late_answer(each.query.call, answer)
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
        """Return answers with deadlines up to `until` as not replicated: they were decided."""
        for pending, answer in self._unconfirmed:
            if pending.deadline <= until and not pending.answer.done():
                pending.answer.set_result(script.mark_unconfirmed(answer))
        self._unconfirmed = [each for each in self._unconfirmed if not each[0].answer.done()]

    def _remind(self, pause: float) -> None:
        """Wake an idle server, which would not notice that the wait for replicas has ended."""
        if not self._unanswered:
            self._connected().write(protocol.REMINDER)
            self._expected.append(_discard)
        self._reminder = self._loop.call_later(pause, self._remind, pause * 2)

    def _ended(self) -> None:
        """After all replies, repeat the calls that found no script, or become free."""
        if self._forgotten:
            parts, self._forgotten = self._forgotten, []
            self._reloads += 1
            self._expected.append(_discard)
            self._write(parts, script.LOAD)
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
        """Examine the batch shortly before `deadline`.

        There are thousands of batches, and hardly any is late. So an earlier timer is left in place: when it fires, it
        is set again for the batch in progress.
        """
        self._look_at, self._looks = deadline - LOOK_FROM, 0
        if self._timer is None or self._rings_at > self._look_at:
            if self._timer:
                self._timer.cancel()
            self._ring(self._look_at, self._look)

    def _ring(self, at: float, then: Callable[[], None]) -> None:
        self._timer, self._rings_at = self._loop.call_later(at - self._time(), then), at

    def _look(self) -> None:
        """Let arrived bytes be read before any call times out."""
        self._timer = None
        if not self.batch:
            return
        now = self._time()
        if now + SOON < self._look_at:
            self._ring(self._look_at, self._look)
            return
        self._looks += 1
        self._ring(now + LOOK_EVERY, self._late if self._looks >= LOOKS else self._look)

    def _late(self) -> None:
        """Time out calls. Their answers may still come, so the connection is kept for a while."""
        self._timer, now = None, self._time()
        if not self.batch or now + SOON < self._look_at:  # it was answered; there may be another one
            self._look()
            return
        self._settle(now + SOON)
        hung_at = self._sent_at + self._address.timeout
        if self.awaits_replicas and not self._forgotten:
            # Everything was decided, and no caller waits for the replicas any more: but the connection can be used
            # again once the server has reported them.
            hung_at += self._address.timeout
        waiting = [pending for pending in self.batch if not pending.answer.done()]
        deadlines = [pending.deadline for pending in waiting if pending.deadline > now + SOON]
        error = OutcomeUnknown(f"{self._address}: no response within {now - self._sent_at:.3g} s")
        error.incident = error  # shared by all calls of this batch
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
        """Begin to connect, unless that is in progress or has just failed."""
        if not self.is_open and not self.is_connecting and self._loop.time() >= self._retry_at:
            self.connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            if sentinels := self._sentinels:
                self._address = await drive_async(sentinels.primary(), lambda step: send_to(*step, sentinels.patience))
            address = self._address
            async with asyncio.timeout(address.connect_timeout):
                by_path = partial(self._loop.create_unix_connection, self._itself)
                await _connected(address, by_path, partial(self._loop.create_connection, self._itself))
                await self._converse(protocol.greeting(address, script.LOAD))
                self._connected()
        except (OSError, ValueError, StoreError) as error:  # ValueError: an invalid host name
            self._failed(error if isinstance(error, StoreError) else protocol.connection_failure(self._address, error))
        except asyncio.CancelledError:
            self._failed(StoreUnavailable(f"{self._address}: not connected"))
            raise
        else:
            self.connecting, self.is_open, self._failures = None, True, 0
            self._on_free()

    def _itself(self) -> AsyncConnection:
        return self

    def _failed(self, error: StoreError) -> None:
        if self._sentinels:
            self._sentinels.doubt(self._address)
        self._failures += 1
        self._retry_at = self._loop.time() + protocol.pause_after(self._failures)
        self.connecting = None
        self._drop(error)

    async def vet(self) -> None:
        """Raise StoreError if a new connection to the server would be refused."""
        await self._converse(protocol.vetting(self._address, self._replicas), strict=True)

    async def _converse(self, commands: Iterable[bytes], *, strict: bool = False) -> None:
        for command in commands:
            answer: asyncio.Future[object] = self._loop.create_future()
            self._connected().write(command)
            self._expected.append(partial(_resolve, answer))
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
            for _ in range(len(self._expected)):  # later commands cannot have replies in these bytes
                if (reply := self._reader.gets()) is False:
                    break
                self._expected.popleft()(reply)
            else:
                if self._reader.has_data():
                    self._drop(OutcomeUnknown(f"{self._address}: not a Redis server: it sends unexpected replies"))
        except hiredis.ProtocolError as error:
            self._drop(protocol.connection_loss(self._address, error))
        if not self.batch and self.is_open:
            self._on_free()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            error = protocol.connection_loss(self._address, exc)
            error.incident = error  # shared by all calls that lose their answer
            self._drop(error)

    def close(self) -> None:
        """Close the connection, failing all calls."""
        if self.connecting:
            self.connecting.cancel()
        self._drop(OutcomeUnknown(f"{self._address}: the store was closed"))


def _by_slot(batch: list[Pending]) -> list[list[Pending]]:
    """Split a batch into one part for each slot, and one for each query that must be alone."""
    parts: dict[tuple[int, int], list[Pending]] = {}
    for number, each in enumerate(batch, 1):
        apart = number if each.alone else 0
        parts.setdefault((each.slot, apart), []).append(each)
    return list(parts.values())


def _resolve(answer: asyncio.Future[object], reply: object) -> None:
    if not answer.done():
        answer.set_result(reply)


def _discard(reply: object) -> None:
    """Discard a reply whose error the next one repeats, such as a script that was not loaded."""


async def _connected(
    address: Address, by_path: Callable[[str], Awaitable[Made]], by_host: Callable[..., Awaitable[Made]]
) -> Made:
    """Return a connection, made by one of two functions. Raises OSError, ValueError."""
    if address.path:
        return await by_path(address.path)
    options = {"ssl": address.tls.context(), "server_hostname": address.host} if address.tls else {}
    error: OSError = OSError("no address")
    for *_, target in await address.names.addresses_soon(address.host, address.port):
        try:
            return await by_host(target[0], target[1], **options)
        except OSError as failure:
            error = failure
    raise error


async def send_to(address: Address, command: bytes, seconds: float) -> object:
    """Send one command on a connection of its own; returns the reply, or the exception.

    Not in a thread: while the server hangs, that would keep the process from ending.
    """
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await _connected(address, asyncio.open_unix_connection, asyncio.open_connection)
            try:
                return await _replies(address, command, reader, writer)
            finally:
                writer.close()
    except StoreError as error:
        return error
    except (OSError, ValueError, hiredis.ProtocolError) as error:  # ValueError: an invalid host name
        return protocol.connection_failure(address, error)


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
