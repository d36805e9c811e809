"""The part in memory of the report: what was measured, how, and the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from benchmarks.contenders import PEERS
from benchmarks.in_memory.accuracy import ALL, LENGTH, LIMIT, MINUTE, PATTERNS, SEED, Accuracy
from benchmarks.in_memory.operations import LOG_ADMISSIONS, MOST_TIMES_CHECK, NAMES, Footprint, Operations
from benchmarks.in_memory.scenarios import (
    ALLOWING,
    LEAST_TIMES_FASTER,
    MOST_TIMES_FLOOR,
    REFUSING_MANY_KEYS,
    REFUSING_ONE_KEY,
    Kind,
    Limit,
    Row,
)
from benchmarks.tables import Part, between, percent, table, times, verdict
from benchmarks.timing import Figure

LIBRARIES = ("headgate", "limits", "throttled-py", "pyrate-limiter")


@dataclass(frozen=True, slots=True)
class MemoryResults:
    """All that was measured in memory."""

    rows: list[Row]
    operations: list[Operations]
    footprints: list[Footprint]
    accuracy: Accuracy


def _limits(limits: tuple[Limit, ...]) -> str:
    day, week, month = (f"{limit.units:,}" for limit in limits)
    return f"{day} a day ({week} a week, {month} per 30 days)"


WHAT = f"""\
The cost of one in-memory decision, compared with the minimum of any Python limiter and with other libraries. The aim:
at most {MOST_TIMES_FLOOR[1]:g} times the floor with one limit and {MOST_TIMES_FLOOR[3]:g} times with three, and at \
least {LEAST_TIMES_FASTER:g} times
faster than the fastest peer with the same algorithm, allowed or denied.

Earlier reports had higher aims (7 times the floor, 5 times faster), since a decision in memory then ran code that was
generated at startup. Plain functions may take 1.15 times as long with one limit, and twice as long with three.
"""

METHOD = f"""\
- **Floor**: a Python function that reads the clock (`time.time_ns()`) and does one dictionary read-modify-write per
  limit. It decides nothing, takes no lock and returns no decision.
- **Equal work returns the same values**: allowed, remaining, and the time to retry. Headgate's `check` returns all of
  it as a `Decision`. `limits.hit()` returns a bool, so equal work is `hit()` + `get_window_stats()`. `throttled-py`
  computes the result of `limit()` only when its `.state` is read, so equal work is both.
  `pyrate-limiter`'s `try_acquire()` returns a bool; the closest to equal is `try_acquire()` + the bucket's
  `count()` + `waiting()`, which still lacks the reset time. "x faster" compares with equal work; "x faster than
  bare" compares Headgate's full decision with the cheapest call of any peer, however little it returns.
- **Same algorithm**: `limits` has fixed window, moving window (the log) and sliding window counter; `throttled-py`
  has token bucket, leaking bucket, fixed window, sliding window (the counter) and GCRA; `pyrate-limiter` has the log,
  a fixed window (counted by a log), GCRA and a token bucket (the same code). No peer has a leaky bucket as a queue;
  it is compared with `throttled-py`'s leaking bucket, which computes no delay. Peers' clocks tick in seconds
  (`throttled-py`'s buckets and fixed window) or milliseconds (`pyrate-limiter`); Headgate's in microseconds.
- **Allow path**: limits of {_limits(ALLOWING)}. On one key, a round is 1,000 calls
  on a fresh key: it goes from untouched to used up, so logs are half full on average (500
  entries), and no library's log grows beyond 1,000.
- **Deny path**: limits of {_limits(REFUSING_ONE_KEY)} on one key, and of
  {_limits(REFUSING_MANY_KEYS)} on 10,000 keys; the daily limit is used up before the measurement.
- **Windows** are a day or longer, so that none ends and no unit comes back during a measurement. (Headgate's sliding
  window counter takes its slower branch for windows above 100 s.)
- **10,000 keys**: called in one shuffled order, a fifth of them per round; every key has a state. The first check of a
  new key is under "Other operations".
- **Several limits**: Headgate decides all in one atomic call. `limits` and `throttled-py` are called limit after limit
  until one refuses. On the deny path, that is the first, which is the best order for them. Equal work then also reads
  the other limits (`get_window_stats`, `peek`), since Headgate's decision has all of them; bare stops at the refusal.
  `pyrate-limiter` takes several rates in one bucket.
- **Verified**: before and after the measurement, the results of each contender must be all allowed or all denied.
  Otherwise, the run stops.
- **Timing**: the same loop for all, over a prepared list of keys, between two `perf_counter_ns()`; nothing is
  subtracted, so the loop is in every figure, including the floor's. If a single call does the work, the callable is the
  library's bound method (or a `functools.partial` of it). The garbage collector is off, as in `timeit`.
- **Noise**: all contenders take turns, round after round, each round starting with another one; the best round counts.
  The spread is the distance of the median round from it. All contenders of a row have the same number of rounds.
- **Background threads**: `limits` starts a timer thread that visits its keys every 10 ms while it is in use. Its work
  during its rounds is part of the cost, and the next contender waits until it has ended. `pyrate-limiter`'s leak thread
  is not started. Both choices favour the peers.
- `throttled-py`'s store has room for all keys (its default of 1,024 would evict). `pyrate-limiter` counts all names of
  a bucket together, so it gets a `BucketFactory` that finds a bucket per name by one dictionary lookup.
- **One thread**: no lock is contended. The keys are the same string objects in every round, so their hashes are cached
  for direct lookups, including those of the floor and of Headgate.
"""

DECISIONS = """\
Nanoseconds per decision, best round, by the number of keys.
"""

THREE_LIMITS = """\
The same with three limits per request. The floor does three read-modify-writes and one clock read here.
"""

EVERY_CALL = """\
Nanoseconds per call, best round, and the distance of the median round from it. Each peer call that returns less than a
`Decision` is beside the call of equal work.
"""

OPERATIONS = """\
Headgate only; nanoseconds per call on one key under one limit of 1,000 a day. The odd limit is 1,009 a day, a
prime, so a unit does not come back in a whole number of microseconds. "New key" is the first check of a key.
`AsyncLimiter.check` is awaited in a running event loop, and the cost of the await is included.
"""

MEMORY = """\
Bytes per key, counted by `tracemalloc` in a separate process, including the key's text (13 characters) and its share of
all tables; limit 1,000 a week. The memory of a log grows with its admissions. The leaky bucket has the same state as a
meter and as a queue.
"""


def about_accuracy(found: Accuracy) -> str:
    """Describe the replay."""
    return f"""\
The counter weighs the previous window by the part of it that the trailing window covers, as if its requests had been
spread evenly. To measure the error, a synthetic trace is replayed through the pure `Quota.step` of
`sliding_window_counter` and `sliding_window_log`: {found.tallies[ALL].requests:,} requests by {found.clients} clients
over {LENGTH // MINUTE} minutes, with a limit of {LIMIT} per minute for each client
(`benchmarks/in_memory/accuracy.py`, seed {SEED}).

- **Counting all** requests, admitted or not: the share of requests for which the estimate and the true count of the
  trailing minute are on different sides of the limit. This is closest to Cloudflare's published figure. The rate error
  is |estimate - truth| / truth, averaged over all requests. Headgate rounds its estimate up to whole units, which
  increases the error of clients with few requests.
- **Enforcing**, as Headgate does: a refused request takes nothing. *Over-admitted*: the counter admitted a request
  although the trailing minute already had {LIMIT} admissions. *Refused with room*: it refused a request although the
  minute had fewer. The last two columns are the refusals of the counter and of the log, each on the whole trace.
"""


def accuracy_reading(found: Accuracy) -> str:
    """Describe the result."""
    total = found.tallies[ALL]
    share = 100 * total.misjudged / total.requests
    error = 100 * total.rate_errors / total.requests
    room_for_one = 100 * total.refused_with_room_for_one / max(1, total.refused_with_room)
    return f"""\
| | wrongly decided | mean rate error |
|---|---:|---:|
| this trace, counting all | {share:.3f} % | {error:.1f} % |
| Cloudflare, its own traffic, 2017 | 0.003 % | 6 % |

**The traces differ, so the two lines do not compare the quality of the counters**: Cloudflare's has
[400 million requests from 270,000 sources](https://blog.cloudflare.com/counting-things-a-lot-of-different-things/).
Most requests of this trace come, on purpose, from clients at, around or beyond their limit, where the counter can be
wrong. Below half the limit, it was never wrong here (see "quiet" and "steady").

When enforcing, {room_for_one:.0f} % of the refusals with room had room for exactly that one request: the estimate of
a saturated client is rounded up, and is a fraction of a unit above the truth until the next unit is free. This delays
admissions instead of losing them: over the whole trace, the counter refused {total.counter_refusals:,} requests, and
the log {total.log_refusals:,}.

**In the worst case**, the whole limit at the end of one window and then requests without pause,
{found.worst_window:.2f} times the limit passed within one window's length. The bound is just under 2. If that matters,
use `sliding_window_log` (exact) or `gcra`.
"""


def _short(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """Return the summary: what, figures, and comparison."""
    for limits, group in groupby(rows, lambda row: len(row.scenario.limits)):
        few = list(group)
        name = {1: "one limit", 3: "three limits"}.get(limits, f"{limits} limits")
        ratios = [row.times_faster for row in few if row.times_faster is not None]
        faster = between(ratios, 1, "times as fast as the fastest peer")
        yield f"decision in memory, {name}", between([row.ours.best for row in few], 0, "ns"), faster


def part(results: MemoryResults) -> Part:
    """Return the part in memory of the report."""
    one, three = (
        [row for row in results.rows if (len(row.scenario.limits) == 1) is single] for single in (True, False)
    )
    accuracy = results.accuracy
    sections = [
        ("Decisions: one limit", DECISIONS, _decisions(one)),
        ("Decisions: three limits", THREE_LIMITS, _decisions(three)),
        ("Every call that was timed", EVERY_CALL, _every_call(results.rows)),
        ("Other operations", OPERATIONS, _operations(results.operations)),
        ("Memory per key", MEMORY, _memory(results.footprints)),
        (
            "Accuracy of the sliding window counter",
            about_accuracy(accuracy),
            _accuracy(accuracy),
            accuracy_reading(accuracy),
        ),
    ]
    return Part("Memory", WHAT, METHOD, list(_short(results.rows)), _verdicts(results), sections)


def _verdicts(results: MemoryResults) -> str:
    """Return how many rows pass, and the worst of each algorithm, as Markdown."""
    rows = results.rows
    parts = ["The worst row of each algorithm and path, over one key and many; all rows are further down.\n"]
    for limits, group in groupby(rows, lambda row: len(row.scenario.limits)):
        few = list(group)
        judged = [row for row in few if row.beats_peers is not None]
        name = {1: "One limit", 3: "Three limits"}.get(limits, f"{limits} limits")
        within, faster = sum(row.within_floor for row in few), sum(row.beats_peers is True for row in judged)
        parts.append(
            f"**{name}** per request: {within} of {len(few)} rows are within {few[0].most_times_floor:g}x of the\n"
            f"floor, {faster} of {len(judged)} are at least {LEAST_TIMES_FASTER:g}x faster than the fastest peer.\n"
        )
        parts.append(_worst(few))
    parts.append(_peeks(results.operations))
    return "\n".join(parts)


def _peeks(measured: list[Operations]) -> str:
    worst = max(measured, key=lambda each: each.peek_times_check)
    passed = sum(each.peeks_cheaply for each in measured)
    line = (
        "`peek`: time, x `check`",
        times(worst.peek_times_check),
        f"at most {MOST_TIMES_CHECK:g}",
        verdict(passed == len(measured)),
        f"{passed} of {len(measured)}",
        worst.kind,
    )
    return table(("what", "worst", "aim", "verdict", "rows that pass", "worst row"), [line])


def _worst(rows: list[Row]) -> str:
    head = (
        "algorithm, path",
        "x floor",
        f"within {rows[0].most_times_floor:g}x",
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
        f"within {rows[0].most_times_floor:g}x",
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
