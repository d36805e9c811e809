"""Every form that operators write, declared once: rules, tiers, users with their overrides, lists, and a file of all.

From these tables come the loading of YAML and JSON, every message about what is wrong, and the JSON Schema for editors.
The schema knows the form of single fields and which go together. What needs the whole file (whether a rule that is
named exists) or arithmetic (whether a quota can be computed exactly) only the loader knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

from headgate.config.problems import Findings, Path, ProblemKind, shown
from headgate.config.schema import (
    DIALECT,
    NAME,
    NAMED,
    Field,
    Form,
    ListOf,
    MapOf,
    Record,
    Scalar,
    Schema,
    Values,
)
from headgate.config.times import moment
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.grammar import MAX_TEXT
from headgate.core.mode import Mode
from headgate.core.quota import MAX_REPLICAS
from headgate.policy.model import (
    LONGEST_MESSAGE,
    LONGEST_VALUE,
    METHOD,
    MOST_DIMENSIONS,
    TOGETHER,
    Change,
    Entry,
    Rule,
    User,
)
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

DIMENSIONS = ("user", "ip", "apikey", "endpoint", "global")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
ALLOW, ERROR = "allow", "error"
DEFAULT_ID = "default"
RULE_ID = Scalar.text(f"a rule's id: {NAMED}", NAME, 64)
_MEANING = ProblemKind.MEANING
_TIER = Scalar.text("the name of a tier, up to 64 characters", most=64)


class Dimension:
    """What a rule counts by: one name, or a list of names."""

    _one = Scalar.text(f"one of {', '.join(DIMENSIONS)}, or the name of an attribute", NAME, 64, DIMENSIONS)

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        if type(value) is not list:
            return self._one.read(value, path, findings)
        if not 0 < len(value) <= MOST_DIMENSIONS:
            findings.add(path, f"has {len(value)} names", f"1 to {MOST_DIMENSIONS} names, such as [user, endpoint]")
            return None
        names = [self._one.read(name, (*path, index), findings) for index, name in enumerate(value)]
        return TOGETHER.join([name for name in names if name is not None]) if None not in names else None

    def schema(self) -> Schema:
        several = {"type": "array", "items": self._one.schema(), "minItems": 1, "maxItems": MOST_DIMENSIONS}
        return {"anyOf": [self._one.schema(), several]}


def _rule(read: Values, path: Path, findings: Findings) -> Rule | None:
    quotas = quotas_of(read, path, findings)
    if quotas is None or "id" not in read:
        return None
    given = {name: value for name, value in read.items() if name not in ALL_OF_QUOTA and name != AS_TEXT}
    for name in ("methods", "replaces"):
        if name in read:  # that a rule replaces itself is said where all that it replaces is looked at
            given[name] = frozenset(read[name]) - {None, read["id"] if name == "replaces" else None}
    return made_rule({"quotas": quotas, **given}, path, findings)


def made_rule(given: Values, path: Path, findings: Findings, written: Mapping[str, str] | None = None) -> Rule | None:
    """Return a rule, perhaps without fields that are noted as wrong: others may refer to it all the same.

    `written` says which fields have other names in the file.
    """
    try:
        return Rule(**given)
    except InvalidRule as error:
        (field,) = error.fields or ("",)
        message = str(error).removeprefix(f"rule {given['id']!r}: ").removeprefix(f"{field}: ")  # the path says it
        findings.add((*path, (written or {}).get(field, field)) if field else path, message, kind=_MEANING)
        others = {name: value for name, value in given.items() if name != field}
        return made_rule(others, path, findings, written) if len(others) < len(given) else None


_RULE_FIELDS = {
    "id": Field(RULE_ID, "Names the rule, in keys and answers; what was used is counted under it.", required=True),
    "name": Field(Scalar.text("text", most=200), "For people."),
    "dimension": Field(
        Dimension(),
        "What is counted apart: user, ip, apikey, endpoint, global, or the name of an attribute; a list such as "
        "[user, endpoint] counts each user on each path. By default user.",
    ),
    "endpoint": Field(
        Scalar.text("a path such as /api/v1/orders/**, or **", r"/[^\s?#;]*|\*\*?", 2048, numbers=False),
        "The paths it is for: literal, * for one segment, ** for the rest; default: all.",
    ),
    "methods": Field(
        ListOf(
            Scalar.text("an HTTP method in capitals", METHOD, 20, METHODS, numbers=False),
            "a list such as [GET, POST]",
        ),
        "The HTTP methods it is for; default: all.",
    ),
    "key_pattern": Field(
        Scalar.text("text in which * stands for any characters", most=LONGEST_VALUE),
        "Only for those who are counted under such a value; for the dimension ip also a network. All by default.",
    ),
    "tier": Field(_TIER, "Only for principals of this tier."),
    "when": Field(
        MapOf(Scalar.text("text", most=512, flags=True), "attributes and their values, such as {region: eu}"),
        "Attributes that must be equal.",
    ),
    **QUOTA_FIELDS,
    **LIMITS_FIELD,
    "shadow": Field(Scalar.flag(), "Counts and is reported, but never refuses."),
    "enabled": Field(Scalar.flag(), "Whether the rule applies at all."),
    "enforce_percent": Field(
        Scalar.whole(0, 100), "For so many percent of its principals the rule refuses; for the others it is a shadow."
    ),
    "replaces": Field(
        ListOf(RULE_ID, "a list of ids of rules"),
        "Ids of rules that do not apply when this one does; a rule that is itself replaced replaces nothing.",
    ),
    "on_store_failure": Field(
        Scalar.choice({str(mode): mode for mode in Mode}),
        "What to answer when the store does not; default: the engine's.",
    ),
    "replicas": Field(
        Scalar.whole(0, MAX_REPLICAS),
        "How many replicas of the store must have what a request took: its answer waits for them, or says that they "
        "have not got it.",
    ),
    "refusal_status": Field(Scalar.whole(400, 599), "The HTTP status of its refusals; default: 429."),
    "refusal_message": Field(
        Scalar.text("a line of text", most=LONGEST_MESSAGE, numbers=False),
        "What clients read in its refusals; default: the limit, and when to retry.",
    ),
    "reset_on_change": Field(Scalar.flag(), "Whether a changed limit, burst or updated_at forgets what was used."),
    "created_at": Field(moment(as_written=True), "When the rule was made."),
    "updated_at": Field(moment(as_written=True), "When the rule was last changed."),
}
_SPELLINGS = {"rule_id": "id", "key_type": "dimension", "endpoint_pattern": "endpoint", **SECONDS}
"""Other names of fields, as some documents have them."""
RULE = QuotaForm(Record("a rule", _RULE_FIELDS, spellings=_SPELLINGS, make=_rule), ALL_WAYS)


def _default_rule(read: Values, path: Path, findings: Findings) -> Rule | None:
    return _rule({"id": DEFAULT_ID, **read}, path, findings)


class Default:
    """What applies when no rule does: the word allow, the text of a quota, or a rule that needs no id."""

    _rule = QuotaForm(
        Record(
            "the default",
            {**_RULE_FIELDS, "id": Field(RULE_ID, f"Names the rule; default: `{DEFAULT_ID}`.")},
            spellings=_SPELLINGS,
            make=_default_rule,
        ),
        ALL_WAYS,
        as_text=True,
    )

    def read(self, value: object, path: Path, findings: Findings) -> Rule | None:
        if value == ALLOW:
            return None
        if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and not re.search("[0-9]", value):
            message, accepted = f"{shown(value)} is not a default", 'allow, or a quota such as "100/minute"'
            findings.add(path, message, accepted, findings.near(value, [ALLOW]), kind=_MEANING)
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
        message = str(error).removeprefix("a change: ")  # the path says it
        findings.add((*path, culprit(error, read, "window")), message, kind=_MEANING)
        return None


CHANGE = QuotaForm(
    Record(
        "a change",
        {
            **QUOTA_FIELDS,
            **LIMITS_FIELD,
            "until": Field(moment(), "When the change ends by itself, such as 2026-12-01T00:00:00Z."),
        },
        spellings=SECONDS,
        make=_change,
    ),
    (IN_PART, *ALL_WAYS),
    name="change",
)
_CHANGES = MapOf(CHANGE, "ids of rules and what changes, such as {orders-user: {limit: 1000}}", or_nothing=True)


def _user(read: Values, _path: Path, _findings: Findings) -> User:
    return User(**read)


USER = Record(
    "a user",
    {
        "tier": Field(_TIER, "The tier of the user."),
        "overrides": Field(_CHANGES, "By rule: what is different for this user, perhaps only until some moment."),
    },
    make=_user,
)


class ListEntry:
    """One entry of an allow list or a deny list: a dimension and its value."""

    _form = MapOf(
        Scalar.text("text, in which * stands for any characters", most=LONGEST_VALUE),
        "one dimension and its value, such as ip: 10.0.0.0/8",
        exactly=1,
    )

    def read(self, value: object, path: Path, findings: Findings) -> Entry | None:
        for dimension, text in (self._form.read(value, path, findings) or {}).items():
            try:
                return Entry(dimension, text)
            except InvalidRule as error:
                findings.add((*path, dimension), str(error), hint=_network(text), kind=_MEANING)
        return None

    def schema(self) -> Schema:
        return self._form.schema()


def _network(text: str) -> str:
    try:
        return f"Did you mean '{ip_network(text, strict=False)}'?"
    except ValueError:
        return ""


ENTRY = ListEntry()
_ENTRIES = ListOf(ENTRY, "a list such as [{ip: 10.0.0.0/8}, {user: bot-*}]", or_nothing=True)


def _table(of: Form, accepted: str, longest: int) -> MapOf:
    return MapOf(of, accepted, keys=rf"[\s\S]{{1,{longest}}}", or_nothing=True)


FILE = Record(
    "a file of rules",
    {
        "version": Field(Scalar.version(1), "The version of this form: write version: 1.", required=True),
        "rules": Field(
            ListOf(RULE, "a list of rules, each beginning with '- id: ...'", or_nothing=True),
            "The rules. Every rule that matches a request applies, unless another one replaces it.",
        ),
        "tiers": Field(
            _table(_CHANGES, "tiers, and in each what changes by rule", 64),
            "By tier, then by rule: what is different for its principals.",
        ),
        "users": Field(
            _table(USER, 'users by their id, such as "12345": {tier: premium}', 512),
            "What is special about single users.",
        ),
        "default_tier": Field(_TIER, "The tier of users who have none."),
        "allow": Field(_ENTRIES, "Principals that pass unasked."),
        "deny": Field(_ENTRIES, "Principals that are refused unasked."),
        "default": Field(Default(), "What applies when no rule does: a quota, or allow, the default."),
        "ignore_case": Field(
            Scalar.flag(), "Whether endpoints that differ only in capitals are the same; they are not unless true."
        ),
        "unknown_rule": Field(
            Scalar.choice((ALLOW, ERROR)),
            "Whether a request that names a rule which does not exist or is disabled passes (allow, the default), as "
            "one that matched nothing, or is an error.",
        ),
    },
    extensions=True,
)


def rules_schema() -> Schema:
    """Return the JSON Schema of a file of rules, in YAML or JSON."""
    return {
        "$schema": DIALECT,
        "title": "Rules of Headgate",
        "description": "Rate limits: whom and what they are for, and how much may pass.",
        **FILE.schema(),
        "$defs": {form.name: form.definition() for form in (LIMIT, CHANGE)},
    }
