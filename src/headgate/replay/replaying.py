"""Replay logs: an engine decides every request at the time of its line.

It is the engine of services and applications, with a memory store whose clock is set by the log. So a replay decides as
a service would have that started empty at the first line and received no other requests.

**Order.** Logs are written when requests end, and by several workers: lines are slightly out of order. The clock never
goes back: a line older than one before it is decided at that one's time, and counted as late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from headgate.clock import SystemClock
from headgate.config.times import moment_text
from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.engine import Engine, Ruling
from headgate.policy.model import Ruleset
from headgate.policy.request import APIKEY, IP, USER, Request, principal_name
from headgate.replay.logs import Entry, MergedLogs, UnreadLine
from headgate.replay.results import Comparison, ComparisonSummary, Line, RulesResults, RulesSummary, Timeline
from headgate.stores.memory import MAX_KEYS, MemoryStore

TOO_MANY = 429
SHOWN_UNREAD = 5
BATCH = 1000
"""Lines between calls of `progress`."""
OWN_FIELDS = ("user", "address", "host", "agent", "method", "path")
"""Fields of every format; others are columns of the log."""
Decided: TypeAlias = tuple[Entry, Request, list[Ruling | None]]
"""A line, its request, and the ruling of each engine; None for an invalid request."""


class LogTime(SystemClock):
    """The time of the current line; it never goes back."""

    def __init__(self) -> None:
        self.moment = 0

    def now(self) -> int:
        return self.moment


class Fields:
    """The fields of a line that identify the caller, in addition to its user, its address and its API key.

    `principals` and `attributes` are fields by name; `tier` is the field with the tier, by default that of the user.
    """

    def __init__(
        self,
        principals: Mapping[str, str] = {},
        attributes: Mapping[str, str] = {},
        tier: str = "",
    ) -> None:
        self._principals = {principal_name(name): field for name, field in principals.items()}
        self._attributes, self._tier = dict(attributes), tier
        named = {*principals.values(), *attributes.values(), tier} - {""}
        self.columns = {name: name for name in named if name not in OWN_FIELDS}
        """The columns that a `LogReader` has to read."""
        self.missing = named
        """Fields that no line has had yet."""

    def request_of(self, entry: Entry) -> Request:
        principal: dict[str, str] = {}
        if entry.user:
            principal[USER] = entry.user
        if entry.address:
            principal[IP] = entry.address
        if entry.fields and APIKEY in entry.fields:
            principal[APIKEY] = entry.fields[APIKEY]
        for name, field in self._principals.items():
            value = self._value(entry, field)
            if value:
                principal[name] = value
            else:
                principal.pop(name, None)
        attributes = {name: self._value(entry, field) for name, field in self._attributes.items()}
        attributes = {name: value for name, value in attributes.items() if value}
        tier = self._value(entry, self._tier) if self._tier else ""
        return Request(principal, entry.path, entry.method, attributes, tier=tier)

    def _value(self, entry: Entry, field: str) -> str:
        value = entry.fields.get(field)
        if value is None:
            value = getattr(entry, field) if field in OWN_FIELDS else ""
        if value and self.missing:
            self.missing.discard(field)
        return value


ALWAYS = (0, 1 << 62)


class Replay:
    """Decides the requests of a log by rules, and counts the results; a second ruleset is compared with the first.

    `period` is its start and its end, in microseconds since the epoch. `max_keys` is that of each ruleset's
    `headgate.stores.memory.MemoryStore`.
    """

    def __init__(
        self,
        rulesets: Sequence[Ruleset],
        *,
        fields: Fields | None = None,
        period: tuple[int, int] = ALWAYS,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self.clock, self.timeline = LogTime(), Timeline()
        self._stores = [MemoryStore(max_keys=max_keys, clock=self.clock) for _ in rulesets]
        self._max_keys = max_keys
        self._engines = [Engine(each, store=store) for each, store in zip(rulesets, self._stores, strict=True)]
        self.results = [RulesResults(engine, self.timeline) for engine in self._engines]
        first, *others = self.results
        self.comparison = Comparison(first, others[0], self.timeline) if others else None
        self._fields = fields or Fields()
        self._period = period
        self.lines = self.outside = self.late = self.latest_us = self.answered_429 = 0
        self.began: int | None = None
        self.is_full = False

    def run(self, entries: Iterable[Entry], progress: Callable[[], object] = lambda: None) -> None:
        """Decide and count all entries; `progress` is called periodically."""
        comparison, timeline, clock = self.comparison, self.timeline, self.clock
        for entry, request, rulings in self.decide(entries):
            if clock.moment >= timeline.ends:
                timeline.move(clock.moment)
            line = Line(request, clock.moment, entry.agent)
            for results, ruling in zip(self.results, rulings, strict=True):
                if ruling is not None:
                    results.count(line, ruling)
            if comparison is not None:
                comparison.count(line, rulings)
            self.answered_429 += entry.status == TOO_MANY
            if not self.lines % BATCH:
                self.is_full = self.is_full or any(len(store) >= self._max_keys for store in self._stores)
                progress()

    def decide(self, entries: Iterable[Entry]) -> Iterator[Decided]:
        """Decide the lines of the period, each at its time."""
        clock, request_of, (since, until) = self.clock, self._fields.request_of, self._period
        deciding = [(engine.check, results) for engine, results in zip(self._engines, self.results, strict=True)]
        for entry in entries:
            at = entry.at
            if not since <= at < until:
                self.outside += 1
                continue
            if at >= clock.moment:
                if not self.lines:
                    self.began = at
                clock.moment = at
            else:
                self.late += 1
                self.latest_us = max(self.latest_us, clock.moment - at)
            self.lines += 1
            request = request_of(entry)
            rulings: list[Ruling | None] = []
            for check, results in deciding:
                try:
                    rulings.append(check(request))
                except UsageError as error:
                    results.undecidable(error)
                    rulings.append(None)
            yield entry, request, rulings

    def summary(self, logs: MergedLogs | None = None, *, is_complete: bool = True) -> ReplaySummary:
        """Return the results so far, and the lines of the logs that could not be parsed."""
        return ReplaySummary(
            is_complete=is_complete,
            lines=self.lines,
            unread=logs.unread if logs else 0,
            unread_first=tuple(logs.unread_first[:SHOWN_UNREAD]) if logs else (),
            outside=self.outside,
            late=self.late,
            latest_seconds=self.latest_us / SECOND,
            answered_429=self.answered_429,
            stores_full=self.is_full,
            fields_missing=tuple(sorted(self._fields.missing)),
            began=None if self.began is None else moment_text(self.began),
            ended=None if self.began is None else moment_text(self.clock.moment),
            buckets_from=moment_text(self.timeline.starts()),
            bucket_seconds=self.timeline.width_us // SECOND,
            rules=tuple([results.summary() for results in self.results]),
            comparison=None if self.comparison is None else self.comparison.summary(),
        )


class ReplaySummary(msgspec.Struct, frozen=True):
    is_complete: bool
    """False if interrupted."""
    lines: int
    """Lines decided."""
    unread: int
    """Lines that could not be parsed."""
    unread_first: tuple[UnreadLine, ...]
    outside: int
    late: int
    """Lines older than one before them."""
    latest_seconds: float
    """The most that one of them was late."""
    answered_429: int
    """Requests refused when they were made, by status."""
    stores_full: bool
    """Whether principals had to share state and may be refused early."""
    fields_missing: tuple[str, ...]
    """Requested fields that no line has."""
    began: str | None
    ended: str | None
    """Times of the first and the last line: RFC 3339, UTC."""
    buckets_from: str
    bucket_seconds: int
    """Start of the first bucket of all series, and the length of each."""
    rules: tuple[RulesSummary, ...]
    comparison: ComparisonSummary | None
