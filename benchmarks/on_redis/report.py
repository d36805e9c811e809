"""Renders the Redis part of the benchmarks: what was measured, how, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.in_memory.scenarios import Limit
from benchmarks.on_redis.cases import (
    ALLOWING,
    CALLERS,
    LEAST_TIMES_INCR,
    LEAST_TIMES_PEER,
    MOST_TIMES_INCR_ALONE,
    PROVING,
    REFUSING,
    Cost,
    Row,
    Way,
)
from benchmarks.on_redis.measuring import Footprint, RedisResults
from benchmarks.on_redis.servers import PRIMARIES
from benchmarks.tables import Part, between, table, times, verdict


def _limits(limits: tuple[Limit, ...]) -> str:
    day, week, month = (f"{limit.units:,}" for limit in limits)
    return f"{day} a day ({week} a week, {month} per 30 days)"


WHAT = f"""\
The cost of one decision with the state in Redis, compared with a bare `INCR` of redis-py and with other libraries.
The aim: {CALLERS} concurrent async callers get at least {LEAST_TIMES_PEER:g} times the decisions per second of the
best peer, and more than the number of `INCR`s; for one caller, a decision takes at most {MOST_TIMES_INCR_ALONE:g}
times as long as an `INCR`. Every row is shown, whether it passes or not.
"""

METHOD = f"""\
- **Server**: a redis-server started for this run on a free port of the loopback interface, without persistence;
  client and server share the machine. Each contender has a separate database. The cluster is {PRIMARIES} more
  servers, without replicas.
- **Floor**: redis-py's `INCR` of the same keys, with hiredis. It decides nothing and sets no expiry. Its pool is the
  default one, with a connection per caller: for {CALLERS} callers the fastest of all tested settings
  (`BlockingConnectionPool` of 1 to 64, a single connection, RESP2 and RESP3). With three limits, the floor is three
  `INCR`s in one pipeline. For information, GCRA has more floors: a client with a single connection and no pool,
  coredis, and `INCR`s collected by hand into a pipeline per turn of the event loop.
- **{CALLERS} callers**: as many tasks of one event loop in one process, each starting with the next key as soon as it
  has its response. Decisions per second are the total.
- **One caller**: one key after the other, blocking or in an event loop.
- **Peers**: used as in their documentation, each with its default connection pool. `limits`: `hit()` is one call to
  the server and returns a bool; equal work, `hit()` + `get_window_stats()`, is two or three. It runs over redis-py
  and, in an event loop, also over coredis, its default. `throttled-py`: `limit()`, whose reply has all values; its
  own extra requires redis-py below 8, but it runs on the version above, like all others. `pyrate-limiter`:
  `try_acquire()`, a bool, with a `BucketFactory` that finds a bucket per name by one dictionary lookup; in an event
  loop, its result is awaited, since `try_acquire_async()` admits only one caller at a time.
- **The best peer is the fastest call of any peer with the same algorithm, however little it returns.** The ratio to
  the fastest call that returns as much as a `Decision` (allowed, remaining, time to retry) is beside it.
- Not measured: redis-rate-limiters, which puts callers to sleep instead of returning a decision.
- **Allowed**: limits of {_limits(ALLOWING)}. Many keys are called in one shuffled order and have their state already.
  One key is a new one in each round.
- **Denied**: limits of {_limits(REFUSING)}; the first is used up before the measurement.
- **Three limits**: Headgate and `pyrate-limiter` decide all in one atomic call. The others are called limit after
  limit until one refuses. On the deny path, that is the first, which is the best order for them, and omits the other
  limits from the result.
- **Verified**: before the measurement, a contender must admit {PROVING[0].units} requests under a limit of
  {PROVING[0].units} and refuse the next. Every result of every timed round is checked afterwards: all allowed or all
  denied, and none degraded. Otherwise, the run stops.
- **Timing**: the same loop for all, between two `perf_counter_ns()`; nothing is subtracted. All contenders take
  turns, round after round, each round starting with another one. The garbage collector is off, as in `timeit`.
- **Noise**: a ratio is the median of the ratios within the rounds, so a disturbance of a whole round affects both
  sides, and no lucky round of one side decides. Rates and times beside it are those of the median round, whose
  quotient may differ slightly. The best peer is the one with the smallest ratio. The spread is the distance of the
  median round from the best one.
- **Processor time**: of this process by `process_time_ns()`, of the server by `used_cpu_user` + `used_cpu_sys` of
  `INFO cpu`; both around each round and summed over all rounds. The server's includes its sockets.
- **Bytes** are those of `MEMORY USAGE` with all samples, summed over all keys of a client. They exclude the table of
  expiries, for all contenders; a bare `INCR` has no entry there.
"""

TOGETHER = f"""\
Decisions per second of {CALLERS} async callers together under one limit, median round.
"""

ALONE = """\
Microseconds per decision of one caller under one limit, median round.
"""

THREE_LIMITS = f"""\
Decisions per second of {CALLERS} async callers together under three limits, median round. The floor is three `INCR`s in
a pipeline.
"""

CLUSTER = f"""\
Decisions per second of {CALLERS} async callers together in a cluster of {PRIMARIES} primaries, median round, against \
redis-py's `RedisCluster`.
"""

EVERY_CALL = f"""\
Wall-clock microseconds per call, best round, and the distance of the median round from it. For {CALLERS} callers
this is the total time divided by the number of calls.
"""

PROCESSOR = """\
Microseconds of processor time per call: this process + the server.
"""

MEMORY = """\
Bytes of the server's memory per client, all its keys together. A client's name has 13 characters.
"""


Aim = tuple[str, Callable[[Row], float | None], Callable[[Row], bool | None], str]
"""A ratio of rows: its name, its value, its verdict, and its bound."""

PEER: Aim = (
    "x the best peer",
    lambda row: row.times_peer,
    lambda row: row.beats_peers,
    f"at least {LEAST_TIMES_PEER:g}",
)
FLOOR: Aim = (
    "x `INCR`",
    lambda row: row.times_floor,
    lambda row: row.beats_floor,
    f"above {LEAST_TIMES_INCR:g}",
)
LATENCY: Aim = (
    "time, x `INCR`",
    lambda row: row.latency,
    lambda row: row.is_prompt,
    f"at most {MOST_TIMES_INCR_ALONE:g}",
)


def part(results: RedisResults) -> Part:
    """Return the Redis part of the report."""
    rows = results.rows
    together, alone, three, cluster = _groups(rows).values()
    sections = [
        ("64 callers", TOGETHER, _throughput(together)),
        ("One caller", ALONE, _latency(alone)),
        ("Three limits", THREE_LIMITS, _throughput(three)),
        ("Cluster", CLUSTER, _cluster(cluster)),
        ("Every call that was timed", EVERY_CALL, _every_call(rows, _spread)),
        ("Processor time", PROCESSOR, _every_call(rows, lambda cost: f"{cost.client_us:.1f} + {cost.server_us:.1f}")),
        ("Memory", MEMORY, _memory(results.footprints)),
    ]
    return Part("Redis", WHAT, METHOD, list(_short(rows)), _verdicts(rows), sections)


def _short(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """Return the summary: what, figures, and comparison."""
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


def _verdicts(rows: list[Row]) -> str:
    """Return the worst row of each group, as Markdown."""
    aims = {
        "64 callers": (PEER, FLOOR),
        "one blocking caller": (LATENCY,),
        "one async caller": (LATENCY,),
        "three limits, 64 callers": (PEER, FLOOR),
        "cluster, 64 callers": (FLOOR,),
    }
    groups = _groups(rows)
    groups |= {str(way): [row for row in groups["one caller"] if row.case.way is way] for way in Way}
    groups["64 callers"] = _groups(rows)["64 callers"]
    lines = [_worst(name, groups[name], aim) for name, few in aims.items() for aim in few if groups[name]]
    return table(("what", "worst", "aim", "verdict", "rows that pass", "worst row"), lines)


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    one_limit = [row for row in rows if len(row.case.limits) == 1 and not row.case.cluster]
    return {
        "64 callers": [row for row in one_limit if row.case.way is Way.TOGETHER],
        "one caller": [row for row in one_limit if row.case.way is not Way.TOGETHER],
        "three limits, 64 callers": [row for row in rows if len(row.case.limits) > 1],
        "cluster, 64 callers": [row for row in rows if row.case.cluster],
    }


def _worst(name: str, rows: list[Row], aim: Aim) -> tuple[object, ...]:
    what, measure, passes, bound = aim
    worst = (max if aim is LATENCY else min)(rows, key=lambda row: measure(row) or 0)
    passed = sum(passes(row) is True for row in rows)
    judged = verdict(passed == len(rows))
    return f"{name}: {what}", times(measure(worst)), bound, judged, f"{passed} of {len(rows)}", worst.case.name


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


def _every_call(rows: list[Row], shown: Callable[[Cost], str]) -> str:
    labels = list(dict.fromkeys(cost.label for row in rows for cost in row.costs))
    lines = []
    for row in rows:
        found = {cost.label: shown(cost) for cost in row.costs}
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


def _named(cost: Cost | None, shown: Callable[[Cost], str]) -> str:
    return "none" if cost is None else f"{cost.label} {shown(cost)}"


def _rate(cost: Cost) -> str:
    return f"{cost.per_second:,.0f}"


def _us(cost: Cost) -> str:
    return f"{cost.time.median / 1000:,.1f}"


def _spread(cost: Cost) -> str:
    return f"{cost.time.best / 1000:,.1f} +{100 * cost.time.spread:.0f} %"
