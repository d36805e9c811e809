"""What a replay counts: of each rule, how much it decided and refused, who was refused, and when.

Memory is bounded, however long the log is and however many principals it has:

* When: a `Timeline` has at most `MOST_BUCKETS` buckets of time and `MOST_CELLS` counts in all. Where there would be
  more, its buckets are merged into wider ones, so that counts stay exact.
* Who: those refused most often are found by the algorithm of Misra and Gries (`headgate.observe.hot_keys`). Counts are
  exact until there are too many principals to count, and never too high.
* How many principals: exact up to twice the size of a sample, which then goes on with half of them, by their hash, and
  half of those again: an estimate, right by a few percent.

Samples share a fixed number of places, so that they are smaller where there are thousands of rules.
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
"""Places of the samples of all rules for counting principals, and of their lists of those refused most often."""
LARGEST = 8192
"""Places of one sample at most."""
SHOWN = 10
"""How many of those refused most often are in the summary of a rule."""
DENY_LIST = "deny list"
"""Stands for a rule where the deny list of the rules refuses; no id of a rule has a space."""
_HASHES = 1 << 32
_WIDTHS = [seconds * SECOND for seconds in (1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)]
"""Widths of buckets: each is a multiple of the one before it. After the last they double."""
_LONGEST = 200
"""Characters of a method, a path or a user agent that are kept."""
_DECIDED, _REFUSED, _SHADOW = 0, 1, 2
Series: TypeAlias = dict[int, list[int]]
"""By bucket: how much was decided, refused, and would have been refused by a shadow."""
Refusing: TypeAlias = list[tuple[str, Principal]]
"""The rules that refuse a request, each with the principal that it counts."""


class Timeline:
    """Buckets of time, as wide as it takes to have few of them. Time must not go back."""

    def __init__(self) -> None:
        self._widths = iter(_WIDTHS)
        self.width_us = next(self._widths)
        self.bucket = self.ends = 0
        """The number of the bucket that it is now, and when the next one begins."""
        self._first: int | None = None
        self._series: list[Series] = []

    def series(self) -> Series:
        """Return counts that are merged when buckets get wider."""
        self._series.append({})
        return self._series[-1]

    def move(self, at: int) -> None:
        """Let it be `at`, in microseconds since the epoch."""
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
        """Return counts of a kind for each bucket from the first to the present one."""
        first = 0 if self._first is None else self._first // self.width_us
        return [series[bucket][kind] if bucket in series else 0 for bucket in range(first, self.bucket + 1)]

    def starts(self) -> int:
        """Return when the first bucket begins."""
        return 0 if self._first is None else self._first // self.width_us * self.width_us


class Distinct:
    """Counts different principals by their hashes.

    Args:
        size: half of how many are counted exactly.
    """

    __slots__ = ("_below", "_kept", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._below = size, _HASHES
        self._kept: set[int] = set()

    def add(self, hashed: int) -> None:
        """Count one, by its `hash_of`."""
        if hashed < self._below:
            self._kept.add(hashed)
            while len(self._kept) > 2 * self._size:
                self._below //= 2
                self._kept = {each for each in self._kept if each < self._below}

    @property
    def is_exact(self) -> bool:
        return self._below == _HASHES

    def count(self) -> int:
        """Return how many there are, or about how many."""
        return len(self._kept) * (_HASHES // self._below)


def hash_of(principal: Principal) -> int:
    """Return the same number below 2^32 in every run, unlike `hash`."""
    return crc32(principal if isinstance(principal, bytes) else principal.encode(errors="surrogatepass"))


class Caller(NamedTuple):
    """A request that was refused: who, and what for."""

    at: int
    principal: str
    method: str
    path: str
    agent: str


class Refused:
    """Requests that one rule refused, or what else is counted by who made them."""

    __slots__ = ("count", "first", "people", "who")

    def __init__(self, sampled: int, named: int) -> None:
        self.count = 0
        self.first: Caller | None = None
        self.people = Distinct(sampled)
        self.who: Frequent[str] = Frequent(named)

    def add(self, caller: Caller, hashed: int) -> None:
        self.count += 1
        if self.first is None:
            self.first = caller
        self.people.add(hashed)
        self.who.add(caller.principal)

    def summary(self) -> RefusedSummary:
        """Return what is known, for people and programs."""
        top = tuple([Refusals(who, round(count)) for who, count in self.who.largest(SHOWN)])
        first = None
        if self.first is not None:
            at, *rest = self.first
            first = FirstRefusal(moment_text(at), *rest)
        return RefusedSummary(self.count, self.people.count(), self.people.is_exact, first, top, self.who.missed == 0)


class RuleCounts:
    """What one rule did."""

    __slots__ = ("people", "refused", "series", "shadow")

    def __init__(self, series: Series, sampled: int, named: int) -> None:
        self.series = series
        self.people = Distinct(sampled)
        self.refused, self.shadow = Refused(sampled, named), Refused(sampled, named)


class RulesResults:
    """What the rules of one file do.

    Args:
        engine: what decides by them.
        timeline: shared by all that is counted in a replay.
    """

    def __init__(self, engine: Engine, timeline: Timeline) -> None:
        self._engine, self._timeline = engine, timeline
        self.size = len(engine.policy.rules)
        self._sizes = sizes_for(self.size)
        self._rules: dict[str, RuleCounts] = {}
        self._series = timeline.series()
        self.requests = self.allow_listed = 0
        self.denied = Refused(*self._sizes)
        """By the deny list."""
        self.people = Distinct(LARGEST)
        """Those refused, by whatever rule; each as the rule counts them."""
        self.refused = self.unmatched = self.invalid = 0
        self.problem = ""
        """Of the first request that could not be decided."""

    def count(self, request: Request, ruling: Ruling, at: int, agent: str) -> None:
        """Count what was decided about a request at a time that the timeline has reached."""
        bucket = self._timeline.bucket
        cell = self._series.get(bucket)
        if cell is None:
            cell = self._series[bucket] = [0, 0, 0]
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
            self.people.add(hashed)
            caller = self.caller(request, rule, principal, at, agent)
            if rule == DENY_LIST:
                self.denied.add(caller, hashed)
            else:
                counts = self._rules[rule]
                counts.series[bucket][_REFUSED] += 1
                counts.refused.add(caller, hashed)

    def undecidable(self, error: Exception) -> None:
        """Count a request that would be an error for the service, which answers 400."""
        self.invalid += 1
        self.problem = self.problem or str(error)

    def caller(self, request: Request, rule: str, principal: Principal, at: int, agent: str) -> Caller:
        """Return who made a request, as the rule counts them; a long name is shortened."""
        shown = principal if isinstance(principal, str) else value_of(request, rule, self._engine)
        what = [printable(text[:_LONGEST]) for text in (request.method, request.endpoint, agent)]
        return Caller(at, printable(shown), *what)

    def _decided(self, rule: str, principal: Principal, bucket: int) -> RuleCounts:
        counts = self._rules.get(rule)
        if counts is None:
            counts = self._rules[rule] = RuleCounts(self._timeline.series(), *self._sizes)
        cell = counts.series.get(bucket)
        if cell is None:
            cell = counts.series[bucket] = [0, 0, 0]
        cell[_DECIDED] += 1
        counts.people.add(crc32(principal.encode()) if isinstance(principal, str) else hash_of(principal))
        return counts

    def _tried(self, request: Request, ruling: Ruling, selection: Selection, at: int, agent: str) -> bool:
        """Count what shadow rules say, each once, whatever its number of limits; return whether one would refuse."""
        bucket, denied = self._timeline.bucket, set(ruling.shadow_denied)
        for limits in selection.shadow:
            rule, principal = limits.rules[0], limits.plan[0].principal
            counts = self._decided(rule, principal, bucket)
            if rule in denied:
                counts.series[bucket][_SHADOW] += 1
                counts.shadow.add(self.caller(request, rule, principal, at, agent), hash_of(principal))
        return bool(denied)

    def summary(self) -> RulesSummary:
        """Return what is known, for people and programs; those rules first that refuse most."""
        line = self._timeline
        rules = [self._rule_summary(rule) for rule in self._engine.policy.rules.values()]
        rules.sort(key=lambda rule: (-rule.refused.count, -rule.would_refuse.count, -rule.decided))
        return RulesSummary(
            requests=self.requests,
            allowed=self.requests - self.refused,
            refused=self.refused,
            would_refuse=sum([cell[_SHADOW] for cell in self._series.values()]),
            principals_refused=self.people.count(),
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
            principals=counts.people.count(),
            refused=counts.refused.summary(),
            would_refuse=counts.shadow.summary(),
            decided_over_time=line.dense(counts.series, _DECIDED),
            refused_over_time=line.dense(counts.series, _REFUSED),
            would_refuse_over_time=line.dense(counts.series, _SHADOW),
        )


def refusing(request: Request, ruling: Ruling) -> Refusing:
    """Return the rules that refuse a request, each once."""
    decision, selection = ruling.decision, ruling.selection
    if decision is None or not isinstance(selection, Selection):
        return [(DENY_LIST, bounded_text(", ".join(request.principal.values())))]
    found: dict[str, Principal] = {}
    for part, rule, limit in zip(decision.limits, ruling.rules, selection.enforced.plan, strict=True):
        if not part.allowed:
            found[rule] = limit.principal
    return [*found.items()]


def sizes_for(rules: int) -> tuple[int, int]:
    """Return the size of the samples and of the lists of names of each rule, where there are so many."""
    each = max(rules, 1)
    return min(max(MOST_SAMPLED // each, 16), LARGEST // 8), min(max(MOST_NAMED // each, 10), 250)


class Comparison:
    """What other rules change: requests that one file refuses and the other admits.

    Args:
        first: what the rules do that are compared with.
        second: what the other rules do.
        timeline: shared by all that is counted in a replay.
    """

    def __init__(self, first: RulesResults, second: RulesResults, timeline: Timeline) -> None:
        self._sides = first, second
        self._timeline, self._series = timeline, timeline.series()
        self._sizes = sizes_for(first.size + second.size)
        self._newly: tuple[dict[str, Refused], dict[str, Refused]] = {}, {}
        self._counts = [0, 0]
        self._people = Distinct(LARGEST), Distinct(LARGEST)

    def count(self, request: Request, rulings: Sequence[Ruling | None], at: int, agent: str) -> None:
        """Count a request that one of them admits; None: it could not be decided."""
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
            self._people[kind].add(hashed)
            newly[rule].add(side.caller(request, rule, principal, at, agent), hashed)

    def summary(self) -> ComparisonSummary:
        refused, admitted = self._newly
        return ComparisonSummary(
            newly_refused=self._counts[0],
            principals_newly_refused=self._people[0].count(),
            newly_admitted=self._counts[1],
            principals_newly_admitted=self._people[1].count(),
            refused_by=_by_rule(refused),
            admitted_by=_by_rule(admitted),
            newly_refused_over_time=self._timeline.dense(self._series, 0),
            newly_admitted_over_time=self._timeline.dense(self._series, 1),
        )


def _by_rule(newly: Mapping[str, Refused]) -> dict[str, RefusedSummary]:
    return {rule: each.summary() for rule, each in sorted(newly.items(), key=lambda item: -item[1].count)}


class Refusals(msgspec.Struct, frozen=True):
    """One who was refused, and how often."""

    principal: str
    count: int


class FirstRefusal(msgspec.Struct, frozen=True):
    """The first request that was refused."""

    at: str
    """As RFC 3339 writes it, in UTC."""
    principal: str
    method: str
    path: str
    agent: str


class RefusedSummary(msgspec.Struct, frozen=True):
    """Requests that were refused: how many, of how many principals, and who they were."""

    count: int
    principals: int
    principals_exact: bool
    """Else it is an estimate."""
    first: FirstRefusal | None
    top: tuple[Refusals, ...]
    """Those refused most often."""
    top_exact: bool
    """Else they were refused at least so often."""


class RuleSummary(msgspec.Struct, frozen=True):
    """What one rule did."""

    id: str
    name: str
    counts_by: str
    limit: str
    enabled: bool
    shadow: bool
    decided: int
    """Requests that the rule applied to, as a shadow or not."""
    principals: int
    """Who made them; an estimate where there are many."""
    refused: RefusedSummary
    would_refuse: RefusedSummary
    """As a shadow."""
    decided_over_time: list[int]
    refused_over_time: list[int]
    would_refuse_over_time: list[int]


class RulesSummary(msgspec.Struct, frozen=True):
    """What the rules of one file did."""

    requests: int
    allowed: int
    refused: int
    would_refuse: int
    """Requests that were admitted, and that a shadow would have refused."""
    principals_refused: int
    unmatched: int
    """Requests that no rule applied to."""
    allow_listed: int
    deny_listed: RefusedSummary
    invalid: int
    """Requests that the service would answer with an error, and so count nowhere else."""
    problem: str
    """Of the first of them."""
    requests_over_time: list[int]
    refused_over_time: list[int]
    would_refuse_over_time: list[int]
    rules: tuple[RuleSummary, ...]
    """Those that refuse most first."""


class ComparisonSummary(msgspec.Struct, frozen=True):
    """What other rules change."""

    newly_refused: int
    principals_newly_refused: int
    newly_admitted: int
    principals_newly_admitted: int
    refused_by: dict[str, RefusedSummary]
    """Newly refused requests, by the rule of the other file that refuses them."""
    admitted_by: dict[str, RefusedSummary]
    """Newly admitted requests, by the rule that refuses them now."""
    newly_refused_over_time: list[int]
    newly_admitted_over_time: list[int]
