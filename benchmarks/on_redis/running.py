"""Runs the whole Redis part, on servers of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.on_redis import footprint
from benchmarks.on_redis.cases import Amount, all_cases, cluster_cases
from benchmarks.on_redis.figures import Row
from benchmarks.on_redis.footprint import Footprint
from benchmarks.on_redis.measuring import measure, measure_cluster
from benchmarks.on_redis.servers import redis_cluster, redis_server
from benchmarks.timing import Pace


@dataclass(frozen=True, slots=True)
class RedisResults:
    """All that was measured on Redis."""

    server: str
    """The server's version."""
    rows: list[Row]
    footprints: list[Footprint]


def steps(amount: Amount) -> int:
    """Return how many steps there are to report."""
    return len(all_cases(amount)) + len(footprint.tasks()) + len(cluster_cases(amount))


def run(amount: Amount, pace: Pace, done: Callable[[str], None]) -> RedisResults:
    """Measure everything; `done` is told of each step."""
    rows: list[Row] = []
    with redis_server() as server:
        for case in all_cases(amount):
            rows.append(measure(case, server, pace))
            done(told(rows[-1]))
        footprints = []
        for kept in footprint.measure(server, amount.clients):
            footprints.append(kept)
            if kept.contender == "headgate":
                done(f"{kept.kind}: {kept.bytes_per_client:.0f} bytes per client")
        version = server.version
    with redis_cluster() as cluster:
        for case in cluster_cases(amount):
            rows.append(measure_cluster(case, cluster, pace))
            done(told(rows[-1]))
    return RedisResults(version, rows, footprints)


def told(row: Row) -> str:
    """Say in a line what came out."""
    peers = "" if row.times_peer is None else f", {row.times_peer:.2f}x the fastest peer"
    each = f"{row.ours.time.median / 1000:.0f} us" if row.case.callers == 1 else f"{row.ours.per_second:,.0f}/s"
    return f"{row.case}: {each}, {row.times_floor:.2f}x INCR{peers}, server {row.ours.server_us:.1f} us"
