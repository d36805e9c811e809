"""Runs the whole part about rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.rules import deciding
from benchmarks.rules.cases import ARRANGEMENTS
from benchmarks.rules.figures import Building, Decided, Row
from benchmarks.rules.measuring import measure
from benchmarks.timing import Pace

SIZES = (10, 1000, 100_000)
"""How many rules there are."""


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
    return sum(len(arrangement.cases) for arrangement in ARRANGEMENTS) + len(deciding.tasks())


def run(sizes: Sequence[int], pace: Pace, done: Callable[[str], None]) -> RulesResults:
    """Measure everything; `done` is told of each step."""
    rows: list[Row] = []
    building: list[Building] = []
    for arrangement in ARRANGEMENTS:
        for found in measure(arrangement, sizes, pace):
            if isinstance(found, Row):
                rows.append(found)
                done(told(found))
            else:
                building.append(found)
    decided = []
    few = sizes[len(sizes) // 2]
    for each in deciding.measure(few, pace):
        decided.append(each)
        engine = f"{each.engine.best / 1000:.2f} us, {each.times_limiter:.2f}x Limiter.check"
        done(f"Engine.check, {each.matching} matching, {each.path}: {engine}")
    return RulesResults(rows, decided, few, building)


def told(row: Row) -> str:
    """Say in a line what came out."""
    what = "Envoy" if row.envoy else "rules"
    return f"{what}, {row.case}: {row.slowest_us:.2f} us, {row.growth:.2f}x from {row.fewest:,} to {row.most:,} rules"
