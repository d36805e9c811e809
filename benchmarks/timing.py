"""The clock work: one loop for all, in alternating rounds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic, perf_counter_ns
from typing import TypeVar

T = TypeVar("T")
Round = Callable[[int], float]
"""Runs the round of that number and returns nanoseconds per call."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one call, in nanoseconds."""

    rounds: tuple[float, ...]
    """Round by round; the contenders that took turns were in each of them."""

    @property
    def best(self) -> float:
        """The fastest round: the least disturbed one."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """How far the median round lies above the best one; 0.1 is 10 %."""
        return self.median / self.best - 1

    def over(self, other: Figure) -> float:
        """Return this cost over that of another in turn with it: the median of the ratios within the rounds.

        What slows a whole round down is in both, and one lucky round of either decides nothing.
        """
        return median(ours / theirs for ours, theirs in zip(self.rounds, other.rounds, strict=True))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: rounds go on for `seconds`, but there are at least `fewest` and at most `most`."""

    seconds: float
    fewest: int
    most: int
    calls: int = 1000
    """In a round on one key of the library."""


def time_calls(call: Callable[[T], object], arguments: Sequence[T]) -> float:
    """Call `call` with each argument, a key or a request; returns nanoseconds per call."""
    start = perf_counter_ns()
    for argument in arguments:
        call(argument)
    return (perf_counter_ns() - start) / len(arguments)


def alternate(contenders: Mapping[str, Round], pace: Pace) -> dict[str, Figure]:
    """Measure all contenders in turn, round after round, each round starting with the next of them.

    So all of them meet the same conditions. The garbage collector is off meanwhile, as in `timeit`.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        until = monotonic() + pace.seconds
        number = 0
        while number < pace.fewest or (number < pace.most and monotonic() < until):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                samples[name].append(contenders[name](number))
            number += 1
    finally:
        if collecting:
            gc.enable()
    return {name: Figure(tuple(times)) for name, times in samples.items()}
