"""Counters of other parts of the process, copied into the table every second and before output.

They begin with 0 in a new process, while the table's continue: a copy is added to the predecessor's value.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from headgate.engine import AsyncEngine
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.live import Live
from headgate.observe import metrics
from headgate.observe.metrics import NANO, Metric, MetricKind
from headgate.observe.table import CounterTable
from headgate.policy.snapshot import SnapshotSource
from headgate.stores.breaker import Circuit

_SELF = Path("/proc/self")
_STATES = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}


Reading: TypeAlias = tuple[Metric, tuple[str, ...], int | tuple[int, ...]]
"""A metric, its labels and its value: counters since the start of the process; a histogram's buckets, then the sum."""
Source: TypeAlias = Callable[[], Iterable[Reading]]
Watched: TypeAlias = AsyncEngine | AsyncDescriptorEngine


class Copies:
    def __init__(self, table: CounterTable) -> None:
        self._table = table
        self._before: dict[int, int] = {}  # a predecessor's counters, by cell
        self._gauges: set[int] = set()  # cells of the last refresh
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        self._sources.append(source)

    def refresh(self) -> None:
        """Copy all sources. Readings of the same series are merged; a gauge without a reading becomes 0."""
        found: dict[tuple[Metric, int], int] = {}
        for source in self._sources:
            for metric, labels, value in source():
                first = self._table.cell_of(metric, *labels)
                for cell, each in enumerate(value if isinstance(value, tuple) else (value,), first):
                    known = found.get((metric, cell))
                    found[metric, cell] = each if known is None else metric.merge(known, each)
        cells = self._table.cells
        gauges: set[int] = set()
        for (metric, cell), value in found.items():
            if metric.kind is MetricKind.GAUGE:
                gauges.add(cell)
                cells[cell] = value
            else:
                cells[cell] = self._before.setdefault(cell, cells[cell]) + value
        for cell in self._gauges - gauges:
            cells[cell] = 0
        self._gauges = gauges


def of_number(metric: Metric, read: Callable[[], int]) -> Source:
    return lambda: [(metric, (), read())]


def of_process(worker: str) -> Source:
    started = time.time_ns()
    build = metrics.BUILD, (version("headgate"), platform.python_version()), 1

    def read() -> Iterable[Reading]:
        yield build
        yield metrics.WORKER_STARTS, (), 1
        yield metrics.STARTED_AT, (worker,), started
        yield metrics.CPU, (worker,), time.process_time_ns()
        yield metrics.RESIDENT, (worker,), _resident_bytes()
        yield metrics.OPEN_FILES, (worker,), _open_files()

    return read


def of_callers(recent: set[str]) -> Source:
    """Return the source of callers' last requests; it empties `recent`, the callers since the last reading."""
    last: dict[str, int] = {}

    def read() -> Iterable[Reading]:
        last.update(dict.fromkeys(recent, time.time_ns()))
        recent.clear()
        return [(metrics.CALLER_ASKED_AT, (name,), at) for name, at in last.items()]

    return read


def of_live(lives: Mapping[str, Live[Any]]) -> Source:
    def read() -> Iterable[Reading]:
        for what, live in lives.items():
            loading = live.statistics()
            yield metrics.CONFIG_LOADS, (what,), loading.loads
            yield metrics.CONFIG_FAILURES, (what,), loading.failures
            yield metrics.CONFIG_BROKEN, (what,), int(bool(loading.error))
            yield metrics.CONFIG_LOADED_AT, (what,), int(loading.loaded_at * NANO)

    return read


def of_snapshot(source: SnapshotSource, rules: Live[Any], *, counting: bool) -> Source:
    """Return the source for following a database, whose snapshots provide `rules`.

    `counting` is for one worker, since all of them receive the same data.
    """
    before, revision = source.following().failures, source.revision

    def read() -> Iterable[Reading]:
        nonlocal revision
        following, last = source.following(), source.revision
        if not rules.is_looking:  # read after the revision: that one is in force
            revision = last
        yield metrics.RULES_REVISION, (), revision
        yield metrics.RULES_CONTACT, (), following.contact * (NANO // 1_000_000)
        yield metrics.RULES_STALE, (), int(bool(following.error))
        if counting:
            yield metrics.RULES_FOLLOW_FAILURES, (), max(0, following.failures - before)

    return read


def of_engine(engine: Watched) -> Source:
    def read() -> Iterable[Reading]:
        if isinstance(engine, AsyncEngine):
            yield metrics.RULES, (), len(engine.policy.rules)
        loading = engine.rules_statistics()
        if loading is not None:
            yield metrics.RULES_LOADS, (), loading.loads
            yield metrics.RULES_FAILURES, (), loading.failures
            yield metrics.RULES_BROKEN, (), int(bool(loading.error))
            yield metrics.RULES_LOADED_AT, (), int(loading.loaded_at * NANO)
        yield from _of_store(engine)

    return read


def _of_store(engine: Watched) -> Iterable[Reading]:
    store = engine.statistics()
    if store is not None:
        yield metrics.STORE_CALLS, (), store.calls
        for reason, failures in store.failures.items():
            yield metrics.STORE_FAILURES, (reason,), failures
        for (mode, reason), decisions in store.degraded.items():
            yield metrics.STORE_DEGRADED, (mode, reason), decisions
        yield metrics.STORE_LATE, (), store.late
        yield metrics.NODES, (), store.nodes
        yield metrics.CIRCUIT_OPENINGS, (), store.openings
        yield metrics.CIRCUIT_RECOVERIES, (), store.recoveries
        for shard, breaker in store.breakers.items():
            yield metrics.CIRCUIT_STATE, (shard,), _STATES[breaker.state]
    cached = engine.cache_statistics()
    if cached is not None:
        yield metrics.STORE_CACHED, ("check",), cached.denial_hits
        yield metrics.STORE_CACHED, ("peek",), cached.peek_hits
    traffic = engine.traffic()
    if traffic is not None:
        yield metrics.STORE_BATCHES, (), traffic.batches
        yield metrics.STORE_QUESTIONS, (), traffic.calls
        yield metrics.STORE_DURATION, (), traffic.durations


def _resident_bytes() -> int:
    """Return the resident memory; 0 if unknown."""
    try:
        return int((_SELF / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux, or out of file descriptors
        return 0


def _open_files() -> int:
    """Return the number of open file descriptors; 0 if unknown."""
    try:
        return len(os.listdir(_SELF / "fd")) - 1  # without its own  # noqa: PTH208  twice as fast
    except OSError:
        return 0
