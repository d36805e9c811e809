"""What an operator writes, as values: rules, tiers, users, lists, and what happens when nothing matches.

Each field is declared here once: its type, its default, what it means, and its form in YAML or JSON. The reading and
writing of files, the JSON Schema, the bodies of the admin API and the checks of types follow from that. A value that
exists is acceptable: everything is checked when it is made (raises InvalidRule), and a `Ruleset` also as a whole. What
these values mean for a request is said in `headgate.policy.compiled`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Self, TypeAlias

from headgate.config.problems import Findings, Path
from headgate.config.records import check_mapping, check_types, declared, needed
from headgate.config.schema import NAME, NAMED, ListOf, MapOf, Scalar, Schema
from headgate.config.times import moment
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidKey, InvalidQuota, InvalidRule
from headgate.core.key import checked_name
from headgate.core.mode import Mode
from headgate.core.numbers import EXACT, whole
from headgate.core.plan import Family
from headgate.core.quota import MAX_REPLICAS, Quota
from headgate.policy.checks import check
from headgate.policy.paths import normalised
from headgate.policy.quotas import BURST_OR_CAPACITY
from headgate.policy.request import ENDPOINT, GLOBAL, InvalidRequest, principal_name
from headgate.policy.trie import parsed

TOGETHER = "+"
"""Stands between dimensions that are counted by together."""
MOST_DIMENSIONS = 4
METHOD = "[A-Z][A-Z-]{0,19}"
"""A pattern of HTTP methods."""
LONGEST_MESSAGE = 500
"""Characters of the message of a rule's refusals."""
LONGEST_VALUE = 512
"""Characters of what is on a list, or of a key that a rule is for."""
DIMENSIONS = ("user", "ip", "apikey", "endpoint", "global")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
RULE_ID = Scalar.text(f"a rule's id: {NAMED}", NAME, 64)
TIER = Scalar.text("the name of a tier, up to 64 characters", most=64)
Network: TypeAlias = IPv4Network | IPv6Network


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


@dataclass(frozen=True, slots=True)
class Change:
    """What a tier, or the override of a user, changes of a rule's quota. What is None stays as it is."""

    limit: int | None = None
    burst: int | None = None
    capacity: int | None = None
    """Instead of a burst. A capacity that the rule, or a tier, gives stays when only the limit changes."""
    window_us: int | None = None
    algorithm: Algorithm | None = None
    quotas: tuple[Quota, ...] | None = None
    """All limits anew, instead of changes to the only one."""
    until: int | None = declared(moment(), "When the change ends automatically, such as 2026-12-01T00:00:00Z.", None)
    """In microseconds since the epoch."""

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, str) and type(self.algorithm) is not Algorithm:
            with suppress(InvalidQuota):  # which is said below
                object.__setattr__(self, "algorithm", Algorithm.named(self.algorithm))
        check_types("a change", self)
        if self.burst is not None and self.capacity is not None:
            raise InvalidRule(f"a change: {BURST_OR_CAPACITY}", fields=("capacity",))
        if self.quotas is not None:
            if not self.quotas:
                raise InvalidRule("a change: quotas has at least one")
            _check_apart("a change", self.quotas)

    def apply(self, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        """Return `quotas` as changed. Raises InvalidQuota if that makes no quota."""
        if self.quotas is not None:
            return self.quotas
        given = {"limit": self.limit, "window_us": self.window_us, "algorithm": self.algorithm}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not changes and self.burst is None and self.capacity is None:
            return quotas
        if len(quotas) != 1:
            raise InvalidQuota("the rule has several limits: give all of them anew, as `limits`")
        (quota,) = quotas
        if self.limit is not None and quota.limit:  # a bucket of 0 per window would be an allowance, back after each
            whole("limit", self.limit, 1, EXACT, InvalidQuota)
        is_kept = (quota.keeps_capacity or not quota.limit) and changes.get("algorithm", quota.algorithm).is_bucket
        if self.burst is not None:
            changes |= {"burst": self.burst, "keeps_capacity": False}
        elif self.capacity is not None or is_kept:
            capacity = quota.capacity if self.capacity is None else self.capacity
            changes |= {"burst": capacity - changes.get("limit", quota.limit), "keeps_capacity": True}
        return (replace(quota, **changes),)


@dataclass(frozen=True, slots=True)
class Rule:
    """Whom and what a limit is for, and its quota (or several, on the same key)."""

    id: str = field(metadata=needed(RULE_ID, "Names the rule, in keys and answers; what was used is counted under it."))
    quotas: tuple[Quota, ...]
    name: str = declared(Scalar.text("text", most=200), "For people.", "")
    dimension: str = declared(
        Dimension(),
        "What is counted apart: user, ip, apikey, endpoint, global, or the name of an attribute; a list such as "
        "[user, endpoint] counts each user on each path. By default user.",
        "user",
    )
    """Names are joined with "+". "endpoint" counts each path, not each pattern: a rule for /orders/* has a counter for
    /orders/1, another for /orders/2. See `headgate.policy.request.Request.attributes` for the names of others."""
    endpoint: str = declared(
        Scalar.text("a path such as /api/v1/orders/**, or **", r"/[^\s?#;]*|\*\*?", 2048, numbers=False),
        "The paths it is for: literal, * for one segment, ** for the rest; default: all.",
        "**",
    )
    """``{name}`` stands for one segment, too, and ``*`` alone for all paths."""
    methods: frozenset[str] = declared(
        ListOf(
            Scalar.text("an HTTP method in capitals", METHOD, 20, METHODS, numbers=False), "a list such as [GET, POST]"
        ),
        "The HTTP methods it is for; default: all.",
        frozenset(),
    )
    """GET is also for HEAD, which servers answer as they answer GET."""
    key_pattern: str = declared(
        Scalar.text("text in which * stands for any characters", most=LONGEST_VALUE),
        "Only for those who are counted under such a value; for the dimension ip also a network. All by default.",
        "",
    )
    tier: str = declared(TIER, "Only for principals of this tier.", "")
    when: Mapping[str, str] = declared(
        MapOf(Scalar.text("text", most=512, flags=True), "attributes and their values, such as {region: eu}"),
        "Attributes that must be equal.",
        factory=dict,
    )
    shadow: bool = declared(Scalar.flag(), "Counts and is reported, but never refuses.", False)
    enabled: bool = declared(Scalar.flag(), "Whether the rule applies at all.", True)
    enforce_percent: int = declared(
        Scalar.whole(0, 100),
        "For so many percent of its principals the rule refuses; for the others it is a shadow.",
        100,
    )
    """These are always the same principals."""
    replaces: frozenset[str] = declared(
        ListOf(RULE_ID, "a list of ids of rules"),
        "Ids of rules that do not apply when this one does; a rule that is itself replaced replaces nothing.",
        frozenset(),
    )
    on_store_failure: Mode | None = declared(
        Scalar.choice({str(mode): mode for mode in Mode}),
        "What to answer when the store does not; default: the engine's.",
        None,
    )
    replicas: int = declared(
        Scalar.whole(0, MAX_REPLICAS),
        "How many replicas of the store must have what a request took: its answer waits for them, or says that they "
        "have not got it.",
        0,
    )
    refusal_status: int = declared(Scalar.whole(400, 599), "The HTTP status of its refusals; default: 429.", 429)
    refusal_message: str = declared(
        Scalar.text("a line of text", most=LONGEST_MESSAGE, numbers=False),
        "What clients read in its refusals; default: the limit, and when to retry.",
        "",
    )
    reset_on_change: bool = declared(
        Scalar.flag(), "Whether a changed limit, burst or updated_at forgets what was used.", False
    )
    """A limit that is changed back to what it was finds what was counted under it, if that has not expired: a new
    `updated_at` tells the two apart."""
    created_at: str = declared(moment(as_written=True), "When the rule was made.", "")
    updated_at: str = declared(moment(as_written=True), "When the rule was last changed.", "")

    def __post_init__(self) -> None:
        _named("rule id", self.id)
        where = f"rule {self.id!r}"
        check_types(where, self)
        if not self.quotas:
            raise InvalidRule(f"{where} has no limit")
        _check_apart(where, self.quotas)
        object.__setattr__(self, "dimension", _dimensions(where, self.dimension))
        self._check_patterns(where)
        if self.when:
            when = {principal_name(name): value for name, value in self.when.items()}
            if len(when) < len(self.when):
                raise InvalidRule(f"{where}: 'when' has two names of one principal", fields=("when",))
            object.__setattr__(self, "when", when)
        for method in self.methods:
            if not re.fullmatch(METHOD, method):
                raise InvalidRule(f"{where}: {method!r} is not an HTTP method: write it as POST", fields=("methods",))
        if len(self.refusal_message) > LONGEST_MESSAGE or not self.refusal_message.isprintable():
            wrong = f"{where}: refusal_message is a line of at most {LONGEST_MESSAGE} printable characters"
            raise InvalidRule(wrong, fields=("refusal_message",))
        if self.id in self.replaces:
            raise InvalidRule(f"{where} cannot replace itself", fields=("replaces",))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """What is counted apart, one by one."""
        return tuple(self.dimension.split(TOGETHER))

    def _check_patterns(self, where: str) -> None:
        derive = object.__setattr__
        if self.endpoint == "*":
            derive(self, "endpoint", "**")
        try:
            parsed(self.endpoint)
        except InvalidRule as error:
            raise InvalidRule(f"{where}: {error}", fields=("endpoint",)) from None
        if self.key_pattern in {"", "*"}:
            derive(self, "key_pattern", "")
            return
        if self.dimension == GLOBAL or TOGETHER in self.dimension:
            wrong = f"{where}: key_pattern is for rules of one dimension, and not for global ones"
            raise InvalidRule(wrong, fields=("key_pattern",))
        try:
            Entry(self.dimension, self.key_pattern)
        except InvalidRule as error:
            raise InvalidRule(f"{where}: key_pattern: {error}", fields=("key_pattern",)) from None


@dataclass(frozen=True, slots=True)
class User:
    """What is special about one user."""

    tier: str = declared(TIER, "The tier of the user.", "")
    overrides: Mapping[str, Change] = declared(
        None, "By rule: what is different for this user, perhaps only until some moment.", factory=dict
    )
    """Each on top of the user's tier. A request may bring another tier along: if the override makes no quota on top of
    that, it changes the rule as written."""

    def __post_init__(self) -> None:
        check_types("a user", self)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an allow list or a deny list: principals of a dimension that are let through, or refused, unasked."""

    dimension: str
    value: str
    """Exact text, or with ``*`` for any characters; for the dimension "ip" also a network such as 10.0.0.0/8."""
    network: Network | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _dimension(self.dimension))
        check_types("an entry of a list", self)
        if not 0 < len(self.value) <= LONGEST_VALUE:
            raise InvalidRule(f"an entry of a list has 1 to {LONGEST_VALUE} characters")
        object.__setattr__(self, "network", self._network())
        if self.dimension == ENDPOINT and "*" not in self.value:
            try:
                normalised(self.value)
            except InvalidRequest as error:
                raise InvalidRule(f"an entry of a list: {error}") from None

    def _network(self) -> Network | None:
        if self.dimension != "ip" or "*" in self.value:
            return None
        try:
            return ip_network(self.value, strict=True)
        except ValueError as error:
            raise InvalidRule(f"{self.value!r} is not an address or network: {error}") from None


@dataclass(frozen=True, slots=True)
class Ruleset:
    """All that decides, as written; `headgate.policy.compiled.Policy` is made of it."""

    rules: tuple[Rule, ...] = declared(
        None, "The rules. Every rule that matches a request applies, unless another one replaces it.", ()
    )
    tiers: Mapping[str, Mapping[str, Change]] = declared(
        None, "By tier, then by rule: what is different for its principals.", factory=dict
    )
    users: Mapping[str, User] = declared(None, "What is special about single users.", factory=dict)
    """By the value of the principal "user"."""
    default_tier: str = declared(TIER, "The tier of users who have none.", "")
    allow: tuple[Entry, ...] = declared(None, "Principals that pass unasked.", ())
    deny: tuple[Entry, ...] = declared(None, "Principals that are refused unasked.", ())
    default: Rule | None = declared(None, "What applies when no rule does: a quota, or allow, the default.", None)
    ignore_case: bool = declared(
        Scalar.flag(), "Whether endpoints that differ only in capitals are the same; they are not unless true.", False
    )
    """Capitals of A to Z."""
    unknown_rule: str = declared(
        Scalar.choice(("allow", "error")),
        "Whether a request that names a rule which does not exist or is disabled passes (allow, the default), as "
        "one that matched nothing, or is an error.",
        "",
    )

    def __post_init__(self) -> None:
        check_types("the rules", self)
        for tier, changes in self.tiers.items():
            if not tier:
                raise InvalidRule("tiers: the name of a tier has at least one character")
            check_mapping(f"tier {tier!r}", changes, Change)
        if self.unknown_rule not in {"", "allow", "error"}:
            raise InvalidRule(f"unknown_rule is 'allow' or 'error', not {self.unknown_rule!r}")
        findings = Findings()
        places: list[tuple[Path, Rule]] = [(("rules", index), rule) for index, rule in enumerate(self.rules)]
        references = [((*path, "replaces"), rule.id, other) for path, rule in places for other in sorted(rule.replaces)]
        places += [(("default",), self.default)] if self.default else []
        check(self, [(rule.id, path) for path, rule in places], references, findings)
        findings.check()

    @classmethod
    def unchecked(cls, **given: Any) -> Self:
        """Return rules whose parts are right; whoever calls this looks at them as a whole, with `check`."""
        ruleset = object.__new__(cls)
        for known in fields(cls):
            otherwise = known.default if known.default_factory is MISSING else known.default_factory()
            object.__setattr__(ruleset, known.name, given.get(known.name, otherwise))
        return ruleset


def _check_apart(where: str, quotas: tuple[Quota, ...]) -> None:
    """Refuse two limits that would count in one place."""
    if len(quotas) > 1:
        try:
            Family("limits", quotas)
        except InvalidQuota as error:
            raise InvalidRule(f"{where}: {error}", fields=("limits",)) from None


def _named(what: str, name: str) -> None:
    try:
        checked_name(name)
    except InvalidKey as error:
        raise InvalidRule(f"bad {what}: {error}") from None


def _dimensions(where: str, text: str) -> str:
    names = [_dimension(name) for name in text.split(TOGETHER)] if isinstance(text, str) else [_dimension(text)]
    if len(names) > 1:
        if not len(set(names)) == len(names) <= MOST_DIMENSIONS:
            wrong = f"{where} counts by up to {MOST_DIMENSIONS} different dimensions, not by {text}"
            raise InvalidRule(wrong, fields=("dimension",))
        if GLOBAL in names:
            wrong = f"{where}: global counts all as one: it does not go with other dimensions"
            raise InvalidRule(wrong, fields=("dimension",))
    return TOGETHER.join(names)


def _dimension(name: str) -> str:
    _named("dimension", name)
    return principal_name(name)


NO_RULES = Ruleset()
"""Lets everything pass."""
