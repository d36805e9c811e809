"""Changes of single rules, tiers, users and settings: made in the data of a rules file, or in rules that are in force.

Unchanged parts are not read or checked again, and stay the same objects, which `Policy` relies on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from headgate.config.problems import Findings, InvalidRules, Locator, render
from headgate.policy.forms import FILE
from headgate.policy.loading import from_data
from headgate.policy.model import NO_RULES, Ruleset

RULE, TIER, USER, SETTING = "rule", "tier", "user", "setting"
_PLACE = re.compile(r"^rules\[([0-9]+)\]")


class BodyChange(NamedTuple):
    """The new body of an object."""

    kind: str
    """rule, tier, user or setting, as in `headgate.admin.objects`."""
    id: str
    body: Any | None
    """In the form of a rules file; None: it is deleted."""


def merged(
    wanted: Mapping[str, Any], present: Mapping[str, Any], sections: Collection[str], *, replace_users: bool = False
) -> dict[str, Any]:
    """Return the rules after applying the data of a rules file to those in force.

    Sections that are missing from the file stay as they are, and so do temporary overrides, unless users are replaced:
    operators set those for a time, and no file has them.
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
            is_nameless = isinstance(body, dict) and not {"id", "rule_id"} & body.keys()
            rules[name] = {"id": name, **body} if is_nameless else body
    if by_rule:
        document["rules"] = list(rules.values())
    for kind, name, body in changes:
        if kind != RULE:
            table = document if kind == SETTING else document.setdefault(f"{kind}s", {})
            table.pop(name, None)
            if body is not None:
                table[name] = body


def from_part(document: dict[str, Any], *, name: str = "rules") -> Ruleset:
    """Read a part of all rules like `from_data`; in problems, rules have their ids instead of places in this part."""
    try:
        return from_data(document, name=name)
    except InvalidRules as error:
        ids = [rule.get("id", rule.get("rule_id")) if isinstance(rule, dict) else None for rule in document["rules"]]

        def by_id(found: re.Match[str]) -> str:
            return render(("rules", ids[int(found[1])] or int(found[1])))

        raise InvalidRules([replace(each, path=_PLACE.sub(by_id, each.path)) for each in error.problems]) from None


def changed(ruleset: Ruleset, changes: Sequence[BodyChange], *, name: str = "rules") -> Ruleset:
    """Return rules with changes made in them. Raises InvalidRules if a body is invalid.

    Their consistency with the other rules is not checked again: their writer checks it with `from_part`.
    """
    document: dict[str, Any] = {"version": 1}
    put(document, changes)
    findings = Findings(Locator(name))
    read = FILE.read(document, (), findings)
    findings.check()
    values = {each.name: getattr(ruleset, each.name) for each in fields(Ruleset)}
    rules = {rule.id: rule for rule in ruleset.rules}
    tables: dict[str, dict[str, Any]] = {RULE: rules}
    for kind, key, body in changes:
        if kind == SETTING:
            given = read.get(key, getattr(NO_RULES, key, None))
            values[key] = tuple(given) if isinstance(given, list) else given
            continue
        table = tables[kind] if kind in tables else tables.setdefault(kind, dict(values[f"{kind}s"]))
        if body is None:
            table.pop(key, None)
    rules |= {rule.id: rule for rule in read.get("rules", ())}
    values["rules"] = tuple(rules.values())
    for kind in tables.keys() - {RULE}:
        values[f"{kind}s"] = tables[kind] | read.get(f"{kind}s", {})
    return Ruleset.unchecked(**values)
