"""Measures one arrangement of rules: build it in all sizes, see that the right rules are found, take turns."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.rules.cases import Arrangement, Built, Case
from benchmarks.rules.figures import Building, Row
from benchmarks.timing import Pace, Round, alternate, time_calls

CALLS = 1000
"""Requests per round."""


class WrongMatch(AssertionError):
    """Not the rules were found that the case is about, so the time would mean nothing."""


def measure(arrangement: Arrangement, sizes: Sequence[int], pace: Pace) -> Iterator[Row | Building]:
    """Yield what building takes, step by step, and then what a request of each case takes.

    Raises:
        WrongMatch: other rules were found than those that a case is about.
    """
    built = {}
    for size in sizes:
        gc.collect()  # what the size before left is not this one's to clean up
        built[size] = arrangement.build(size)
    for step in built[sizes[0]].seconds:
        yield Building(step, {size: each.seconds[step] for size, each in built.items()})
    for case in arrangement.cases:
        yield _measure(arrangement, case, built, pace)


def _measure(arrangement: Arrangement, case: Case, built: dict[int, Built], pace: Pace) -> Row:
    rounds: dict[str, Round] = {}
    for size, rules in built.items():
        course = Course(case, size)
        course.verify(rules)
        rounds[f"floor {size}"] = _round(course, rules.floor)
        rounds[f"match {size}"] = _round(course, rules.match)
    figures = alternate(rounds, pace)
    times = {size: figures[f"match {size}"] for size in built}
    return Row(case.name, arrangement.envoy, case.everywhere, times, {size: figures[f"floor {size}"] for size in built})


class Course:
    """The requests of a case, round by round."""

    def __init__(self, case: Case, size: int) -> None:
        self._case, self._size = case, size
        self._numbers = list(range(size - 1))  # the last rule may be one for everybody
        random.Random(7).shuffle(self._numbers)  # the order of creation would be kind to caches

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of the rules that the requests of a round are for."""
        if not self._case.everywhere:
            return [self._size // 2] * CALLS
        return [self._numbers[(number * CALLS + each) % len(self._numbers)] for each in range(CALLS)]

    def requests(self, number: int) -> list[Any]:
        """Return the requests of a round."""
        if not self._case.everywhere:
            return [self._case.ask(self.numbers(number)[0])] * CALLS
        return [self._case.ask(each) for each in self.numbers(number)]

    def verify(self, rules: Built) -> None:
        """Raise WrongMatch unless the rules are found that the requests are for."""
        for number in set(self.numbers(0)):
            found, expected = rules.found(rules.match(self._case.ask(number))), self._case.expected(number)
            if found != expected:
                raise WrongMatch(f"{self._case.name}, {self._size} rules: found {found}, not {expected}")


def _round(course: Course, call: Callable[[Any], object]) -> Round:
    return lambda number: time_calls(call, course.requests(number))
