"""What rules say in vain: well formed, and without effect on any request. Each is a warning, where it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.policy.forms import DIMENSIONS, METHODS
from headgate.policy.model import Change, Rule, Ruleset
from headgate.policy.prepared import share_of
from headgate.policy.problems import Findings, Path
from headgate.policy.request import GLOBAL
from headgate.policy.times import moment_text

_NO_ATTRIBUTES = {"method": "methods", "methods": "methods", "tier": "tier"}
"""What people look for among the attributes, and the field of a rule that asks for it."""


def note(ruleset: Ruleset, now: int, warnings: Findings) -> None:
    """Note what has no effect, or hardly the one that was meant.

    Args:
        ruleset: the rules, in the order of their file.
        now: microseconds since the epoch, for changes that have ended.
        warnings: takes what is found.
    """
    places: list[tuple[Path, Rule]] = [(("rules", index), rule) for index, rule in enumerate(ruleset.rules)]
    if ruleset.default is not None:
        places.append((("default",), ruleset.default))
    for path, rule in places:
        _look_at_rule(rule, path, warnings)
    rules = {rule.id: rule for _, rule in places}
    _look_at_tiers(ruleset, rules, warnings)
    for path, tier, changes in _all_changes(ruleset):
        for rule_id, change in changes.items():
            _look_at_change(rules[rule_id], tier, (*path, rule_id), warnings)
            if change.until is not None and change.until <= now:
                ended = f"has no effect any more: it ended at {moment_text(change.until)}"
                warnings.add((*path, rule_id, "until"), ended)


def _look_at_rule(rule: Rule, path: Path, warnings: Findings) -> None:
    for method in sorted(rule.methods.difference(METHODS)):
        if hint := warnings.near(method, METHODS):
            warnings.add((*path, "methods"), f"{method} is an unusual method", hint=hint)
    for name in rule.dimensions:
        if name not in DIMENSIONS and (hint := warnings.near(name, DIMENSIONS)):
            what = f"counts by the attribute {name!r}"
            warnings.add((*path, "dimension"), what, f"one of {', '.join(DIMENSIONS)}, or any attribute", hint)
    for name in rule.when:
        if field := _NO_ATTRIBUTES.get(name):
            what = f"compares an attribute {name!r} that callers give, and not the request's own {field.rstrip('s')}"
            warnings.add((*path, "when", name), what, hint=f"Write `{field}` as a field of the rule.", at_key=True)
    if rule.dimension == GLOBAL and 0 < rule.enforce_percent < 100:
        whom = "all" if share_of(rule.id, GLOBAL) < rule.enforce_percent else "none"
        what = f"a global rule counts all as one: at {rule.enforce_percent} percent it is enforced for {whom}"
        warnings.add((*path, "enforce_percent"), what, "0 or 100, or another dimension")


def _look_at_tiers(ruleset: Ruleset, rules: Mapping[str, Rule], warnings: Findings) -> None:
    known = {*ruleset.tiers, *(rule.tier for rule in rules.values() if rule.tier)}
    names = tuple(sorted(known))
    named: list[tuple[Path, str]] = [(("users", name, "tier"), user.tier) for name, user in ruleset.users.items()]
    for path, tier in [(("default_tier",), ruleset.default_tier), *named]:
        if tier and tier not in known:
            hint = warnings.near(tier, names)
            warnings.add(path, f"has no effect: there is no tier {tier!r}, and no rule for one", hint=hint)


def _all_changes(ruleset: Ruleset) -> Iterator[tuple[Path, str, Mapping[str, Change]]]:
    """Return all changes by rule, where they are, and the tier of those whom they are for; empty if it is not known."""
    for tier, changes in ruleset.tiers.items():
        yield ("tiers", tier), tier, changes
    for name, user in ruleset.users.items():
        if user.overrides:
            yield ("users", name, "overrides"), user.tier or ruleset.default_tier, user.overrides


def _look_at_change(rule: Rule, tier: str, path: Path, warnings: Findings) -> None:
    if rule.tier and tier and tier != rule.tier:
        whose = f", and the user is of tier {tier}" if path[0] == "users" else ""
        hint = f"Leave `tier: {rule.tier}` out of the rule if it is for others, too."
        warnings.add(path, f"has no effect: the rule is only for tier {rule.tier}{whose}", hint=hint, at_key=True)
