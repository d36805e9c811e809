"""What changes from one set of rules to another, and what becomes of what was used.

State lives under the rule's id, dimension, algorithm and window, for each principal. So a changed limit or burst keeps
it; another dimension, algorithm or window, or a change of a rule with `reset_on_change`, starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from headgate.config.problems import render
from headgate.core.key import space
from headgate.policy.dumping import to_data
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from headgate.policy.prepared import space_name

_NOBODY = User()
_Rules = dict[str, Rule]
"""By id."""


class State(StrEnum):
    """What becomes of what was used."""

    KEPT = "kept"
    PARTLY = "partly"
    """Some of the limits of the rule start afresh."""
    AFRESH = "afresh"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, as written before and after; None: not written, so the default."""

    field: str
    before: Any
    after: Any
    state: State | None = None
    """What becomes of what was used, if it is the change of a tier, or of a user, to a rule."""


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What changed of one rule."""

    id: str
    fields: tuple[FieldChange, ...]
    state: State
    because: str = ""
    """Why the state is not kept."""


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs between two sets of rules."""

    added: tuple[Rule, ...] = ()
    removed: tuple[Rule, ...] = ()
    changed: tuple[RuleChange, ...] = ()
    others: tuple[FieldChange, ...] = ()
    """Tiers, users, lists and settings, each by its path; of a list, the entry that came or went."""

    @property
    def same(self) -> bool:
        """Is there no difference?"""
        return not (self.added or self.removed or self.changed or self.others)

    def to_data(self) -> dict[str, Any]:
        """Return the differences as data for JSON."""
        return {
            "same": self.same,
            "added": [to_data(rule) for rule in self.added],
            "removed": [to_data(rule) for rule in self.removed],
            "changed": [
                {
                    "id": change.id,
                    "state": str(change.state),
                    "because": change.because,
                    "fields": [_field_data(field) for field in change.fields],
                }
                for change in self.changed
            ],
            "others": [_field_data(field) for field in self.others],
        }


def compare(old: Ruleset, new: Ruleset) -> Diff:
    """Return what differs in `new`."""
    before, after = _by_id(old), _by_id(new)
    changed = []
    for rule_id, rule in after.items():
        if rule_id in before and (fields := _fields(before[rule_id], rule, old, new)):
            state, because = _state(before[rule_id], rule)
            changed.append(RuleChange(rule_id, fields, state, because))
    return Diff(
        added=tuple(rule for rule_id, rule in after.items() if rule_id not in before),
        removed=tuple(rule for rule_id, rule in before.items() if rule_id not in after),
        changed=tuple(changed),
        others=tuple(_others(old, new, (before, after))),
    )


def _by_id(ruleset: Ruleset) -> _Rules:
    rules = {rule.id: rule for rule in ruleset.rules}
    return rules | ({ruleset.default.id: ruleset.default} if ruleset.default else {})


def _fields(before: Rule, after: Rule, old: Ruleset, new: Ruleset) -> tuple[FieldChange, ...]:
    if before == after and (before is old.default) is (after is new.default):
        return ()
    fields = [*_differences(to_data(before), to_data(after))]
    if (before is old.default) is not (after is new.default):
        fields.append(FieldChange("default", before is old.default, after is new.default))
    return tuple(fields)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    for name in _union(before, after):
        if before.get(name) != after.get(name):
            yield FieldChange(name, before.get(name), after.get(name))


def _state(before: Rule, after: Rule) -> tuple[State, str]:
    if before.dimension != after.dimension:
        return State.AFRESH, f"it counts by {after.dimension} now"
    kept, places = _places(before), _places(after)
    if not places & kept:
        reset = space_name(before) != space_name(after)
        return State.AFRESH, "of reset_on_change" if reset else "the algorithm or the window is another"
    fresh = [str(quota) for quota in after.quotas if space(space_name(after), quota) not in kept]
    if fresh:
        return State.PARTLY, f"there was no {'; '.join(fresh)} before"
    return State.KEPT, ""


def _places(rule: Rule) -> set[str]:
    return {space(space_name(rule), quota) for quota in rule.quotas}


def _others(old: Ruleset, new: Ruleset, rules: tuple[_Rules, _Rules]) -> Iterator[FieldChange]:
    for tier in _union(old.tiers, new.tiers):
        yield from _changes(("tiers", tier), old.tiers.get(tier, {}), new.tiers.get(tier, {}), rules)
    for user in _union(old.users, new.users):
        first, last = old.users.get(user, _NOBODY), new.users.get(user, _NOBODY)
        if first.tier != last.tier:
            yield FieldChange(render(("users", user, "tier")), first.tier or None, last.tier or None)
        if first != last:
            yield from _changes(("users", user, "overrides"), first.overrides, last.overrides, rules)
    for name in ("allow", "deny"):
        yield from _entries(name, getattr(old, name), getattr(new, name))
    for name in ("default_tier", "unknown_rule", "ignore_case"):
        if getattr(old, name) != getattr(new, name):
            yield FieldChange(name, getattr(old, name), getattr(new, name))


def _changes(
    path: tuple[str, ...], before: Mapping[str, Change], after: Mapping[str, Change], rules: tuple[_Rules, _Rules]
) -> Iterator[FieldChange]:
    """Compare what a tier or a user changes of rules; these are all, before and after."""
    for rule_id in _union(before, after):
        first, last = before.get(rule_id), after.get(rule_id)
        if first != last:
            old, new = rules[0].get(rule_id), rules[1].get(rule_id)
            state = None
            if old is not None and new is not None:
                is_same_space = space_name(old) == space_name(new)
                state = _state(_in_force(old, first), _in_force(new, last))[0] if is_same_space else State.AFRESH
            yield FieldChange(render((*path, rule_id)), first and to_data(first), last and to_data(last), state)


def _in_force(rule: Rule, change: Change | None) -> Rule:
    quotas = rule.quotas if change is None else change.apply(rule.quotas)
    return replace(rule, quotas=quotas, reset_on_change=False)  # the fingerprint is that of the rule as written


def _entries(name: str, before: tuple[Entry, ...], after: tuple[Entry, ...]) -> Iterator[FieldChange]:
    kept = set(before) & set(after)
    yield from (FieldChange(name, to_data(entry), None) for entry in before if entry not in kept)
    yield from (FieldChange(name, None, to_data(entry)) for entry in after if entry not in kept)


def _union(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    return [*first, *(name for name in second if name not in first)]


def _field_data(change: FieldChange) -> dict[str, Any]:
    data = {"field": change.field, "before": change.before, "after": change.after}
    return data | ({"state": str(change.state)} if change.state else {})
