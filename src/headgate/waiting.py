"""Waiting for a limit: in line, first come first served, without polling.

The logic is a generator, the same for threads and for tasks: it yields what to do next (ask the store, or wait) and is
sent the answer. `headgate.limiter` and `headgate.aio` each drive it with a few lines.

Only the head of a line asks the store. Refused, it waits exactly as long as the answer says, which is exact, and asks
again; all behind it wait to become the head. Whoever leaves, admitted or not, lets the next one step up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator
from enum import Enum
from typing import Protocol

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.pressure import Pressure

LONGEST_TIMEOUT = 1_000_000_000


class Ticket(Protocol):
    """A place in a line; can be called from any thread."""

    def call(self) -> None:
        """Wake the holder."""
        ...

    def settle(self) -> None:
        """Forget past calls; done by the holder, awake."""
        ...


class ThreadTicket:
    """A place in a line for a thread."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.call = self.event.set
        self.settle = self.event.clear


class TaskTicket:
    """A place in a line for a task of the running event loop."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.settle = self.event.clear
        self._loop = asyncio.get_running_loop()

    def call(self) -> None:
        self._loop.call_soon_threadsafe(self.event.set)


class Lines:
    """The lines of all keys of one limiter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Ticket]] = {}

    def join(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            self._lines.setdefault(key, deque()).append(ticket)

    def is_head(self, key: str, ticket: Ticket) -> bool:
        with self._lock:
            return self._lines[key][0] is ticket

    def leave(self, key: str, ticket: Ticket) -> None:
        with self._lock:
            line = self._lines[key]
            was_head = line[0] is ticket
            line.remove(ticket)
            if not line:
                del self._lines[key]
            elif was_head:
                line[0].call()

    def wake(self, key: str) -> None:
        """Have the head of the line ask again: something was given back."""
        with self._lock:
            line = self._lines.get(key)
            if line:
                line[0].call()


class Step(Enum):
    """What the driver of a flow does next. It sends the decision back where there is one."""

    CHECK = "check the limit"
    PEEK = "look at the limit"
    REFUND = "give the cost back"
    LISTEN = "wait for a call, or for a point in time"
    SLEEP = "wait for a point in time"


Flow = Generator[tuple[Step, int | None], Decision | None, Decision]
"""Yields steps, each with the time in microseconds until which to wait, if any; returns the final decision."""


def deadline(now: int, timeout: float | None) -> int | None:
    """Return the time in microseconds at which a wait of `timeout` seconds from `now` ends; None is without end."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= LONGEST_TIMEOUT:
        raise UsageError(f"timeout must be None or a number of seconds from 0 to {LONGEST_TIMEOUT}, not {timeout!r}")
    return now + round(timeout * 1_000_000)


def acquire(lines: Lines, key: str, ticket: Ticket, clock: Clock, until: int | None) -> Flow:
    """Wait in line for `key` until admitted, or until it is known that this cannot be before `until`.

    Returns the admission, after any delay that comes with it, or a refusal.
    """
    lines.join(key, ticket)
    try:
        while True:
            ticket.settle()  # a call from here on is noticed by the next LISTEN
            if lines.is_head(key, ticket):
                decision = yield from _answer(Step.CHECK)
                if decision:
                    turn = clock.now() + decision.delay_us
                    if decision.delay_us and until is not None and turn > until:
                        yield from _answer(Step.REFUND)
                        return _refused(decision, turn - until)
                    break
                wake = clock.now() + decision.retry_after_us
                if until is not None and wake > until:
                    return decision
                yield Step.LISTEN, wake
            elif until is None or clock.now() < until:
                yield Step.LISTEN, until
            else:
                decision = yield from _answer(Step.PEEK)
                # It might pass now, but not before those ahead; they may need all there is.
                return _refused(decision, decision.retry_after_us or decision.reset_after_us or 1)
    finally:
        lines.leave(key, ticket)
    if decision.delay_us:
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
