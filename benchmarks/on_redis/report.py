"""Renders the Redis part of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.on_redis import method
from benchmarks.on_redis.cases import Way
from benchmarks.on_redis.figures import (
    LEAST_TIMES_INCR,
    LEAST_TIMES_PEER,
    MOST_TIMES_INCR_ALONE,
    Cost,
    Row,
)
from benchmarks.on_redis.footprint import Footprint
from benchmarks.on_redis.running import RedisResults
from benchmarks.tables import between, table, times
from benchmarks.verdicts import verdict

Question = tuple[str, Callable[[Row], float | None], Callable[[Row], bool | None], str]
"""What is asked of a row, its measure, its verdict, and the aim."""

PEER: Question = (
    "x the best peer",
    lambda row: row.times_peer,
    lambda row: row.beats_peers,
    f"at least {LEAST_TIMES_PEER:g}",
)
FLOOR: Question = (
    "x `INCR`",
    lambda row: row.times_floor,
    lambda row: row.beats_floor,
    f"above {LEAST_TIMES_INCR:g}",
)
LATENCY: Question = (
    "time, x `INCR`",
    lambda row: row.latency,
    lambda row: row.is_prompt,
    f"at most {MOST_TIMES_INCR_ALONE:g}",
)


def render(results: RedisResults) -> str:
    """Return the Redis part as Markdown."""
    together, alone, three, cluster = _groups(results.rows).values()
    parts = [
        "## Redis\n",
        method.WHAT,
        "### Redis: verdicts\n",
        summary(results.rows),
        "### Redis: method\n",
        method.METHOD,
        "### Redis: 64 callers\n",
        method.TOGETHER,
        _throughput(together),
        "### Redis: one caller\n",
        method.ALONE,
        _latency(alone),
        "### Redis: three limits\n",
        method.THREE_LIMITS,
        _throughput(three),
        "### Redis: cluster\n",
        method.CLUSTER,
        _cluster(cluster),
        "### Redis: every call that was timed\n",
        method.EVERY_CALL,
        _every_call(results.rows, _spread),
        "### Redis: processor time\n",
        method.PROCESSOR,
        _every_call(results.rows, lambda cost: f"{cost.client_us:.1f} + {cost.server_us:.1f}"),
        "### Redis: memory\n",
        method.MEMORY,
        _memory(results.footprints),
    ]
    return "\n".join(parts)


def in_short(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """Return what it comes to: what, how much, and compared with what."""
    together, alone, _, cluster = _groups(rows).values()
    if not (together and alone and cluster):  # only a part was measured
        return
    blocking = [row for row in alone if row.case.way is Way.BLOCKING]
    peers = between([row.times_peer for row in together if row.times_peer], 1, "times as many as the best peer")
    yield "decisions on Redis, 64 callers", between([row.ours.per_second for row in together], 0, "a second"), peers
    waited = between([row.ours.time.median / 1000 for row in blocking], 0, "us")
    yield "decision on Redis, one caller", waited, between([row.latency for row in blocking], 2, "times an `INCR`")
    rates = between([row.ours.per_second for row in cluster], 0, "a second")
    yield "decisions on a cluster", rates, between([row.times_floor for row in cluster], 1, "times as many as `INCR`s")


def summary(rows: list[Row]) -> str:
    """Return the worst row of each group, as Markdown."""
    asked = {
        "64 callers": (PEER, FLOOR),
        "one blocking caller": (LATENCY,),
        "one async caller": (LATENCY,),
        "three limits, 64 callers": (PEER, FLOOR),
        "cluster, 64 callers": (FLOOR,),
    }
    groups = _groups(rows)
    groups |= {str(way): [row for row in groups["one caller"] if row.case.way is way] for way in Way}
    groups["64 callers"] = _groups(rows)["64 callers"]
    lines = [_worst(name, groups[name], question) for name, few in asked.items() for question in few if groups[name]]
    return table(("what", "worst", "aim", "verdict", "rows that pass", "worst row"), lines)


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    one_limit = [row for row in rows if len(row.case.limits) == 1 and not row.case.cluster]
    return {
        "64 callers": [row for row in one_limit if row.case.way is Way.TOGETHER],
        "one caller": [row for row in one_limit if row.case.way is not Way.TOGETHER],
        "three limits, 64 callers": [row for row in rows if len(row.case.limits) > 1],
        "cluster, 64 callers": [row for row in rows if row.case.cluster],
    }


def _worst(name: str, rows: list[Row], question: Question) -> tuple[object, ...]:
    what, measure, passes, aim = question
    worst = (max if question is LATENCY else min)(rows, key=lambda row: measure(row) or 0)
    passed = sum(passes(row) is True for row in rows)
    judged = verdict(passed == len(rows))
    return f"{name}: {what}", times(measure(worst)), aim, judged, f"{passed} of {len(rows)}", worst.case.name


def _throughput(rows: list[Row]) -> str:
    head = (
        "algorithm, keys",
        "`INCR`",
        "headgate",
        "x `INCR`",
        f"above {LEAST_TIMES_INCR:g}x",
        "best peer",
        "x best peer",
        f"{LEAST_TIMES_PEER:g}x best peer",
        "best peer, equal work",
        "x equal work",
    )
    lines = (
        (
            row.case.name,
            _rate(row.floor),
            _rate(row.ours),
            times(row.times_floor),
            verdict(row.beats_floor),
            _named(row.best_peer, _rate),
            times(row.times_peer),
            verdict(row.beats_peers),
            _named(row.best_equal_peer, _rate),
            times(row.times_equal_peer),
        )
        for row in rows
    )
    return table(head, lines)


def _latency(rows: list[Row]) -> str:
    head = (
        "caller, algorithm, keys",
        "`INCR`",
        "headgate",
        "time, x `INCR`",
        f"within {MOST_TIMES_INCR_ALONE:g}x",
        "best peer",
        "x faster than best peer",
        "best peer, equal work",
        "x faster than equal work",
    )
    lines = (
        (
            f"{row.case.way}, {row.case.name}",
            _us(row.floor),
            _us(row.ours),
            times(row.latency),
            verdict(row.is_prompt),
            _named(row.best_peer, _us),
            times(row.times_peer),
            _named(row.best_equal_peer, _us),
            times(row.times_equal_peer),
        )
        for row in rows
    )
    return table(head, lines)


def _cluster(rows: list[Row]) -> str:
    head = ("algorithm, keys", "`INCR`", "headgate", "x `INCR`", f"above {LEAST_TIMES_INCR:g}x")
    lines = (
        (row.case.name, _rate(row.floor), _rate(row.ours), times(row.times_floor), verdict(row.beats_floor))
        for row in rows
    )
    return table(head, lines)


def _every_call(rows: list[Row], told: Callable[[Cost], str]) -> str:
    labels = list(dict.fromkeys(cost.label for row in rows for cost in row.costs))
    lines = []
    for row in rows:
        found = {cost.label: told(cost) for cost in row.costs}
        lines.append((row.case, *(found.get(label, "-") for label in labels)))
    return table(("what", *labels), lines)


def _memory(footprints: Sequence[Footprint]) -> str:
    names = list(dict.fromkeys(each.contender for each in footprints))
    rows: dict[tuple[object, ...], dict[str, float]] = {}
    for each in footprints:
        rows.setdefault((each.kind, each.limits, each.admissions), {})[each.contender] = each.bytes_per_client
    lines: Iterable[Sequence[object]] = (
        (*what, *(f"{found[name]:,.0f}" if name in found else "-" for name in names)) for what, found in rows.items()
    )
    return table(("algorithm", "limits", "admissions", *names), lines)


def _named(cost: Cost | None, told: Callable[[Cost], str]) -> str:
    return "none" if cost is None else f"{cost.label} {told(cost)}"


def _rate(cost: Cost) -> str:
    return f"{cost.per_second:,.0f}"


def _us(cost: Cost) -> str:
    return f"{cost.time.median / 1000:,.1f}"


def _spread(cost: Cost) -> str:
    return f"{cost.time.best / 1000:,.1f} +{100 * cost.time.spread:.0f} %"
