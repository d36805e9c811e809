"""A circuit breaker: stops calls to a store that fails. Pure: time and chance are arguments.

::

                 `threshold` failures in a row              the pause is over, and a call comes
        CLOSED ────────────────────────────────▶ OPEN ────────────────────────────────────────────▶ HALF_OPEN
           ▲                                       ▲                                                 │     │
           │                                       └──────── the probe fails: a longer pause ────────┘     │
           └───────────────────────────────── the probe succeeds ──────────────────────────────────────────┘

Laws:

1.  Closed, every call is permitted. Open, none is before the pause has ended. Half-open, one is: the *probe*.
2.  A permitted call gets a *ticket*, with which it reports its result. A change of state voids earlier tickets: their
    results are not about the present.
3.  Pauses double from the first to the longest; chance shortens each to between half and all of it, so that the nodes
    of a fleet do not probe at the same time.
4.  A probe that never reports is abandoned after `probe_us`, and another one is permitted. No lost call keeps a breaker
    open.
5.  An answer after its call was reported as failed is a success: the server is slow, not down.
6.  Failed calls with one cause, such as a lost connection, are one failure. A probe is alone, and always counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import randint

from headgate.core.errors import InvalidStore
from headgate.core.numbers import whole

THRESHOLD = 5
PAUSE_US = 250_000
LONGEST_PAUSE_US = 2_000_000
PROBE_US = 30_000_000
_HOUR = 3_600_000_000


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_CLOSED = Circuit.CLOSED  # a global is found faster than an enum member


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    state: Circuit
    failures: int
    """Failures in a row, while closed."""
    openings: int
    """How often it opened, without failed probes: the number of outages."""
    recoveries: int
    """How often it closed again."""
    probes: int
    """How many calls were permitted while it was not closed."""


class Breaker:
    """Permits calls; not thread-safe.

    Args:
        threshold: failures in a row that open it.
        pause_us: the first pause before a probe, in microseconds.
        longest_pause_us: the longest one.
        probe_us: microseconds after which a probe without a report is abandoned. More than a store ever takes.
        chance: returns a whole number from the first to the second argument, both included.
    """

    def __init__(
        self,
        *,
        threshold: int = THRESHOLD,
        pause_us: int = PAUSE_US,
        longest_pause_us: int = LONGEST_PAUSE_US,
        probe_us: int = PROBE_US,
        chance: Callable[[int, int], int] = randint,
    ) -> None:
        self._threshold = whole("threshold", threshold, 1, 1_000_000, InvalidStore)
        self._pause_us = whole("pause_us", pause_us, 1, _HOUR, InvalidStore)
        self._longest_us = whole("longest_pause_us", longest_pause_us, pause_us, _HOUR, InvalidStore)
        self._probe_us = whole("probe_us", probe_us, 1, _HOUR, InvalidStore)
        self._chance = chance
        self.state = Circuit.CLOSED
        self.epoch = 1  # the number of changes of state, and the present ticket
        self._failures = 0
        self._incident: object = None  # the cause of the last failure
        self._unanswered = 0  # failed probes in a row
        self._until = 0  # the end of the pause, or of the probe
        self._openings = self._recoveries = self._probes = 0

    @property
    def is_healthy(self) -> bool:
        """Whether it is closed without failures: another success changes nothing."""
        return not self._failures and self.state is _CLOSED

    def permits(self, now: int) -> bool:
        """Return whether a call would be permitted at the tick `now`."""
        return self.state is _CLOSED or now >= self._until

    def permit(self, now: int) -> int:
        """Return the ticket of a call at the tick `now`; 0 if it is not permitted."""
        if self.state is not _CLOSED:
            if now < self._until:
                return 0
            self._change(Circuit.HALF_OPEN, now + self._probe_us)
            self._probes += 1
        return self.epoch

    def succeeded(self, ticket: int) -> bool:
        """Record a success; returns whether it closed the breaker."""
        if ticket != self.epoch:
            return False
        self._failures = 0
        if self.state is Circuit.CLOSED:
            return False
        self._change(Circuit.CLOSED, 0)
        self._unanswered = 0
        self._recoveries += 1
        return True

    def answered_late(self, ticket: int) -> bool:
        """Record an answer to a call that was reported as failed; returns whether it closed the breaker."""
        if self.state is Circuit.OPEN and ticket == self.epoch - 1:  # it opened because of that call
            ticket = self.epoch
        return self.succeeded(ticket)

    def failed(self, ticket: int, now: int, incident: object = None) -> bool:
        """Record a failure, with its `incident` if known; returns whether it began an outage."""
        if ticket != self.epoch:
            return False
        if self.state is Circuit.HALF_OPEN:
            self._unanswered += 1
            self._pause(now)
            return False
        if incident is not None and incident is self._incident:
            return False
        self._incident = incident
        self._failures += 1
        return self._failures >= self._threshold and self.trip(now)

    def trip(self, now: int) -> bool:
        """Open it, since the store is known to be down; returns whether that began an outage."""
        if self.state is not _CLOSED:
            return False
        self._failures = 0
        self._openings += 1
        self._pause(now)
        return True

    def abandoned(self, ticket: int, now: int) -> None:
        """Record a call without a result, since its caller gave up. Another probe is due later."""
        if ticket == self.epoch and self.state is Circuit.HALF_OPEN:
            self._pause(now)

    def wait_us(self, now: int) -> int:
        """Return microseconds from `now` to the next probe, at least 1; otherwise, the first pause."""
        return max(1, self._until - now) if self.state is Circuit.OPEN else self._pause_us

    def statistics(self) -> BreakerStatistics:
        return BreakerStatistics(self.state, self._failures, self._openings, self._recoveries, self._probes)

    def _pause(self, now: int) -> None:
        doublings = min(self._unanswered, 32)  # enough to exceed any longest pause
        pause = min(self._longest_us, self._pause_us << doublings)
        self._change(Circuit.OPEN, now + self._chance(-(-pause // 2), pause))

    def _change(self, state: Circuit, until: int) -> None:
        self.state, self._until = state, until
        self.epoch += 1
