"""The meaning of each algorithm, from first principles: fractions, and the list of all admissions.

Slow and obviously right. It shares nothing with the implementation but the quota.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from headgate import Algorithm, Quota


class Oracle:
    """Keeps every admission, and computes what is left at any later time.

    The quota may be changed in between. What a bucket has lost then comes back at the rate of the last admission.
    """

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.admitted: list[tuple[int, int]] = []
        self.by: list[Quota] = []
        """The quota that admitted each of them."""

    def admit(self, cost: int, now: int) -> None:
        self.admitted.append((now, cost))
        self.by.append(self.quota)

    def left(self, now: int) -> Fraction:
        """Return what may still pass at `now`, fractions included; negative if too much has passed."""
        if self.quota.algorithm.is_bucket:
            return self.quota.capacity - self._level(now)
        return self.quota.limit - self._counted(now)

    def bound(self, interval: int) -> int:
        """Return the published bound: the most that may pass in any interval of that many microseconds."""
        return max(self._bound(quota, interval) for quota in {*self.by, self.quota})

    def _bound(self, quota: Quota, interval: int) -> int:
        rate = Fraction(quota.limit, quota.window_us)
        match quota.algorithm:
            case Algorithm.TOKEN_BUCKET | Algorithm.LEAKY_BUCKET | Algorithm.GCRA:
                return floor(quota.capacity + rate * (interval - 1 + quota.refill_every_us))
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
        level, last, rate = Fraction(0), 0, Fraction(0)
        for (at, cost), quota in zip([*self.admitted, (now, 0)], [*self.by, self.quota], strict=True):
            level = max(Fraction(0), level - rate * (at - last)) + cost
            last, rate = at, Fraction(quota.limit, quota.window_us)
        return level

    def _counted(self, now: int) -> Fraction:
        window = self.quota.window_us
        start = now - now % window
        match self.quota.algorithm:
            case Algorithm.SLIDING_WINDOW_LOG:
                return Fraction(sum(cost for at, cost in self.admitted if at > now - window))
            case Algorithm.FIXED_WINDOW:
                return Fraction(sum(cost for at, cost in self.admitted if at >= start))
            case Algorithm.SLIDING_WINDOW_COUNTER:
                current = sum(cost for at, cost in self.admitted if at >= start)
                previous = sum(cost for at, cost in self.admitted if start - window <= at < start)
                return current + previous * Fraction(start + window - now, window)
            case other:
                raise NotImplementedError(f"this says nothing of what {other} should admit")
