"""The clock work: one loop for all, alternating rounds, the best round counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic, perf_counter_ns

from benchmarks.contenders.base import Call

Round = Callable[[int], float]
"""Runs the round of that number and returns nanoseconds per call."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one call, in nanoseconds."""

    best: float
    """The fastest round: the least disturbed one."""
    median: float
    rounds: int

    @property
    def spread(self) -> float:
        """How far the median round lies above the best one; 0.1 is 10 %."""
        return self.median / self.best - 1


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: rounds go on for `seconds`, but there are at least `fewest` and at most `most`."""

    seconds: float
    fewest: int
    most: int


def time_calls(call: Call, keys: Sequence[str]) -> float:
    """Call `call` with each key; returns nanoseconds per call."""
    start = perf_counter_ns()
    for key in keys:
        call(key)
    return (perf_counter_ns() - start) / len(keys)


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
    return {name: Figure(min(times), median(times), len(times)) for name, times in samples.items()}
