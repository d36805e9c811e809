"""What goes back and forth between an event loop and the servers of a store, in numbers."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from headgate.clock import BUCKETS, bucket_of


class TrafficStatistics(NamedTuple):
    """What came back so far. Batches that were lost are not in it: those are failures."""

    batches: int
    """Round trips."""
    calls: int
    """What was asked in them: divided by the batches, how many calls travel together."""
    durations: tuple[int, ...]
    """How many batches took how long: the buckets of `headgate.clock`, then all nanoseconds together."""


class Traffic:
    """Counts the batches of all connections of a store."""

    __slots__ = ("_calls", "_durations", "_nanoseconds")

    def __init__(self) -> None:
        self._calls = self._nanoseconds = 0
        self._durations = [0] * BUCKETS

    def replied(self, calls: int, elapsed_ns: int) -> None:
        """Note a batch whose replies have come."""
        self._calls += calls
        self._nanoseconds += elapsed_ns
        self._durations[bucket_of(elapsed_ns)] += 1

    def statistics(self) -> TrafficStatistics:
        """Return what it has counted."""
        durations = (*self._durations, self._nanoseconds)
        return TrafficStatistics(sum(self._durations), self._calls, durations)


@runtime_checkable
class Networked(Protocol):
    """What a store may offer besides, if it asks servers."""

    def traffic(self) -> TrafficStatistics:
        """Return what came back from them so far."""
        ...
