"""Waiting for a limit: in line, first come first served, without polling.

The logic is a generator, the same for threads and for tasks: it yields what to do next (ask the store, or wait) and is
sent the answer. `headgate.limiter` and `headgate.aio` each drive it with a few lines.

Only the head of a line asks the store. Refused, it waits exactly as long as the answer says, which is exact, and asks
again; all behind it wait to become the head. Whoever leaves, admitted or not, lets the next one step up.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator
from enum import Enum
from typing import Protocol

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.pressure import Pressure
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


class Lines:
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


class Step(Enum):
    """What the driver of a flow does next. It sends the decision back where there is one."""

    CHECK = "check the limit"
    PEEK = "look at the limit"
    REFUND = "give the cost back"
    LISTEN = "wait for a call, or for a point in time"
    SLEEP = "wait for a point in time"


Flow = Generator[tuple[Step, int | None], Decision | None, Decision]
"""Yields steps, each with the tick of the clock until which to wait, if any; returns the final decision."""


def deadline(now: int, timeout: float | None) -> int | None:
    """Return the tick at which a wait of `timeout` seconds from the tick `now` ends; None is without end."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= LONGEST_TIMEOUT:
        raise UsageError(
            f"timeout must be None or a number of seconds from 0 to {LONGEST_TIMEOUT}, not {short(timeout)}"
        )
    return now + round(timeout * 1_000_000)


def acquire(lines: Lines, key: str, ticket: Ticket, clock: Clock, until: int | None) -> Flow:
    """Take what `key` asks for, in line behind those who wait already, or learn that it cannot be before `until`.

    Returns the admission, after any delay that comes with it, or a refusal. `until` is in ticks of the clock.
    """
    if lines.is_empty(key):
        decision = yield from _answer(Step.CHECK)
        if decision or _too_late(clock, decision, until):
            return (yield from _taken(clock, decision, until)) if decision else decision
    lines.join(key, ticket)
    try:
        while True:
            ticket.settle()  # a call from here on is noticed by the next LISTEN
            head = lines.is_head(key, ticket)
            decision = yield from _answer(Step.CHECK if head else Step.PEEK)
            if head and decision:
                break
            if _too_late(clock, decision, until):
                return decision
            if head:
                yield Step.LISTEN, clock.ticks() + decision.retry_after_us
            elif until is None or clock.ticks() < until:
                yield Step.LISTEN, until
            else:  # it might pass now, but not before those ahead, who may need all there is
                return _refused(decision, decision.retry_after_us or decision.reset_after_us or 1)
    finally:
        lines.leave(key, ticket)
    return (yield from _taken(clock, decision, until))


def _too_late(clock: Clock, decision: Decision, until: int | None) -> bool:
    return not decision and until is not None and clock.ticks() + decision.retry_after_us > until


def _taken(clock: Clock, decision: Decision, until: int | None) -> Flow:
    """Wait until it is the turn of an admission, or give it back if that is too late."""
    if not decision.delay_us:
        return decision
    turn = clock.ticks() + decision.delay_us
    if until is not None and turn > until:
        yield from _answer(Step.REFUND)
        return _refused(decision, turn - until)
    yield Step.SLEEP, turn
    return decision


def _answer(step: Step) -> Flow:
    decision = yield step, None
    if decision is None:
        raise TypeError(f"the driver must send the decision of {step}")
    return decision


def _refused(decision: Decision, retry_after_us: int) -> Decision:
    return msgspec.structs.replace(
        decision, allowed=False, state=Pressure.THROTTLED, retry_after_us=retry_after_us, delay_us=0
    )
