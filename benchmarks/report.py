"""Renders docs/benchmarks.md: all of it in short, then what and why, verdicts, method, and the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmarks import method
from benchmarks.accuracy import ALL, Accuracy
from benchmarks.contenders import PEERS
from benchmarks.memory import LOG_ADMISSIONS, Footprint
from benchmarks.on_redis import report as on_redis
from benchmarks.on_redis.running import RedisResults
from benchmarks.operations import NAMES, Operations
from benchmarks.rules import report as by_rules
from benchmarks.rules.running import RulesResults
from benchmarks.scenarios import Kind
from benchmarks.service import report as by_service
from benchmarks.service.measuring import ServiceResults
from benchmarks.tables import between, percent, table, times
from benchmarks.timing import Figure
from benchmarks.trace import PATTERNS
from benchmarks.verdicts import LEAST_TIMES_FASTER, MOST_TIMES_FLOOR, Row, verdict

LIBRARIES = ("headgate", "limits", "throttled-py", "pyrate-limiter")


@dataclass(frozen=True, slots=True)
class MemoryResults:
    """All that was measured in memory."""

    rows: list[Row]
    operations: list[Operations]
    footprints: list[Footprint]
    accuracy: Accuracy


@dataclass(frozen=True, slots=True)
class Results:
    """All that one run measured; None is a part that was left out."""

    environment: dict[str, str]
    memory: MemoryResults | None = None
    redis: RedisResults | None = None
    rules: RulesResults | None = None
    service: ServiceResults | None = None


def render(results: Results) -> str:
    """Return the report as Markdown."""
    parts = ["# Benchmarks\n", method.REPORT, in_short(results)]
    parts += ["## Environment\n", table(("", ""), results.environment.items())]
    if results.memory:
        parts.append(_in_memory(results.memory))
    if results.redis:
        parts.append(on_redis.render(results.redis))
    if results.rules:
        parts.append(by_rules.render(results.rules))
    if results.service:
        parts.append(by_service.render(results.service))
    return "\n".join(parts)


def in_short(results: Results) -> str:
    """Return the whole in ten lines: figures, what they are compared with, and how many aims were reached."""
    lines: list[tuple[str, str, str]] = []
    if results.memory:
        lines += _memory_in_short(results.memory.rows)
    if results.redis:
        lines += on_redis.in_short(results.redis.rows)
    if results.rules:
        lines += by_rules.in_short(results.rules.rows)
    if results.service:
        lines += by_service.in_short(results.service.costs)
    verdicts = summary(results)
    passed, failed = verdicts.count("PASS"), verdicts.count("**FAIL**")
    reached = f"{passed} of {passed + failed} verdicts below are PASS; worst and best row of each line:\n"
    return "\n".join((reached, table(("what", "Headgate", "compared"), lines)))


def summary(results: Results) -> str:
    """Return the verdicts alone."""
    parts = []
    if results.memory:
        parts.append(_verdicts(results.memory.rows))
    if results.redis:
        parts.append(on_redis.summary(results.redis.rows))
    if results.rules:
        parts.append(by_rules.summary(results.rules.rows))
    if results.service:
        parts.append(by_service.summary(results.service.costs))
    return "\n".join(parts)


def _memory_in_short(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    for limits, group in groupby(rows, lambda row: len(row.scenario.limits)):
        few = list(group)
        name = {1: "one limit", 3: "three limits"}.get(limits, f"{limits} limits")
        ratios = [row.times_faster for row in few if row.times_faster is not None]
        faster = between(ratios, 1, "times as fast as the fastest peer")
        yield f"decision in memory, {name}", between([row.ours.best for row in few], 0, "ns"), faster


def _in_memory(results: MemoryResults) -> str:
    parts = [
        "## Memory\n",
        method.WHAT,
        "### Verdicts\n",
        _verdicts(results.rows),
        "### Method\n",
        method.METHOD,
        "### Decisions: one limit\n",
        method.DECISIONS,
        _decisions([row for row in results.rows if len(row.scenario.limits) == 1]),
        "### Decisions: three limits\n",
        method.THREE_LIMITS,
        _decisions([row for row in results.rows if len(row.scenario.limits) > 1]),
        "### Every call that was timed\n",
        method.EVERY_CALL,
        _every_call(results.rows),
        "### Other operations\n",
        method.OPERATIONS,
        _operations(results.operations),
        "### Memory per key\n",
        method.MEMORY,
        _memory(results.footprints),
        "### Accuracy of the sliding window counter\n",
        method.accuracy(results.accuracy),
        _accuracy(results.accuracy),
        method.accuracy_reading(results.accuracy),
    ]
    return "\n".join(parts)


def _verdicts(rows: list[Row]) -> str:
    """Return how many rows pass, and the worst of each algorithm, as Markdown."""
    parts = ["The worst row of each algorithm and path, over one key and many; all rows are further down.\n"]
    for limits, group in groupby(rows, lambda row: len(row.scenario.limits)):
        few = list(group)
        judged = [row for row in few if row.beats_peers is not None]
        name = {1: "One limit", 3: "Three limits"}.get(limits, f"{limits} limits")
        within, faster = sum(row.within_floor for row in few), sum(row.beats_peers is True for row in judged)
        parts.append(
            f"**{name}** per request: {within} of {len(few)} rows are within {MOST_TIMES_FLOOR:g}x of the floor,\n"
            f"{faster} of {len(judged)} are at least {LEAST_TIMES_FASTER:g}x faster than the fastest peer.\n"
        )
        parts.append(_worst(few))
    return "\n".join(parts)


def _worst(rows: list[Row]) -> str:
    head = (
        "algorithm, path",
        "x floor",
        f"within {MOST_TIMES_FLOOR:g}x",
        "x faster than fastest peer",
        f"{LEAST_TIMES_FASTER:g}x faster",
    )
    lines = []
    for (kind, path), group in groupby(rows, lambda row: (row.scenario.kind, row.scenario.path)):
        few = list(group)
        highest = max(few, key=lambda row: row.times_floor)
        closest = min(few, key=lambda row: row.times_faster or 0)
        floor = times(highest.times_floor), verdict(highest.within_floor)
        peers = times(closest.times_faster), verdict(closest.beats_peers)
        lines.append((f"{kind}, {path}", *floor, *peers))
    return table(head, lines)


def _decisions(rows: list[Row]) -> str:
    head = (
        "algorithm, path, keys",
        "floor",
        "headgate",
        "x floor",
        f"within {MOST_TIMES_FLOOR:g}x",
        "fastest peer, equal work",
        "x faster",
        f"{LEAST_TIMES_FASTER:g}x faster",
        "fastest bare call",
        "x faster than bare",
    )
    return table(head, map(_decision, rows))


def _decision(row: Row) -> tuple[object, ...]:
    equal, bare = row.fastest_equal, row.fastest_bare
    return (
        f"{row.scenario.kind}, {row.scenario.path}, {row.scenario.keys:,}",
        _ns(row.floor),
        _ns(row.ours),
        times(row.times_floor),
        verdict(row.within_floor),
        f"{equal.name} {_ns(equal.figure)}" if equal else "none",
        times(row.times_faster),
        verdict(row.beats_peers),
        f"{bare.name} {_ns(bare.figure)}" if bare else "none",
        times(row.times_faster_than_bare),
    )


def _every_call(rows: list[Row]) -> str:
    head = ("algorithm, path, keys, limits", "floor", "headgate")
    works = [(peer.name, peer.work) for peer in PEERS]
    lines = []
    for row in rows:
        found = {(peer.name, peer.work): peer.figure for peer in row.peers}
        scenario = row.scenario
        name = f"{scenario.kind}, {scenario.path}, {scenario.keys:,}, {len(scenario.limits)}"
        lines.append((name, _spread(row.floor), _spread(row.ours), *(_spread(found.get(work)) for work in works)))
    return table((*head, *(f"{name}: {work}" for name, work in works)), lines)


def _operations(measured: list[Operations]) -> str:
    lines = [(each.kind, *(_spread(each.figures[name]) for name in NAMES)) for each in measured]
    return table(("algorithm", *NAMES), lines)


def _memory(footprints: list[Footprint]) -> str:
    lines = []
    for kind in Kind:
        for admissions in (1, LOG_ADMISSIONS):
            found = {each.contender: each for each in footprints if (each.kind, each.admissions) == (kind, admissions)}
            if found:
                keys = next(iter(found.values())).keys
                sizes = (f"{found[name].bytes_per_key:,.0f}" if name in found else "-" for name in LIBRARIES)
                lines.append((kind, f"{keys:,}", admissions, *sizes))
    return table(("algorithm", "keys", "admissions per key", *LIBRARIES), lines)


def _accuracy(accuracy: Accuracy) -> str:
    head = (
        "clients",
        "requests",
        "wrongly decided, counting all",
        "mean rate error",
        "enforcing: over-admitted",
        "refused with room",
        "of these, room for one",
        "refused by counter",
        "refused by log",
    )
    what = {pattern.name: f"{pattern.name}: {pattern.what}" for pattern in PATTERNS} | {ALL: "**all**"}
    return table(
        head,
        (
            (
                what[name],
                f"{tally.requests:,}",
                percent(tally.misjudged, tally.requests),
                percent(tally.rate_errors, tally.requests, 1),
                percent(tally.over_admitted, tally.requests),
                percent(tally.refused_with_room, tally.requests),
                percent(tally.refused_with_room_for_one, tally.refused_with_room, 0),
                f"{tally.counter_refusals:,}",
                f"{tally.log_refusals:,}",
            )
            for name, tally in accuracy.tallies.items()
        ),
    )


def _ns(figure: Figure) -> str:
    return f"{figure.best:,.0f}"


def _spread(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.best:,.0f} +{100 * figure.spread:.0f} %"
