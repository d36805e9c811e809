"""What each algorithm means, from first principles: fractions, and the list of all that was admitted.

Slow and obviously right. It shares nothing with the implementation but the quota.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from headgate import Algorithm, Quota


class Oracle:
    """Remembers every admission, and says how much there is left at any later time."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.admitted: list[tuple[int, int]] = []

    def admit(self, cost: int, now: int) -> None:
        self.admitted.append((now, cost))

    def left(self, now: int) -> Fraction:
        """Return what may still pass at `now`, fractions included; negative if too much has passed."""
        if self.quota.algorithm.is_bucket:
            return self.quota.capacity - self._level(now)
        return self.quota.limit - self._counted(now)

    def bound(self, interval: int) -> int:
        """Return the published bound: the most that may pass in any interval of that many microseconds."""
        quota = self.quota
        rate = Fraction(quota.limit, quota.window_us)
        match quota.algorithm:
            case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET | Algorithm.GCRA:
                return floor(quota.capacity + rate * interval)
            case Algorithm.SLIDING_WINDOW_LOG:
                return quota.limit * -(-interval // quota.window_us)
            case Algorithm.FIXED_WINDOW:
                return quota.limit * (-(-interval // quota.window_us) + 1)
            case Algorithm.SLIDING_WINDOW_COUNTER:  # less than one more limit
                return max(quota.limit, quota.limit * (-(-interval // quota.window_us) + 1) - 1)

    def worst(self) -> tuple[int, int, int] | None:
        """Return an interval (length, passed, bound) in which more passed than the bound, if there is one."""
        for first, (start, _) in enumerate(self.admitted):
            passed = 0
            for at, cost in self.admitted[first:]:
                passed += cost
                interval = at - start + 1
                if passed > self.bound(interval):
                    return interval, passed, self.bound(interval)
        return None

    def _level(self, now: int) -> Fraction:
        """Return what is missing from a full bucket."""
        rate = Fraction(self.quota.limit, self.quota.window_us)
        level, last = Fraction(0), 0
        for at, cost in [*self.admitted, (now, 0)]:
            level = max(Fraction(0), level - rate * (at - last)) + cost
            last = at
        return level

    def _counted(self, now: int) -> Fraction:
        window = self.quota.window_us
        start = now - now % window
        match self.quota.algorithm:
            case Algorithm.SLIDING_WINDOW_LOG:
                return Fraction(sum(cost for at, cost in self.admitted if at > now - window))
            case Algorithm.FIXED_WINDOW:
                return Fraction(sum(cost for at, cost in self.admitted if at >= start))
            case _:
                current = sum(cost for at, cost in self.admitted if at >= start)
                previous = sum(cost for at, cost in self.admitted if start - window <= at < start)
                return current + previous * Fraction(start + window - now, window)
