"""Measures the part about rules: the right ones must be found, sizes take turns, and whole decisions are beside it."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.contenders import FLOOR
from benchmarks.contenders.headgate import quotas
from benchmarks.in_memory.decisions import WrongPath
from benchmarks.in_memory.scenarios import ALLOWING, Kind, Path
from benchmarks.rules.cases import ARRANGEMENTS, Arrangement, Built, Case, for_endpoint, rules_of_endpoints
from benchmarks.timing import Figure, Pace, Round, alternate, time_calls
from headgate import Limiter
from headgate.engine import Engine
from headgate.policy.request import Request

SIZES = (10, 1000, 100_000)
"""How many rules there are."""
CALLS = 1000
"""Requests per round."""
DECISIONS = ALLOWING[0].units
"""A round takes a fresh user from untouched to used up."""
APART = 65_535
"""A user outside the rounds: one that has used up its limits or, on the allow path, the one to verify with."""
MOST_US = 5.0
"""Longest time to match a request, in microseconds."""
MOST_GROWTH = 1.2
"""Largest ratio of the times with the most and the fewest rules."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case, measured with several numbers of rules."""

    case: str
    envoy: bool
    everywhere: bool
    """Whether every request is for another rule; otherwise all are for the same one."""
    times: dict[int, Figure]
    """By the number of rules, ascending: what matching takes."""
    floors: dict[int, Figure]
    """The time of a lookup in a dict of the same size."""

    @property
    def fewest(self) -> int:
        return min(self.times)

    @property
    def most(self) -> int:
        return max(self.times)

    @property
    def slowest_us(self) -> float:
        """Microseconds, with the number of rules for which it takes longest."""
        return max(time.best for time in self.times.values()) / 1000

    @property
    def growth(self) -> float:
        """The time with the most rules over that with the fewest."""
        return self.times[self.most].over(self.times[self.fewest])

    @property
    def is_prompt(self) -> bool:
        return self.slowest_us <= MOST_US

    @property
    def is_flat(self) -> bool:
        return self.growth <= MOST_GROWTH

    def times_floor(self, rules: int) -> float:
        """Return the time over that of the lookup, for a number of rules."""
        return self.times[rules].over(self.floors[rules])


@dataclass(frozen=True, slots=True)
class Decided:
    """The time of a whole decision in memory, by the number of matching rules."""

    matching: int
    path: str
    floor: Figure
    """A clock read and a dict read-modify-write per limit."""
    limiter: Figure
    """`Limiter.check`: the same limits without rules."""
    plan: Figure
    """`Policy.select`: matching alone."""
    engine: Figure
    """`Engine.check`."""

    @property
    def times_limiter(self) -> float:
        return self.engine.over(self.limiter)

    @property
    def times_floor(self) -> float:
        return self.engine.over(self.floor)


@dataclass(frozen=True, slots=True)
class Building:
    """How long a step of making rules takes."""

    step: str
    seconds: dict[int, float]
    """By the number of rules, ascending."""


class WrongMatch(AssertionError):
    """Not the rules were found that the case is about, so the time would mean nothing."""


def measure(arrangement: Arrangement, sizes: Sequence[int], pace: Pace) -> Iterator[Row | Building]:
    """Yield the times of building, step by step, and then those of a request of each case.

    Raises:
        WrongMatch: other rules were found than those that a case is about.
    """
    built = {}
    for size in sizes:
        gc.collect()  # garbage of the previous size must not count here
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
        self._numbers = list(range(size - 1))  # the last rule may be for all
        random.Random(7).shuffle(self._numbers)  # the order of creation would be kind to caches

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of the rules that the requests of a round are for."""
        if not self._case.everywhere:
            return [self._size // 2] * CALLS
        return [self._numbers[(number * CALLS + each) % len(self._numbers)] for each in range(CALLS)]

    def requests(self, number: int) -> list[Any]:
        """Return the requests of a round."""
        if not self._case.everywhere:
            return [self._case.request(self.numbers(number)[0])] * CALLS
        return [self._case.request(each) for each in self.numbers(number)]

    def verify(self, rules: Built) -> None:
        """Raise WrongMatch unless the rules are found that the requests are for."""
        for number in set(self.numbers(0)):
            found, expected = rules.found(rules.match(self._case.request(number))), self._case.expected(number)
            if found != expected:
                raise WrongMatch(f"{self._case.name}, {self._size} rules: found {found}, not {expected}")


def _round(course: Course, call: Callable[[Any], object]) -> Round:
    return lambda number: time_calls(call, course.requests(number))


def decision_tasks() -> list[tuple[int, Path]]:
    """Return the decisions to measure: the number of matching rules, and the result."""
    return [(matching, path) for path in Path for matching in (1, 2)]


def decide(rules: int, pace: Pace) -> Iterator[Decided]:
    """Yield the times of decisions by some rules, of which one or two match."""
    policy = rules_of_endpoints(rules)
    for matching, path in decision_tasks():
        limits = ALLOWING[:matching]
        with Engine(policy) as engine, Limiter(quotas(Kind.GCRA, limits)) as limiter:
            request = partial(_request, rules // 2, matching)
            calls: dict[str, tuple[Callable[[Any], object], Callable[[int], object]]] = {
                "floor": (FLOOR.open(Kind.GCRA, limits).call, _key),
                "limiter": (limiter.check, _key),
                "plan": (partial(policy.select, now=0), request),
                "engine": (engine.check, request),
            }
            if path is Path.DENY:
                for _ in range(DECISIONS):
                    limiter.check(_key(APART))
                    engine.check(request(APART))
            rounds = {name: _decisions(call, request, path) for name, (call, request) in calls.items()}
            figures = alternate(rounds, pace)
            for _ in range(DECISIONS):
                answers = limiter.check(_key(APART)).allowed, engine.check(request(APART)).allowed
                if answers != (path is Path.ALLOW,) * 2:
                    raise WrongPath(f"{matching} matching rules: Limiter and Engine answered {answers}, not {path}")
        yield Decided(matching, path, **figures)


def _decisions(call: Callable[[Any], object], request: Callable[[int], object], path: Path) -> Round:
    return lambda number: time_calls(call, [request(number if path is Path.ALLOW else APART)] * DECISIONS)


def _key(number: int) -> str:
    return f"user:{number}"


def _request(rule: int, matching: int, number: int) -> Request:
    principal = {"user": _key(number)}
    if matching > 1:
        principal["ip"] = f"203.0.{number >> 8}.{number & 255}"
    return for_endpoint(rule, principal)


@dataclass(frozen=True, slots=True)
class RulesResults:
    """All that was measured of rules."""

    rows: list[Row]
    decided: list[Decided]
    rules_decided_by: int
    """How many rules there were for `decided`."""
    building: list[Building]


def steps() -> int:
    """Return how many steps there are to report."""
    return sum(len(arrangement.cases) for arrangement in ARRANGEMENTS) + len(decision_tasks())


def run(sizes: Sequence[int], pace: Pace, done: Callable[[str], None]) -> RulesResults:
    """Measure everything; `done` reports each step."""
    rows: list[Row] = []
    building: list[Building] = []
    for arrangement in ARRANGEMENTS:
        for found in measure(arrangement, sizes, pace):
            if isinstance(found, Row):
                rows.append(found)
                done(summary_of(found))
            else:
                building.append(found)
    decided = []
    few = sizes[len(sizes) // 2]
    for each in decide(few, pace):
        decided.append(each)
        engine = f"{each.engine.best / 1000:.2f} us, {each.times_limiter:.2f}x Limiter.check"
        done(f"Engine.check, {each.matching} matching, {each.path}: {engine}")
    return RulesResults(rows, decided, few, building)


def summary_of(row: Row) -> str:
    """Return the result in a line."""
    what = "Envoy" if row.envoy else "rules"
    return f"{what}, {row.case}: {row.slowest_us:.2f} us, {row.growth:.2f}x from {row.fewest:,} to {row.most:,} rules"
