"""The current decisions per second of a service, from the counters of its workers.

A reading takes the changes since the previous one. A request counts once, however many rules match it: timed decisions
minus peeks. Refusals are counted by rule, so a request that two rules refuse counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import nlargest

import msgspec

from headgate.clock import BUCKETS
from headgate.observe import metrics
from headgate.observe.hot_keys import HotKey, HotList
from headgate.observe.metrics import Metric, MetricKind
from headgate.observe.recorder import ALLOWED, DEGRADED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED
from headgate.observe.table import LONGEST_VALUE, Counts, Place, values_of
from headgate.observe.workers import Slice
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
_PLACES = {ALLOWED: 0, DENIED: 1, DEGRADED: 2, SHADOW_ALLOWED: 3, SHADOW_DENIED: 4}
"""Position of an outcome among a rule's counts, in the order of `RuleRates`."""
_NOTHING, _REQUESTS, _PEEKS, _DENIED = range(4)
_CALLS = {"error": 4, "shed": 5}
_RULES = 6
"""Positions of requests, calls, and the first rule among all counts."""


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
    """A step of the history."""

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
        counted: Callable[[], Iterable[Slice]],
        hot_keys: Callable[[], bytes],
        store: str,
        clock: Callable[[], int],
    ) -> None:
        self._counted, self._hot_keys, self._store, self._now = counted, hot_keys, store, clock
        self._places = _Places()
        self._workers: dict[int, _Worker] = {}
        self._looks: deque[int] = deque(maxlen=2)
        self._history: deque[Point] = deque(maxlen=STEPS)
        self._troubled_since = 0

    def look(self) -> Figures:
        """Return the current figures. Thread-safe if not concurrent. Raises OSError."""
        slices, now = list(self._counted()), self._now()
        for worker in slices:
            if worker.slot not in self._workers:
                self._workers[worker.slot] = _Worker(self._places, is_new=bool(self._looks))
            self._workers[worker.slot].learn(worker.series)
        counts = [0] * len(self._places)
        for worker in slices:
            self._workers[worker.slot].look(worker.series.cells, counts)
        seconds = (now - self._looks[0]) / 1_000_000 if self._looks else 0.0
        rates = _rates(counts, seconds)
        looks_since_epoch = round(now / LOOK_US)
        at = (looks_since_epoch // 2 - 1) * STEP_SECONDS
        if looks_since_epoch % 2 == 0 and len(self._looks) > 1:  # the last two readings are a step
            self._history.append(Point(at, rates.allowed, rates.refused, rates.degraded, rates.shadow_refused))
        self._looks.append(now)
        gauges = _Gauges()
        for worker in slices:
            if worker.alive:
                for place in self._workers[worker.slot].gauges:
                    gauges.note(place, worker.series.cells[place.begin])
        self._troubled_since = (self._troubled_since or now) if gauges.circuits else 0
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
            {shard: _CIRCUITS[state] for shard, state in sorted(gauges.circuits.items())[:MOST_CIRCUITS]},
            self._troubled_since,
            sum(worker.alive for worker in slices),
            ", ".join(sorted(gauges.versions)),
            gauges.enforcing,
            tuple(sorted(gauges.broken)),
        )

    def _first_rules(self, counts: list[int], seconds: float) -> tuple[RuleRates, ...]:
        """Return the rules with the most decisions and those with the most refusals, the busiest first."""
        allowed, refused, degraded, shadow_allowed, shadow_refused = _columns(counts)
        decided = list(map(sum, zip(allowed, refused, shadow_allowed, shadow_refused, strict=True)))
        found: dict[int, None] = {}
        for column in (decided, refused, shadow_refused):
            if any(column):
                first = nlargest(MOST_RULES, range(len(column)), key=column.__getitem__)
                found |= dict.fromkeys([rule for rule in first if column[rule]])
        columns = allowed, refused, degraded, shadow_allowed, shadow_refused
        rules = self._places.rules
        return tuple([RuleRates(rules[rule], *[_rate(each[rule], seconds) for each in columns]) for rule in found])


class _Places:
    """Positions of counts in a list: first those of requests, then five for each rule.

    A reading allocates only lists of numbers: thousands of small objects would make the garbage collector traverse all
    rules repeatedly, in the process that decides.
    """

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._first: dict[str, int] = {}

    def __len__(self) -> int:
        return _RULES + len(_PLACES) * len(self.rules)

    def of(self, metric: Metric, labels: tuple[str, ...]) -> int:
        """Return the position of a metric's cell; `_NOTHING` if it is not counted."""
        match metric:
            case metrics.RULE_DECISIONS:
                return self._of_rule(labels[0]) + _PLACES[labels[1]]
            case metrics.RULE_DEGRADED:
                return self._of_rule(labels[0]) + _PLACES[DEGRADED]
            case metrics.PEEKS:
                return _PEEKS
            case metrics.UNLIMITED if labels[0] == Verdict.DENIED:
                return _DENIED
            case metrics.CHECKS:
                return _CALLS.get(labels[1], _NOTHING)
        return _NOTHING

    def _of_rule(self, rule: str) -> int:
        known = self._first.get(rule)
        if known is None:
            known = self._first[rule] = len(self)
            self.rules.append(rule)
        return known


def _columns(counts: list[int]) -> list[list[int]]:
    """Return the counts of each outcome by rule."""
    return [counts[_RULES + place :: len(_PLACES)] for place in _PLACES.values()]


def _rates(counts: list[int], seconds: float) -> Rates:
    _, refused, degraded, _, shadow_refused = map(sum, _columns(counts))
    requests = max(0, counts[_REQUESTS] - counts[_PEEKS])
    refused += counts[_DENIED]
    allowed, degraded = max(0, requests - refused), min(degraded, max(requests, refused))
    totals = allowed, refused, degraded, shadow_refused, counts[_CALLS["error"]], counts[_CALLS["shed"]]
    return Rates(*[_rate(count, seconds) for count in totals])


class _Worker:
    """The cells of one worker at the last two readings. New cells are only appended."""

    def __init__(self, places: _Places, *, is_new: bool) -> None:
        self._places = places
        self._looks: deque[list[int]] = deque([[]] if is_new else [], maxlen=2)
        self._counted: list[int] = []
        self._known = 0
        self.gauges: list[Place] = []

    def learn(self, counts: Counts) -> None:
        """Assign positions to the cells of new series."""
        counted = self._counted
        counted += [_NOTHING] * (len(counts.cells) - len(counted))
        for place in counts.places[self._known :]:
            if place.metric.kind is MetricKind.GAUGE:
                self.gauges.append(place)
            elif place.metric is metrics.DECISION_DURATION:
                counted[place.begin : place.begin + BUCKETS] = [_REQUESTS] * BUCKETS
            else:
                counted[place.begin] = self._places.of(place.metric, values_of(place.labels))
        self._known = len(counts.places)

    def look(self, now: list[int], counts: list[int]) -> None:
        """Add the counts since the reading before last."""
        before = self._looks[0] if self._looks else now
        self._looks.append(now)
        before += [0] * (len(now) - len(before))
        for place, new, old in zip(self._counted, now, before, strict=True):
            if new != old:
                counts[place] += new - old


class _Gauges:
    def __init__(self) -> None:
        self.circuits: dict[str, int] = {}
        self.versions: set[str] = set()
        self.broken: set[str] = set()
        self.enforcing = True

    def note(self, place: Place, value: int) -> None:
        metric, labels, *_ = place
        if metric is metrics.ENFORCEMENT:
            self.enforcing = self.enforcing and bool(value)
        elif not value:
            return
        elif metric is metrics.CIRCUIT_STATE:
            (shard,) = values_of(labels)
            self.circuits[shard] = max(value, self.circuits.get(shard, 0))
        elif metric is metrics.BUILD:
            self.versions.add(values_of(labels)[0])
        elif metric is metrics.RULES_BROKEN:
            self.broken.add("rules")
        elif metric is metrics.CONFIG_BROKEN:
            self.broken.update(values_of(labels))


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 2) if seconds else 0.0


def _bounded(keys: Iterable[HotKey]) -> tuple[HotKey, ...]:
    return tuple([msgspec.structs.replace(each, key=each.key[:LONGEST_VALUE]) for each in list(keys)[:MOST_KEYS]])
