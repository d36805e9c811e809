"""Whether rules, tiers and users go together: ids, what replaces what, and whether every change makes a quota.

This is the only place that looks at rules as a whole. Whoever makes a `Ruleset` in Python is told the same as whoever
writes a file, by the path of what is wrong; `headgate.policy.compiled.Policy` relies on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from headgate.config.problems import Findings, Path, ProblemKind, render, shown
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota

if TYPE_CHECKING:
    from headgate.core.quota import Quota
    from headgate.policy.model import Change, Rule, Ruleset

Reference = tuple[Path, str, str]
"""Where it is written that a rule replaces another, and their ids."""
_MEANING = ProblemKind.MEANING
_SHOWN = 10
"""How many rules of a circle are named."""


def check(
    ruleset: Ruleset, ids: Sequence[tuple[str, Path]], references: Sequence[Reference], findings: Findings
) -> None:
    """Note what is wrong with rules as a whole.

    Args:
        ruleset: those that are right by themselves.
        ids: of all rules, right or wrong, with their paths: what refers to a wrong rule is not wrong for that.
        references: of all rules, too.
        findings: takes the problems.
    """
    _check_ids(ids, findings)
    known = _Known(ruleset, {rule_id for rule_id, _ in ids}, findings)
    known.check_references(references)
    _check_circle(ruleset.rules, references, findings)
    for tier, changes in ruleset.tiers.items():
        known.check_changes(changes, ("tiers", tier), [])
    for name, user in ruleset.users.items():
        if user.overrides:
            usual = sorted({user.tier, ruleset.default_tier} & ruleset.tiers.keys())
            known.check_changes(user.overrides, ("users", name, "overrides"), usual)


def _check_ids(ids: Sequence[tuple[str, Path]], findings: Findings) -> None:
    seen: dict[str, Path] = {}
    for rule_id, path in ids:
        first = seen.setdefault(rule_id, path)
        if first is not path:
            message = f"the id {shown(rule_id)} is that of {render(first)} already"
            findings.add((*path, "id"), message, "an id that no other rule has", kind=_MEANING)


def _check_circle(rules: Iterable[Rule], references: Sequence[Reference], findings: Findings) -> None:
    circle = circle_among(rules)
    following = dict(zip(circle, [*circle[1:], *circle[:1]], strict=True))
    for path, rule_id, other in references if circle else ():
        if following.get(rule_id) == other:
            some = circle if len(circle) <= _SHOWN else [*circle[:_SHOWN], "..."]
            message = f"rules replace each other in a circle: {' -> '.join([*some, circle[0]])}"
            hint = "Where all of them match, none would apply: remove one."
            findings.add(path, message, hint=hint, kind=_MEANING)
            return


def circle_among(rules: Iterable[Rule]) -> list[str]:
    """Return the ids of rules that replace each other in a circle, each the next one; empty if there is none."""
    order = TopologicalSorter({rule.id: sorted(rule.replaces) for rule in rules if rule.replaces and rule.enabled})
    try:
        order.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[:0:-1]  # its first is its last again, and each is replaced by the next
    return []


class _Known:
    """The rules that there are, and what may refer to them."""

    def __init__(self, ruleset: Ruleset, ids: set[str], findings: Findings) -> None:
        self._ids, self._findings = ids, findings
        self._names = tuple(sorted(ids))
        everything = (*ruleset.rules, *([ruleset.default] if ruleset.default else []))
        self._quotas = {rule.id: rule.quotas for rule in reversed(everything)}
        self._tiers = ruleset.tiers
        self._right: set[tuple[str, str, Change]] = set()
        """By rule, and tier or none: changes that make a quota. Many users have few different ones."""
        self._tiered: dict[tuple[str, str], tuple[Quota, ...]] = {}
        """By tier and rule: the quotas of the rule as the tier changes them."""

    def check_references(self, references: Sequence[Reference]) -> None:
        for path, rule_id, other in references:
            if other not in self._ids:
                self._unknown(other, path)
            elif other == rule_id:
                self._findings.add(path, "a rule cannot replace itself", kind=_MEANING)

    def check_changes(self, changes: Mapping[str, Change], path: Path, tiers: Sequence[str]) -> None:
        """Note changes that make no quota of a rule as it is written, or as one of these tiers changes it."""
        for rule_id, change in changes.items():
            place = (*path, rule_id)
            quotas = self._quotas.get(rule_id)
            if quotas is None:
                if rule_id not in self._ids:
                    self._unknown(rule_id, place, at_key=True)
                continue
            if self._is_right(change, (rule_id, ""), quotas, place):
                for tier in tiers:
                    self._is_right(change, (rule_id, tier), self._in_tier(tier, rule_id, quotas), place)

    def _in_tier(self, tier: str, rule_id: str, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        """Return the quotas of a rule as a tier changes them; none: it does not, or what is wrong has been said."""
        known = self._tiered.get((tier, rule_id))
        if known is None:
            change = self._tiers[tier].get(rule_id)
            is_right = change is not None and (rule_id, "", _lasting(change)) in self._right
            known = change.apply(quotas) if change is not None and is_right else ()
            self._tiered[tier, rule_id] = known
        return known

    def _is_right(self, change: Change, what: tuple[str, str], quotas: tuple[Quota, ...], path: Path) -> bool:
        """Note what keeps a change from being made to the quotas of a rule, in a tier; `what` are their names."""
        rule_id, tier = what
        known = (rule_id, tier, _lasting(change))
        if not quotas or known in self._right:
            return True
        field, why, accepted = _calendar_kept(change, quotas)
        try:
            if not field:
                change.apply(quotas)
                self._right.add(known)
                return True
        except InvalidQuota as error:
            why = str(error)
        on_top = f" on top of tier {tier!r}" if tier else ""
        message = f"{rule_id!r} cannot be changed like that{on_top}: {why}"
        self._findings.add((*path, field) if field else path, message, accepted, kind=_MEANING)
        return False

    def _unknown(self, rule_id: str, path: Path, *, at_key: bool = False) -> None:
        hint = self._findings.near(rule_id, self._names)
        self._findings.add(path, f"there is no rule {shown(rule_id)}", "", hint, kind=_MEANING, at_key=at_key)


def _lasting(change: Change) -> Change:
    return change if change.until is None else replace(change, until=None)


def _calendar_kept(change: Change, quotas: tuple[Quota, ...]) -> tuple[str, str, str]:
    """Return the field by which a change would take a quota from its calendar, why it cannot, and what it can."""
    calendar = quotas[0].calendar if len(quotas) == 1 and change.quotas is None else None
    if calendar is not None:
        for field, value in (("window", change.window_us), ("algorithm", change.algorithm)):
            if value is not None and value is not Algorithm.FIXED_WINDOW:
                why = f"its window is the {calendar.unit} of a calendar, so {field} cannot be changed alone"
                return field, why, f"limit, or all of it: {{limit: 10, window: day, calendar: {calendar.zone}}}"
    return "", "", ""
