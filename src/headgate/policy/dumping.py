"""Rules as plain data, JSON or YAML: what `headgate.policy.loading` reads back as the same rules.

Only what differs from the defaults is written, in the order of `headgate.policy.forms`, and quotas in one way: by limit
and window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from headgate.config.times import length_text, moment_text
from headgate.config.yaml_text import resolved, yaml_module
from headgate.core.algorithms import Algorithm
from headgate.core.quota import Quota
from headgate.policy.forms import FILE, RULE
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.quotas import ALL_OF_QUOTA

DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Rule) if each.default is not MISSING} | {
    "when": {}
}
"""What a rule has where it does not say."""
_QUOTA_DEFAULTS = {field.name: field.default for field in fields(Quota)}


def to_data(value: Any) -> Any:
    """Return rules, or any part of them, as dicts, lists, text and numbers."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, Mapping):
        return {name: to_data(part) for name, part in value.items()}
    if isinstance(value, tuple | frozenset):
        return [to_data(part) for part in (sorted(value) if isinstance(value, frozenset) else value)]
    return str(value) if isinstance(value, str) else value  # a word of an enumeration is text


def to_yaml(ruleset: Ruleset) -> str:
    """Return the rules as YAML."""
    return data_to_yaml(to_data(ruleset))


def data_to_yaml(data: Any) -> str:
    """Return what `to_data` made, or a part of it, as YAML."""
    yaml = yaml_module()

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Puts quotes around all that our reader, or another one, would take for something else than text."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  equal values are written out
            return True

    def text(dumper: Any, value: str) -> Any:
        quoted = None if value.isprintable() and resolved(value) is value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=quoted)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written


def _ruleset(ruleset: Ruleset) -> dict[str, Any]:
    given = {name: getattr(ruleset, name) for name in FILE.fields if name != "version"}
    return {"version": 1} | {name: to_data(part) for name, part in given.items() if part or name == "rules"}


def _rule(rule: Rule) -> dict[str, Any]:
    quotas = to_data(rule.quotas)
    data: dict[str, Any] = {}
    for name in RULE.record.fields:
        if name == "limit":
            data |= quotas[0] if len(quotas) == 1 else {"limits": quotas}
        elif name not in ALL_OF_QUOTA and getattr(rule, name) != DEFAULTS.get(name, MISSING):
            data[name] = to_data(getattr(rule, name))
    if len(rule.dimensions) > 1:
        data["dimension"] = [*rule.dimensions]
    return data


def _quota(quota: Quota) -> dict[str, Any]:
    data: dict[str, Any] = {"limit": quota.limit}
    if quota.calendar is not None:
        data |= {"window": quota.calendar.unit, "calendar": quota.calendar.zone}
    else:
        data["window"] = length_text(quota.window_us)
        if quota.algorithm is not Algorithm.TOKEN_BUCKET:
            data["algorithm"] = str(quota.algorithm)
    if quota.refill_every_us != 1:
        data["refill_every"] = length_text(quota.refill_every_us)
    if quota.keeps_capacity:
        data["capacity"] = quota.capacity
    elif quota.burst:
        data["burst"] = quota.burst
    for name in ("queue", "warn_percent", "calm_percent"):
        if getattr(quota, name) != _QUOTA_DEFAULTS[name]:
            data[name] = getattr(quota, name)
    return data


def _change(change: Change) -> dict[str, Any]:
    until = {} if change.until is None else {"until": moment_text(change.until)}
    if change.quotas is not None:  # a change that has all its limits anew changes nothing else
        return {"limits": to_data(change.quotas), **until}
    given = {name: getattr(change, name) for name in ("limit", "burst", "capacity", "algorithm")}
    given["window"] = None if change.window_us is None else length_text(change.window_us)
    return {name: to_data(part) for name, part in given.items() if part is not None} | until


def _user(user: User) -> dict[str, Any]:
    given = {"tier": user.tier, "overrides": user.overrides}
    return {name: to_data(part) for name, part in given.items() if part}


def _entry(entry: Entry) -> dict[str, Any]:
    return {entry.dimension: entry.value}


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Ruleset: _ruleset,
    Rule: _rule,
    Quota: _quota,
    Change: _change,
    User: _user,
    Entry: _entry,
}
