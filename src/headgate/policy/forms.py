"""Every field of a file of rules: its name, its kind, and what it means. Loader and JSON Schema are made of this."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headgate.core.algorithms import Algorithm
from headgate.core.grammar import MAX_TEXT
from headgate.core.mode import Mode
from headgate.core.numbers import EXACT
from headgate.core.quota import MAX_REPLICAS
from headgate.policy.kinds import NAME, Choice, Constant, FieldKind, Flag, Many, Rate, Schema, Table, Text, Whole
from headgate.policy.model import MOST_DIMENSIONS, TOGETHER
from headgate.policy.problems import Findings, Kind, Path, shown
from headgate.policy.shapes import Field, Shape
from headgate.policy.times import Length, Moment, Zone

DIMENSIONS = ("user", "ip", "apikey", "endpoint", "global")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
ALLOW, ERROR = "allow", "error"
_ALGORITHMS = (*(str(algorithm) for algorithm in Algorithm), "sliding_window")
_PERCENT = Whole(1, 100)
_QUOTA_TEXT = Text('a quota such as "100/minute", "10/s burst 20", "10/s; 5000/day gcra"', most=MAX_TEXT, numbers=False)
_NAMED = "1 to 64 of A-Z a-z 0-9 _ . : / -"
RULE_ID = Text(f"a rule's id: {_NAMED}", NAME, 64)
_TIER = Text("the name of a tier, up to 64 characters", most=64)

QUOTA_FIELDS = {
    "limit": Field(Whole(0), "How many units may pass, or come back, in each window."),
    "window": Field(
        Length(calendar=True),
        "The window: a length such as 30s, 1m, 1 hour, 1d, or seconds; with `calendar`: day, week, month or year.",
    ),
    "burst": Field(Whole(-EXACT), "How many units beyond the limit may pass at once. Not for window algorithms."),
    "algorithm": Field(Choice(_ALGORITHMS), "How it counts; default: token_bucket."),
    "calendar": Field(
        Zone(), "The windows are those of the calendar in this time zone, such as Europe/Berlin; true means UTC."
    ),
    "queue": Field(Flag(), "Leaky bucket only: what is admitted is told how long to wait, for an even flow."),
    "capacity": Field(
        Whole(1),
        "How many units may pass at once, instead of `burst`: it stays when a tier or an override changes the limit. "
        "With `refill_rate`, the bucket.",
    ),
    "refill_rate": Field(Rate(), "Units that come back in each second, such as 10, 0.5 or '1/3'; with `capacity`."),
    "min_refill_interval_ms": Field(
        Whole(0, EXACT // 1000), "The bucket is refilled in steps this many milliseconds apart."
    ),
    "refill_every": Field(Length(), "Token bucket only: it is refilled in steps this far apart, such as 10ms."),
    "warn_percent": Field(_PERCENT, "Usage, in percent, above which a key is in the warning state; default: 80."),
    "calm_percent": Field(_PERCENT, "Usage, in percent, below which it leaves the warning state; default: 70."),
    "quota": Field(_QUOTA_TEXT, 'The whole quota as text, such as "10/s burst 20; 5000/day".'),
}


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One of the ways to write a quota: fields that it needs, and fields that it may have besides."""

    needs: tuple[str, ...]
    may: tuple[str, ...]

    @property
    def sign(self) -> str:
        """The field by which it is known."""
        return self.needs[-1]

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.needs, *self.may)


_THRESHOLDS = ("warn_percent", "calm_percent")
BY_WINDOW = Way(
    ("limit", "window"), ("burst", "capacity", "algorithm", "calendar", "queue", "refill_every", *_THRESHOLDS)
)
BY_BUCKET = Way(("capacity", "refill_rate"), ("min_refill_interval_ms", *_THRESHOLDS))
BY_TEXT = Way(("quota",), _THRESHOLDS)
SEVERAL = Way(("limits",), ())
IN_PART = Way((), ("limit", "burst", "capacity", "window", "algorithm"))
"""What a tier or an override may change of a rule's only limit."""


class AsText(dict[str, object]):
    """The field of a quota for which text stands: problems with it are problems of the whole."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """A shape of which some fields make up a quota, in one of several ways."""

    shape: Shape
    ways: tuple[Way, ...]
    as_text: bool = False
    """Whether the text of a quota may stand for the whole."""
    name: str = ""
    """Under which the JSON Schema defines it, to refer to it where it is used."""

    def read(self, value: object, path: Path, findings: Findings) -> dict[str, object] | None:
        if self.as_text and isinstance(value, str):
            text = _QUOTA_TEXT.read(value, path, findings)
            return None if text is None else AsText(quota=text)
        read = self.shape.read(value, path, findings)
        if type(value) is not dict or read is None:
            return None
        value = self.shape.named(value)
        return read if self._is_one_way(value, path, findings) and self._has_quota(value, read) else None

    @staticmethod
    def _has_quota(value: dict[str, object], read: dict[str, object]) -> bool:
        """Were all fields of the quota right? What it means can be said then, even if other fields are wrong."""
        return len(value) == len(read) or all(key in read for key in value if key in ALL_OF_QUOTA)

    def way(self, given: object) -> Way:
        """Return which way was meant, from the fields that are given."""
        keys = given if isinstance(given, dict) else {}
        for way, sign in ((SEVERAL, "limits"), (BY_TEXT, "quota"), (BY_BUCKET, "refill_rate")):
            if sign in keys and way in self.ways:
                return way
        if IN_PART in self.ways and not (keys.keys() & ALL_OF_QUOTA) - set(IN_PART.may):
            return IN_PART
        if "capacity" in keys and not keys.keys() & {"limit", "window"}:
            return BY_BUCKET
        return BY_WINDOW

    def _is_one_way(self, value: dict[str, object], path: Path, findings: Findings) -> bool:
        before = findings.count
        way = self.way(value)
        given = [key for key in value if key in ALL_OF_QUOTA and key in self.shape.fields]
        for key in given:
            if key not in way.fields:
                others = ", ".join(name for name in way.fields if name != way.sign)
                accepted = f"besides {way.sign!r}: {others or 'no other field of a quota'}"
                findings.add((*path, key), f"{key!r} does not go with {way.sign!r}", accepted, at_key=True)
        misspelt = self.shape.misspelt(value, findings) & ALL_OF_QUOTA
        missing = [name for name in way.needs if name not in value and name not in misspelt]
        if not given:
            if way.needs and not misspelt:
                ways = "limit and window, capacity and refill_rate, or quota" + ", or limits" * (SEVERAL in self.ways)
                findings.add(path, f"{self.shape.what} needs a quota", ways)
        elif missing:
            missed = " and ".join(repr(name) for name in missing)
            findings.add(path, f"{missed} missing", f"{' and '.join(way.needs)} together")
        return findings.count == before and not misspelt

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"} if self.name else self.definition()

    def definition(self) -> Schema:
        quota_fields = [name for name in self.shape.fields if name in ALL_OF_QUOTA]
        ways = []
        for way in self.ways:
            others = {name: False for name in quota_fields if name not in way.fields}
            others |= {other: False for other, name in self.shape.spellings.items() if name in others}
            ways.append({"properties": others} | self.shape.needing(way.needs))
        schema = self.shape.schema() | {"anyOf": ways}
        return {"anyOf": [_QUOTA_TEXT.schema() | {"type": "string"}, schema]} if self.as_text else schema


_SECONDS = {"window_seconds": "window"}
_SPELLINGS = {"rule_id": "id", "key_type": "dimension", "endpoint_pattern": "endpoint", **_SECONDS}
"""Other names of fields, as some documents have them."""
LIMIT = Quotas(
    Shape("a limit", QUOTA_FIELDS, spellings=_SECONDS), (BY_WINDOW, BY_BUCKET, BY_TEXT), as_text=True, name="limit"
)
_ALL_WAYS = (BY_WINDOW, BY_BUCKET, BY_TEXT, SEVERAL)
_LIMITS = {
    "limits": Field(
        Many(LIMIT, "a list such as [{limit: 10, window: 1s}, {limit: 250, window: 1d}]"),
        "Several limits that apply together, instead of one; each has fields of its own.",
    ),
}
ALL_OF_QUOTA = {**QUOTA_FIELDS, **_LIMITS}.keys()


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a rule counts by: one name, or a list of names."""

    of: Text

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if type(value) is not list:
            return self.of.read(value, path, findings)
        if not 0 < len(value) <= MOST_DIMENSIONS:
            findings.add(path, f"has {len(value)} names", f"1 to {MOST_DIMENSIONS} names, such as [user, endpoint]")
            return None
        names = [self.of.read(name, (*path, index), findings) for index, name in enumerate(value)]
        return TOGETHER.join([name for name in names if name is not None]) if None not in names else None

    def schema(self) -> Schema:
        several = {"type": "array", "items": self.of.schema(), "minItems": 1, "maxItems": MOST_DIMENSIONS}
        return {"anyOf": [self.of.schema(), several]}


_RULE_FIELDS = {
    "id": Field(RULE_ID, "Names the rule, in keys and answers; what was used is counted under it.", required=True),
    "name": Field(Text("text", most=200), "For people."),
    "dimension": Field(
        Dimension(Text(f"one of {', '.join(DIMENSIONS)}, or the name of an attribute", NAME, 64, DIMENSIONS)),
        "What is counted apart: user, ip, apikey, endpoint, global, or the name of an attribute; a list such as "
        "[user, endpoint] counts each user on each path. By default user.",
    ),
    "endpoint": Field(
        Text("a path such as /api/v1/orders/**, or **", r"/[^\s?#;]*|\*\*?", 2048, numbers=False),
        "The paths it is for: literal, * for one segment, ** for the rest; default: all.",
    ),
    "methods": Field(
        Many(
            Text("an HTTP method in capitals", "[A-Z][A-Z-]{0,19}", 20, METHODS, numbers=False),
            "a list such as [GET, POST]",
        ),
        "The HTTP methods it is for; default: all.",
    ),
    "key_pattern": Field(
        Text("text in which * stands for any characters", most=512),
        "Only for those who are counted under such a value; for the dimension ip also a network. All by default.",
    ),
    "tier": Field(_TIER, "Only for principals of this tier."),
    "when": Field(
        Table(Text("text", most=512, flags=True), "attributes and their values, such as {region: eu}"),
        "Attributes that must be equal.",
    ),
    **QUOTA_FIELDS,
    **_LIMITS,
    "shadow": Field(Flag(), "Counts and is reported, but never refuses."),
    "enabled": Field(Flag(), "Whether the rule applies at all."),
    "enforce_percent": Field(
        Whole(0, 100), "For so many percent of its principals the rule refuses; for the others it is a shadow."
    ),
    "replaces": Field(
        Many(RULE_ID, "a list of ids of rules"),
        "Ids of rules that do not apply when this one does; a rule that is itself replaced replaces nothing.",
    ),
    "on_store_failure": Field(
        Choice(tuple(str(mode) for mode in Mode)), "What to answer when the store does not; default: the engine's."
    ),
    "replicas": Field(
        Whole(0, MAX_REPLICAS),
        "How many replicas of the store must have what a request took: its answer waits for them, or says that they "
        "have not got it.",
    ),
    "reset_on_change": Field(Flag(), "Whether a changed limit, burst or updated_at forgets what was used."),
    "created_at": Field(Moment(as_written=True), "When the rule was made."),
    "updated_at": Field(Moment(as_written=True), "When the rule was last changed."),
}
RULE = Quotas(Shape("a rule", _RULE_FIELDS, spellings=_SPELLINGS), _ALL_WAYS)
_DEFAULT_FIELDS = {**_RULE_FIELDS, "id": Field(RULE_ID, "Names the rule; default: `default`.")}
_DEFAULT_RULE = Quotas(Shape("the default", _DEFAULT_FIELDS, spellings=_SPELLINGS), _ALL_WAYS, as_text=True)


@dataclass(frozen=True, slots=True)
class Default:
    """The default: the word allow, the text of a quota, or a rule that needs no id."""

    def read(self, value: object, path: Path, findings: Findings) -> object:
        if value == ALLOW:
            return ALLOW
        if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and not re.search("[0-9]", value):
            accepted = 'allow, or a quota such as "100/minute"'
            findings.add(
                path, f"{shown(value)} is not a default", accepted, findings.near(value, [ALLOW]), kind=Kind.MEANING
            )
            return None
        return _DEFAULT_RULE.read(value, path, findings)

    def schema(self) -> Schema:
        return _DEFAULT_RULE.schema()  # the word is text, like a quota


CHANGE = Quotas(
    Shape(
        "a change",
        {
            **QUOTA_FIELDS,
            **_LIMITS,
            "until": Field(Moment(), "When the change ends by itself, such as 2026-12-01T00:00:00Z."),
        },
        spellings=_SECONDS,
    ),
    (IN_PART, *_ALL_WAYS),
    name="change",
)
_CHANGES = Table(CHANGE, "ids of rules and what changes, such as {orders-user: {limit: 1000}}", or_nothing=True)
USER = Shape(
    "a user",
    {
        "tier": Field(_TIER, "The tier of the user."),
        "overrides": Field(_CHANGES, "By rule: what is different for this user, perhaps only until some moment."),
    },
)
_ENTRIES = Many(
    Table(
        Text("text, in which * stands for any characters", most=512),
        "one dimension and its value, such as ip: 10.0.0.0/8",
        exactly=1,
    ),
    "a list such as [{ip: 10.0.0.0/8}, {user: bot-*}]",
    or_nothing=True,
)
_ANY_KEY = r"[\s\S]{1,512}"


def _table(of: FieldKind, accepted: str, keys: str) -> Table:
    return Table(of, accepted, keys=keys, or_nothing=True)


FILE = Shape(
    "a file of rules",
    {
        "version": Field(Constant(1), "The version of this form: write version: 1.", required=True),
        "rules": Field(
            Many(RULE, "a list of rules, each beginning with '- id: ...'", or_nothing=True),
            "The rules. Every rule that matches a request applies, unless another one replaces it.",
        ),
        "tiers": Field(
            _table(_CHANGES, "tiers, and in each what changes by rule", r"[\s\S]{1,64}"),
            "By tier, then by rule: what is different for its principals.",
        ),
        "users": Field(
            _table(USER, 'users by their id, such as "12345": {tier: premium}', _ANY_KEY),
            "What is special about single users.",
        ),
        "default_tier": Field(_TIER, "The tier of users who have none."),
        "allow": Field(_ENTRIES, "Principals that pass unasked."),
        "deny": Field(_ENTRIES, "Principals that are refused unasked."),
        "default": Field(Default(), "What applies when no rule does: a quota, or allow, the default."),
        "ignore_case": Field(
            Flag(), "Whether endpoints that differ only in capitals are the same; they are not unless true."
        ),
        "unknown_rule": Field(
            Choice((ALLOW, ERROR)),
            "Whether a request that names a rule which does not exist or is disabled passes (allow) or is an error. By "
            "default it passes, except that in Python a rule which does not exist is an error.",
        ),
    },
    extensions=True,
)
