"""The difference between two sets of rules, and which usage it keeps.

State lives under the rule's id, dimension, algorithm and window, for each principal. So a changed limit or burst keeps
it; another dimension, algorithm or window, or a change of a rule with `reset_on_change`, starts afresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple

from headgate.config.problems import render
from headgate.core.key import space
from headgate.policy.dumping import to_data
from headgate.policy.model import Change, Rule, Ruleset, User
from headgate.policy.prepared import space_name

_Rules = dict[str, Rule]


class State(StrEnum):
    """What happens to usage."""

    KEPT = "kept"
    PARTLY = "partly"
    """Some of the limits of the rule start afresh."""
    AFRESH = "afresh"


class FieldChange(NamedTuple):
    """One field, as written before and after; None: the default."""

    field: str
    before: Any
    after: Any
    state: State | None = None
    """What happens to usage, if this is a change of a rule by a tier or a user."""

    def to_data(self) -> dict[str, Any]:
        return {name: to_data(value) for name, value in self._asdict().items() if name != "state" or value is not None}


class RuleChange(NamedTuple):
    id: str
    state: State
    because: str
    fields: tuple[FieldChange, ...]


class Diff(NamedTuple):
    """The difference between two sets of rules."""

    added: tuple[Rule, ...]
    removed: tuple[Rule, ...]
    changed: tuple[RuleChange, ...]
    others: tuple[FieldChange, ...]
    """Tiers, users, lists and settings by their paths; of lists, the added and removed entries."""

    @property
    def same(self) -> bool:
        return not any(self)

    def to_data(self) -> dict[str, Any]:
        return {
            "same": self.same,
            "added": to_data(self.added),
            "removed": to_data(self.removed),
            "changed": [
                to_data(each._asdict()) | {"fields": [field.to_data() for field in each.fields]}
                for each in self.changed
            ],
            "others": [field.to_data() for field in self.others],
        }


def compare(old: Ruleset, new: Ruleset) -> Diff:
    """Return the difference of `new` from `old`."""
    before, after = _by_id(old), _by_id(new)
    changed = []
    for rule_id, other in after.items():
        one = before.get(rule_id)
        if one is None:
            continue
        then, now = (to_data(one), to_data(other)) if one != other else ({}, {})
        names = {**then, **now}
        fields = [FieldChange(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]
        if (one is old.default) is not (other is new.default):
            fields.append(FieldChange("default", one is old.default, other is new.default))
        if fields:
            changed.append(RuleChange(rule_id, *_state(one, other), tuple(fields)))
    return Diff(
        added=tuple(rule for rule_id, rule in after.items() if rule_id not in before),
        removed=tuple(rule for rule_id, rule in before.items() if rule_id not in after),
        changed=tuple(changed),
        others=tuple(_others(old, new, (before, after))),
    )


def _by_id(ruleset: Ruleset) -> _Rules:
    return {rule.id: rule for rule in (*ruleset.rules, ruleset.default) if rule is not None}


def _state(before: Rule, after: Rule) -> tuple[State, str]:
    if before.dimension != after.dimension:
        return State.AFRESH, f"it counts by {after.dimension} now"
    kept = {space(space_name(before), quota) for quota in before.quotas}
    fresh = [str(quota) for quota in after.quotas if space(space_name(after), quota) not in kept]
    if len(fresh) == len(after.quotas):
        reset = space_name(before) != space_name(after)
        return State.AFRESH, "of reset_on_change" if reset else "the algorithm or the window changed"
    return (State.PARTLY, f"there was no {'; '.join(fresh)} before") if fresh else (State.KEPT, "")


def _others(old: Ruleset, new: Ruleset, rules: tuple[_Rules, _Rules]) -> Iterator[FieldChange]:
    for tier in {**old.tiers, **new.tiers}:
        yield from _changes(("tiers", tier), old.tiers.get(tier, {}), new.tiers.get(tier, {}), rules)
    for user in {**old.users, **new.users}:
        first, last = old.users.get(user, User()), new.users.get(user, User())
        if first.tier != last.tier:
            yield FieldChange(render(("users", user, "tier")), first.tier or None, last.tier or None)
        if first != last:
            yield from _changes(("users", user, "overrides"), first.overrides, last.overrides, rules)
    for name in ("allow", "deny"):
        before, after = getattr(old, name), getattr(new, name)
        kept = {*before} & {*after}
        yield from (FieldChange(name, to_data(entry), None) for entry in before if entry not in kept)
        yield from (FieldChange(name, None, to_data(entry)) for entry in after if entry not in kept)
    for name in ("default_tier", "unknown_rule", "ignore_case"):
        if getattr(old, name) != getattr(new, name):
            yield FieldChange(name, getattr(old, name), getattr(new, name))


def _changes(
    path: tuple[str, ...], before: Mapping[str, Change], after: Mapping[str, Change], rules: tuple[_Rules, _Rules]
) -> Iterator[FieldChange]:
    """Compare the changes of a tier or a user to rules; `rules` are all, before and after."""
    for rule_id in {**before, **after}:
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
