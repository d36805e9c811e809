"""Timing: one loop for all contenders, in alternating rounds."""

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
    """By round, each of which included all contenders."""

    @property
    def best(self) -> float:
        """The fastest round: the least disturbed one."""
        return min(self.rounds)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """The median round over the best one, minus 1; 0.1 is 10 %."""
        return self.median / self.best - 1

    def over(self, other: Figure) -> float:
        """Return this cost over another one: the median of the ratios within the rounds.

        Disturbances of a round affect both, and single fast rounds do not count.
        """
        return median(ours / theirs for ours, theirs in zip(self.rounds, other.rounds, strict=True))


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of a measurement: rounds for `seconds`, but at least `fewest` and at most `most`."""

    seconds: float
    fewest: int
    most: int
    calls: int = 1000
    """Calls of the library in a round, on one key."""


def time_calls(call: Callable[[T], object], arguments: Sequence[T]) -> float:
    """Call `call` with each argument, a key or a request; returns nanoseconds per call."""
    start = perf_counter_ns()
    for argument in arguments:
        call(argument)
    return (perf_counter_ns() - start) / len(arguments)


def alternate(contenders: Mapping[str, Round], pace: Pace) -> dict[str, Figure]:
    """Measure all contenders in each round, each round starting with another one.

    All have the same conditions. The garbage collector is off, as in `timeit`.
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
