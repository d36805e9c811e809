"""The forms of rules, tiers, users with their overrides, lists, and files.

Fields are declared in `headgate.policy.model` and `headgate.policy.quotas`; reading, messages and the JSON Schema for
editors follow. The schema describes single fields and their combinations. Only the loader makes checks that need the
whole file (whether a rule exists) or arithmetic (whether a quota can be computed exactly).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_network

from headgate.config.problems import Findings, Path, shown
from headgate.config.records import fields_of
from headgate.config.schema import DIALECT, Field, Form, ListOf, MapOf, Record, Scalar, Schema, Values
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.grammar import MAX_TEXT
from headgate.policy.model import LONGEST_VALUE, RULE_ID, Change, Entry, Rule, Ruleset, User
from headgate.policy.quotas import (
    ALL_OF_QUOTA,
    ALL_WAYS,
    AS_TEXT,
    IN_PART,
    LIMIT,
    LIMITS_FIELD,
    QUOTA_FIELDS,
    SECONDS,
    QuotaForm,
    culprit,
    quotas_of,
    way_of,
    window_us,
)

ALLOW = "allow"
DEFAULT_ID = "default"


def _rule(read: Values, path: Path, findings: Findings) -> Rule | None:
    quotas = quotas_of(read, path, findings)
    if quotas is None or "id" not in read:
        return None
    given = {name: value for name, value in read.items() if name not in ALL_OF_QUOTA and name != AS_TEXT}
    for name in ("methods", "replaces"):
        if name in read:  # `check` reports a rule that replaces itself
            given[name] = frozenset(read[name]) - {None, read["id"] if name == "replaces" else None}
    return make_rule({"quotas": quotas, **given}, path, findings)


def make_rule(given: Values, path: Path, findings: Findings, written: Mapping[str, str] | None = None) -> Rule | None:
    """Return a rule, without fields that are reported as invalid: others may refer to it all the same.

    `written` has the names of fields that are different in the file.
    """
    try:
        return Rule(**given)
    except InvalidRule as error:
        (field,) = error.fields or ("",)
        message = str(error).removeprefix(f"rule {given['id']!r}: ").removeprefix(f"{field}: ")  # the path has them
        findings.reject((*path, (written or {}).get(field, field)) if field else path, message)
        others = {name: value for name, value in given.items() if name != field}
        return make_rule(others, path, findings, written) if len(others) < len(given) else None


def _rule_fields() -> dict[str, Field]:
    """Return the declared fields of a rule, with those of a quota after `when`."""
    fields: dict[str, Field] = {}
    for name, field in fields_of(Rule).items():
        fields[name] = field
        if name == "when":
            fields |= {**QUOTA_FIELDS, **LIMITS_FIELD}
    return fields


_RULE_FIELDS = _rule_fields()
_SPELLINGS = {"rule_id": "id", "key_type": "dimension", "endpoint_pattern": "endpoint", **SECONDS}
RULE = QuotaForm(Record("a rule", _RULE_FIELDS, spellings=_SPELLINGS, make=_rule), ALL_WAYS)


class Default:
    """What applies when no rule does: the word allow, the text of a quota, or a rule that needs no id."""

    _rule = QuotaForm(
        Record(
            "the default",
            {**_RULE_FIELDS, "id": Field(RULE_ID, f"Names the rule; default: `{DEFAULT_ID}`.")},
            spellings=_SPELLINGS,
            make=lambda read, path, findings: _rule({"id": DEFAULT_ID, **read}, path, findings),
        ),
        ALL_WAYS,
        as_text=True,
    )

    def read(self, value: object, path: Path, findings: Findings) -> Rule | None:
        if value == ALLOW:
            return None
        if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and not re.search("[0-9]", value):
            message, accepted = f"{shown(value)} is not a default", 'allow, or a quota such as "100/minute"'
            findings.reject(path, message, findings.near(value, [ALLOW]), accepted=accepted)
            return None
        rule: Rule | None = self._rule.read(value, path, findings)
        return rule

    def schema(self) -> Schema:
        return self._rule.schema()  # the word is text, like a quota


def _change(read: Values, path: Path, findings: Findings) -> Change | None:
    until = read.get("until")
    if way_of(read, CHANGE.ways) is not IN_PART:
        quotas = quotas_of(read, path, findings)
        return None if quotas is None else Change(quotas=quotas, until=until)
    given = {name: read[name] for name in ("limit", "burst", "capacity", "algorithm", "until") if name in read}
    try:
        return Change(window_us=window_us(read["window"]) if "window" in read else None, **given)
    except (InvalidQuota, InvalidRule) as error:
        message = str(error).removeprefix("a change: ")  # the path has it
        findings.reject((*path, culprit(error, read, "window")), message)
        return None


CHANGE = QuotaForm(
    Record(
        "a change",
        {**QUOTA_FIELDS, **LIMITS_FIELD, **fields_of(Change)},
        spellings=SECONDS,
        make=_change,
    ),
    (IN_PART, *ALL_WAYS),
    name="change",
)
_CHANGES = MapOf(CHANGE, "ids of rules and what changes, such as {orders-user: {limit: 1000}}", or_nothing=True)


USER = Record("a user", fields_of(User, overrides=_CHANGES), make=lambda read, *_: User(**read))


def _entry(read: Values, path: Path, findings: Findings) -> Entry | None:
    for dimension, text in read.items():
        try:
            return Entry(dimension, text)
        except InvalidRule as error:
            hint = ""
            with suppress(ValueError):
                hint = f"Did you mean '{ip_network(text, strict=False)}'?"
            findings.reject((*path, dimension), str(error), hint)
    return None


_ENTRY = MapOf(
    Scalar.text("text, in which * stands for any characters", most=LONGEST_VALUE),
    "one dimension and its value, such as ip: 10.0.0.0/8",
    exactly=1,
    make=_entry,
)
_ENTRIES = ListOf(_ENTRY, "a list such as [{ip: 10.0.0.0/8}, {user: bot-*}]", or_nothing=True)


def _table(of: Form, accepted: str, longest: int) -> MapOf:
    return MapOf(of, accepted, keys=rf"[\s\S]{{1,{longest}}}", or_nothing=True)


FILE = Record(
    "a file of rules",
    {
        "version": Field(Scalar.version(1), "The version of this form: write version: 1.", required=True),
        **fields_of(
            Ruleset,
            rules=ListOf(RULE, "a list of rules, each beginning with '- id: ...'", or_nothing=True),
            tiers=_table(_CHANGES, "tiers, each with changes by rule", 64),
            users=_table(USER, 'users by their id, such as "12345": {tier: premium}', 512),
            allow=_ENTRIES,
            deny=_ENTRIES,
            default=Default(),
        ),
    },
    extensions=True,
)


def rules_schema() -> Schema:
    """Return the JSON Schema of a file of rules, in YAML or JSON."""
    return {
        "$schema": DIALECT,
        "title": "Rules of Headgate",
        "description": "Rate limits: which requests they apply to, and how much may pass.",
        **FILE.schema(),
        "$defs": {form.name: form.definition() for form in (LIMIT, CHANGE)},
    }
