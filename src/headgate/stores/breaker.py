"""A circuit breaker: decides whether a store that fails is asked at all. Pure: time and chance come from outside.

::

                 `threshold` failures in a row              the pause is over, and somebody asks
        CLOSED ────────────────────────────────▶ OPEN ────────────────────────────────────────────▶ HALF_OPEN
           ▲                                       ▲                                                 │     │
           │                                       └──────── the probe fails: a longer pause ────────┘     │
           └───────────────────────────────── the probe succeeds ──────────────────────────────────────────┘

Laws:

1.  Closed, every call goes through. Open, none does before the pause has ended. Half-open, one does: the *probe*.
2.  A call that goes through gets a *ticket* and reports with it how it went. Tickets from before the last change of
    state are void: what was sent in better times, or in worse, says nothing about now.
3.  Pauses double from the first to the longest, and each is shortened by chance to between half and all of itself, so
    that the nodes of a fleet do not knock together.
4.  A probe that never reports is given up after `probe_us`, and another may go. No lost call keeps a breaker open.
5.  An answer that comes after its call was reported as failed is a success: the server is slow, not away.
6.  Many calls that fail of one cause, such as a connection that was lost, are one failure. A probe is alone, and counts
    whatever its cause.
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
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_CLOSED = Circuit.CLOSED  # a name is found faster than a member


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """What a breaker has seen so far."""

    state: Circuit
    failures: int
    """Failures in a row, while closed."""
    openings: int
    """How often it opened, failed probes not counted: the number of outages."""
    recoveries: int
    """How often it closed again."""
    probes: int
    """How many calls went through while it was not closed."""


class Breaker:
    """Says who may ask; not safe for threads by itself.

    Args:
        threshold: so many failures in a row open it.
        pause_us: the first pause before a probe, in microseconds.
        longest_pause_us: the longest one.
        probe_us: a probe that has not reported in so many microseconds is given up. More than a store ever takes.
        chance: returns a whole number from the first to the second argument, both included.
    """

    __slots__ = (
        "_chance",
        "_failures",
        "_incident",
        "_longest_us",
        "_openings",
        "_pause_us",
        "_probe_us",
        "_probes",
        "_recoveries",
        "_threshold",
        "_unanswered",
        "_until",
        "epoch",
        "state",
    )

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
        self.epoch = 1  # how often the state changed, and the ticket of those who ask now
        self._failures = 0
        self._incident: object = None  # the cause of the last of them
        self._unanswered = 0  # probes in a row that failed
        self._until = 0  # when the pause ends, or the probe is given up
        self._openings = self._recoveries = self._probes = 0

    @property
    def is_untroubled(self) -> bool:
        """Is it closed, with no failure to forget? Then another success changes nothing."""
        return not self._failures and self.state is _CLOSED

    def may_ask(self, now: int) -> bool:
        """Would a call go through at the tick `now`?"""
        return self.state is _CLOSED or now >= self._until

    def ask(self, now: int) -> int:
        """Return the ticket of a call that may go through at the tick `now`, or 0: not now."""
        if self.state is not _CLOSED:
            if now < self._until:
                return 0
            self._change(Circuit.HALF_OPEN, now + self._probe_us)
            self._probes += 1
        return self.epoch

    def succeeded(self, ticket: int) -> bool:
        """Note that the store answered; says whether that closed the breaker."""
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
        """Note that the store answered a call that was reported as failed; says whether that closed the breaker."""
        if self.state is Circuit.OPEN and ticket == self.epoch - 1:  # it opened because of that call
            ticket = self.epoch
        return self.succeeded(ticket)

    def failed(self, ticket: int, now: int, incident: object = None) -> bool:
        """Note that the store did not answer, because of an `incident` if known; says whether that began an outage."""
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
        if self._failures < self._threshold:
            return False
        self._failures = 0
        self._openings += 1
        self._pause(now)
        return True

    def trip(self, now: int) -> bool:
        """Open it without waiting for failures, as the store is known to be away; says whether that began an outage."""
        if self.state is not _CLOSED:
            return False
        self._failures = 0
        self._openings += 1
        self._pause(now)
        return True

    def abandoned(self, ticket: int, now: int) -> None:
        """Note that nobody will know how the call went, for whoever made it gave up. A probe is due again later."""
        if ticket == self.epoch and self.state is Circuit.HALF_OPEN:
            self._pause(now)

    def wait_us(self, now: int) -> int:
        """Return how many microseconds after `now` to ask again: when the next probe is due, and at least 1.

        While calls go through, or a probe is under way, that is the first pause.
        """
        return max(1, self._until - now) if self.state is Circuit.OPEN else self._pause_us

    def statistics(self) -> BreakerStatistics:
        """Return what it has seen so far."""
        return BreakerStatistics(self.state, self._failures, self._openings, self._recoveries, self._probes)

    def _pause(self, now: int) -> None:
        doublings = min(self._unanswered, 32)  # beyond any longest pause
        pause = min(self._longest_us, self._pause_us << doublings)
        self._change(Circuit.OPEN, now + self._chance(-(-pause // 2), pause))

    def _change(self, state: Circuit, until: int) -> None:
        self.state, self._until = state, until
        self.epoch += 1
