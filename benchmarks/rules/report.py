"""Renders the part about rules of the benchmarks: what was measured, how, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.rules.measuring import CALLS, DECISIONS, MOST_GROWTH, MOST_US, Building, Decided, Row, RulesResults
from benchmarks.tables import Part, between, table, times, verdict
from benchmarks.timing import Figure

WHAT = f"""\
The cost of finding the rules for a request, with few rules and with many, and of a whole decision by rules. The aim:
at most {MOST_US:g} us for a path of four segments, and with the most rules at most {MOST_GROWTH:g} times the cost
with the fewest. Every row is shown, whether it passes or not.
"""

METHOD = f"""\
- **Matching** is `Policy.select`: a request (user, path as it was sent, method) in, all limits with the keys of their
  counters out. This includes checks of the path and the values, and the search for lists, tiers and overrides. The
  rules for one kind of request, and the rules of a path, are cached. If each request has another rule, and there are
  more rules than the cache holds, they are computed again.
- **The path** is `/api/v1/resource501/12345`, or similar; every rule has its own pattern such as
  `/api/v1/resource501/*`. One more rule counts by address, on all paths: it applies if the request has an address,
  and is the second of two matching rules. Rules with the same endpoint, `/api/v1/orders/**`, each require another
  value of an attribute or another tier.
- **Another rule in each request**: in the other rows, all requests of a round have the same rule, which is then in
  the processor's caches. Here, each has another one, in a shuffled order, and with many rules, all data comes from
  memory. This is the cost of the data, not of the search: a dict of the same size, the floor, has it as well. The
  same aims apply, in separate lines. Requests are created before the clock starts, with separate strings.
- **Envoy**: `DescriptorPolicy.match`, with the given number of siblings of the same key, each with a value. Siblings
  whose value has a `*` are not included: they are tried one after the other, in the order of the file, so their
  number matters.
- **Floor**: a Python function that looks up the distinguishing value of the rules (path, attribute, tier or entries)
  in a dict with an entry for each rule. It checks nothing, supports no patterns, and creates no limits. Multiples
  of the floor depend less on the machine than microseconds do.
- **Decisions**: `Engine.check` on memory, against `Limiter.check` with the same limits (GCRA; 1,000 a day, and for
  two rules also 5,000 a week) on a prepared key, and against the floor of the memory part. Two rules count for two
  principals, user and address; the two limits of `Limiter` count for one. A round is {DECISIONS:,} requests of one
  user: on the allow path from unused to used up, on the deny path all used up from the start.
- **Building**: wall-clock time, once, with the garbage collector on as in a program. "Read from YAML" creates rules
  from text; "compiled" starts from rules in memory.
- **Verified**: before the measurement, the rules found for the requests of a round are compared with the expected
  ones; after it, all decisions must be allowed, or all denied. Otherwise, the run stops.
- **Timing**: {CALLS:,} requests per round, between two `perf_counter_ns()`; nothing is subtracted, so the loop and
  the call are in every figure, including the floor's. All sizes and their floors take turns, round after round, each
  round starting with another one. The garbage collector is off, as in `timeit`.
- **Noise**: microseconds are those of the best round, the least disturbed one. A ratio is the median of the ratios
  within the rounds; the quotient of the figures beside it may differ slightly.
"""

MATCHING = """\
Microseconds per request, best round, by the number of rules. The verdict on time applies to the slowest of them.
"""

ENVOY = """\
Microseconds per request, best round, by the number of siblings.
"""


def about_decisions(rules: int) -> str:
    """Describe the decisions."""
    return f"""\
Microseconds per decision, best round, with {rules:,} rules. "Policy.select" is the part of `Engine.check` that finds
the limits. No verdict: this is for information.
"""


BUILDING = """\
Milliseconds, by the number of rules, and microseconds per rule with the most of them.
"""


def part(results: RulesResults) -> Part:
    """Return the part about rules of the report."""
    rows = results.rows
    few = _groups(rows)["rules"]
    slowest = between([row.times[row.most].best / 1000 for row in few], 1, "us")
    growth = between([row.growth for row in few], 2, f"times the time among {few[0].fewest:,}")
    sections = [
        ("Matching", MATCHING, _matching(_rows(rows, envoy=False))),
        ("Envoy descriptors", ENVOY, _matching(_rows(rows, envoy=True))),
        ("Decisions", about_decisions(results.rules_decided_by), _decided(results.decided)),
        ("Building", BUILDING, _building(results.building)),
    ]
    short = [(f"finding the rules of a request among {few[0].most:,}", slowest, growth)]
    return Part("Rules", WHAT, METHOD, short, _verdicts(rows), sections)


def _verdicts(rows: Sequence[Row]) -> str:
    """Return the worst row of each aim, as Markdown."""
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
    """Return the rows that are judged together, without those about caches of the processor."""
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
        "`Policy.select`": lambda each: _spread(each.plan),
        "`Engine.check`": lambda each: _spread(each.engine),
        "x `Limiter.check`": lambda each: times(each.times_limiter),
        "x floor": lambda each: f"{each.times_floor:.1f}",
    }
    return table(list(columns), ([shown(each) for shown in columns.values()] for each in decided))


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
