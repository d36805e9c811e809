"""The counts of a replay: how much each rule decided and refused, whom, and when. Memory is bounded:

* A `Timeline` has at most `MOST_BUCKETS` buckets of time and `MOST_CELLS` counts. Beyond that its buckets are merged
  into
  wider ones, so counts stay exact.
* The principals refused most often are found with the algorithm of Misra and Gries (`headgate.observe.hot_keys`).
  Counts
  are exact until there are too many principals, and never too high.
* The number of principals is exact up to twice the size of a sample, which then halves by hash: an estimate within a
  few
  percent.

Samples share a fixed number of places, so they are smaller with thousands of rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from headgate.config.times import moment_text
from headgate.core.key import Principal
from headgate.core.numbers import printable
from headgate.core.quota import SECOND
from headgate.engine import Engine, Ruling
from headgate.observe.hot_keys import Frequent
from headgate.observe.refusals import bounded_text, value_of
from headgate.policy.prepared import PreparedRule
from headgate.policy.request import Request
from headgate.policy.selection import Selection, Verdict

MOST_BUCKETS, MOST_CELLS = 360, 200_000
MOST_SAMPLED, MOST_NAMED = 100_000, 50_000
"""Total sizes, over all rules, of the samples of principals and of the lists of those refused most often."""
LARGEST = 8192
"""Largest sample."""
SHOWN = 10
"""Principals refused most often in the summary of a rule."""
DENY_LIST = "deny list"
"""Listed as a rule for refusals by the deny list; ids of rules have no spaces."""
_HASHES = 1 << 32
_WIDTHS = [seconds * SECOND for seconds in (1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)]
"""Widths of buckets, each a multiple of the one before it. After the last they double."""
_LONGEST = 200
"""Longest method, path or user agent."""
_DECIDED, _REFUSED, _SHADOW = 0, 1, 2
Series: TypeAlias = dict[int, list[int]]
"""By bucket: decided, refused, and would be refused by a shadow."""
Refusing: TypeAlias = list[tuple[str, Principal]]
"""The refusing rules, each with its principal."""


class Timeline:
    """Buckets of time, widened to limit their number. Time must not go back."""

    def __init__(self) -> None:
        self._widths = iter(_WIDTHS)
        self.width_us = next(self._widths)
        self.bucket = self.ends = 0
        """The number of the current bucket, and the start of the next."""
        self._first: int | None = None
        self._series: list[Series] = []

    def series(self) -> Series:
        """Return a series whose counts are merged when buckets are widened."""
        self._series.append({})
        return self._series[-1]

    def move(self, at: int) -> None:
        """Set the time, in microseconds since the epoch."""
        if self._first is None:
            self._first = at
        cells = sum(map(len, self._series))
        while at // self.width_us - self._first // self.width_us >= MOST_BUCKETS or cells > MOST_CELLS:
            cells = self._widen()
        self.bucket = at // self.width_us
        self.ends = (self.bucket + 1) * self.width_us

    def _widen(self) -> int:
        before = self.width_us
        self.width_us = next(self._widths, 2 * before)
        for series in self._series:
            merged: Series = {}
            for bucket, counts in series.items():
                into = merged.setdefault(bucket * before // self.width_us, [0] * len(counts))
                into[:] = map(int.__add__, into, counts)
            series.clear()
            series.update(merged)
        return sum(map(len, self._series))

    def dense(self, series: Series, kind: int) -> list[int]:
        """Return the counts of a kind for all buckets up to the current one."""
        first = 0 if self._first is None else self._first // self.width_us
        return [series[bucket][kind] if bucket in series else 0 for bucket in range(first, self.bucket + 1)]

    def starts(self) -> int:
        """Return the start of the first bucket."""
        return 0 if self._first is None else self._first // self.width_us * self.width_us


class Distinct:
    """Counts distinct principals by their hashes, exactly up to twice the size."""

    __slots__ = ("_below", "_kept", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._below = size, _HASHES
        self._kept: set[int] = set()

    def add(self, hashed: int) -> None:
        """Add a principal by its `hash_of`."""
        if hashed < self._below:
            self._kept.add(hashed)
            while len(self._kept) > 2 * self._size:
                self._below //= 2
                self._kept = {each for each in self._kept if each < self._below}

    @property
    def is_exact(self) -> bool:
        return self._below == _HASHES

    def count(self) -> int:
        """Return the number of principals, possibly an estimate."""
        return len(self._kept) * (_HASHES // self._below)


def hash_of(principal: Principal) -> int:
    """Return a number below 2^32 that is the same in every run, unlike `hash`."""
    return crc32(principal if isinstance(principal, bytes) else principal.encode(errors="surrogatepass"))


class Caller(NamedTuple):
    at: int
    principal: str
    method: str
    path: str
    agent: str


class Refused:
    """Requests refused by one rule."""

    __slots__ = ("count", "first", "principals", "who")

    def __init__(self, sampled: int, named: int) -> None:
        self.count = 0
        self.first: Caller | None = None
        self.principals = Distinct(sampled)
        self.who: Frequent[str] = Frequent(named)

    def add(self, caller: Caller, hashed: int) -> None:
        self.count += 1
        if self.first is None:
            self.first = caller
        self.principals.add(hashed)
        self.who.add(caller.principal)

    def summary(self) -> RefusedSummary:
        top = tuple([Refusals(who, round(count)) for who, count in self.who.largest(SHOWN)])
        first = None
        if self.first is not None:
            at, *rest = self.first
            first = FirstRefusal(moment_text(at), *rest)
        return RefusedSummary(
            self.count, self.principals.count(), self.principals.is_exact, first, top, self.who.missed == 0
        )


class RuleCounts:
    __slots__ = ("principals", "refused", "series", "shadow")

    def __init__(self, series: Series, sampled: int, named: int) -> None:
        self.series = series
        self.principals = Distinct(sampled)
        self.refused, self.shadow = Refused(sampled, named), Refused(sampled, named)


class RulesResults:
    """Results of one ruleset, decided by an engine."""

    def __init__(self, engine: Engine, timeline: Timeline) -> None:
        self._engine, self._timeline = engine, timeline
        self.size = len(engine.policy.rules)
        self._sizes = sizes_for(self.size)
        self._rules: dict[str, RuleCounts] = {}
        self._series = timeline.series()
        self.requests = self.allow_listed = 0
        self.denied = Refused(*self._sizes)
        """By the deny list."""
        self.principals = Distinct(LARGEST)
        """Those refused by any rule, as that rule counts them."""
        self.refused = self.unmatched = self.invalid = 0
        self.problem = ""
        """The error of the first invalid request."""

    def count(self, request: Request, ruling: Ruling, at: int, agent: str) -> None:
        """Count a ruling at the timeline's current time."""
        bucket = self._timeline.bucket
        cell = self._series.setdefault(bucket, [0, 0, 0])
        cell[_DECIDED] += 1
        self.requests += 1
        selection = ruling.selection
        if not isinstance(selection, Selection):
            raise TypeError("a ruling of an engine has its selection")
        last = ""
        for limit, rule in zip(selection.enforced.plan, ruling.rules, strict=True):
            if rule is not last:
                last = rule
                self._decided(rule, limit.principal, bucket)
        if ruling.shadow_rules and self._tried(request, ruling, selection, at, agent) and ruling.allowed:
            cell[_SHADOW] += 1
        if ruling.allowed:
            if ruling.decision is None:
                self.allow_listed += ruling.verdict is Verdict.ALLOWED
                self.unmatched += not ruling.matched and ruling.verdict is Verdict.UNLIMITED
            return
        self.refused += 1
        cell[_REFUSED] += 1
        for rule, principal in refusing(request, ruling):
            hashed = hash_of(principal)
            self.principals.add(hashed)
            caller = self.caller(request, rule, principal, at, agent)
            if rule == DENY_LIST:
                self.denied.add(caller, hashed)
            else:
                counts = self._rules[rule]
                counts.series[bucket][_REFUSED] += 1
                counts.refused.add(caller, hashed)

    def undecidable(self, error: Exception) -> None:
        """Count an invalid request, which a service answers with 400."""
        self.invalid += 1
        self.problem = self.problem or str(error)

    def caller(self, request: Request, rule: str, principal: Principal, at: int, agent: str) -> Caller:
        """Return the caller as the rule counts it; long names are shortened."""
        shown = principal if isinstance(principal, str) else value_of(request, rule, self._engine)
        what = [printable(text[:_LONGEST]) for text in (request.method, request.endpoint, agent)]
        return Caller(at, printable(shown), *what)

    def _decided(self, rule: str, principal: Principal, bucket: int) -> RuleCounts:
        counts = self._rules.get(rule)
        if counts is None:
            counts = self._rules[rule] = RuleCounts(self._timeline.series(), *self._sizes)
        cell = counts.series.setdefault(bucket, [0, 0, 0])
        cell[_DECIDED] += 1
        counts.principals.add(hash_of(principal))
        return counts

    def _tried(self, request: Request, ruling: Ruling, selection: Selection, at: int, agent: str) -> bool:
        """Count the results of shadow rules; return whether one would refuse."""
        bucket, denied = self._timeline.bucket, set(ruling.shadow_denied)
        for limits in selection.shadow:
            rule, principal = limits.rules[0], limits.plan[0].principal
            counts = self._decided(rule, principal, bucket)
            if rule in denied:
                counts.series[bucket][_SHADOW] += 1
                counts.shadow.add(self.caller(request, rule, principal, at, agent), hash_of(principal))
        return bool(denied)

    def summary(self) -> RulesSummary:
        """Return the results; rules that refuse most come first."""
        line = self._timeline
        rules = [self._rule_summary(rule) for rule in self._engine.policy.rules.values()]
        rules.sort(key=lambda rule: (-rule.refused.count, -rule.would_refuse.count, -rule.decided))
        return RulesSummary(
            requests=self.requests,
            allowed=self.requests - self.refused,
            refused=self.refused,
            would_refuse=sum([cell[_SHADOW] for cell in self._series.values()]),
            principals_refused=self.principals.count(),
            unmatched=self.unmatched,
            allow_listed=self.allow_listed,
            deny_listed=self.denied.summary(),
            invalid=self.invalid,
            problem=self.problem,
            requests_over_time=line.dense(self._series, _DECIDED),
            refused_over_time=line.dense(self._series, _REFUSED),
            would_refuse_over_time=line.dense(self._series, _SHADOW),
            rules=tuple(rules),
        )

    def _rule_summary(self, prepared: PreparedRule) -> RuleSummary:
        rule = prepared.rule
        counts, line = self._rules.get(rule.id) or RuleCounts({}, *self._sizes), self._timeline
        return RuleSummary(
            id=rule.id,
            name=rule.name,
            counts_by=rule.dimension,
            limit="; ".join(map(str, rule.quotas)),
            enabled=rule.enabled,
            shadow=rule.shadow,
            decided=sum([cell[_DECIDED] for cell in counts.series.values()]),
            principals=counts.principals.count(),
            refused=counts.refused.summary(),
            would_refuse=counts.shadow.summary(),
            decided_over_time=line.dense(counts.series, _DECIDED),
            refused_over_time=line.dense(counts.series, _REFUSED),
            would_refuse_over_time=line.dense(counts.series, _SHADOW),
        )


def refusing(request: Request, ruling: Ruling) -> Refusing:
    decision, selection = ruling.decision, ruling.selection
    if decision is None or not isinstance(selection, Selection):
        return [(DENY_LIST, bounded_text(", ".join(request.principal.values())))]
    found: dict[str, Principal] = {}
    for part, rule, limit in zip(decision.limits, ruling.rules, selection.enforced.plan, strict=True):
        if not part.allowed:
            found[rule] = limit.principal
    return [*found.items()]


def sizes_for(rules: int) -> tuple[int, int]:
    """Return the sizes of a rule's samples and lists of names for a number of rules."""
    each = max(rules, 1)
    return min(max(MOST_SAMPLED // each, 16), LARGEST // 8), min(max(MOST_NAMED // each, 10), 250)


class Comparison:
    """The effect of other rules: requests that one ruleset refuses and the other admits."""

    def __init__(self, first: RulesResults, second: RulesResults, timeline: Timeline) -> None:
        self._sides = first, second
        self._timeline, self._series = timeline, timeline.series()
        self._sizes = sizes_for(first.size + second.size)
        self._newly: tuple[dict[str, Refused], dict[str, Refused]] = {}, {}
        self._counts = [0, 0]
        self._principals = Distinct(LARGEST), Distinct(LARGEST)

    def count(self, request: Request, rulings: Sequence[Ruling | None], at: int, agent: str) -> None:
        """Count a request that just one of them admits; None: it is invalid."""
        before, after = rulings
        if before is None or after is None or before.allowed == after.allowed:
            return
        kind = 0 if before.allowed else 1  # newly refused, newly admitted
        self._counts[kind] += 1
        cell = self._series.setdefault(self._timeline.bucket, [0, 0])
        cell[kind] += 1
        side = self._sides[1 - kind]
        for rule, principal in refusing(request, after if before.allowed else before):
            newly = self._newly[kind]
            if rule not in newly:
                newly[rule] = Refused(*self._sizes)
            hashed = hash_of(principal)
            self._principals[kind].add(hashed)
            newly[rule].add(side.caller(request, rule, principal, at, agent), hashed)

    def summary(self) -> ComparisonSummary:
        refused, admitted = self._newly
        return ComparisonSummary(
            newly_refused=self._counts[0],
            principals_newly_refused=self._principals[0].count(),
            newly_admitted=self._counts[1],
            principals_newly_admitted=self._principals[1].count(),
            refused_by=_by_rule(refused),
            admitted_by=_by_rule(admitted),
            newly_refused_over_time=self._timeline.dense(self._series, 0),
            newly_admitted_over_time=self._timeline.dense(self._series, 1),
        )


def _by_rule(newly: Mapping[str, Refused]) -> dict[str, RefusedSummary]:
    return {rule: each.summary() for rule, each in sorted(newly.items(), key=lambda item: -item[1].count)}


class Refusals(msgspec.Struct, frozen=True):
    """A principal and how often it was refused."""

    principal: str
    count: int


class FirstRefusal(msgspec.Struct, frozen=True):
    at: str
    """RFC 3339, UTC."""
    principal: str
    method: str
    path: str
    agent: str


class RefusedSummary(msgspec.Struct, frozen=True):
    """Refused requests and their principals."""

    count: int
    principals: int
    principals_exact: bool
    """False if estimated."""
    first: FirstRefusal | None
    top: tuple[Refusals, ...]
    """The principals refused most often."""
    top_exact: bool
    """False if counts are lower bounds."""


class RuleSummary(msgspec.Struct, frozen=True):
    """Results of one rule."""

    id: str
    name: str
    counts_by: str
    limit: str
    enabled: bool
    shadow: bool
    decided: int
    """Requests that the rule applied to, including as a shadow."""
    principals: int
    """Their number of principals, possibly an estimate."""
    refused: RefusedSummary
    would_refuse: RefusedSummary
    """As a shadow."""
    decided_over_time: list[int]
    refused_over_time: list[int]
    would_refuse_over_time: list[int]


class RulesSummary(msgspec.Struct, frozen=True):
    """Results of one ruleset."""

    requests: int
    allowed: int
    refused: int
    would_refuse: int
    """Admitted requests that a shadow would refuse."""
    principals_refused: int
    unmatched: int
    allow_listed: int
    deny_listed: RefusedSummary
    invalid: int
    """Requests that a service would answer with an error; counted nowhere else."""
    problem: str
    """The error of the first of them."""
    requests_over_time: list[int]
    refused_over_time: list[int]
    would_refuse_over_time: list[int]
    rules: tuple[RuleSummary, ...]


class ComparisonSummary(msgspec.Struct, frozen=True):
    """Effect of other rules."""

    newly_refused: int
    principals_newly_refused: int
    newly_admitted: int
    principals_newly_admitted: int
    refused_by: dict[str, RefusedSummary]
    """Newly refused requests, by the rule that will refuse them."""
    admitted_by: dict[str, RefusedSummary]
    """Newly admitted requests, by the rule that now refuses them."""
    newly_refused_over_time: list[int]
    newly_admitted_over_time: list[int]
