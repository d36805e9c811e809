"""Counters of the traffic between an event loop and the servers of a store."""

from __future__ import annotations

from typing import NamedTuple

from headgate.clock import BUCKETS, bucket_of


class TrafficStatistics(NamedTuple):
    """Counters of answered batches; lost ones are failures."""

    batches: int
    """Round trips."""
    calls: int
    """The calls in them; divided by the batches, the mean size of a batch."""
    durations: tuple[int, ...]
    """Durations of batches: the buckets of `headgate.clock`, then the total in nanoseconds."""


class Traffic:
    __slots__ = ("_calls", "_durations", "_nanoseconds")

    def __init__(self) -> None:
        self._calls = self._nanoseconds = 0
        self._durations = [0] * BUCKETS

    def replied(self, calls: int, elapsed_ns: int) -> None:
        self._calls += calls
        self._nanoseconds += elapsed_ns
        self._durations[bucket_of(elapsed_ns)] += 1

    def statistics(self) -> TrafficStatistics:
        durations = (*self._durations, self._nanoseconds)
        return TrafficStatistics(sum(self._durations), self._calls, durations)
