"""Renders the part about rules of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.rules import method
from benchmarks.rules.figures import MOST_GROWTH, MOST_US, Building, Decided, Row
from benchmarks.rules.running import RulesResults
from benchmarks.tables import between, table, times
from benchmarks.timing import Figure
from benchmarks.verdicts import verdict


def render(results: RulesResults) -> str:
    """Return the part about rules as Markdown."""
    parts = [
        "## Rules\n",
        method.WHAT,
        "### Rules: verdicts\n",
        summary(results.rows),
        "### Rules: method\n",
        method.METHOD,
        "### Rules: matching\n",
        method.MATCHING,
        _matching(_rows(results.rows, envoy=False)),
        "### Rules: Envoy descriptors\n",
        method.ENVOY,
        _matching(_rows(results.rows, envoy=True)),
        "### Rules: decisions\n",
        method.decided(results.rules_decided_by),
        _decided(results.decided),
        "### Rules: building\n",
        method.BUILDING,
        _building(results.building),
    ]
    return "\n".join(parts)


def in_short(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Return what it comes to: what, how much, and compared with what."""
    few = _groups(rows)["rules"]
    slowest = between([row.times[row.most].best / 1000 for row in few], 1, "us")
    growth = between([row.growth for row in few], 2, f"times the time among {few[0].fewest:,}")
    yield f"finding the rules of a request among {few[0].most:,}", slowest, growth


def summary(rows: Sequence[Row]) -> str:
    """Return the worst row of each question, as Markdown."""
    lines = []
    for what, few in _groups(rows).items():
        if few:
            sizes = f"{few[0].most:,} against {few[0].fewest:,}"
            slowest = max(few, key=lambda row: row.slowest_us)
            steepest = max(few, key=lambda row: row.growth)
            us = slowest, slowest.slowest_us, f"at most {MOST_US:g}", [row.is_prompt for row in few]
            growth = steepest, steepest.growth, f"at most {MOST_GROWTH:g}", [row.is_flat for row in few]
            lines += [_worst(f"{what}: us per request", *us), _worst(f"{what}: time, {sizes}", *growth)]
    return table(("what", "worst", "aim", "verdict", "rows that pass", "worst row"), lines)


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows that are judged together: what caches of the processor do is a question of its own."""
    groups = {}
    for envoy, what in ((False, "rules"), (True, "Envoy descriptors")):
        few = _rows(rows, envoy=envoy)
        groups[what] = [row for row in few if not row.everywhere]
        groups[f"{what}, another in each request"] = [row for row in few if row.everywhere]
    return groups


def _worst(what: str, row: Row, measure: float, aim: str, passed: list[bool]) -> tuple[object, ...]:
    return what, times(measure), aim, verdict(all(passed)), f"{sum(passed)} of {len(passed)}", row.case


def _rows(rows: Sequence[Row], *, envoy: bool) -> list[Row]:
    return [row for row in rows if row.envoy is envoy]


def _matching(rows: Sequence[Row]) -> str:
    few, most = rows[0].fewest, rows[0].most
    head = (
        "what matches",
        *(f"{size:,}" for size in rows[0].times),
        f"within {MOST_US:g} us",
        f"{most:,} / {few:,}",
        f"within {MOST_GROWTH:g}x",
        *(f"floor, {size:,}" for size in (few, most)),
        *(f"x floor, {size:,}" for size in (few, most)),
    )
    lines = (
        (
            row.case,
            *map(_spread, row.times.values()),
            verdict(row.is_prompt),
            times(row.growth),
            verdict(row.is_flat),
            *(_us(row.floors[size]) for size in (few, most)),
            *(f"{row.times_floor(size):.1f}" for size in (few, most)),
        )
        for row in rows
    )
    return table(head, lines)


def _decided(decided: Sequence[Decided]) -> str:
    columns: dict[str, Callable[[Decided], object]] = {
        "matching rules, path": lambda each: f"{each.matching}, {each.path}",
        "floor": lambda each: _spread(each.floor),
        "`Limiter.check`": lambda each: _spread(each.limiter),
        "`Policy.plan`": lambda each: _spread(each.plan),
        "`Engine.check`": lambda each: _spread(each.engine),
        "x `Limiter.check`": lambda each: times(each.times_limiter),
        "x floor": lambda each: f"{each.times_floor:.1f}",
    }
    return table(list(columns), ([told(each) for told in columns.values()] for each in decided))


def _building(building: Sequence[Building]) -> str:
    sizes = building[0].seconds
    lines = (
        (
            each.step,
            *(f"{1000 * seconds:,.1f}" for seconds in each.seconds.values()),
            f"{1e6 * each.seconds[max(sizes)] / max(sizes):.1f}",
        )
        for each in building
    )
    return table(("what", *(f"{size:,}" for size in sizes), "us per rule"), lines)


def _us(figure: Figure) -> str:
    return f"{figure.best / 1000:.2f}"


def _spread(figure: Figure) -> str:
    return f"{_us(figure)} +{100 * figure.spread:.0f} %"
