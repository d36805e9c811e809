"""The compiled rules: for each domain a tree of descriptors, some of which have limits. Immutable once built.

A node is known by its name, key and value joined with ``_`` as in envoyproxy/ratelimit; so its key is found by one
dictionary lookup, whatever the number of its siblings, and only patterns (names with ``*``) are tried one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota
from headgate.core.key import space
from headgate.core.numbers import whole
from headgate.core.quota import SECOND, Quota
from headgate.policy.envoy.request import MAX_UINT32, Entries, Unit
from headgate.policy.lists import Pattern

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit as an operator writes it, and as the answer shows it. Raises InvalidQuota."""

    requests_per_unit: int
    """0: everything is refused, and no store is asked."""
    unit: Unit
    unit_multiplier: int = 1
    """The window is so many units."""
    name: str = ""
    replaces: frozenset[str] = frozenset()
    """Names of limits that do not apply when this one does."""
    algorithm: Algorithm = Algorithm.FIXED_WINDOW
    burst: int = 0
    window_us: int = field(init=False, repr=False, compare=False)
    """Length of the window in microseconds."""
    quota: Quota | None = field(init=False, repr=False, compare=False)
    """None if everything is refused."""
    nearest_unit: Unit = field(init=False, repr=False, compare=False)
    """The unit closest to the window in proportion, for clients that know no `unit_multiplier`."""

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        whole("requests_per_unit", self.requests_per_unit, 0, MAX_UINT32, InvalidQuota)
        whole("unit_multiplier", self.unit_multiplier, 1, MAX_UINT32, InvalidQuota)
        seconds = self.unit.seconds * self.unit_multiplier
        derive(self, "window_us", seconds * SECOND)
        derive(
            self, "nearest_unit", min(Unit, key=lambda unit: max(unit.seconds, seconds) / min(unit.seconds, seconds))
        )
        if self.requests_per_unit:
            derive(self, "quota", Quota(self.requests_per_unit, self.window_us, self.burst, self.algorithm))
        elif self.burst:
            raise InvalidQuota("a limit of 0 refuses everything: it has no burst", fields=("burst",))
        else:
            derive(self, "quota", None)


made_once = lru_cache(maxsize=10_000)(RateLimit)
"""Make a `RateLimit`, or return an equal one: files have many limits of few kinds, and to make one takes longer."""


class Level(NamedTuple):
    """What is to be known of each descriptor on the way to a rule."""

    name: str
    shared: bool = False
    """Whether all that match the pattern count together."""
    value_to_metric: bool = False


@dataclass(frozen=True, slots=True)
class DescriptorRule:
    """The limits of one descriptor of the tree."""

    id: str
    """Stands for the domain and the path; the limits do not change it."""
    domain: str
    path: tuple[Level, ...]
    """Empty if the limit came with the request."""
    limits: tuple[RateLimit, ...]
    """None of them: unlimited."""
    name: str = ""
    """Of an unlimited rule; otherwise the limits have names."""
    replaces: frozenset[str] = frozenset()
    """Names of limits that do not apply when this rule does."""
    shadow_mode: bool = False
    quota_mode: bool = False
    detailed_metric: bool = False
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    banned: RateLimit | None = field(init=False, repr=False, compare=False)
    """The limit of 0, if there is one."""
    counted: tuple[tuple[str, Quota], ...] = field(init=False, repr=False, compare=False)
    """For each limit, where its states live and its quota; none if one of them is a limit of 0."""
    capacity: int = field(init=False, repr=False, compare=False)
    """The highest cost that all limits could admit."""
    shares: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """For each level, the pattern that stands for the value in the key, marked with a star; empty if none does."""
    stat: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    """The parts of the metric's name, if they do not depend on the request: then they are those of the file, even where
    envoyproxy/ratelimit would show how the request divides ``a_b_c`` into key and value."""

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        quotas = [limit.quota for limit in self.limits if limit.quota is not None]
        banned = next((limit for limit in self.limits if limit.quota is None), None)
        counted = tuple((space(self.id, quota), quota) for quota in quotas) if banned is None else ()
        if len({place for place, _ in counted}) < len(counted):
            raise InvalidQuota("two limits have the same algorithm and window: keep the stricter one")
        derive(self, "banned", banned)
        derive(self, "counted", counted)
        derive(self, "capacity", min((quota.capacity for quota in quotas), default=0))
        shares = tuple(f"*{len(level.name)}:{level.name}" if level.shared else "" for level in self.path)
        derive(self, "shares", shares if any(shares) else ())
        by_value = not self.path or self.detailed_metric or any(level.value_to_metric for level in self.path)
        derive(self, "stat", None if by_value else (self.domain, *(level.name for level in self.path)))

    def stat_of(self, entries: Entries) -> tuple[str, ...]:
        """Return the parts of the metric's name for a descriptor: the domain, then one part for each entry."""
        if self.stat is not None:
            return self.stat
        if not self.path:
            return (self.domain, *(f"{key}_{value}" if value else key for key, value in entries))
        parts = [self.domain]
        for level, (key, value) in zip(self.path, entries, strict=True):
            if level.shared or not (self.detailed_metric or level.value_to_metric):
                parts.append(level.name)
            else:
                parts.append(f"{key}_{value}" if value or (self.detailed_metric and not self.shares) else key)
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class DescriptorNode:
    """A descriptor of the tree, with those nested in it."""

    level: Level
    rule: DescriptorRule | None
    children: Mapping[str, DescriptorNode]
    """By name."""
    wildcards: tuple[tuple[Pattern, DescriptorNode], ...]
    """Those of the children whose names are patterns, in the order of the file."""

    def find(self, entries: Entries) -> DescriptorRule | None:
        """Return the rule for these entries: of the node that they lead to, one entry a level, not of any before it.

        On each level the first of these is taken: the exact name; the first pattern that fits; the key alone.
        """
        node = self
        for key, value in entries:
            name = f"{key}_{value}"
            child = node.children.get(name)
            if child is None:
                for pattern, nested in node.wildcards:
                    if name.startswith(pattern.head) and pattern.matches(name):
                        child = nested
                        break
                else:
                    child = node.children.get(key)
                    if child is None:
                        return None
            node = child
        return node.rule

    def described(self, path: str) -> Iterator[str]:
        """Return the limits of this node and of those below it, as text, each after the names that lead to it."""
        if self.rule is not None:
            yield f"{path}: {_limits(self.rule)}"
        for name, child in self.children.items():
            yield from child.described(f"{path}.{name}")


def _limits(rule: DescriptorRule) -> str:
    texts = []
    for limit in rule.limits:
        unit = limit.unit.name if limit.unit_multiplier == 1 else f"{limit.unit_multiplier} {limit.unit.name}"
        texts.append(f"{limit.requests_per_unit} per {unit}" + (f" ({limit.name})" if limit.name else ""))
    marks = [mark for mark, is_set in (("shadow", rule.shadow_mode), ("quota", rule.quota_mode)) if is_set]
    return ", ".join([*(texts or ["unlimited"]), *marks])


class Trail:
    """The way from a domain to a descriptor, from which the ids of rules are made."""

    __slots__ = ("_digest", "domain", "levels")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.levels: tuple[Level, ...] = ()
        self._digest = blake2b(_framed(domain), digest_size=16)

    def to(self, level: Level) -> Trail:
        """Return the way to a descriptor that is nested in this one."""
        trail = Trail(self.domain)
        trail.levels = (*self.levels, level)
        trail._digest = self._digest.copy()
        trail._digest.update(_framed(level.name))
        return trail

    @property
    def id(self) -> str:
        """The same for the same domain and names, and for no others."""
        return f"rls:{self._digest.hexdigest()}"


def _framed(text: str) -> bytes:
    raw = text.encode()
    return b"%d:%b" % (len(raw), raw)
