"""Rules as plain data, JSON or YAML: what `headgate.policy.loading` reads back as the same rules.

Only what differs from the defaults is written, and quotas in one way: limit and window.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headgate.core.algorithms import Algorithm
from headgate.core.quota import Quota
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.times import length_text, moment_text
from headgate.policy.yaml_text import resolved, yaml_module

_BARE = Rule("bare", (Quota(1, 1),))
_WHOM = ("name", "dimension", "key_pattern", "endpoint", "methods", "tier", "when")
_HOW = (
    *("shadow", "enabled", "enforce_percent", "replaces", "on_store_failure", "replicas", "reset_on_change"),
    *("created_at", "updated_at"),
)
_QUOTA_DEFAULTS = {field.name: field.default for field in fields(Quota)}


def to_data(ruleset: Ruleset) -> dict[str, Any]:
    """Return the rules as dicts, lists, text and numbers."""
    data: dict[str, Any] = {"version": 1, "rules": [rule_data(rule) for rule in ruleset.rules]}
    if ruleset.tiers:
        data["tiers"] = {tier: changes_data(changes) for tier, changes in ruleset.tiers.items()}
    if ruleset.users:
        data["users"] = {user: user_data(special) for user, special in ruleset.users.items()}
    if ruleset.default_tier:
        data["default_tier"] = ruleset.default_tier
    for name, entries in (("allow", ruleset.allow), ("deny", ruleset.deny)):
        if entries:
            data[name] = [entry_data(entry) for entry in entries]
    if ruleset.default is not None:
        data["default"] = rule_data(ruleset.default)
    if ruleset.unknown_rule:
        data["unknown_rule"] = ruleset.unknown_rule
    if ruleset.ignore_case:
        data["ignore_case"] = True
    return data


def to_json(ruleset: Ruleset) -> str:
    """Return the rules as JSON."""
    return json.dumps(to_data(ruleset), indent=2, ensure_ascii=False)


def to_yaml(ruleset: Ruleset) -> str:
    """Return the rules as YAML."""
    yaml = yaml_module()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Puts quotes around all that our reader, or another one, would take for something else than text."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  equal values are written out
            return True

    def text(dumper: Any, value: str) -> Any:
        quoted = None if value.isprintable() and resolved(value) is value else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=quoted)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(to_data(ruleset), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return written


def rule_data(rule: Rule) -> dict[str, Any]:
    """Return one rule as data."""
    quotas = quota_data(rule.quotas[0]) if len(rule.quotas) == 1 else {"limits": _limits(rule.quotas)}
    data = {"id": rule.id, **_given(rule, _WHOM), **quotas, **_given(rule, _HOW)}
    if len(rule.dimensions) > 1:
        data["dimension"] = [*rule.dimensions]
    return data


def _given(rule: Rule, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that are not as they are by default."""
    values = ((name, getattr(rule, name)) for name in names)
    return {name: _plain(value) for name, value in values if value != getattr(_BARE, name)}


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str) else value


def quota_data(quota: Quota) -> dict[str, Any]:
    """Return one quota as data."""
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


def user_data(user: User) -> dict[str, Any]:
    """Return what is special about one user as data."""
    data: dict[str, Any] = {"tier": user.tier} if user.tier else {}
    return data | ({"overrides": changes_data(user.overrides)} if user.overrides else {})


def changes_data(changes: Mapping[str, Change]) -> dict[str, Any]:
    """Return changes, by rule id, as data."""
    return {rule_id: change_data(change) for rule_id, change in changes.items()}


def change_data(change: Change) -> dict[str, Any]:
    """Return one change as data."""
    data: dict[str, Any] = {}
    if change.quotas is not None:
        data["limits"] = _limits(change.quotas)
    else:  # a change that has all its limits anew changes nothing else
        for name in ("limit", "burst", "capacity"):
            if getattr(change, name) is not None:
                data[name] = getattr(change, name)
        if change.window_us is not None:
            data["window"] = length_text(change.window_us)
        if change.algorithm is not None:
            data["algorithm"] = str(change.algorithm)
    if change.until is not None:
        data["until"] = moment_text(change.until)
    return data


def entry_data(entry: Entry) -> dict[str, str]:
    """Return one entry of a list as data."""
    return {entry.dimension: entry.value}


def _limits(quotas: tuple[Quota, ...]) -> list[dict[str, Any]]:
    return [quota_data(quota) for quota in quotas]
