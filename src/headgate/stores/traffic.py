"""What goes back and forth between an event loop and the servers of a store, in numbers."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from headgate.latency import BUCKETS, bucket_of


class TrafficStatistics(NamedTuple):
    """What came back so far. Flights that were lost are not in it: those are failures."""

    flights: int
    """Round trips."""
    questions: int
    """What was asked on them: divided by the flights, how many travel together."""
    durations: tuple[int, ...]
    """How many flights took how long: the buckets of `headgate.latency`, then all nanoseconds together."""


class Traffic:
    """Counts the flights of all connections of a store."""

    __slots__ = ("_durations", "_nanoseconds", "_questions")

    def __init__(self) -> None:
        self._questions = self._nanoseconds = 0
        self._durations = [0] * BUCKETS

    def landed(self, questions: int, elapsed_ns: int) -> None:
        """Note a flight whose answers have come."""
        self._questions += questions
        self._nanoseconds += elapsed_ns
        self._durations[bucket_of(elapsed_ns)] += 1

    def statistics(self) -> TrafficStatistics:
        """Return what it has counted."""
        durations = (*self._durations, self._nanoseconds)
        return TrafficStatistics(sum(self._durations), self._questions, durations)


@runtime_checkable
class Travelled(Protocol):
    """What a store may offer besides, if it asks servers."""

    def traffic(self) -> TrafficStatistics:
        """Return what came back from them so far."""
        ...
