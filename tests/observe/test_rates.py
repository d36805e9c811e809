"""Rates: changes between readings of a service's counters, in bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headgate.observe import metrics
from headgate.observe.hot_keys import HotKey, HotList
from headgate.observe.metrics import Metric
from headgate.observe.rates import LOOK_US, MOST_KEYS, MOST_RULES, STEPS, Figures, Point, Rates, RateWatch
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED, RuleSeries
from headgate.observe.table import LONGEST_VALUE
from headgate.observe.workers import CounterFiles

NOON = 1_800_000_000_000_000
LARGEST = 64 * 1024


class Node:
    """The counters of some workers, and a watch."""

    def __init__(self, folder: Path) -> None:
        self._files, self._reading, self.now = CounterFiles(folder), CounterFiles(folder), NOON
        self.workers = [self._files.open(0)]
        self.hot = HotList()
        self._watch = RateWatch(self._reading.read, lambda: msgspec.json.encode(self.hot), "memory", lambda: self.now)

    def counts(self, metric: Metric, *labels: str, times: int = 1, worker: int = 0) -> None:
        table = self.workers[worker].table
        table.cells[table.cell_of(metric, *labels)] += times

    def decides(self, rule: str, outcome: str, times: int, worker: int = 0) -> None:
        series = RuleSeries(self.workers[worker].table)
        for _ in range(times):
            series.count(rule, outcome)

    def look(self, times: int = 1) -> Figures:
        """Read at the end of each of the next intervals."""
        for _ in range(times):
            self.now += LOOK_US
            found = self._watch.look()
        return found

    def start(self) -> None:
        self.workers.append(self._files.open(len(self.workers)))

    def close(self) -> None:
        self._reading.close()
        for worker in self.workers:
            worker.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.close()


def test_rates_are_of_the_last_five_seconds_and_requests_count_once(node: Node) -> None:
    node.counts(metrics.DECISION_DURATION, "before", times=1000)
    assert node.look().rates == Rates(), "counts before the first reading have no known time"
    node.counts(metrics.DECISION_DURATION, "orders", times=22)
    node.counts(metrics.PEEKS, times=2)
    node.counts(metrics.UNLIMITED, "denied", times=5)
    node.counts(metrics.UNLIMITED, "unlimited", times=5)
    node.counts(metrics.CHECKS, "check", "error", times=5)
    node.counts(metrics.CHECKS, "check", "shed", times=10)
    for rule in ("orders", "items"):
        node.decides(rule, ALLOWED, 10)
    node.decides("orders", DENIED, 5)
    node.decides("orders", DEGRADED, 15)
    node.decides("tried", SHADOW_DENIED, 5)
    node.decides("tried", SHADOW_ALLOWED, 10)
    node.look()
    found = node.look()
    assert found.rates == Rates(allowed=2, refused=2, degraded=3, shadow_refused=1, errors=1, shed=2)
    rules = {each.rule_id: each for each in found.rules}
    assert (rules["orders"].allowed, rules["orders"].refused, rules["orders"].degraded) == (2, 1, 3)
    assert (rules["tried"].shadow_allowed, rules["tried"].shadow_refused) == (2, 1)
    quiet = node.look(2)
    assert (quiet.rates, quiet.rules) == (Rates(), ())


def test_workers_that_start_later_or_end_are_included(node: Node) -> None:
    node.counts(metrics.BUILD, "1.0", "3.13")
    assert node.look().workers == 1
    node.start()
    node.counts(metrics.BUILD, "1.1", "3.13", worker=1)
    for worker in (0, 1):
        node.counts(metrics.DECISION_DURATION, "orders", times=10, worker=worker)
    found = node.look()
    assert (found.workers, found.version, found.rates.allowed) == (2, "1.0, 1.1", 8)
    node.workers[0].close()
    found = node.look()
    assert (found.workers, found.version, found.rates.allowed) == (1, "1.1", 4)
    node.workers.pop(0)


def test_history_has_a_point_for_each_five_seconds_of_ten_minutes(node: Node) -> None:
    node.look()
    node.counts(metrics.DECISION_DURATION, "orders", times=50)
    assert node.look().history == ()
    found = node.look(2)
    assert found.history == (Point(NOON // 1_000_000 + 5, 0, 0, 0, 0),)
    node.counts(metrics.DECISION_DURATION, "orders", times=50)
    found = node.look(2)
    assert found.history[1:] == (Point(NOON // 1_000_000 + 10, 10, 0, 0, 0),)
    found = node.look(2 * STEPS)
    assert len(found.history) == STEPS
    assert {later.at - each.at for each, later in zip(found.history, found.history[1:], strict=False)} == {5}


def test_circuits_enforcement_and_broken_configuration_are_those_of_live_workers(node: Node) -> None:
    node.counts(metrics.ENFORCEMENT)
    found = node.look()
    assert (found.circuits, found.troubled_since, found.enforcing, found.broken) == ({}, 0, True, ())
    node.counts(metrics.CIRCUIT_STATE, "redis-1:6379", times=2)
    node.counts(metrics.RULES_BROKEN)
    node.counts(metrics.CONFIG_BROKEN, "identity")
    node.counts(metrics.ENFORCEMENT, times=-1)
    began = node.look()
    found = node.look()
    assert (found.circuits, found.troubled_since) == ({"redis-1:6379": "open"}, began.at)
    assert (found.enforcing, found.broken) == (False, ("identity", "rules"))


def test_figures_are_bounded_with_10000_rules_of_long_names_and_hot_keys(node: Node) -> None:
    node.look(2 * STEPS + 2)
    names = [f"{number:05}{'r' * LONGEST_VALUE}" for number in range(10_000)]
    for number, name in enumerate(names):
        node.counts(metrics.RULE_DECISIONS, name, DENIED, times=1 + number)
    for name in names[::-1][:100]:
        node.counts(metrics.RULE_DECISIONS, name, SHADOW_DENIED, times=10)
    keys = tuple([HotKey(name[:LONGEST_VALUE], "k" * 1000, 1.0) for name in names[:500]])
    node.hot = HotList(keys, keys, keys)
    found = node.look()
    assert len(found.hot) == len(found.denied) == len(found.would_refuse) == MOST_KEYS
    assert MOST_RULES <= len(found.rules) <= 3 * MOST_RULES
    assert found.rules[0].rule_id.startswith("09999"), "the busiest first"
    assert len(found.history) == STEPS
    assert len(msgspec.json.encode(found)) < LARGEST
