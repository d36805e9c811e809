"""Estimate the rate of a server that refuses requests without announcing limits.

Additive increase, multiplicative decrease, as in TCP:

* Before the first refusal, requests are sent immediately. Then the rate is what passed in the last second, at least one
  a second, and requests are spaced evenly.
* A refusal multiplies it by `CUT`, once for all requests in flight, and pauses: for the time of two requests, then for
  1, 2, 4 ... seconds, up to `LONGEST_US`, while nothing passes.
* Each request that passes raises it. After the first cut, which is inexact, by half in a second, until the next
  refusal; then by `QUICK` a second of the rate at the last refusal while it is below `NEAR` of that, and by `SLOW` a
  second from there on, to probe for more.

The result is between 0.7 and 1 of what the server allows, with few refusals. Time is an argument, in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.core.quota import SECOND

CUT, NEAR, FIRST, QUICK, SLOW = 0.7, 0.95, 0.5, 0.05, 0.005
LONGEST_US = 30 * SECOND
_LOWEST = SECOND / LONGEST_US


@dataclass(slots=True)
class GuessedRate:
    rate: float = 0.0
    """Requests a second; 0 before the first refusal."""
    ready_at: int = 0
    """When the next request may be sent."""
    _top: float = 0.0
    """The rate at the last refusal."""
    _cut_at: int = -1
    _cuts: int = 0
    _refusals: int = 0
    """Consecutive ones."""
    _second: int = 0
    """Start of a second."""
    _passed: int = 0
    """Requests that passed since."""

    def sent(self, now: int) -> None:
        if self.rate:
            self.ready_at = max(self.ready_at, now) + round(SECOND / self.rate)

    def passed(self, now: int) -> None:
        self._refusals = 0
        if not self.rate:
            if now - self._second > SECOND:
                self._second, self._passed = now, 0
            self._passed += 1
            return
        if self._cuts == 1:
            self.rate += FIRST
        else:
            self.rate += (QUICK if self.rate < NEAR * self._top else SLOW) * self._top / self.rate

    def refused(self, now: int, sent_at: int) -> int:
        """Record a refusal; return how long to pause."""
        if sent_at <= self._cut_at:  # already cut for the requests in flight
            return 0
        self._top = self.rate or max(1.0, self._passed)
        self.rate = max(_LOWEST, CUT * self._top)
        self._refusals, self._cuts, self._cut_at = self._refusals + 1, self._cuts + 1, now
        wait = min(SECOND << min(self._refusals, 10) - 1, LONGEST_US)
        return wait if self._refusals > 1 else min(wait, round(2 * SECOND / self.rate))
