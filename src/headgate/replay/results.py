"""The counts of a replay: how much each rule decided and refused, whom, and when. Memory is bounded:

* A `Timeline` has at most `MOST_BUCKETS` buckets of time and `MOST_CELLS` counts. Beyond that its buckets are merged
  into wider ones, so counts stay exact.
* The principals refused most often are found with the algorithm of Misra and Gries (`headgate.observe.hot_keys`).
  Counts are exact until there are too many principals, and never too high.
* The number of principals is exact up to twice the size of a sample, which then halves by hash: an estimate within a
  few percent.

Samples share a fixed number of places, so they are smaller with thousands of rules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from headgate.config.times import moment_text
from headgate.core.key import Principal
from headgate.core.quota import SECOND
from headgate.engine import Engine, Ruling
from headgate.messages import printable
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
Series: TypeAlias = Counter[int]
"""Requests by the number of their bucket."""
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
        self._series.append(Counter())
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
            merged: Series = Counter()
            for bucket, count in series.items():
                merged[bucket * before // self.width_us] += count
            series.clear()
            series.update(merged)
        return sum(map(len, self._series))

    def dense(self, series: Series) -> list[int]:
        """Return the counts of all buckets up to the current one."""
        first = 0 if self._first is None else self._first // self.width_us
        return [series[bucket] for bucket in range(first, self.bucket + 1)]

    def starts(self) -> int:
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
        return len(self._kept) * (_HASHES // self._below)


def hash_of(principal: Principal) -> int:
    """Return a number below 2^32 that is the same in every run, unlike `hash`."""
    return crc32(principal if isinstance(principal, bytes) else principal.encode(errors="surrogatepass"))


class Line(NamedTuple):
    """The request of a line, the time at which it was decided, and the user agent."""

    request: Request
    at: int
    agent: str


class Refused:
    __slots__ = ("callers", "count", "first", "principals")

    def __init__(self, sampled: int, named: int) -> None:
        self.count = 0
        self.first: FirstRefusal | None = None
        self.principals = Distinct(sampled)
        self.callers: Frequent[str] = Frequent(named)

    def add(self, line: Line, shown: str, hashed: int) -> None:
        """Count a request by its principal, as shown and as hashed."""
        self.count += 1
        if self.first is None:
            texts = line.request.method, line.request.endpoint, line.agent
            self.first = FirstRefusal(moment_text(line.at), shown, *[printable(text[:_LONGEST]) for text in texts])
        self.principals.add(hashed)
        self.callers.add(shown)

    def summary(self) -> RefusedSummary:
        top = tuple([RefusedPrincipal(caller, round(count)) for caller, count in self.callers.largest(SHOWN)])
        principals = self.principals
        return RefusedSummary(
            self.count, principals.count(), principals.is_exact, self.first, top, top_exact=self.callers.missed == 0
        )


class RuleCounts:
    """The requests that a rule decided, by time, and those that it refused or, as a shadow, would refuse."""

    __slots__ = ("decided", "principals", "refused", "refused_times", "shadow", "shadow_times")

    def __init__(self, timeline: Timeline, sampled: int, named: int) -> None:
        self.decided, self.refused_times, self.shadow_times = (timeline.series() for _ in range(3))
        self.principals = Distinct(sampled)
        self.refused, self.shadow = Refused(sampled, named), Refused(sampled, named)


class RulesResults:
    def __init__(self, engine: Engine, timeline: Timeline) -> None:
        self._engine, self._timeline = engine, timeline
        self.size = len(engine.policy.rules)
        self._sizes = sizes_for(self.size)
        self._rules: dict[str, RuleCounts] = {}
        self._decided, self._refused, self._shadow = (timeline.series() for _ in range(3))
        self._denied = Refused(*self._sizes)
        """By the deny list."""
        self._principals = Distinct(LARGEST)
        """Those refused by any rule, as that rule counts them."""
        self._allow_listed = self._unmatched = self._invalid = 0
        self._problem = ""
        """The error of the first invalid request."""

    def count(self, line: Line, ruling: Ruling) -> None:
        """Count a ruling at the timeline's current time."""
        bucket = self._timeline.bucket
        self._decided[bucket] += 1
        selection = ruling.selection
        if not isinstance(selection, Selection):
            raise TypeError("a ruling of an engine has its selection")
        last = ""
        for limit, rule in zip(selection.enforced.plan, ruling.rules, strict=True):
            if rule is not last:
                last = rule
                self._decide(rule, limit.principal, bucket)
        if ruling.shadow_rules and self._try(line, ruling, selection) and ruling.allowed:
            self._shadow[bucket] += 1
        if ruling.allowed:
            if ruling.decision is None:
                self._allow_listed += ruling.verdict is Verdict.ALLOWED
                self._unmatched += not ruling.matched and ruling.verdict is Verdict.UNLIMITED
            return
        self._refused[bucket] += 1
        for rule, principal in refusals_of(line.request, ruling):
            hashed = hash_of(principal)
            self._principals.add(hashed)
            refused = self._denied
            if rule != DENY_LIST:
                counts = self._rules[rule]
                counts.refused_times[bucket] += 1
                refused = counts.refused
            refused.add(line, self.shown(line.request, rule, principal), hashed)

    def undecidable(self, error: Exception) -> None:
        """Count an invalid request, which a service answers with 400."""
        self._invalid += 1
        self._problem = self._problem or str(error)

    def shown(self, request: Request, rule: str, principal: Principal) -> str:
        return printable(principal if isinstance(principal, str) else value_of(request, rule, self._engine))

    def _decide(self, rule: str, principal: Principal, bucket: int) -> RuleCounts:
        counts = self._rules.get(rule)
        if counts is None:
            counts = self._rules[rule] = RuleCounts(self._timeline, *self._sizes)
        counts.decided[bucket] += 1
        counts.principals.add(hash_of(principal))
        return counts

    def _try(self, line: Line, ruling: Ruling, selection: Selection) -> bool:
        """Count the results of shadow rules; return whether one would refuse."""
        bucket, denied = self._timeline.bucket, set(ruling.shadow_denied)
        for limits in selection.shadow:
            rule, principal = limits.rules[0], limits.plan[0].principal
            counts = self._decide(rule, principal, bucket)
            if rule in denied:
                counts.shadow_times[bucket] += 1
                counts.shadow.add(line, self.shown(line.request, rule, principal), hash_of(principal))
        return bool(denied)

    def summary(self) -> RulesSummary:
        """Return the results; rules that refuse most come first."""
        dense, requests, refused = self._timeline.dense, self._decided.total(), self._refused.total()
        rules = [self._rule_summary(rule) for rule in self._engine.policy.rules.values()]
        rules.sort(key=lambda rule: (-rule.refused.count, -rule.would_refuse.count, -rule.decided))
        return RulesSummary(
            requests=requests,
            allowed=requests - refused,
            refused=refused,
            would_refuse=self._shadow.total(),
            principals_refused=self._principals.count(),
            unmatched=self._unmatched,
            allow_listed=self._allow_listed,
            deny_listed=self._denied.summary(),
            invalid=self._invalid,
            problem=self._problem,
            requests_over_time=dense(self._decided),
            refused_over_time=dense(self._refused),
            would_refuse_over_time=dense(self._shadow),
            rules=tuple(rules),
        )

    def _rule_summary(self, prepared: PreparedRule) -> RuleSummary:
        rule, dense = prepared.rule, self._timeline.dense
        counts = self._rules.get(rule.id) or RuleCounts(Timeline(), *self._sizes)
        return RuleSummary(
            id=rule.id,
            name=rule.name,
            counts_by=rule.dimension,
            limit="; ".join(map(str, rule.quotas)),
            enabled=rule.enabled,
            shadow=rule.shadow,
            decided=counts.decided.total(),
            principals=counts.principals.count(),
            refused=counts.refused.summary(),
            would_refuse=counts.shadow.summary(),
            decided_over_time=dense(counts.decided),
            refused_over_time=dense(counts.refused_times),
            would_refuse_over_time=dense(counts.shadow_times),
        )


def refusals_of(request: Request, ruling: Ruling) -> Refusing:
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


class Changes:
    """Requests that only one of two rulesets refuses."""

    def __init__(self, timeline: Timeline, sizes: tuple[int, int]) -> None:
        self.times, self.principals = timeline.series(), Distinct(LARGEST)
        self.by_rule: defaultdict[str, Refused] = defaultdict(lambda: Refused(*sizes))

    def rules(self) -> dict[str, RefusedSummary]:
        """Return them by the rule that refuses them, those with the most first."""
        return {rule: each.summary() for rule, each in sorted(self.by_rule.items(), key=lambda item: -item[1].count)}


class Comparison:
    """The effect of other rules: requests that one ruleset refuses and the other admits."""

    def __init__(self, first: RulesResults, second: RulesResults, timeline: Timeline) -> None:
        self._before, self._after, self._timeline = first, second, timeline
        sizes = sizes_for(first.size + second.size)
        self._refused, self._admitted = Changes(timeline, sizes), Changes(timeline, sizes)

    def count(self, line: Line, rulings: Sequence[Ruling | None]) -> None:
        """Count a request that just one of them admits; None: it is invalid."""
        before, after = rulings
        if before is None or after is None or before.allowed == after.allowed:
            return
        refusal, side, changes = before, self._before, self._admitted
        if before.allowed:
            refusal, side, changes = after, self._after, self._refused
        changes.times[self._timeline.bucket] += 1
        for rule, principal in refusals_of(line.request, refusal):
            hashed = hash_of(principal)
            changes.principals.add(hashed)
            changes.by_rule[rule].add(line, side.shown(line.request, rule, principal), hashed)

    def summary(self) -> ComparisonSummary:
        refused, admitted = self._refused, self._admitted
        return ComparisonSummary(
            newly_refused=refused.times.total(),
            principals_newly_refused=refused.principals.count(),
            newly_admitted=admitted.times.total(),
            principals_newly_admitted=admitted.principals.count(),
            refused_by=refused.rules(),
            admitted_by=admitted.rules(),
            newly_refused_over_time=self._timeline.dense(refused.times),
            newly_admitted_over_time=self._timeline.dense(admitted.times),
        )


class RefusedPrincipal(msgspec.Struct, frozen=True):
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
    count: int
    principals: int
    principals_exact: bool
    """False if estimated."""
    first: FirstRefusal | None
    top: tuple[RefusedPrincipal, ...]
    """The principals refused most often."""
    top_exact: bool
    """False if counts are lower bounds."""


class RuleSummary(msgspec.Struct, frozen=True):
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
