"""Checks of rules, tiers and users as a whole: ids, replacements, and whether every change makes a quota.

A `Ruleset` made in Python and a file get the same messages. `headgate.policy.compiled.Policy` relies on these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from headgate.config.problems import Findings, Path, render, shown
from headgate.core.errors import InvalidQuota

if TYPE_CHECKING:
    from headgate.core.quota import Quota
    from headgate.policy.model import Change, Rule, Ruleset

Reference = tuple[Path, str, str]
"""The path of an entry in `replaces`, the id of its rule, and the id of the replaced rule."""
_SHOWN = 10
"""Rules of a circle that are named."""


def check(
    ruleset: Ruleset, ids: Sequence[tuple[str, Path]], references: Sequence[Reference], findings: Findings
) -> None:
    """Check rules, each of them valid, as a whole.

    `ids` and `references` are those of all rules, with their paths: also of invalid ones, to which others may refer.
    """
    seen: dict[str, Path] = {}
    for rule_id, path in ids:
        first = seen.setdefault(rule_id, path)
        if first is not path:
            message = f"the id {shown(rule_id)} is already used by {render(first)}"
            findings.reject((*path, "id"), message, accepted="an id that no other rule has")
    known = _Known(ruleset, seen, findings)
    known.check_references(references)
    _check_circle(ruleset.rules, references, findings)
    for tier, changes in ruleset.tiers.items():
        known.check_changes(changes, ("tiers", tier), [])
    for name, user in ruleset.users.items():
        if user.overrides:
            usual = sorted({user.tier, ruleset.default_tier} & ruleset.tiers.keys())
            known.check_changes(user.overrides, ("users", name, "overrides"), usual)


def _check_circle(rules: Iterable[Rule], references: Sequence[Reference], findings: Findings) -> None:
    """Report rules that replace each other in a circle: only the first circle, at one of its references."""
    order = TopologicalSorter({rule.id: sorted(rule.replaces) for rule in rules if rule.replaces and rule.enabled})
    circle: list[str] = []
    try:
        order.prepare()
    except CycleError as error:
        circle = error.args[1][:0:-1]  # its first is its last again, and each is replaced by the next
    following = dict(zip(circle, [*circle[1:], *circle[:1]], strict=True))
    for path, rule_id, other in references if circle else ():
        if following.get(rule_id) == other:
            some = circle if len(circle) <= _SHOWN else [*circle[:_SHOWN], "..."]
            message = f"rules replace each other in a cycle: {' -> '.join([*some, circle[0]])}"
            hint = "Where all of them match, none would apply: remove one."
            findings.reject(path, message, hint)
            return


class _Known:
    def __init__(self, ruleset: Ruleset, ids: Mapping[str, Path], findings: Findings) -> None:
        self._ids, self._findings = ids, findings
        self._names = tuple(sorted(ids))
        everything = (*ruleset.rules, *([ruleset.default] if ruleset.default else []))
        self._quotas = {rule.id: rule.quotas for rule in reversed(everything)}
        self._tiers = ruleset.tiers
        self._changed: dict[tuple[tuple[Quota, ...], Change], tuple[Quota, ...] | InvalidQuota] = {}
        """Changed quotas, or why not. Many users have few different changes."""

    def check_references(self, references: Sequence[Reference]) -> None:
        for path, rule_id, other in references:
            if other not in self._ids:
                self._unknown(other, path)
            elif other == rule_id:
                self._findings.reject(path, "a rule cannot replace itself")

    def check_changes(self, changes: Mapping[str, Change], path: Path, tiers: Sequence[str]) -> None:
        """Report changes that make no quota of a rule as written, or as one of these tiers changes it."""
        for rule_id, change in changes.items():
            place = (*path, rule_id)
            quotas = self._quotas.get(rule_id)
            if quotas is None:
                if rule_id not in self._ids:
                    self._unknown(rule_id, place, at_key=True)
            elif self._is_valid(change, rule_id, quotas, place):
                for tier in tiers:
                    of_tier = self._tiers[tier].get(rule_id)
                    base = self._apply(of_tier, quotas) if of_tier is not None else quotas
                    if not isinstance(base, InvalidQuota):
                        self._is_valid(change, rule_id, base, place, f" on top of tier {tier!r}")

    def _is_valid(self, change: Change, rule_id: str, quotas: tuple[Quota, ...], path: Path, on_top: str = "") -> bool:
        error = self._apply(change, quotas)
        if not isinstance(error, InvalidQuota):
            return True
        message = f"this change of {rule_id!r} is invalid{on_top}: {error}"
        field = next((name for name in error.fields if getattr(change, name, None) is not None), "")
        place = (*path, "window" if field == "window_us" else field) if field else path
        self._findings.reject(place, message)
        return False

    def _apply(self, change: Change, quotas: tuple[Quota, ...]) -> tuple[Quota, ...] | InvalidQuota:
        known = quotas, change if change.until is None else replace(change, until=None)
        if known not in self._changed:
            try:
                self._changed[known] = change.apply(quotas)
            except InvalidQuota as error:
                self._changed[known] = error
        return self._changed[known]

    def _unknown(self, rule_id: str, path: Path, *, at_key: bool = False) -> None:
        hint = self._findings.near(rule_id, self._names)
        self._findings.reject(path, f"rule {shown(rule_id)} does not exist", hint, at_key=at_key)
