"""Waiting for a limit: first come, first served, without polling.

The logic is a flow for threads and tasks (see `headgate.flows`): it yields a call of the store or a pause, and receives
the decision.

Only the head of a queue calls the store. When refused, it waits exactly as long as the decision says, and tries again;
the others wait to become the head. A caller that leaves, admitted or not, wakes the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol, cast

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision, refused
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb, combine
from headgate.core.pressure import judge
from headgate.core.quota import Quota
from headgate.locks import new_lock

LONGEST_TIMEOUT = 1_000_000_000


class Ticket(Protocol):
    """A place in a queue; thread-safe."""

    def call(self) -> None:
        """Wake the holder."""
        ...

    def settle(self) -> None:
        """Clear past wake-ups; called by the awake holder."""
        ...

    def is_lost(self) -> bool:
        """Return whether the holder is gone without leaving the queue."""
        ...


class ThreadTicket:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.call = self.event.set
        self.settle = self.event.clear
        self._holder = os.getpid(), threading.get_ident()

    def is_lost(self) -> bool:
        return _is_gone(*self._holder)


class TaskTicket:
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
    """Return whether a fork lost this thread: the child has only the forking one, as its main thread."""
    return process != os.getpid() and thread != threading.main_thread().ident


class WaitQueues:
    """The queues of one limiter, by key."""

    def __init__(self) -> None:
        self._lock = new_lock()  # reentrant: an abandoned flow leaves its queue whenever it is collected
        self._queues: dict[str, dict[Ticket, None]] = {}  # ordered, with fast removal

    def is_empty(self, key: str) -> bool:
        with self._lock:
            return self._head(key) is None

    def join(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            self._queues.setdefault(key, {})[ticket] = None

    def is_head(self, key: str, ticket: Ticket) -> bool:
        with self._lock:
            return self._head(key) is ticket

    def leave(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            was_head = self._head(key) is ticket
            self._queues.get(key, {}).pop(ticket, None)
            head = self._head(key)
            if was_head and head:
                head.call()

    def wake(self, key: str) -> None:
        """Wake the head of a queue after a refund or reset."""
        with self._lock:
            head = self._head(key)
            if head:
                head.call()

    def _head(self, key: str) -> Ticket | None:
        queue = self._queues.get(key, {})
        while queue:
            ticket = next(iter(queue))
            if not ticket.is_lost():
                return ticket
            del queue[ticket]
        self._queues.pop(key, None)
        return None


class Pause(NamedTuple):
    """A step of a flow: wait."""

    until: int | None
    """The tick until which to wait, or None."""
    listen: bool = True
    """Whether a call of the ticket ends the wait."""


class WaitRequest(NamedTuple):
    plan: Plan
    cost: int
    until: int | None
    """The tick of the deadline; None: no deadline."""


Flow = Generator[Call | Pause, Decision | None, Decision]
"""Yields calls of the store and pauses; returns the final decision."""


def deadline(now: int, timeout: float | None) -> int | None:
    """Return the tick of a deadline `timeout` seconds after `now`; None: no deadline."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= LONGEST_TIMEOUT:
        raise UsageError(
            f"timeout must be None or a number of seconds from 0 to {LONGEST_TIMEOUT}, not {short(timeout)}"
        )
    return now + round(timeout * 1_000_000)


def acquire(queues: WaitQueues, key: str, ticket: Ticket, clock: Clock, wanted: WaitRequest) -> Flow:
    """Take the cost for `key` in the order of arrival, or return a refusal once it cannot be admitted in time.

    An admission is returned after its delay.

    A place in a queueing limit cannot be returned, since later requests depend on it. So the request is made only for
    places whose turn comes in time: for others it is a refusal, and takes nothing (see `_in_time`).
    """
    if queues.is_empty(key):
        plan_in_time = _in_time(wanted, clock)
        decision = yield from _answer(Verb.CHECK, plan_in_time, wanted.cost)
        if decision:
            return (yield from _admit(clock, decision, plan_in_time, wanted.plan))
        if _is_too_late(clock, decision, wanted):
            return (yield from _refusal(clock, decision, wanted))
    queues.join(key, ticket)
    try:
        while True:
            ticket.settle()  # a wake-up from here on ends the next pause
            head, plan_in_time = queues.is_head(key, ticket), _in_time(wanted, clock)
            decision = yield from _answer(Verb.CHECK if head else Verb.PEEK, plan_in_time, wanted.cost)
            if head and decision:
                break
            if _is_too_late(clock, decision, wanted):
                return (yield from _refusal(clock, decision, wanted))
            if head:
                yield Pause(clock.ticks() + decision.retry_after_us)
            elif wanted.until is None or clock.ticks() < wanted.until:
                yield Pause(wanted.until)
            else:  # it might pass now, but callers ahead may need all of it
                return refused(decision, decision.retry_after_us or decision.reset_after_us or 1)
    finally:
        queues.leave(key, ticket)
    return (yield from _admit(clock, decision, plan_in_time, wanted.plan))


def _in_time(wanted: WaitRequest, clock: Clock) -> Plan:
    """Return the plan with each queueing limit cut to the places whose turn comes in time.

    State counts usage independently of capacity: so the shorter queue admits just those that the full one serves in
    time. Its length is exact to one unit; a caller for a place in this last unit waits for a moment, and has the same
    turn.
    """
    plan, cost, until = wanted
    if until is None or not any(limit.quota.queue for limit in plan):
        return plan
    left = max(0, until - clock.ticks())
    return tuple([Limit(limit.space, limit.principal, _shorten(limit.quota, left, cost)) for limit in plan])


def _shorten(quota: Quota, left_us: int, cost: int) -> Quota:
    """Return a queue that admits `cost` only behind what drains in `left_us`."""
    capacity = left_us * quota.limit // quota.window_us + cost
    return _of_capacity(quota, capacity) if quota.queue and capacity < quota.capacity else quota


@lru_cache(maxsize=4096)
def _of_capacity(quota: Quota, capacity: int) -> Quota:
    return replace(quota, burst=capacity - quota.limit, warn_percent=100, calm_percent=100)  # without warnings


def _turn(clock: Clock, decision: Decision, wanted: WaitRequest) -> int:
    """Return the tick at which the request could be served if no others come."""
    longest = 0
    for part in decision.limits:
        wait, quota = max(part.retry_after_us, part.delay_us), part.quota
        if quota.queue and not part.allowed:  # it would be the last in the queue
            wait += max(0, -(-(quota.capacity - wanted.cost) * quota.window_us // quota.limit))
        longest = max(longest, wait)
    return clock.ticks() + longest


def _is_too_late(clock: Clock, decision: Decision, wanted: WaitRequest) -> bool:
    return not decision and wanted.until is not None and _turn(clock, decision, wanted) > wanted.until


def _admit(clock: Clock, decision: Decision, plan_in_time: Plan, plan: Plan) -> Flow:
    """Return an admission after its delay."""
    if decision.delay_us:
        yield Pause(clock.ticks() + decision.delay_us, listen=False)
    if plan_in_time is plan:
        return decision
    parts = [_in_full(part, *limits) for part, *limits in zip(decision.limits, plan_in_time, plan, strict=True)]
    return combine(parts)


def _in_full(part: Decision, plan_in_time: Limit, meant: Limit) -> Decision:
    """Return a decision about a shortened queue in terms of the full one."""
    quota = meant.quota
    if part.quota is not plan_in_time.quota or plan_in_time.quota is quota:
        return part
    remaining = part.remaining + quota.capacity - part.limit
    _, pressure = judge(quota)(0, remaining, 0)
    return msgspec.structs.replace(part, limit=quota.capacity, remaining=remaining, state=pressure, quota=quota)


def _refusal(clock: Clock, decision: Decision, wanted: WaitRequest) -> Flow:
    """Return the refusal of a late request; for a queueing limit, in terms of the full queue."""
    if wanted.until is None or not any(limit.quota.queue for limit in wanted.plan):
        return decision
    late = _turn(clock, decision, wanted) - wanted.until
    return refused((yield from _answer(Verb.PEEK, wanted.plan, wanted.cost)), max(1, late))


def _answer(verb: Verb, plan: Plan, cost: int) -> Flow:
    return cast("Decision", (yield Call(verb, plan, cost)))
