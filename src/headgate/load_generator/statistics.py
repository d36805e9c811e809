"""Counting outcomes and latencies: kept by the microsecond, so that percentiles are exact and memory is small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from headgate.load_generator.outcomes import Kind, Outcome

PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}
"""Names, and how many in a thousand are at most so much."""


class Latencies:
    """How many answers took how many microseconds."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, microseconds: int) -> None:
        counts = self._counts
        counts[microseconds] = counts.get(microseconds, 0) + 1
        self.total += 1

    def mean(self) -> float:
        """Return the mean in microseconds; 0 of nothing."""
        return sum(value * times for value, times in self._counts.items()) / self.total if self.total else 0.0

    def percentiles(self, per_mille: Sequence[int]) -> list[int]:
        """Return for each of `per_mille` (ascending) the smallest latency that so many of a thousand do not exceed.

        0 is the fastest, 1000 the slowest. Of nothing there are none.
        """
        if not self.total:
            return []
        found, seen = [], 0
        values = iter(sorted(self._counts.items()))
        value = 0
        for share in per_mille:
            rank = max(1, -(-self.total * share // 1000))
            while seen < rank:
                value, times = next(values)
                seen += times
            found.append(value)
        return found

    def histogram(self) -> list[tuple[int, int]]:
        """Return how many took at most 1, 2, 5, 10, 20 ... microseconds, and more than the bound before.

        It begins and ends with a bound that has some.
        """
        rows: list[tuple[int, int]] = []
        bounds = _bounds()
        bound = next(bounds)
        for value, times in sorted(self._counts.items()):
            while value > bound:
                bound = next(bounds)
                if rows:
                    rows.append((bound, 0))
            if not rows:
                rows.append((bound, 0))
            rows[-1] = (bound, rows[-1][1] + times)
        return rows


def _bounds() -> Iterator[int]:
    for power in count():
        for step in (1, 2, 5):
            yield step * 10**power


class Latency(msgspec.Struct, frozen=True):
    """Of decisions, in microseconds. In the closed loop from sending, in the open loop from when it was due."""

    min: int
    mean: float
    percentiles: dict[str, int]
    max: int
    histogram: list[tuple[int, int]]


class Summary(msgspec.Struct, frozen=True):
    """What a run found."""

    seconds: float
    """From the first question to the last answer, or to where it was stopped."""
    sent: int
    allowed: int
    denied: int
    degraded: int
    """Of the decisions, how many were made without the store."""
    shed: int
    """Refused by the service to protect itself: 503, RESOURCE_EXHAUSTED."""
    errors: dict[str, int]
    """By kind."""
    missed: int
    """In the open loop: due, and never sent, for all connections were busy."""
    connects: int
    connects_failed: int
    connections_lost: int
    """While questions were open on them."""
    latency: Latency | None
    """None where nothing was decided."""
    interrupted: bool = False
    gone: bool = False
    """The service went away, and did not come back in time."""
    unmatched: int = 0
    """Of those allowed, how many no rule was for."""

    @property
    def decided(self) -> int:
        return self.allowed + self.denied

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def rate(self) -> float:
        """Decisions in a second."""
        return self.decided / self.seconds if self.seconds else 0.0


class Tally:
    """Counts while a run goes on."""

    __slots__ = ("latencies", "outcomes")

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.outcomes: dict[Outcome, int] = {}

    def add(self, outcome: Outcome, microseconds: int) -> None:
        outcomes = self.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if outcome.is_decision:
            self.latencies.add(microseconds)

    def of(self, kind: Kind) -> int:
        return sum(times for outcome, times in self.outcomes.items() if outcome.kind is kind)

    def degraded(self) -> int:
        return sum(times for outcome, times in self.outcomes.items() if outcome.degraded)

    def unmatched(self) -> int:
        return sum(times for outcome, times in self.outcomes.items() if not outcome.matched)

    def errors(self) -> dict[str, int]:
        """Return errors by kind, the most frequent first."""
        found = {outcome.error: times for outcome, times in self.outcomes.items() if outcome.kind is Kind.ERROR}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def latency(self) -> Latency | None:
        """Return what is known of latencies."""
        if not self.latencies.total:
            return None
        fastest, *middle, slowest = self.latencies.percentiles([0, *PERCENTILES.values(), 1000])
        named = dict(zip(PERCENTILES, middle, strict=True))
        return Latency(fastest, self.latencies.mean(), named, slowest, self.latencies.histogram())
