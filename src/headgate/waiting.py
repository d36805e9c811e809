"""Waiting for a limit: in line, first come first served, without polling.

The logic is a flow, the same for threads and for tasks (see `headgate.flows`): it yields what to do next, a call of
the store or a pause, and is sent the answer.

Only the head of a line asks the store. Refused, it waits exactly as long as the answer says, which is exact, and asks
again; all behind it wait to become the head. Whoever leaves, admitted or not, lets the next one step up.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb, combine
from headgate.core.pressure import Pressure, judge
from headgate.core.quota import Quota
from headgate.locks import new_lock

LONGEST_TIMEOUT = 1_000_000_000


class Ticket(Protocol):
    """A place in a line; can be called from any thread."""

    def call(self) -> None:
        """Wake the holder."""
        ...

    def settle(self) -> None:
        """Forget past calls; done by the holder, awake."""
        ...

    def is_lost(self) -> bool:
        """Is the holder gone without having left the line?"""
        ...


class ThreadTicket:
    """A place in a line for a thread."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.call = self.event.set
        self.settle = self.event.clear
        self._holder = os.getpid(), threading.get_ident()

    def is_lost(self) -> bool:
        return _is_gone(*self._holder)


class TaskTicket:
    """A place in a line for a task of the running event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.settle = self.event.clear
        self._loop = asyncio.get_running_loop()
        self._holder = os.getpid(), threading.get_ident()

    def is_lost(self) -> bool:
        return self._loop.is_closed() or _is_gone(*self._holder)

    def call(self) -> None:
        self._loop.call_soon_threadsafe(self.event.set)


def _is_gone(process: int, thread: int) -> bool:
    """Was this a thread of the parent? Of its threads a forked child has the one that forked, as its main thread."""
    return process != os.getpid() and thread != threading.main_thread().ident


class WaitingLines:
    """The lines of all keys of one limiter."""

    def __init__(self) -> None:
        self._lock = new_lock()  # an abandoned flow leaves its line when it is collected, wherever that happens
        self._lines: dict[str, dict[Ticket, None]] = {}  # a dict keeps its order, and any place in it is found at once

    def is_empty(self, key: str) -> bool:
        with self._lock:
            return self._head(key) is None

    def join(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            self._lines.setdefault(key, {})[ticket] = None

    def is_head(self, key: str, ticket: Ticket) -> bool:
        with self._lock:
            return self._head(key) is ticket

    def leave(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            was_head = self._head(key) is ticket
            self._lines.get(key, {}).pop(ticket, None)
            head = self._head(key)
            if was_head and head:
                head.call()

    def wake(self, key: str) -> None:
        """Have the head of the line ask again: something was given back."""
        with self._lock:
            head = self._head(key)
            if head:
                head.call()

    def _head(self, key: str) -> Ticket | None:
        line = self._lines.get(key, {})
        while line:
            ticket = next(iter(line))
            if not ticket.is_lost():
                return ticket
            del line[ticket]
        self._lines.pop(key, None)
        return None


class Pause(NamedTuple):
    """A step of a flow: to wait."""

    until: int | None
    """The tick of the clock until which to wait, if there is one."""
    listen: bool = True
    """Whether a call of the ticket ends it."""


class Wanted(NamedTuple):
    """What is waited for."""

    plan: Plan
    cost: int
    until: int | None
    """The tick of the clock at which the waiting ends; None is without end."""


Flow = Generator[Call | Pause, Decision | None, Decision]
"""Yields what to do, a call of the store or a pause; returns the final decision."""


def deadline(now: int, timeout: float | None) -> int | None:
    """Return the tick at which a wait of `timeout` seconds from the tick `now` ends; None is without end."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= LONGEST_TIMEOUT:
        raise UsageError(
            f"timeout must be None or a number of seconds from 0 to {LONGEST_TIMEOUT}, not {short(timeout)}"
        )
    return now + round(timeout * 1_000_000)


def acquire(lines: WaitingLines, key: str, ticket: Ticket, clock: Clock, wanted: Wanted) -> Flow:
    """Take what is wanted for `key`, in line behind those who wait already, or learn that it cannot be had in time.

    Returns the admission, after any delay that comes with it, or a refusal.

    A place in a queue is for good: others come to stand behind it. So the store is asked for one only if its turn comes
    in time: while that is not so, its answer is a refusal, and takes nothing (see `_in_time`).
    """
    if lines.is_empty(key):
        asked = _in_time(wanted, clock)
        decision = yield from _answer(Verb.CHECK, asked, wanted.cost)
        if decision:
            return (yield from _taken(clock, decision, asked, wanted.plan))
        if _is_too_late(clock, decision, wanted):
            return (yield from _refusal(clock, decision, wanted))
    lines.join(key, ticket)
    try:
        while True:
            ticket.settle()  # a call from here on is noticed by the next pause
            head, asked = lines.is_head(key, ticket), _in_time(wanted, clock)
            decision = yield from _answer(Verb.CHECK if head else Verb.PEEK, asked, wanted.cost)
            if head and decision:
                break
            if _is_too_late(clock, decision, wanted):
                return (yield from _refusal(clock, decision, wanted))
            if head:
                yield Pause(clock.ticks() + decision.retry_after_us)
            elif wanted.until is None or clock.ticks() < wanted.until:
                yield Pause(wanted.until)
            else:  # it might pass now, but not before those ahead, who may need all there is
                return _refused(decision, decision.retry_after_us or decision.reset_after_us or 1)
    finally:
        lines.leave(key, ticket)
    return (yield from _taken(clock, decision, asked, wanted.plan))


def _in_time(wanted: Wanted, clock: Clock) -> Plan:
    """Return the plan with each queue cut to the longest one whose last place has its turn in time.

    A state says what was used, whatever the capacity: so a shorter queue, asked about the same state, admits those that
    the long one admits and serves in time. It is shorter by less than one unit too much; a caller that would find a
    place in this last unit waits a moment for it, and has the same turn.
    """
    plan, cost, until = wanted
    if until is None or not any(limit.quota.queue for limit in plan):
        return plan
    left = max(0, until - clock.ticks())
    return tuple([Limit(limit.space, limit.principal, _shortened(limit.quota, left, cost)) for limit in plan])


def _shortened(quota: Quota, left_us: int, cost: int) -> Quota:
    """Return a queue that admits `cost` only behind what flows out in `left_us`."""
    capacity = left_us * quota.limit // quota.window_us + cost
    return _of_capacity(quota, capacity) if quota.queue and capacity < quota.capacity else quota


@lru_cache(maxsize=4096)
def _of_capacity(quota: Quota, capacity: int) -> Quota:
    return replace(quota, burst=capacity - quota.limit, warn_percent=100, calm_percent=100)  # nobody is warned of it


def _turn(clock: Clock, decision: Decision, wanted: Wanted) -> int:
    """Return the tick at which it is the turn of what is wanted, if nobody else comes."""
    longest = 0
    for part in decision.limits:
        wait, quota = max(part.retry_after_us, part.delay_us), part.quota
        if quota.queue and not part.allowed:  # then it will be the last in the queue
            wait += max(0, -(-(quota.capacity - wanted.cost) * quota.window_us // quota.limit))
        longest = max(longest, wait)
    return clock.ticks() + longest


def _is_too_late(clock: Clock, decision: Decision, wanted: Wanted) -> bool:
    return not decision and wanted.until is not None and _turn(clock, decision, wanted) > wanted.until


def _taken(clock: Clock, decision: Decision, asked: Plan, plan: Plan) -> Flow:
    """Return an admission when its turn has come."""
    if decision.delay_us:
        yield Pause(clock.ticks() + decision.delay_us, listen=False)
    if asked is plan:
        return decision
    parts = [_told(part, *limits) for part, *limits in zip(decision.limits, asked, plan, strict=True)]
    return combine(parts)


def _told(part: Decision, asked: Limit, meant: Limit) -> Decision:
    """Return what a limit that was asked for less than it has says of all it has."""
    quota = meant.quota
    if part.quota is not asked.quota or asked.quota is quota:
        return part
    remaining = part.remaining + quota.capacity - part.limit
    _, pressure = judge(quota)(0, remaining, 0)
    return msgspec.structs.replace(part, limit=quota.capacity, remaining=remaining, state=pressure, quota=quota)


def _refusal(clock: Clock, decision: Decision, wanted: Wanted) -> Flow:
    """Return the refusal of what would come too late; for a queue, with what all of it has."""
    if wanted.until is None or not any(limit.quota.queue for limit in wanted.plan):
        return decision
    late = _turn(clock, decision, wanted) - wanted.until
    return _refused((yield from _answer(Verb.PEEK, wanted.plan, wanted.cost)), max(1, late))


def _answer(verb: Verb, plan: Plan, cost: int) -> Flow:
    decision = yield Call(verb, plan, cost)
    if decision is None:
        raise TypeError(f"the driver must send the decision of {verb}")
    return decision


def _refused(decision: Decision, retry_after_us: int) -> Decision:
    return msgspec.structs.replace(
        decision, allowed=False, state=Pressure.THROTTLED, retry_after_us=retry_after_us, delay_us=0
    )
