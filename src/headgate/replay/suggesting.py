"""Suggest limits from observed usage: a rule file with the reasons as comments.

A rule's limit is what 99.9 % of principals needed in their busiest minute and hour, times the headroom, rounded up, and
at least `LEAST_LIMIT`. Principals with one or two requests, like most addresses, say nothing about regular ones: if
enough principals have `REGULAR` requests, the percentiles are theirs.

Outliers are excluded: a few principals at the top (up to 1 %, at least 3 and at most 20) who used at least `GAP` times
as much as the next one.

Windows are measured on the clock, so any other minute may hold the usage of two of them. Hence a headroom of 2 is
enough, with every algorithm, for all principals within the percentile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple, TypeAlias

from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.core.quota import Quota
from headgate.messages import printable
from headgate.policy.addresses import counted_by
from headgate.policy.dumping import to_yaml
from headgate.policy.model import Rule, Ruleset
from headgate.policy.paths import normalised
from headgate.policy.request import APIKEY, IP, USER, InvalidRequest
from headgate.replay.endpoints import Endpoint
from headgate.replay.entry import Entry
from headgate.replay.use import WINDOWS, Usage, Use
from headgate.replay.wording import readable

REGULAR, LEAST_REGULARS = 10, 100
"""Percentiles are those of principals with this many requests, if there are enough of them."""
_LEAST_SAMPLED = 10
"""Fewer principals of an endpoint give no suggestion for it."""
LEAST_LIMIT = 5
"""Lowest limit: where one request is usual, a retry is no abuse."""
GAP, LEAST_OUTLIER = 3, 10
"""An outlier used this many times as much as the next principal, and this many requests in a window."""
_MOST_OUTLIERS = 20
HEADROOM = 2.0
MOST_ENDPOINTS, LEAST_SHARE = 10, 0.01
"""Rules for single endpoints: at most this many, each with this share of all requests."""
LOOKED_AT = 10_000
"""Lines from which to choose the principal."""
_NAMED = 5
_TOO_MANY = 429
_LONGEST_NAME = 80
_DAY_US = 86_400_000_000
_STEPS = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100)
_PEOPLE = {USER: "user", IP: "address", APIKEY: "API key"}
Principal: TypeAlias = Callable[[Entry], str]
_PRINCIPALS: Mapping[str, Principal] = {
    USER: lambda entry: entry.user,
    APIKEY: lambda entry: entry.fields.get(APIKEY, ""),
    IP: lambda entry: counted_by(entry.address) if entry.address else "",
}


class Over(NamedTuple):
    principal: str
    peak: int
    window: str


class Suggested(NamedTuple):
    rule: Rule
    reasons: Sequence[str]
    over: Sequence[Over]
    """Principals above the limit, the worst first."""
    has_regulars: bool
    """Whether the percentiles are those of regular principals."""


class Suggestion(NamedTuple):
    rules: Sequence[Suggested]
    about: Sequence[str]
    """Comments about the measurement."""

    def to_yaml(self) -> str:
        """Return the rules as a file with the reasons as comments."""
        reasons = {f"- id: {each.rule.id}": each.reasons for each in self.rules}
        lines = [f"# {line}" for line in self.about]
        for line in to_yaml(Ruleset(tuple(each.rule for each in self.rules))).splitlines():
            if line in reasons:
                lines += [""] * (lines[-1] != "rules:") + [f"# {reason}" for reason in reasons[line]]
            lines.append(line)
        return "\n".join(lines) + "\n"


class Suggester:
    """Measures the requests of logs and suggests limits.

    Args:
        by: the dimension to count by; default: the user if most of the first requests have one, else the API key, else
            the address.
        field: the log field of another dimension.
        headroom: factor for the measured usage.
        most_endpoints: the maximum number of rules for single endpoints.
        shadow: whether the rules only report.
    """

    def __init__(
        self,
        *,
        by: str = "",
        field: str = "",
        headroom: float = HEADROOM,
        most_endpoints: int = MOST_ENDPOINTS,
        shadow: bool = True,
        usage: Usage | None = None,
    ) -> None:
        if not 1 <= headroom <= 100:
            raise UsageError(f"headroom must be a number from 1 to 100, not {headroom:g}")
        if not 0 <= most_endpoints <= 1000:
            raise UsageError(f"the number of rules for endpoints must be from 0 to 1000, not {most_endpoints}")
        self._by, self._field = by, field
        self._headroom, self._most_endpoints, self._shadow = headroom, most_endpoints, shadow
        self._usage = usage or Usage()
        self.lines = self.without_principal = self.invalid = self.refused = self.unsuggested = 0
        self._began, self._ended = 1 << 62, 0

    def read(self, entries: Iterable[Entry], step: Callable[[], object] = lambda: None) -> None:
        """Measure the requests of a log; `step` is called periodically."""
        source = iter(entries)
        first = [entry for _, entry in zip(range(LOOKED_AT), source, strict=False)]
        principal = self._choose(first)
        for part in (first, source):
            for entry in part:
                self._add(entry, principal)
                if self.lines & 0x3FF == 0:
                    step()

    def _choose(self, first: Sequence[Entry]) -> Principal:
        if not self._by:
            most = [name for name in (USER, APIKEY) if 2 * sum(map(bool, map(_PRINCIPALS[name], first))) > len(first)]
            self._by = most[0] if most else IP
        field = self._field
        return (lambda entry: entry.fields.get(field, "")) if field else _PRINCIPALS[self._by]

    def _add(self, entry: Entry, principal: Principal) -> None:
        self.lines += 1
        self.refused += entry.status == _TOO_MANY
        at = entry.at
        self._began = min(self._began, at)
        self._ended = max(self._ended, at)
        try:
            caller, path = principal(entry), normalised(entry.path)
        except InvalidRequest:  # a service answers with an error and counts nothing
            self.invalid += 1
            return
        if caller:
            self._usage.add(at, caller, entry.method, path, entry.status)
        else:
            self.without_principal += 1

    def suggestion(self) -> Suggestion:
        """Return the rules. Raises UsageError if no request can be counted."""
        usage, people = self._usage, _PEOPLE.get(self._by, self._by)
        if not usage.requests:
            raise UsageError(
                f"none of the {self.lines:,} requests in the log has {_article(people)}: set --by or --column"
            )
        overall = self._suggest(None, f"all-per-{self._by}", LEAST_REGULARS)
        rules, ids = [overall], {overall.rule.id}
        for endpoint in self._endpoints():
            each = self._suggest(endpoint, _id(endpoint, ids), 0 if overall.has_regulars else LEAST_REGULARS)
            if overall.has_regulars and not each.has_regulars:
                self.unsuggested += 1
            elif _acts_before(each.rule, overall.rule):
                ids.add(each.rule.id)
                rules.append(each)
        return Suggestion(rules, [*self._about(people)])

    def _endpoints(self) -> list[Endpoint]:
        found = [each for each in self._usage.endpoints if each.requests >= LEAST_SHARE * self._usage.requests]
        return sorted(found, key=lambda each: (-each.requests, str(each)))[: self._most_endpoints]

    def _suggest(self, endpoint: Endpoint | None, name: str, least_regulars: int) -> Suggested:
        usage, people = self._usage, _PEOPLE.get(self._by, self._by)
        has_hours = self._ended - self._began >= WINDOWS[1][1]
        uses = {unit: usage.use(endpoint, window) for window, (unit, _) in enumerate(WINDOWS[: 1 + has_hours])}
        outliers = set[str]().union(*map(_outliers, uses.values()))
        measured = [_Measured(unit, use, outliers, least_regulars, self._headroom) for unit, use in uses.items()]
        kept = [each for each in measured[:-1] if each.limit < measured[-1].limit] + measured[-1:]
        if len(kept) == 2 and kept[1].limit >= 60 * kept[0].limit:
            kept.pop()
        quotas = Quota.parse("; ".join(f"{each.limit}/{each.unit}" for each in kept))
        requests = usage.requests if endpoint is None else endpoint.requests
        share = f" ({100 * requests / usage.requests:.0f} %)" if endpoint else ""
        what = endpoint or "All endpoints"
        first = measured[0]
        regular = (
            f" Percentiles are those of {first.regulars:,} with {REGULAR} requests or more." if first.regulars else ""
        )
        reasons = [f"{what}: {requests:,} requests{share}, by {first.count_text(people)}.{regular}"]
        reasons += [each.reason() for each in measured]
        over = _over(kept)
        reasons.append(_over_text(over, kept, outliers, people))
        rule = Rule(
            name,
            quotas,
            dimension=self._by,
            endpoint=endpoint.pattern if endpoint else "**",
            methods=frozenset({endpoint.method} if endpoint and endpoint.method else ()),
            shadow=self._shadow,
        )
        return Suggested(rule, [printable(reason) for reason in reasons], over, first.regulars > 0)

    def _about(self, people: str) -> Iterator[str]:
        span = self._ended - self._began
        yield (
            f"Suggested by `headgate rules suggest` from {self.lines:,} requests,"
            f" {readable(moment_text(self._began))[:16]} to {readable(moment_text(self._ended))[:16]} UTC."
        )
        yield (
            f"A limit is what 99.9 % of the {_plural(people)} needed in their busiest minute and hour,"
            f" times {self._headroom:g}, rounded up, and at least {LEAST_LIMIT}."
        )
        if self._shadow:
            yield "Every rule is a shadow: it counts and reports, and refuses nothing until `shadow` is removed."
        yield "Try it on the log: headgate replay --rules THIS_FILE LOG"
        if self._usage.level:
            yield f"There are many {_plural(people)}: a random sample of one in {1 << self._usage.level} was measured."
        if span < _DAY_US:
            yield "The log covers less than a day: busier hours may need more."
        if self.unsuggested:
            few = f"too few regular {_plural(people)}"
            yield f"Busy endpoints without a rule, since they have {few}: {self.unsuggested}."
        if self.refused:
            yield f"Requests answered with 429: {self.refused:,}. Without that limit, there may have been more."
        if self.without_principal:
            share = 100 * self.without_principal / self.lines
            yield f"{self.without_principal:,} requests ({share:.1f} %) have no {people}: no rule here applies."
        if self.invalid:
            yield f"{self.invalid:,} requests have a path or an address that the service rejects: they were excluded."


class _Measured:
    """Usage of an endpoint in one kind of window without the outliers, and the resulting limit."""

    def __init__(self, unit: str, use: Use, outliers: set[str], least_regulars: int, headroom: float) -> None:
        self.unit, self.use, self._headroom = unit, use, headroom
        counted = use.sample - outliers
        regulars = [each for each in counted if use.requests[each] >= REGULAR]
        represented = use.count_represented(regulars)
        has_regulars = represented >= least_regulars and len(regulars) >= _LEAST_SAMPLED
        self.regulars = represented if has_regulars else 0
        """The number of principals behind the percentiles; 0: all."""
        self._peaks = sorted([use.peaks[each] for each in (regulars if has_regulars else counted)])
        self.limit = max(LEAST_LIMIT, round_up(ceil(self.percentile(99.9) * headroom)))

    def percentile(self, percent: float) -> int:
        return self._peaks[max(0, ceil(len(self._peaks) * percent / 100) - 1)] if self._peaks else 1

    def over(self) -> list[Over]:
        return [Over(principal, peak, self.unit) for peak, principal in _sorted_peaks(self.use) if peak > self.limit]

    def count_text(self, people: str) -> str:
        count = self.use.count_represented(self.use.sample)
        about = "about " if self.use.weight > 1 else ""
        return f"{about}{count:,} {_plural(people) if count != 1 else people}"

    def reason(self) -> str:
        most, principal = _sorted_peaks(self.use)[0]
        shares = ", ".join(f"p{percent:g} {self.percentile(percent):,}" for percent in (50, 99, 99.9))
        return (
            f"Busiest {self.unit}: {shares}, most {most:,} ({_name(principal)})."
            f" The limit is {self.limit:,}, from {self._headroom:g} x {self.percentile(99.9):,}."
        )


def round_up(number: int) -> int:
    """Return the next round number: 1 to 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120 ..."""
    if number <= 10:
        return max(1, number)
    unit = int(10 ** (len(str(number)) - 2))
    return unit * next(step for step in _STEPS if step * unit >= number)


def _sorted_peaks(use: Use) -> list[tuple[int, str]]:
    """Return the peaks with their principals, the highest first."""
    return sorted([(peak, principal) for principal, peak in use.peaks.items()], reverse=True)


def _outliers(use: Use) -> set[str]:
    """Return the top principals that used `GAP` times as much as the next one."""
    ordered = _sorted_peaks(use)
    most = min(max(3, use.count_represented(use.sample) // 100), _MOST_OUTLIERS, len(ordered) // 4)
    for place in range(most, 0, -1):
        if ordered[place - 1][0] >= max(LEAST_OUTLIER, GAP * ordered[place][0]):
            return {principal for _, principal in ordered[:place]}
    return set()


def _over(measured: Sequence[_Measured]) -> list[Over]:
    """Return the principals above the limit of any window, the worst first."""
    limits = {each.unit: each.limit for each in measured}
    found: dict[str, Over] = {}
    for over in sorted(
        [over for each in measured for over in each.over()], key=lambda over: -over.peak / limits[over.window]
    ):
        found.setdefault(over.principal, over)
    return [*found.values()]


def _over_text(over: Sequence[Over], measured: Sequence[_Measured], outliers: set[str], people: str) -> str:
    if not over:
        return f"No {people} exceeded it."
    count = measured[0].use.count_represented(each.principal for each in over)
    named = ", ".join(
        f"{_name(each.principal)} ({each.peak:,} in a{'n' * (each.window == 'hour')} {each.window})"
        for each in over[:_NAMED]
    )
    more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
    left_out = " Outliers were excluded from the percentiles." if outliers else ""
    return f"{count:,} of {measured[0].count_text(people)} exceeded it: {named}{more}.{left_out}"


def _acts_before(rule: Rule, overall: Rule) -> bool:
    """Return whether a rule for an endpoint can refuse what the overall rule admits."""
    limits = {quota.window_us: quota.limit for quota in overall.quotas}
    return any(quota.limit < limits.get(quota.window_us, quota.limit + 1) for quota in rule.quotas)


def _id(endpoint: Endpoint, taken: set[str]) -> str:
    text = re.sub(r"[^A-Za-z0-9]+", "-", str(endpoint).replace("*", "any").replace("/", " ")).strip("-").lower()[:56]
    name, number = text or "root", 2
    while name in taken:
        name, number = f"{text}-{number}", number + 1
    return name


def _name(principal: str) -> str:
    return principal if len(principal) <= _LONGEST_NAME else f"{principal[:_LONGEST_NAME]}..."


def _plural(people: str) -> str:
    return f"{people}es" if people.endswith("s") else f"{people}s"


def _article(people: str) -> str:
    return f"an {people}" if people[:1] in "aeioAEIO" else f"a {people}"
