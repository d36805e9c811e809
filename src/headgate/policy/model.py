"""What an operator writes, as values: rules, tiers, users, lists, and what happens when nothing matches.

A value that exists is acceptable: everything is checked when it is made (raises InvalidRule), and a `Ruleset` also as a
whole. How these values look in YAML or JSON is said in `headgate.policy.forms`; what they mean for a request, in
`headgate.policy.compiled`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Self, TypeAlias, TypeVar

from headgate.config.problems import Findings, Path
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidKey, InvalidQuota, InvalidRule
from headgate.core.key import checked_name
from headgate.core.mode import Mode
from headgate.core.numbers import EXACT, short, whole
from headgate.core.plan import Family
from headgate.core.quota import MAX_REPLICAS, Quota
from headgate.policy.checks import check
from headgate.policy.paths import normalised
from headgate.policy.request import ENDPOINT, GLOBAL, InvalidRequest, principal_name
from headgate.policy.trie import parsed

T = TypeVar("T")
TOGETHER = "+"
"""Stands between dimensions that are counted by together."""
MOST_DIMENSIONS = 4
BURST_OR_CAPACITY = "burst and capacity are two ways to say the same: give one of them"
METHOD = "[A-Z][A-Z-]{0,19}"
"""A pattern of HTTP methods."""
LONGEST_MESSAGE = 500
"""Characters of the message of a rule's refusals."""
LONGEST_VALUE = 512
"""Characters of what is on a list, or of a key that a rule is for."""
Network: TypeAlias = IPv4Network | IPv6Network


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
    until: int | None = None
    """When this ends by itself, in microseconds since the epoch; None: not at all."""

    def __post_init__(self) -> None:
        for name in ("limit", "burst", "capacity", "window_us", "until"):
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise InvalidRule(f"a change: {name} is a whole number, not {short(value)}")
        if self.algorithm is not None and type(self.algorithm) is not Algorithm:
            try:
                object.__setattr__(self, "algorithm", Algorithm.named(self.algorithm))
            except InvalidQuota as error:
                raise InvalidRule(f"a change: {error}") from None
        if self.burst is not None and self.capacity is not None:
            raise InvalidRule(f"a change: {BURST_OR_CAPACITY}", fields=("capacity",))
        if self.quotas is not None:
            object.__setattr__(self, "quotas", _several("a change: quotas", self.quotas, Quota))
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

    id: str
    quotas: tuple[Quota, ...]
    name: str = ""
    dimension: str = "user"
    """What is counted apart: a principal (user, ip, apikey), "endpoint", "global", or the name of an attribute; or up
    to four of them together, such as "user+endpoint" for each user on each path. "endpoint" counts each path, not each
    pattern: a rule for /orders/* has a counter for /orders/1, another for /orders/2. An attribute must be verified, see
    `headgate.policy.request.Request.attributes`."""
    key_pattern: str = ""
    """Only those who are counted under such a value: text in which ``*`` stands for any characters or, for the
    dimension "ip", a network; empty: all. For rules of one dimension."""
    endpoint: str = "**"
    """A path pattern: literal segments, ``*`` or ``{name}`` for one segment, ``**`` for the rest; ``*`` alone is that,
    too."""
    methods: frozenset[str] = frozenset()
    """HTTP methods, in capitals; none: all. GET is also for HEAD, which servers answer as they answer GET."""
    tier: str = ""
    """Only for principals of this tier; empty: for all."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Attributes that must be equal."""
    shadow: bool = False
    """Counts and is reported, but never refuses."""
    enabled: bool = True
    enforce_percent: int = 100
    """For so many percent of its principals, always the same ones, the rule refuses; for the others it is a shadow."""
    replaces: frozenset[str] = frozenset()
    """Ids of rules that do not apply when this one does. If another rule replaces this one, it replaces nothing."""
    on_store_failure: Mode | None = None
    """What to answer when the store does not; None: the store's default."""
    replicas: int = 0
    """How many replicas of the store must have what a request took; its answer waits for them, or says that they have
    not got it. See `headgate.core.quota.Quota.replicas`."""
    refusal_status: int = 429
    """The HTTP status of its refusals, 400 to 599."""
    refusal_message: str = ""
    """The detail of their problem documents, in a line; empty: the limit, and when to retry."""
    reset_on_change: bool = False
    """Whether a changed limit, burst or `updated_at` starts afresh too. A limit that is changed back to what it was
    finds what was counted under it, if that has not expired: a new `updated_at` tells the two apart."""
    created_at: str = ""
    updated_at: str = ""
    """When it was changed; see `reset_on_change`."""

    def __post_init__(self) -> None:
        _named("rule id", self.id)
        where = f"rule {self.id!r}"
        self._check_types(where)
        if not self.quotas:
            raise InvalidRule(f"{where} has no limit")
        _check_apart(where, self.quotas)
        object.__setattr__(self, "dimension", _dimensions(where, self.dimension))
        self._check_patterns(where)
        for method in self.methods:
            if not re.fullmatch(METHOD, method):
                raise InvalidRule(f"{where}: {method!r} is not an HTTP method: write it as POST", fields=("methods",))
        for name, least, most in (
            *(("enforce_percent", 0, 100), ("replicas", 0, MAX_REPLICAS)),
            ("refusal_status", 400, 599),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise InvalidRule(f"{where}: {name} is a whole number from {least} to {most}", fields=(name,))
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

    def _check_types(self, where: str) -> None:
        derive = object.__setattr__  # the instance is frozen; this is a part of its making
        derive(self, "quotas", _several(f"{where}: quotas", self.quotas, Quota))
        _types(
            where, self, str, ("name", "key_pattern", "endpoint", "tier", "refusal_message", "created_at", "updated_at")
        )
        _types(where, self, bool, ("shadow", "enabled", "reset_on_change"))
        for name in ("methods", "replaces"):
            value = getattr(self, name)
            if value or type(value) is not frozenset:
                derive(self, name, frozenset(_several(f"{where}: {name}", value, str)))
        if self.when or type(self.when) is not dict:
            _mapping(f"{where}: when", self.when, str)
            when = {principal_name(name): value for name, value in self.when.items()}
            if len(when) < len(self.when):
                raise InvalidRule(f"{where}: 'when' has two names of one principal", fields=("when",))
            derive(self, "when", when)
        if self.on_store_failure is not None and type(self.on_store_failure) is not Mode:
            derive(self, "on_store_failure", _mode(where, self.on_store_failure))


@dataclass(frozen=True, slots=True)
class User:
    """What is special about one user."""

    tier: str = ""
    overrides: Mapping[str, Change] = field(default_factory=dict)
    """By rule id, each on top of the user's tier. A request may bring another tier along: if the override makes no
    quota on top of that, it changes the rule as written."""

    def __post_init__(self) -> None:
        _types("a user", self, str, ("tier",))
        _mapping("a user: overrides", self.overrides, Change)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an allow list or a deny list: principals of a dimension that are let through, or refused, unasked."""

    dimension: str
    value: str
    """Exact text, or with ``*`` for any characters; for the dimension "ip" also a network such as 10.0.0.0/8."""
    network: Network | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", _dimension(self.dimension))
        _types("an entry of a list", self, str, ("value",))
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

    rules: tuple[Rule, ...] = ()
    tiers: Mapping[str, Mapping[str, Change]] = field(default_factory=dict)
    """By tier, then by rule id."""
    users: Mapping[str, User] = field(default_factory=dict)
    """By the value of the principal "user"."""
    default_tier: str = ""
    """The tier of users who have none."""
    allow: tuple[Entry, ...] = ()
    deny: tuple[Entry, ...] = ()
    default: Rule | None = None
    """Applies when no other rule does; None: then everything passes."""
    unknown_rule: str = ""
    """What becomes of a request that names a rule which does not exist, or is disabled: with "allow" or nothing it
    passes, as one that matched nothing, with "error" it is an error."""
    ignore_case: bool = False
    """Whether endpoints that differ only in capitals (of A to Z) are the same, as they are for some servers."""

    def __post_init__(self) -> None:
        self._check_types()
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

    def _check_types(self) -> None:
        for name, kind in (("rules", Rule), ("allow", Entry), ("deny", Entry)):
            object.__setattr__(self, name, _several(name, getattr(self, name), kind))
        _mapping("tiers", self.tiers, Mapping)
        for tier, changes in self.tiers.items():
            if not tier:
                raise InvalidRule("tiers: the name of a tier has at least one character")
            _mapping(f"tier {tier!r}", changes, Change)
        _mapping("users", self.users, User)
        if self.default is not None and not isinstance(self.default, Rule):
            raise InvalidRule(f"default is a Rule, not {short(self.default)}")
        _types("the rules", self, str, ("default_tier", "unknown_rule"))
        _types("the rules", self, bool, ("ignore_case",))
        if self.unknown_rule not in {"", "allow", "error"}:
            raise InvalidRule(f"unknown_rule is 'allow' or 'error', not {self.unknown_rule!r}")


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


def _types(where: str, value: object, kind: type, names: tuple[str, ...]) -> None:
    """Refuse fields that are not text, or not a flag."""
    for name in names:
        given = getattr(value, name)
        if not isinstance(given, kind):
            wanted = "text" if kind is str else "True or False"
            raise InvalidRule(f"{where}: {name} is {wanted}, not {short(given)}", fields=(name,))


def _several(where: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Return `values` as a tuple. Text is not several texts, and one value not several."""
    if not isinstance(values, tuple | list | frozenset | set):
        raise InvalidRule(f"{where} is several of {_kind(kind)}, in a tuple or a list, not {short(values)}")
    for value in values:
        if not isinstance(value, kind):
            raise InvalidRule(f"{where} has {_kind(kind)} only, not {short(value)}")
    return tuple(values)


def _mapping(where: str, values: object, kind: type) -> None:
    if not isinstance(values, Mapping):
        raise InvalidRule(f"{where} is a mapping of text to {_kind(kind)}, not {short(values)}")
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidRule(f"{where} has text as names, not {short(name)}")
        if not isinstance(value, kind):
            raise InvalidRule(f"{where}: {short(name)} has {_kind(kind)}, not {short(value)}")


def _kind(kind: type) -> str:
    return "text" if kind is str else "a mapping" if kind is Mapping else kind.__name__


def _mode(where: str, value: Any) -> Mode:
    try:
        return Mode(value)
    except ValueError:
        raise InvalidRule(f"{where}: on_store_failure is one of {', '.join(Mode)}, not {short(value)}") from None


NO_RULES = Ruleset()
"""Lets everything pass."""
