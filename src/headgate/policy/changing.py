"""Changes of single rules, tiers, users and settings: made in the data of a rules file, or in rules that are in force.

What a change does not concern is neither read nor checked again, and stays the same object: `Policy` goes by that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from headgate.config.problems import Findings, InvalidRules, Locator, Path, render
from headgate.policy.checks import Reference, check
from headgate.policy.forms import FILE
from headgate.policy.loading import declared, from_data
from headgate.policy.model import NO_RULES, Change, Rule, Ruleset, User

KINDS = RULE, TIER, USER, SETTING = "rule", "tier", "user", "setting"
_PLACE = re.compile(r"^rules\[([0-9]+)\]")


class BodyChange(NamedTuple):
    """What something is now."""

    kind: str
    """rule, tier, user or setting, as in `headgate.admin.objects`."""
    id: str
    body: Any | None
    """In the form of a rules file; None: it is gone."""


def merged(
    wanted: Mapping[str, Any], present: Mapping[str, Any], sections: Collection[str], *, replace_users: bool = False
) -> dict[str, Any]:
    """Return what there is once the data of a rules file is applied to what is in force.

    Sections that the file does not have stay as they are, and so do overrides with an end, unless users are replaced:
    operators give those for a time, and no file has them.
    """
    found = {**wanted, **{name: part for name, part in present.items() if name not in sections and name != "version"}}
    if "users" not in sections or replace_users:
        return found
    users = found["users"] = dict(wanted.get("users", {}))
    for name, user in present.get("users", {}).items():
        given = users.get(name, {})
        timed = {rule: change for rule, change in user.get("overrides", {}).items() if "until" in change}
        if timed:
            users[name] = {**given, "overrides": timed | given.get("overrides", {})}
    return found


def put(document: dict[str, Any], changes: Sequence[BodyChange]) -> None:
    """Make changes in the data of a rules file, one after the other. New rules follow those that are there."""
    rules: dict[Any, Any] = {}
    if by_rule := [change for change in changes if change.kind == RULE]:
        rules = {rule.get("id", place): rule for place, rule in enumerate(document.get("rules", ()))}
    for _, name, body in by_rule:
        if body is None:
            rules.pop(name, None)
        else:
            rules[name] = _named(name, body)
    if by_rule:
        document["rules"] = list(rules.values())
    for kind, name, body in changes:
        if kind != RULE:
            table = document if kind == SETTING else document.setdefault(f"{kind}s", {})
            table.pop(name, None)
            if body is not None:
                table[name] = body


def _named(name: str, body: Any) -> Any:
    is_nameless = isinstance(body, dict) and not {"id", "rule_id"} & body.keys()
    return {"id": name, **body} if is_nameless else body


def from_part(document: dict[str, Any], *, name: str = "rules") -> Ruleset:
    """Read a part of all rules, as `from_data` reads all; rules have their ids in problems, not places in this part."""
    try:
        return from_data(document, name=name)
    except InvalidRules as error:
        ids = [rule.get("id", rule.get("rule_id")) if isinstance(rule, dict) else None for rule in document["rules"]]

        def by_id(found: re.Match[str]) -> str:
            return render(("rules", ids[int(found[1])] or int(found[1])))

        raise InvalidRules([replace(each, path=_PLACE.sub(by_id, each.path)) for each in error.problems]) from None


def changed(ruleset: Ruleset, changes: Sequence[BodyChange], *, name: str = "rules") -> Ruleset:
    """Return rules with changes made in them. Raises InvalidRules if the changes are wrong or do not go with the rest.

    What there is besides is taken to be right: it is that of a `Ruleset`.
    """
    findings = Findings(Locator(name))
    document: dict[str, Any] = {"version": 1}
    put(document, changes)
    read = FILE.read(document, (), findings)
    findings.check()
    touched: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    for change in changes:
        touched[change.kind][change.id] = None
    values = {each.name: getattr(ruleset, each.name) for each in fields(Ruleset)}
    for setting in touched[SETTING]:
        given = read.get(setting, getattr(NO_RULES, setting, None))
        values[setting] = tuple(given) if isinstance(given, list) else given
    for kind, table in ((TIER, "tiers"), (USER, "users")):
        if touched[kind]:
            kept = dict(values[table])
            for each in touched[kind]:
                kept.pop(each, None)
            values[table] = kept | read.get(table, {})
    if touched[RULE]:
        rules = {rule.id: rule for rule in ruleset.rules}
        for change in changes:
            if change.kind == RULE and change.body is None:
                rules.pop(change.id, None)
        values["rules"] = tuple({**rules, **{rule.id: rule for rule in read.get("rules", ())}}.values())
    after = Ruleset.unchecked(**values)
    _check(ruleset, after, touched, declared(document)[1], findings)
    findings.check()
    return after


def _check(
    before: Ruleset,
    after: Ruleset,
    touched: Mapping[str, Collection[str]],
    references: list[Reference],
    findings: Findings,
) -> None:
    """Note what is wrong with rules of which something has been touched, so far as that makes a difference."""
    ids: list[tuple[str, Path]] = [(rule.id, ("rules", rule.id)) for rule in after.rules]
    ids += [(after.default.id, ("default",))] if after.default is not None else []
    rules = {rule.id: rule for rule in (*after.rules, after.default) if rule is not None}
    edited = set(touched[RULE])
    if before.default is not after.default:
        edited |= {each.default.id for each in (before, after) if each.default is not None}
    gone = edited - rules.keys()
    for rule in rules.values():
        if rule.id not in edited and not gone.isdisjoint(rule.replaces):
            references += [(("rules", rule.id, "replaces"), rule.id, other) for other in rule.replaces]
    concerned = {*edited, *[rule for tier in touched[TIER] for rule in after.tiers.get(tier, ())]}
    if before.default_tier != after.default_tier:
        concerned |= after.tiers.get(after.default_tier, {}).keys()
    users = {each: after.users[each] for each in touched[USER] if each in after.users}
    named = concerned.union(*[user.overrides for user in users.values()])
    part = Ruleset.unchecked(
        rules=tuple({**_reached(edited, rules), **{each: rules[each] for each in named & rules.keys()}}.values()),
        tiers={
            tier: {rule: change for rule, change in given.items() if rule in named}
            for tier, given in after.tiers.items()
        },
        users={**(_overriding(after.users, concerned) if concerned else {}), **users},
        default_tier=after.default_tier,
    )
    check(part, ids, references, findings)


def _reached(edited: Iterable[str], rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Return rules with those that they replace, and that these replace: in a new circle there are no others."""
    reached: dict[str, Rule] = {}
    waiting = [*edited]
    while waiting:
        rule = rules.get(waiting.pop())
        if rule is not None and rule.id not in reached:
            reached[rule.id] = rule
            waiting += rule.replaces
    return reached


def _overriding(users: Mapping[str, User], rules: set[str]) -> dict[str, User]:
    """Return a user for each different override of these rules: there are few even where there are many users."""
    found: dict[tuple[str, str, Change], str] = {}
    for name, user in users.items():
        if not rules.isdisjoint(user.overrides):
            for rule in user.overrides.keys() & rules:
                found.setdefault((user.tier, rule, user.overrides[rule]), name)
    examples: dict[str, User] = {}
    for (tier, rule, change), name in found.items():
        others = examples[name].overrides if name in examples else {}
        examples[name] = User(tier, {**others, rule: change})
    return examples
