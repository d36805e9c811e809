"""Rules as plain data, JSON or YAML, which `headgate.policy.loading` reads back as the same rules.

Defaults are left out, fields are in the order of `headgate.policy.forms`, and quotas have a limit and a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.config.records import data_of
from headgate.config.times import length_text, moment_text
from headgate.config.yaml_text import resolve_scalar, yaml_module
from headgate.core.algorithms import Algorithm
from headgate.core.quota import Quota
from headgate.policy.forms import RULE
from headgate.policy.model import Change, Entry, Rule, Ruleset, User

_USUAL = Quota(1, 1_000_000)


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
    return data_to_yaml(to_data(ruleset))


def data_to_yaml(data: Any) -> str:
    """Return the result of `to_data`, or a part of it, as YAML."""
    yaml = yaml_module()

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Quotes text that our reader, or another one, would not read as text."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  equal values are written out
            return True

    def text(dumper: Any, value: str) -> Any:
        quoted = None if value.isprintable() and resolve_scalar(value) is value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=quoted)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written


def _rule(rule: Rule) -> dict[str, Any]:
    quotas = to_data(rule.quotas)
    data = data_of(rule) | (quotas[0] if len(quotas) == 1 else {"limits": quotas})
    if len(rule.dimensions) > 1:
        data["dimension"] = rule.dimensions
    return {name: to_data(data[name]) for name in RULE.record.fields if name in data}


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
        if getattr(quota, name) != getattr(_USUAL, name):
            data[name] = getattr(quota, name)
    return data


def _change(change: Change) -> dict[str, Any]:
    until = {} if change.until is None else {"until": moment_text(change.until)}
    if change.quotas is not None:  # a change that has all its limits anew changes nothing else
        return {"limits": to_data(change.quotas), **until}
    given = {name: getattr(change, name) for name in ("limit", "burst", "capacity", "algorithm")}
    given["window"] = None if change.window_us is None else length_text(change.window_us)
    return {name: to_data(part) for name, part in given.items() if part is not None} | until


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Ruleset: lambda ruleset: {"version": 1, "rules": []} | to_data(data_of(ruleset)),
    Rule: _rule,
    Quota: _quota,
    Change: _change,
    User: lambda user: to_data(data_of(user)),
    Entry: lambda entry: {entry.dimension: entry.value},
}
