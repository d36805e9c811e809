"""The compiled rules: for each domain a tree of descriptors, some of which have limits. Immutable once built.

A node is known by its name, key and value joined with ``_`` as in envoyproxy/ratelimit; so its key is found by one
dictionary lookup, whatever the number of its siblings, and only patterns (names with ``*``) are tried one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota
from headgate.core.key import space
from headgate.core.numbers import whole
from headgate.core.quota import MAX_WINDOW_US, SECOND, Quota
from headgate.policy.envoy.request import MAX_UINT32, Entries, Unit
from headgate.policy.lists import Pattern

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit as operators write it and responses show it. Raises InvalidQuota."""

    requests_per_unit: int
    """0: everything is refused, without a store call."""
    unit: Unit
    unit_multiplier: int = 1
    """The number of units in the window."""
    name: str = ""
    replaces: frozenset[str] = frozenset()
    """Names of limits that do not apply when this one does."""
    algorithm: Algorithm = Algorithm.FIXED_WINDOW
    burst: int = 0
    window_us: int = field(init=False, repr=False, compare=False)
    quota: Quota | None = field(init=False, repr=False, compare=False)
    """None if everything is refused."""
    nearest_unit: Unit = field(init=False, repr=False, compare=False)
    """The unit closest to the window in proportion, for clients without `unit_multiplier`."""

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        whole("requests_per_unit", self.requests_per_unit, 0, MAX_UINT32, InvalidQuota)
        whole("unit_multiplier", self.unit_multiplier, 1, MAX_UINT32, InvalidQuota)
        seconds = self.unit.seconds * self.unit_multiplier
        if seconds * SECOND > MAX_WINDOW_US:
            days = MAX_WINDOW_US // SECOND // 86400
            message = f"a window of {self.unit_multiplier} {self.unit.name.lower()}s is longer than {days} days"
            raise InvalidQuota(message, fields=("unit_multiplier",))
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


cached_limit = lru_cache(maxsize=10_000)(RateLimit)
"""Return a `RateLimit`: files have many limits of few kinds, and a new one takes longer."""


class Level(NamedTuple):
    """A descriptor on the path to a rule."""

    name: str
    shared: bool = False
    """Whether all values that match the pattern count together."""
    value_to_metric: bool = False


@dataclass(frozen=True, slots=True)
class DescriptorRule:
    """The limits of one descriptor of the tree."""

    id: str
    """A digest of the domain and the path; it does not depend on the limits."""
    domain: str
    path: tuple[Level, ...]
    """Empty if the limit came with the request."""
    limits: tuple[RateLimit, ...]
    """Empty: unlimited."""
    name: str = ""
    """The name of an unlimited rule; otherwise the limits have names."""
    replaces: frozenset[str] = frozenset()
    """Names of limits that do not apply when this rule does."""
    shadow_mode: bool = False
    quota_mode: bool = False
    detailed_metric: bool = False
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The name of each limit."""
    banned: RateLimit | None = field(init=False, repr=False, compare=False)
    """The limit of 0, if any."""
    counted: tuple[tuple[str, Quota], ...] = field(init=False, repr=False, compare=False)
    """The space and the quota of each limit; empty if there is a limit of 0."""
    capacity: int = field(init=False, repr=False, compare=False)
    """The highest cost that all limits could admit."""
    shares: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """For each level, the pattern that replaces the value in keys, marked with a star; empty if there is none."""
    stat: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    """The parts of the metric's name if they do not depend on the request. Unlike in envoyproxy/ratelimit, they do not
    show how the request divides ``a_b_c`` into key and value."""

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen; these are parts of its construction
        quotas = [limit.quota for limit in self.limits if limit.quota is not None]
        banned = next((limit for limit in self.limits if limit.quota is None), None)
        counted = tuple((space(self.id, quota), quota) for quota in quotas) if banned is None else ()
        if len({place for place, _ in counted}) < len(counted):
            raise InvalidQuota("two limits have the same algorithm and window: keep the stricter one")
        derive(self, "names", tuple(limit.name for limit in self.limits))
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
    wildcards: tuple[tuple[Pattern, DescriptorNode], ...]
    """The children whose names are patterns, in the order of the file."""

    def find(self, entries: Entries) -> DescriptorRule | None:
        """Return the rule of the node at the end of the path of entries, one entry for each level.

        On each level, the exact name wins, then the first pattern that matches, then the key alone.
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
        """Return the limits of this node and of those below it as text, each after its path."""
        if self.rule is not None:
            texts = []
            for limit in self.rule.limits:
                unit = limit.unit.name if limit.unit_multiplier == 1 else f"{limit.unit_multiplier} {limit.unit.name}"
                texts.append(f"{limit.requests_per_unit} per {unit}" + (f" ({limit.name})" if limit.name else ""))
            marks = ["shadow"] * self.rule.shadow_mode + ["quota"] * self.rule.quota_mode
            yield f"{path}: {', '.join([*(texts or ['unlimited']), *marks])}"
        for name, child in self.children.items():
            yield from child.described(f"{path}.{name}")


def rule_id(domain: str, path: Iterable[Level] = ()) -> str:
    """Return the id of the rule of a descriptor, unique to the domain and the names on its path."""
    names = [name.encode() for name in (domain, *[level.name for level in path])]
    digest = blake2b(b"".join([b"%d:%b" % (len(name), name) for name in names]), digest_size=16)
    return f"rls:{digest.hexdigest()}"
