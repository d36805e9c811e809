"""From fields that are well formed to the model: what they mean together, and whether that can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_network
from typing import Any

from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.mode import Mode
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.policy.forms import (
    ALLOW,
    BY_BUCKET,
    BY_TEXT,
    CHANGE,
    DIMENSIONS,
    IN_PART,
    LIMIT,
    METHODS,
    RULE,
    RULE_ID,
    SEVERAL,
    AsText,
    Quotas,
)
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.problems import Findings, Kind, Path, render, shown
from headgate.policy.times import CALENDAR_UNITS, length_of
from headgate.policy.trie import parsed

DEFAULT_ID = "default"
_Values = dict[str, Any]
_AS_THEY_ARE = (
    *("name", "dimension", "endpoint", "tier", "when", "shadow", "enabled", "enforce_percent"),
    *("reset_on_change", "created_at", "updated_at"),
)


def ruleset_of(read: _Values | None, data: object, findings: Findings, warnings: Findings) -> Ruleset | None:
    """Return the rules of a file, or None if it has problems.

    Args:
        read: its fields, read; what is wrong is None, and noted already.
        data: the same, as written.
        findings: takes the problems.
        warnings: takes what is odd, and works.
    """
    if read is None or not isinstance(data, dict):
        return None
    rules = list(_rules(read.get("rules", ()), findings, warnings))
    default = _default(read.get("default", ALLOW), findings)
    known = _Known(data, rules, default)
    known.check_ids(findings)
    known.check_replaced(read.get("rules", ()), findings)
    tiers = {
        tier: _changes(changes or {}, ("tiers", tier), known, findings)
        for tier, changes in read.get("tiers", {}).items()
    }
    users = {
        user: User(
            special.get("tier", ""),
            _changes(special.get("overrides", {}), ("users", user, "overrides"), known, findings),
        )
        for user, special in read.get("users", {}).items()
        if special is not None
    }
    allow, deny = (tuple(_entries(read.get(name, []), name, findings)) for name in ("allow", "deny"))
    if findings.count:
        return None
    given = {name: read[name] for name in ("default_tier", "unknown_rule", "ignore_case") if name in read}
    try:
        return Ruleset(rules=tuple(rules), tiers=tiers, users=users, default=default, allow=allow, deny=deny, **given)
    except InvalidRule as error:  # what the model knows and this module does not
        findings.add((), str(error), kind=Kind.MEANING)
        return None


def quotas_of(read: _Values, form: Quotas, path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    """Return the quotas that the fields of a rule, a change or a limit describe."""
    if form.way(read) is not SEVERAL:
        return _quota(read, form, path, findings)
    path = (*path, "limits")
    parts = [
        quotas_of(item, LIMIT, (*path, index), findings) if item is not None else None
        for index, item in enumerate(read["limits"])
    ]
    quotas = tuple(quota for part in parts for quota in part or ())
    if None in parts:
        return None
    return _distinct(quotas, path, findings)


def _distinct(quotas: tuple[Quota, ...], path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    if len(quotas) != 1:
        try:
            Family("limits", quotas)
        except InvalidQuota as error:
            findings.add(path, str(error), kind=Kind.MEANING)
            return None
    return quotas


def _quota(read: _Values, form: Quotas, path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    way = form.way(read)
    if read.get("calendar") and read["window"] not in CALENDAR_UNITS:
        told = f"with a calendar, the window is one of {', '.join(CALENDAR_UNITS)}"
        findings.add((*path, "window"), told, kind=Kind.MEANING)
        return None
    percents = {name: read[name] for name in ("warn_percent", "calm_percent") if name in read}
    try:
        if way is BY_TEXT:
            quotas = _from_text(read["quota"], **percents)
            return _distinct(quotas, path if isinstance(read, AsText) else (*path, "quota"), findings)
        if way is BY_BUCKET:
            interval = read.get("min_refill_interval_ms", 0)
            return (_from_bucket(read["capacity"], read["refill_rate"], interval, **percents),)
        return (_from_window(**{name: read[name] for name in way.fields if name in read}),)
    except InvalidQuota as error:
        message = str(error)
        words = {*re.findall("[a-z_]+", message), *(["calendar"] if "time zone" in message else [])}
        field = next((name for name in (*way.may, *way.needs) if name in read and name in words), way.needs[0])
        findings.add(path if isinstance(read, AsText) else (*path, field), message, kind=Kind.MEANING)
        return None


@lru_cache(maxsize=10_000)  # thousands of rules have a few quotas among them
def _from_text(text: str, **percents: Any) -> tuple[Quota, ...]:
    return tuple(replace(quota, **percents) if percents else quota for quota in Quota.parse(text))


@lru_cache(maxsize=10_000)
def _from_bucket(capacity: int, rate: float | str, interval_ms: int, **percents: Any) -> Quota:
    quota = Quota.from_bucket(capacity, rate, min_refill_interval_ms=interval_ms)
    return replace(quota, **percents) if percents else quota


@lru_cache(maxsize=10_000)
def _from_window(
    limit: int,
    window: int | str,
    *,
    burst: int | None = None,
    capacity: int | None = None,
    algorithm: str | None = None,
    calendar: bool | str = False,
    refill_every: int = 1,
    **options: Any,
) -> Quota:
    if burst is not None and capacity is not None:
        raise InvalidQuota("burst and capacity are two ways to say the same: give one of them")
    if calendar:
        if algorithm not in {None, Algorithm.FIXED_WINDOW}:
            raise InvalidQuota(f"only fixed_window follows a calendar, not the algorithm {algorithm}: leave it out")
        if burst or capacity is not None or refill_every != 1:
            raise InvalidQuota("a window of a calendar has a limit, and no burst, capacity or refill_every")
        periods = Calendar(str(window), "UTC" if calendar is True else calendar)
        return replace(Quota.per(limit, periods), **options)
    return Quota(
        limit,
        _length(window),
        burst=capacity - limit if capacity is not None else burst or 0,
        algorithm=Algorithm.named(algorithm or Algorithm.TOKEN_BUCKET),
        refill_every_us=refill_every,
        **options,
    )


def _length(window: int | str) -> int:
    if isinstance(window, int):
        return window
    length = length_of(window)
    if isinstance(length, int):
        return length
    days = {"month": 30, "year": 365}[window]
    raise InvalidQuota(
        f"the window {window!r} has no fixed length: add `calendar: UTC`, or another time zone, for those of the "
        f"calendar, or write {days}d"
    )


def _rules(read: list[_Values | None], findings: Findings, warnings: Findings) -> Iterator[Rule]:
    for index, values in enumerate(read):
        path: Path = ("rules", index)
        if values is not None and (rule := rule_of(values, RULE, path, findings)) is not None:
            _look_at(rule, path, warnings)
            yield rule


def rule_of(values: _Values, form: Quotas, path: Path, findings: Findings) -> Rule | None:
    """Return the rule that these fields describe."""
    quotas = quotas_of(values, form, path, findings)
    if quotas is None or "id" not in values:
        return None
    given = {name: values[name] for name in _AS_THEY_ARE if name in values}
    if "on_store_failure" in values:
        given["on_store_failure"] = Mode(values["on_store_failure"])
    for name in ("methods", "replaces"):
        if name in values:
            given[name] = frozenset(values[name]) - {None, values["id"] if name == "replaces" else None}
    try:
        parsed(values.get("endpoint", "**"))
    except InvalidRule as error:
        findings.add((*path, "endpoint"), str(error), kind=Kind.MEANING)
    try:
        return Rule(id=values["id"], quotas=quotas, **given)
    except InvalidRule as error:
        findings.add(path, str(error), kind=Kind.MEANING)
        return None


def _look_at(rule: Rule, path: Path, warnings: Findings) -> None:
    for method in rule.methods.difference(METHODS):
        if hint := warnings.near(method, METHODS):
            warnings.add((*path, "methods"), f"{method} is an unusual method", hint=hint)
    if rule.dimension not in DIMENSIONS and (hint := warnings.near(rule.dimension, DIMENSIONS)):
        what = f"counts by the attribute {rule.dimension!r}"
        warnings.add((*path, "dimension"), what, f"one of {', '.join(DIMENSIONS)}, or any attribute", hint)


def _default(read: Any, findings: Findings) -> Rule | None:
    if not isinstance(read, dict):
        return None
    return rule_of(type(read)({"id": DEFAULT_ID, **read}), RULE, ("default",), findings)


class _Known:
    """The ids of all rules as written, and the rules that are right."""

    def __init__(self, data: _Values, rules: list[Rule], default: Rule | None) -> None:
        self._places: list[tuple[str, Path]] = []
        written = data.get("rules")
        for index, item in enumerate(written if isinstance(written, list) else ()):
            self._add(item.get("id") if isinstance(item, dict) else None, ("rules", index))
        last = data.get("default")
        if last is not None and last != ALLOW:
            self._add(last.get("id", DEFAULT_ID) if isinstance(last, dict) else DEFAULT_ID, ("default",))
        self.ids = {rule_id for rule_id, _ in self._places}
        self._names = tuple(sorted(self.ids))
        self.right = {rule.id: rule for rule in (*([default] if default else []), *reversed(rules))}

    def _add(self, rule_id: object, path: Path) -> None:
        if (written := RULE_ID.read(rule_id, path, Findings())) is not None:
            self._places.append((written, path))

    def check_ids(self, findings: Findings) -> None:
        if len(self.ids) == len(self._places):
            return
        seen: dict[str, Path] = {}
        for rule_id, path in self._places:
            first = seen.setdefault(rule_id, path)
            if first is not path:
                message = f"the id {shown(rule_id)} is that of {render(first)} already"
                findings.add((*path, "id"), message, "an id that no other rule has", kind=Kind.MEANING)

    def check_replaced(self, read: list[_Values | None], findings: Findings) -> None:
        for index, values in enumerate(read):
            for place, other in enumerate((values or {}).get("replaces", ())):
                path: Path = ("rules", index, "replaces", place)
                if other is not None and other not in self.ids:
                    self.unknown(other, path, findings)
                elif other is not None and values is not None and other == values.get("id"):
                    findings.add(path, "a rule cannot replace itself", kind=Kind.MEANING)

    def unknown(self, rule_id: str, path: Path, findings: Findings, *, at_key: bool = False) -> None:
        hint = findings.near(rule_id, self._names)
        findings.add(path, f"there is no rule {shown(rule_id)}", "", hint, kind=Kind.MEANING, at_key=at_key)


def _changes(read: Mapping[str, _Values | None], path: Path, known: _Known, findings: Findings) -> dict[str, Change]:
    changes = {}
    for rule_id, values in read.items():
        if rule_id not in known.ids:
            known.unknown(rule_id, (*path, rule_id), findings, at_key=True)
        change = _change(values, (*path, rule_id), findings) if values is not None else None
        rule = known.right.get(rule_id)
        if change is None or rule is None:
            continue
        try:
            _distinct(change.apply(rule.quotas), (*path, rule_id), findings)
        except InvalidQuota as error:
            findings.add((*path, rule_id), f"{rule_id!r} cannot be changed like that: {error}", kind=Kind.MEANING)
        changes[rule_id] = change
    return changes


def _change(values: _Values, path: Path, findings: Findings) -> Change | None:
    until = values.get("until")
    if CHANGE.way(values) is not IN_PART:
        quotas = quotas_of(values, CHANGE, path, findings)
        return None if quotas is None else Change(quotas=quotas, until=until)
    algorithm = values.get("algorithm")
    try:
        return Change(
            limit=values.get("limit"),
            burst=values.get("burst"),
            window_us=_length(values["window"]) if "window" in values else None,
            algorithm=None if algorithm is None else Algorithm.named(algorithm),
            until=until,
        )
    except InvalidQuota as error:
        findings.add((*path, "window"), str(error), kind=Kind.MEANING)
        return None


def _entries(read: list[_Values | None], name: str, findings: Findings) -> Iterator[Entry]:
    for index, item in enumerate(read):
        for dimension, value in (item or {}).items():
            if value is None:
                continue
            try:
                yield Entry(dimension, value)
            except InvalidRule as error:
                findings.add((name, index, dimension), str(error), hint=_network(value), kind=Kind.MEANING)


def _network(text: str) -> str:
    try:
        return f"Did you mean '{ip_network(text, strict=False)}'?"
    except ValueError:
        return ""
