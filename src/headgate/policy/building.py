"""From fields that are well formed to the model: what they mean together, and whether that can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.mode import Mode
from headgate.core.quota import Quota
from headgate.policy.forms import ALLOW, CHANGE, IN_PART, RULE, RULE_ID, Quotas
from headgate.policy.lists import Entries
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.prepared import circle_among
from headgate.policy.problems import Findings, Kind, Path, render, shown
from headgate.policy.quotas import quotas_of, window_us
from headgate.policy.request import ENDPOINT
from headgate.policy.trie import parsed

DEFAULT_ID = "default"
_SHOWN = 10
"""How many rules of a circle are named."""
_Values = dict[str, Any]
_AS_THEY_ARE = (
    *("name", "dimension", "key_pattern", "endpoint", "tier", "when", "shadow", "enabled", "enforce_percent"),
    *("replicas", "reset_on_change", "created_at", "updated_at"),
)


def ruleset_of(read: _Values | None, data: object, findings: Findings) -> Ruleset | None:
    """Return the rules of a file, or None if it has problems.

    Args:
        read: its fields, read; what is wrong is None, and noted already.
        data: the same, as written.
        findings: takes the problems.
    """
    if read is None or not isinstance(data, dict):
        return None
    rules = list(_rules(read.get("rules", ()), findings))
    default = _default(read.get("default", ALLOW), findings)
    known = _Known(data, rules, default)
    known.check_ids(findings)
    known.check_replaced(read.get("rules", ()), findings)
    known.check_circles(read.get("rules", ()), findings)
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
        ruleset = Ruleset(tuple(rules), tiers, users, default=default, allow=allow, deny=deny, **given)
    except InvalidRule as error:  # what the model knows and this module does not
        findings.add((), str(error), kind=Kind.MEANING)
        return None
    _check_on_top(ruleset, known, findings)
    return ruleset


def _rules(read: list[_Values | None], findings: Findings) -> Iterator[Rule]:
    for index, values in enumerate(read):
        if values is not None and (rule := rule_of(values, RULE, ("rules", index), findings)) is not None:
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
        rule = Rule(id=values["id"], quotas=quotas, **given)
    except InvalidRule as error:
        findings.add(path, str(error), kind=Kind.MEANING)
        return None
    for field, check in (
        ("endpoint", lambda: parsed(rule.endpoint)),
        ("key_pattern", lambda: rule.key_pattern and Entries((Entry(rule.dimension, rule.key_pattern),))),
    ):
        try:
            check()
        except InvalidRule as error:
            findings.add((*path, field), str(error), kind=Kind.MEANING)
    return rule


def _default(read: Any, findings: Findings) -> Rule | None:
    if not isinstance(read, dict):
        return None
    return rule_of(type(read)({"id": DEFAULT_ID, **read}), RULE, ("default",), findings)


def _written_id(rule: object, otherwise: str | None) -> object:
    names = [name for name in ("id", "rule_id") if isinstance(rule, dict) and name in rule]
    return rule[names[0]] if names and isinstance(rule, dict) else otherwise


class _Known:
    """The ids of all rules as written, and the rules that are right."""

    def __init__(self, data: _Values, rules: list[Rule], default: Rule | None) -> None:
        self._places: list[tuple[str, Path]] = []
        self._rules = rules
        self._ignored = Findings()
        written = data.get("rules")
        for index, item in enumerate(written if isinstance(written, list) else ()):
            self._add(_written_id(item, None), ("rules", index))
        last = data.get("default")
        if last is not None and last != ALLOW:
            self._add(_written_id(last, DEFAULT_ID), ("default",))
        self.ids = {rule_id for rule_id, _ in self._places}
        self._names = tuple(sorted(self.ids))
        self.right = {rule.id: rule for rule in (*([default] if default else []), *reversed(rules))}

    def _add(self, rule_id: object, path: Path) -> None:
        if (written := RULE_ID.read(rule_id, path, self._ignored)) is not None:
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

    def check_circles(self, read: list[_Values | None], findings: Findings) -> None:
        circle = circle_among(self._rules)
        following = dict(zip(circle, [*circle[1:], *circle[:1]], strict=True))
        for index, values in enumerate(read if circle else ()):
            replaced = (values or {}).get("replaces", [])
            after = following.get((values or {}).get("id", ""))
            if after is not None and after in replaced:
                some = circle if len(circle) <= _SHOWN else [*circle[:_SHOWN], "..."]
                message = f"rules replace each other in a circle: {' -> '.join([*some, circle[0]])}"
                path: Path = ("rules", index, "replaces", replaced.index(after))
                hint = "Where all of them match, none would apply: remove one."
                findings.add(path, message, hint=hint, kind=Kind.MEANING)
                break

    def unknown(self, rule_id: str, path: Path, findings: Findings, *, at_key: bool = False) -> None:
        hint = findings.near(rule_id, self._names)
        findings.add(path, f"there is no rule {shown(rule_id)}", "", hint, kind=Kind.MEANING, at_key=at_key)


def _changes(read: Mapping[str, _Values | None], path: Path, known: _Known, findings: Findings) -> dict[str, Change]:
    changes = {}
    for rule_id, values in read.items():
        place = (*path, rule_id)
        if rule_id not in known.ids:
            known.unknown(rule_id, place, findings, at_key=True)
        change = _change(values, place, findings) if values is not None else None
        rule = known.right.get(rule_id)
        if change is None or rule is None:
            continue
        changes[rule_id] = change
        _check_change(change, rule.quotas, place, f"{rule_id!r} cannot be changed like that", findings)
    return changes


def _change(values: _Values, path: Path, findings: Findings) -> Change | None:
    until = values.get("until")
    if CHANGE.way(values) is not IN_PART:
        quotas = quotas_of(values, CHANGE, path, findings)
        return None if quotas is None else Change(quotas=quotas, until=until)
    algorithm = values.get("algorithm")
    if "burst" in values and "capacity" in values:
        told = "burst and capacity are two ways to say the same: give one of them"
        findings.add((*path, "capacity"), told, kind=Kind.MEANING)
        return None
    try:
        return Change(
            limit=values.get("limit"),
            burst=values.get("burst"),
            capacity=values.get("capacity"),
            window_us=window_us(values["window"]) if "window" in values else None,
            algorithm=None if algorithm is None else Algorithm.named(algorithm),
            until=until,
        )
    except InvalidQuota as error:
        findings.add((*path, "window"), str(error), kind=Kind.MEANING)
        return None


def _check_change(change: Change, quotas: tuple[Quota, ...], path: Path, told: str, findings: Findings) -> None:
    """Note what keeps a change from being made to quotas, after the words `told`."""
    if len(quotas) == 1 and (calendar := quotas[0].calendar) is not None and change.quotas is None:
        for field, value in (("window", change.window_us), ("algorithm", change.algorithm)):
            if value is not None and value is not Algorithm.FIXED_WINDOW:
                why = f"its window is the {calendar.unit} of a calendar, so {field} cannot be changed alone"
                accepted = f"limit, or all of it: {{limit: 10, window: day, calendar: {calendar.zone}}}"
                findings.add((*path, field), f"{told}: {why}", accepted, kind=Kind.MEANING)
                return
    try:
        change.apply(quotas)
    except InvalidQuota as error:
        findings.add(path, f"{told}: {error}", kind=Kind.MEANING)


def _check_on_top(ruleset: Ruleset, known: _Known, findings: Findings) -> None:
    """Note overrides that make no quota of what the user's tier makes of the rule."""
    changed = {
        tier: {rule_id: change.apply(known.right[rule_id].quotas) for rule_id, change in changes.items()}
        for tier, changes in ruleset.tiers.items()
    }
    right = set()
    for name, user in ruleset.users.items():
        for tier in sorted({user.tier, ruleset.default_tier} & changed.keys()):
            for rule_id in changed[tier].keys() & user.overrides.keys():
                override = user.overrides[rule_id]
                what = (tier, rule_id, replace(override, until=None))
                if what in right:
                    continue
                told, before = f"{rule_id!r} cannot be changed like that on top of tier {tier!r}", findings.count
                path: Path = ("users", name, "overrides", rule_id)
                _check_change(override, changed[tier][rule_id], path, told, findings)
                if findings.count == before:
                    right.add(what)


def _entries(read: list[_Values | None], name: str, findings: Findings) -> Iterator[Entry]:
    for index, item in enumerate(read):
        for dimension, value in (item or {}).items():
            if value is None:
                continue
            try:
                entry = Entry(dimension, value)
                if dimension == ENDPOINT:
                    Entries((entry,))
                yield entry
            except InvalidRule as error:
                findings.add((name, index, dimension), str(error), hint=_network(value), kind=Kind.MEANING)


def _network(text: str) -> str:
    try:
        return f"Did you mean '{ip_network(text, strict=False)}'?"
    except ValueError:
        return ""
