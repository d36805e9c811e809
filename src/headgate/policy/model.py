"""Rules, tiers, users, lists and settings as values.

Each field is declared here once: its type, its default, its description, and its form in YAML or JSON. The reading and
writing of files, the JSON Schema, the bodies of the admin API and the checks of types follow. Values are checked when
they are made (raises InvalidRule), and a `Ruleset` also as a whole. `headgate.policy.compiled` applies them to
requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Self, TypeAlias

from headgate.config.problems import Findings, Path
from headgate.config.records import check_types, declared, needed
from headgate.config.schema import NAME, NAMED, ListOf, MapOf, Scalar, Schema
from headgate.config.times import moment
from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
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
"""Joins dimensions that count together."""
MOST_DIMENSIONS = 4
METHOD = "[A-Z][A-Z-]{0,19}"
LONGEST_MESSAGE = 500
"""Characters of the message of a rule's refusals."""
LONGEST_VALUE = 512
"""Characters of a value on a list, or of a key pattern."""
DIMENSIONS = ("user", "ip", "apikey", "endpoint", "global")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
RULE_ID = Scalar.text(f"a rule's id: {NAMED}", NAME, 64)
TIER = Scalar.text("the name of a tier, up to 64 characters", most=64)
Network: TypeAlias = IPv4Network | IPv6Network


class Dimension:
    """A dimension, or a list of dimensions."""

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
    """The change of a rule's quota by a tier or an override. Fields that are None stay as they are."""

    limit: int | None = None
    burst: int | None = None
    capacity: int | None = None
    """Instead of a burst. The capacity of a rule or a tier stays when only the limit changes."""
    window_us: int | None = None
    algorithm: Algorithm | None = None
    quotas: tuple[Quota, ...] | None = None
    """All limits, instead of changes to the only one."""
    until: int | None = declared(moment(), "The time at which the change ends, such as 2026-12-01T00:00:00Z.", None)
    """In microseconds since the epoch."""

    def __post_init__(self) -> None:
        if isinstance(self.algorithm, str) and type(self.algorithm) is not Algorithm:
            with suppress(InvalidQuota):  # `check_types` reports it
                object.__setattr__(self, "algorithm", Algorithm.named(self.algorithm))
        check_types("a change", self)
        if self.burst is not None and self.capacity is not None:
            raise InvalidRule(f"a change: {BURST_OR_CAPACITY}", fields=("capacity",))
        if self.quotas is not None:
            if not self.quotas:
                raise InvalidRule("a change: quotas must have at least one")
            _check_apart("a change", self.quotas)

    def apply(self, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
        """Return the changed quotas. Raises InvalidQuota."""
        if self.quotas is not None:
            return self.quotas
        given = {"limit": self.limit, "window_us": self.window_us, "algorithm": self.algorithm}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not changes and self.burst is None and self.capacity is None:
            return quotas
        if len(quotas) != 1:
            raise InvalidQuota("the rule has several limits: set all of them again, as `limits`")
        (quota,) = quotas
        if self.limit is not None and quota.limit:  # a bucket of 0 per window would be an allowance, back after each
            whole("limit", self.limit, 1, EXACT, InvalidQuota)
        if quota.calendar is not None:
            _check_calendar_kept(quota.calendar, changes)
        is_kept = (quota.keeps_capacity or not quota.limit) and changes.get("algorithm", quota.algorithm).is_bucket
        if self.burst is not None:
            changes |= {"burst": self.burst, "keeps_capacity": False}
        elif self.capacity is not None or is_kept:
            capacity = quota.capacity if self.capacity is None else self.capacity
            changes |= {"burst": capacity - changes.get("limit", quota.limit), "keeps_capacity": True}
        return (replace(quota, **changes),)


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit, or several on the same key, and the requests that they apply to."""

    id: str = field(metadata=needed(RULE_ID, "The name of the rule in responses, and in the keys of its state."))
    quotas: tuple[Quota, ...]
    name: str = declared(Scalar.text("text", most=200), "A title for readers.", "")
    dimension: str = declared(
        Dimension(),
        "What the rule counts by: user, ip, apikey, endpoint, global, or the name of an attribute; a list such as "
        "[user, endpoint] counts each user on each path; default: user.",
        "user",
    )
    """Names are joined with "+". "endpoint" counts each path, not each pattern: a rule for /orders/* has a counter for
    /orders/1, another for /orders/2. See `headgate.policy.request.Request.attributes` for the names of others."""
    endpoint: str = declared(
        Scalar.text("a path such as /api/v1/orders/**, or **", r"/[^\s?#;]*|\*\*?", 2048, numbers=False),
        "The path: literal segments, * for one segment, ** for the rest; default: all.",
        "**",
    )
    """``{name}`` is one segment, too, and ``*`` alone for all paths."""
    methods: frozenset[str] = declared(
        ListOf(
            Scalar.text("an HTTP method in capitals", METHOD, 20, METHODS, numbers=False), "a list such as [GET, POST]"
        ),
        "The HTTP methods; default: all.",
        frozenset(),
    )
    """GET is also for HEAD, which servers answer as they answer GET."""
    key_pattern: str = declared(
        Scalar.text("text, in which * matches any characters", most=LONGEST_VALUE),
        "Only values of the dimension that match; for ip also a network; default: all.",
        "",
    )
    tier: str = declared(TIER, "Only principals of this tier.", "")
    when: Mapping[str, str] = declared(
        MapOf(Scalar.text("text", most=512, flags=True), "attributes and their values, such as {region: eu}"),
        "Attributes that the request must have, with these values.",
        factory=dict,
    )
    shadow: bool = declared(Scalar.flag(), "Counts and reports, but never refuses.", False)
    enabled: bool = declared(Scalar.flag(), "Whether the rule is enabled; otherwise, it applies to no request.", True)
    enforce_percent: int = declared(
        Scalar.whole(0, 100),
        "Refuses for this percentage of principals; for the others, the rule is a shadow.",
        100,
    )
    """These are always the same principals."""
    replaces: frozenset[str] = declared(
        ListOf(RULE_ID, "a list of ids of rules"),
        "Ids of rules that do not apply where this one does; a rule that is itself replaced replaces nothing.",
        frozenset(),
    )
    on_store_failure: Mode | None = declared(
        Scalar.choice({str(mode): mode for mode in Mode}),
        "The mode while the store is unavailable; default: the engine's.",
        None,
    )
    replicas: int = declared(
        Scalar.whole(0, MAX_REPLICAS),
        "The number of replicas of the store that must confirm the usage.",
        0,
    )
    refusal_status: int = declared(
        Scalar.whole(400, 599), "The HTTP status of refusals by this rule; default: 429.", 429
    )
    refusal_message: str = declared(
        Scalar.text("a line of text", most=LONGEST_MESSAGE, numbers=False),
        "The message of refusals by this rule; default: the limit, and the time to retry.",
        "",
    )
    reset_on_change: bool = declared(
        Scalar.flag(), "Whether the rule starts without usage after a change of its limit, burst or updated_at.", False
    )
    """A limit that is changed back to an earlier value finds its earlier usage, if that has not expired, unless
    `updated_at` is new."""
    created_at: str = declared(moment(as_written=True), "The time at which the rule was created.", "")
    updated_at: str = declared(moment(as_written=True), "The time of the last change of the rule.", "")

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
            wrong = f"{where}: refusal_message must be a line of at most {LONGEST_MESSAGE} printable characters"
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
    """The tier and the overrides of one user."""

    tier: str = declared(TIER, "The tier of the user.", "")
    overrides: Mapping[str, Change] = declared(
        None, "Changes of rules for this user, by rule, which may expire.", factory=dict
    )
    """Each on top of the user's tier. If a request brings another tier, and the override makes no quota on top of it,
    it changes the rule as written."""

    def __post_init__(self) -> None:
        check_types("a user", self)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an allow list or a deny list."""

    dimension: str
    value: str
    """Exact text, or with ``*`` for any characters; for the dimension "ip" also a network such as 10.0.0.0/8."""
    network: Network | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _dimension(self.dimension))
        check_types("an entry of a list", self)
        if not 0 < len(self.value) <= LONGEST_VALUE:
            raise InvalidRule(f"an entry of a list must have 1 to {LONGEST_VALUE} characters")
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
    """All rules, tiers, users, lists and settings; `headgate.policy.compiled.Policy` compiles them."""

    rules: tuple[Rule, ...] = declared(
        None, "The rules. Every matching rule applies, unless another one replaces it.", ()
    )
    tiers: Mapping[str, Mapping[str, Change]] = declared(None, "Changes of rules, by tier and rule.", factory=dict)
    users: Mapping[str, User] = declared(None, "Tiers and overrides of users, by their ids.", factory=dict)
    """By the value of the principal "user"."""
    default_tier: str = declared(TIER, "The tier of users without one.", "")
    allow: tuple[Entry, ...] = declared(None, "Principals that pass without limits.", ())
    deny: tuple[Entry, ...] = declared(None, "Principals that are refused.", ())
    default: Rule | None = declared(None, "The quota of requests without a matching rule; or allow, the default.", None)
    ignore_case: bool = declared(
        Scalar.flag(), "Whether endpoints that differ only in letter case are the same; default: false.", False
    )
    """Capitals of A to Z."""
    unknown_rule: str = declared(
        Scalar.choice(("allow", "error")),
        "Whether a request for a rule that does not exist or is disabled passes (allow, the default), or is an error.",
        "",
    )

    def __post_init__(self) -> None:
        check_types("the rules", self)
        if "" in self.tiers:
            raise InvalidRule("tiers: the name of a tier must have at least one character")
        if self.unknown_rule not in {"", "allow", "error"}:
            raise InvalidRule(f"unknown_rule must be 'allow' or 'error', not {self.unknown_rule!r}")
        findings = Findings()
        places: list[tuple[Path, Rule]] = [(("rules", index), rule) for index, rule in enumerate(self.rules)]
        references = [((*path, "replaces"), rule.id, other) for path, rule in places for other in sorted(rule.replaces)]
        places += [(("default",), self.default)] if self.default else []
        check(self, [(rule.id, path) for path, rule in places], references, findings)
        findings.check()

    @classmethod
    def unchecked(cls, **given: Any) -> Self:
        """Return rules from valid parts. The caller checks them as a whole, with `check`."""
        ruleset = object.__new__(cls)
        for known in fields(cls):
            otherwise = known.default if known.default_factory is MISSING else known.default_factory()
            object.__setattr__(ruleset, known.name, given.get(known.name, otherwise))
        return ruleset


def _check_calendar_kept(calendar: Calendar, changes: Mapping[str, Any]) -> None:
    for name in ("window_us", "algorithm"):
        if changes.get(name) not in {None, Algorithm.FIXED_WINDOW}:
            whole_quota = f"{{limit: 10, window: {calendar.unit}, calendar: {calendar.zone}}}"
            message = f"its window is the {calendar.unit} of a calendar: give all of the quota, such as {whole_quota}"
            raise InvalidQuota(message, fields=(name,))


def _check_apart(where: str, quotas: tuple[Quota, ...]) -> None:
    """Refuse two limits with the same key."""
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
            wrong = f"{where}: global counts all callers together: it cannot be combined with other dimensions"
            raise InvalidRule(wrong, fields=("dimension",))
    return TOGETHER.join(names)


def _dimension(name: str) -> str:
    _named("dimension", name)
    return principal_name(name)


NO_RULES = Ruleset()
