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
from typing import Any, NamedTuple, Protocol, TypeAlias

from headgate.engine import AsyncEngine
from headgate.live import Live, LoadStatistics
from headgate.observe import metrics
from headgate.observe.metrics import NANO, Metric, MetricKind
from headgate.observe.table import CounterTable
from headgate.policy.snapshot import SnapshotSource
from headgate.stores.breaker import Circuit
from headgate.stores.cached import CacheStatistics
from headgate.stores.failover import Statistics
from headgate.stores.traffic import TrafficStatistics

_SELF = Path("/proc/self")
_STATES = {Circuit.CLOSED: 0, Circuit.HALF_OPEN: 1, Circuit.OPEN: 2}


class Reading(NamedTuple):
    """A value of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    value: int | tuple[int, ...]
    """Counters count from the start of the process. A histogram has its buckets, then the sum."""


Source: TypeAlias = Callable[[], Iterable[Reading]]


class Copies:
    """Copies the readings of sources into a table."""

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
                    found[metric, cell] = each if known is None else metric.merged(known, each)
        for (metric, cell), value in found.items():
            self._set(metric, cell, value)
        gauges = {cell for metric, cell in found if metric.kind is MetricKind.GAUGE}
        for cell in self._gauges - gauges:
            self._table.cells[cell] = 0
        self._gauges = gauges

    def _set(self, metric: Metric, cell: int, value: int) -> None:
        cells = self._table.cells
        if metric.kind is MetricKind.GAUGE:
            cells[cell] = value
            return
        before = self._before.get(cell)
        if before is None:
            before = self._before[cell] = cells[cell]
        cells[cell] = before + value


class Watched(Protocol):
    """The statistics of an engine."""

    def rules_statistics(self) -> LoadStatistics | None: ...

    def statistics(self) -> Statistics | None: ...

    def cache_statistics(self) -> CacheStatistics | None: ...

    def traffic(self) -> TrafficStatistics | None: ...


def of_number(metric: Metric, read: Callable[[], int]) -> Source:
    """Return a source of one number, without labels."""
    return lambda: [Reading(metric, (), read())]


def of_process(worker: str) -> Source:
    """Return the source of this process's own metrics."""
    started = time.time_ns()
    build = Reading(metrics.BUILD, (version("headgate"), platform.python_version()), 1)

    def read() -> Iterable[Reading]:
        used = usage()
        yield build
        yield Reading(metrics.WORKER_STARTS, (), 1)
        yield Reading(metrics.STARTED_AT, (worker,), started)
        yield Reading(metrics.CPU, (worker,), used.cpu_ns)
        yield Reading(metrics.RESIDENT, (worker,), used.resident_bytes)
        yield Reading(metrics.OPEN_FILES, (worker,), used.open_files)

    return read


def of_callers(asked: set[str]) -> Source:
    """Return the source of callers' last requests; it empties `asked`, the callers since the last reading."""
    last: dict[str, int] = {}

    def read() -> Iterable[Reading]:
        last.update(dict.fromkeys(asked, time.time_ns()))
        asked.clear()
        return [Reading(metrics.CALLER_ASKED_AT, (name,), at) for name, at in last.items()]

    return read


def of_live(lives: Mapping[str, Live[Any]]) -> Source:
    """Return the source for reloadable configuration, by name."""

    def read() -> Iterable[Reading]:
        for what, live in lives.items():
            loading = live.statistics()
            yield Reading(metrics.CONFIG_LOADS, (what,), loading.loads)
            yield Reading(metrics.CONFIG_FAILURES, (what,), loading.failures)
            yield Reading(metrics.CONFIG_BROKEN, (what,), int(bool(loading.error)))
            yield Reading(metrics.CONFIG_LOADED_AT, (what,), int(loading.loaded_at * NANO))

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
        yield Reading(metrics.RULES_REVISION, (), revision)
        yield Reading(metrics.RULES_CONTACT, (), following.contact * (NANO // 1_000_000))
        yield Reading(metrics.RULES_STALE, (), int(bool(following.error)))
        if counting:
            yield Reading(metrics.RULES_FOLLOW_FAILURES, (), max(0, following.failures - before))

    return read


def of_engine(engine: Watched) -> Source:
    """Return the source for an engine's rules and store."""

    def read() -> Iterable[Reading]:
        if isinstance(engine, AsyncEngine):
            yield Reading(metrics.RULES, (), len(engine.policy.rules))
        loading = engine.rules_statistics()
        if loading is not None:
            yield Reading(metrics.RULES_LOADS, (), loading.loads)
            yield Reading(metrics.RULES_FAILURES, (), loading.failures)
            yield Reading(metrics.RULES_BROKEN, (), int(bool(loading.error)))
            yield Reading(metrics.RULES_LOADED_AT, (), int(loading.loaded_at * NANO))
        yield from _of_store(engine)

    return read


def _of_store(engine: Watched) -> Iterable[Reading]:
    store = engine.statistics()
    if store is not None:
        yield Reading(metrics.STORE_CALLS, (), store.calls)
        for reason, failures in store.failures.items():
            yield Reading(metrics.STORE_FAILURES, (reason,), failures)
        for (mode, reason), decisions in store.degraded.items():
            yield Reading(metrics.STORE_DEGRADED, (mode, reason), decisions)
        yield Reading(metrics.STORE_LATE, (), store.late)
        yield Reading(metrics.NODES, (), store.nodes)
        yield Reading(metrics.CIRCUIT_OPENINGS, (), store.openings)
        yield Reading(metrics.CIRCUIT_RECOVERIES, (), store.recoveries)
        for shard, breaker in store.breakers.items():
            yield Reading(metrics.CIRCUIT_STATE, (shard,), _STATES[breaker.state])
    cached = engine.cache_statistics()
    if cached is not None:
        yield Reading(metrics.STORE_CACHED, ("check",), cached.denial_hits)
        yield Reading(metrics.STORE_CACHED, ("peek",), cached.peek_hits)
    traffic = engine.traffic()
    if traffic is not None:
        yield Reading(metrics.STORE_BATCHES, (), traffic.batches)
        yield Reading(metrics.STORE_QUESTIONS, (), traffic.calls)
        yield Reading(metrics.STORE_DURATION, (), traffic.durations)


class ProcessUsage(NamedTuple):
    """Resources of a process; unknown ones are 0."""

    cpu_ns: int
    resident_bytes: int
    open_files: int


def usage() -> ProcessUsage:
    return ProcessUsage(time.process_time_ns(), _resident(), _open_files())


def _resident() -> int:
    try:
        return int((_SELF / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux, or out of file descriptors
        return 0


def _open_files() -> int:
    try:
        return len(os.listdir(_SELF / "fd")) - 1  # without its own  # noqa: PTH208  twice as fast
    except OSError:
        return 0
