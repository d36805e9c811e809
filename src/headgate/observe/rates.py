"""The current decisions per second of a service, from the counters of its workers.

A reading takes the changes since the previous one. A request counts once, however many rules match it: timed decisions
minus peeks. Refusals are counted by rule, so a request that two rules refuse counts twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import zip_longest

import msgspec

from headgate.clock import BUCKETS
from headgate.observe import metrics
from headgate.observe.hot_keys import HotKey, HotList
from headgate.observe.metrics import Metric, MetricKind
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.observe.table import LONGEST_VALUE, Counts, Place, values_of
from headgate.observe.workers import WorkerCounts
from headgate.policy.selection import Verdict

LOOK_US = 2_500_000
"""Microseconds between readings. Rates cover the last two."""
STEP_US = 2 * LOOK_US
"""The length of a step of the history, in microseconds."""
STEP_SECONDS = STEP_US // 1_000_000
STEPS = 120
"""Steps of the history: ten minutes."""
MOST_RULES = 20
"""Listed rules with the most decisions, refusals, or refusals by a shadow."""
MOST_KEYS = 20
MOST_CIRCUITS = 50
_CIRCUITS = {1: "half_open", 2: "open"}
_OUTCOMES = {ALLOWED: 0, DENIED: 1, DEGRADED: 2, SHADOW_ALLOWED: 3, SHADOW_DENIED: 4}
"""Position of an outcome among the totals of a rule, in the order of `RuleRates`."""
_NOTHING, _REQUESTS, _PEEKS, _DENIED, _ERRORS, _SHED, _RULES = range(7)
"""Positions among all totals; those of rules follow."""


class Rates(msgspec.Struct, frozen=True):
    """Requests per second."""

    allowed: float = 0.0
    refused: float = 0.0
    degraded: float = 0.0
    """Decided without the store; included in the others."""
    shadow_refused: float = 0.0
    """Refused only by shadow rules."""
    errors: float = 0.0
    """Calls that failed: the caller's error or the node's."""
    shed: float = 0.0
    """Calls that were rejected early, to protect the node."""


class RuleRates(msgspec.Struct, frozen=True):
    """Decisions of one rule per second."""

    rule_id: str
    allowed: float = 0.0
    refused: float = 0.0
    degraded: float = 0.0
    shadow_allowed: float = 0.0
    shadow_refused: float = 0.0


class Point(msgspec.Struct, frozen=True, array_like=True):
    at: int
    """Start, in seconds since the epoch."""
    allowed: float
    refused: float
    degraded: float
    shadow_refused: float


class Figures(msgspec.Struct, frozen=True):
    """Current decisions and state of a service, of bounded size."""

    at: int = 0
    """Time of the reading, in microseconds since the epoch."""
    rates: Rates = Rates()
    history: tuple[Point, ...] = ()
    rules: tuple[RuleRates, ...] = ()
    hot: tuple[HotKey, ...] = ()
    denied: tuple[HotKey, ...] = ()
    would_refuse: tuple[HotKey, ...] = ()
    store: str = ""
    """Its address, without a password; empty: unknown."""
    circuits: dict[str, str] = {}
    """The store's servers whose circuit is not closed; a single one has no name."""
    troubled_since: int = 0
    """Since when there are such servers, in microseconds since the epoch; 0: none."""
    workers: int = 0
    version: str = ""
    """Of Headgate; all versions that are running."""
    enforcing: bool = True
    broken: tuple[str, ...] = ()
    """Configuration whose last change is invalid, so that the previous one is in force: rules, identity ..."""


class RateWatch:
    """Reads the counters of a service every `LOOK_US`, and keeps ten minutes of rates.

    `hot_keys` returns JSON; `clock` returns microseconds since the epoch.
    """

    def __init__(
        self,
        counted: Callable[[], Iterable[WorkerCounts]],
        hot_keys: Callable[[], bytes],
        store: str,
        clock: Callable[[], int],
    ) -> None:
        self._counted, self._hot_keys, self._store, self._now = counted, hot_keys, store, clock
        self._totals = CounterTotals()
        self._looks: deque[tuple[int, list[int]]] = deque(maxlen=2)
        self._history: deque[Point] = deque(maxlen=STEPS)
        self._troubled_since = 0

    def look(self) -> Figures:
        """Return the current figures. Thread-safe if not concurrent. Raises OSError."""
        workers, now = list(self._counted()), self._now()
        totals = self._totals.sums(workers)
        began, before = self._looks[0] if self._looks else (now, totals)
        seconds = (now - began) / 1_000_000
        counts = [new - old for new, old in zip_longest(totals, before, fillvalue=0)]
        rates = Rates(*[_rate(count, seconds) for count in (*requests_of(counts), counts[_ERRORS], counts[_SHED])])
        looks_since_epoch = round(now / LOOK_US)
        at = (looks_since_epoch // 2 - 1) * STEP_SECONDS
        if looks_since_epoch % 2 == 0 and len(self._looks) > 1:  # the last two readings are a step
            self._history.append(Point(at, rates.allowed, rates.refused, rates.degraded, rates.shadow_refused))
        self._looks.append((now, totals))
        circuits: dict[str, int] = {}
        versions, broken, enforcing = set[str](), set[str](), True
        for metric, labels, value in self._totals.gauges([each for each in workers if each.alive]):
            if metric is metrics.ENFORCEMENT:
                enforcing = enforcing and bool(value)
            elif metric is metrics.CIRCUIT_STATE and value:
                (shard,) = values_of(labels)
                circuits[shard] = max(value, circuits.get(shard, 0))
            elif metric is metrics.BUILD and value:
                versions.add(values_of(labels)[0])
            elif metric is metrics.RULES_BROKEN and value:
                broken.add("rules")
            elif metric is metrics.CONFIG_BROKEN and value:
                broken.update(values_of(labels))
        self._troubled_since = (self._troubled_since or now) if circuits else 0
        report = msgspec.json.decode(self._hot_keys(), type=HotList)
        return Figures(
            now,
            rates,
            tuple(self._history),
            self._first_rules(counts, seconds),
            _bounded(report.hot),
            _bounded(report.denied),
            _bounded(report.would_refuse),
            self._store,
            {shard: _CIRCUITS[state] for shard, state in sorted(circuits.items())[:MOST_CIRCUITS]},
            self._troubled_since,
            sum(worker.alive for worker in workers),
            ", ".join(sorted(versions)),
            enforcing,
            tuple(sorted(broken)),
        )

    def _first_rules(self, counts: list[int], seconds: float) -> tuple[RuleRates, ...]:
        """Return the rules with the most decisions and those with the most refusals, the busiest first."""
        columns = [*by_outcome(counts).values()]
        allowed, refused, _, shadow_allowed, shadow_refused = columns
        decided = list(map(sum, zip(allowed, refused, shadow_allowed, shadow_refused, strict=True)))
        found: dict[int, None] = {}
        for column in (decided, refused, shadow_refused):
            if any(column):
                first = nlargest(MOST_RULES, range(len(column)), key=column.__getitem__)
                found |= dict.fromkeys([rule for rule in first if column[rule]])
        rules = self._totals.rules
        return tuple([RuleRates(rules[rule], *[_rate(each[rule], seconds) for each in columns]) for rule in found])


class CounterTotals:
    """The counters of workers in one list: first those of requests, then five for each rule.

    A reading allocates only lists of numbers: thousands of small objects would make the garbage collector traverse all
    rules repeatedly, in the process that decides.
    """

    def __init__(self) -> None:
        self.rules: list[str] = []
        """By their position in the columns of `by_outcome`."""
        self._first: dict[str, int] = {}
        self._positions: defaultdict[int, list[int]] = defaultdict(list)
        """By worker: the position of each cell. New cells are only appended."""
        self._gauges: defaultdict[int, list[Place]] = defaultdict(list)
        self._known: Counter[int] = Counter()

    def sums(self, workers: Iterable[WorkerCounts]) -> list[int]:
        for worker in workers:
            self._learn(worker.number, worker.series)
        totals = [0] * (_RULES + len(_OUTCOMES) * len(self.rules))
        for worker in workers:
            for position, value in zip(self._positions[worker.number], worker.series.cells, strict=True):
                totals[position] += value
        return totals

    def gauges(self, workers: Iterable[WorkerCounts]) -> Iterator[tuple[Metric, str, int]]:
        for worker in workers:
            for metric, labels, cell, _ in self._gauges[worker.number]:
                yield metric, labels, worker.series.cells[cell]

    def _learn(self, worker: int, counts: Counts) -> None:
        """Assign positions to the cells of new series."""
        positions = self._positions[worker]
        positions += [_NOTHING] * (len(counts.cells) - len(positions))
        for place in counts.places[self._known[worker] :]:
            if place.metric.kind is MetricKind.GAUGE:
                self._gauges[worker].append(place)
            elif place.metric is metrics.DECISION_DURATION:
                positions[place.begin : place.begin + BUCKETS] = [_REQUESTS] * BUCKETS
            else:
                positions[place.begin] = self._position(place.metric, values_of(place.labels))
        self._known[worker] = len(counts.places)

    def _position(self, metric: Metric, labels: tuple[str, ...]) -> int:
        """Return where a counter is added; `_NOTHING` if it is not used."""
        match metric:
            case metrics.RULE_DECISIONS:
                return self._of_rule(labels[0]) + _OUTCOMES[labels[1]]
            case metrics.RULE_DEGRADED:
                return self._of_rule(labels[0]) + _OUTCOMES[DEGRADED]
            case metrics.PEEKS:
                return _PEEKS
            case metrics.UNLIMITED if labels[0] == Verdict.DENIED:
                return _DENIED
            case metrics.CHECKS:
                return {"error": _ERRORS, "shed": _SHED}.get(labels[1], _NOTHING)
        return _NOTHING

    def _of_rule(self, rule: str) -> int:
        if rule not in self._first:
            self._first[rule] = _RULES + len(_OUTCOMES) * len(self.rules)
            self.rules.append(rule)
        return self._first[rule]


def by_outcome(counts: list[int]) -> dict[str, list[int]]:
    return {outcome: counts[_RULES + place :: len(_OUTCOMES)] for outcome, place in _OUTCOMES.items()}


def requests_of(counts: list[int]) -> tuple[int, int, int, int]:
    """Return the requests that were allowed, refused, decided without the store, and refused only by shadow rules."""
    _, refused, degraded, _, shadow_refused = map(sum, by_outcome(counts).values())
    requests, refused = max(0, counts[_REQUESTS] - counts[_PEEKS]), refused + counts[_DENIED]
    return max(0, requests - refused), refused, min(degraded, max(requests, refused)), shadow_refused


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 2) if seconds else 0.0


def _bounded(keys: Iterable[HotKey]) -> tuple[HotKey, ...]:
    return tuple([msgspec.structs.replace(each, key=each.key[:LONGEST_VALUE]) for each in list(keys)[:MOST_KEYS]])
