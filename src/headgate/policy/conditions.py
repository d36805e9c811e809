"""Rules of one endpoint, found by what they ask for besides: methods, a tier, attributes.

Rules that ask for the same things (for a method and the attribute "region", say) make a group, and within a group they
are found by the values they ask for, all at once, in a dict. So the cost depends on how many different groups an
endpoint has that the request could meet, not on how many rules are in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Indexed(NamedTuple):
    """What a rule asks for besides its endpoint."""

    methods: frozenset[str] = frozenset()
    """In capitals; none: all."""
    tier: str = ""
    """Empty: all."""
    when: Mapping[str, str] = {}
    """Facts that must be equal."""


class _Group(Generic[T]):
    """Rules that ask for the same things, by the values they ask for."""

    __slots__ = ("_by_values", "_has_methods", "_has_tier", "_names")

    def __init__(self, names: tuple[str, ...], *, has_methods: bool, has_tier: bool) -> None:
        self._names = names
        self._has_methods = has_methods
        self._has_tier = has_tier
        self._by_values: dict[tuple[str | None, ...], list[T]] = {}

    def add(self, asked: Indexed, item: T) -> None:
        values = [asked.when[name] for name in self._names]
        for method in asked.methods or ("",):
            self._by_values.setdefault((method, asked.tier, *values), []).append(item)

    def collect(self, found: list[T], method: str, tier: str, facts: Mapping[str, str]) -> None:
        first = method if self._has_methods else "", tier if self._has_tier else ""
        items = self._by_values.get((*first, *[facts.get(name) for name in self._names]) if self._names else first)
        if items is not None:
            found += items


class Conditions(Generic[T]):
    """All rules of one endpoint; see this module."""

    __slots__ = ("_by_name", "_groups", "_unconditional", "_without_names")

    def __init__(self) -> None:
        self._unconditional: list[T] = []
        self._groups: dict[tuple[tuple[str, ...], bool, bool], _Group[T]] = {}
        self._without_names: list[_Group[T]] = []
        """Groups that ask for no attribute."""
        self._by_name: dict[str, list[_Group[T]]] = {}
        """The other groups, by one of the attributes each asks for."""

    def add(self, asked: Indexed, item: T) -> None:
        names = tuple(sorted(asked.when))
        shape = names, bool(asked.methods), bool(asked.tier)
        if not any(shape):
            self._unconditional.append(item)
            return
        group = self._groups.get(shape)
        if group is None:
            group = self._groups[shape] = _Group(names, has_methods=shape[1], has_tier=shape[2])
            (self._by_name.setdefault(names[0], []) if names else self._without_names).append(group)
        group.add(asked, item)

    def collect(self, found: list[T], method: str, tier: str, facts: Mapping[str, str]) -> None:
        """Append to `found` all whose conditions are met."""
        found += self._unconditional
        for group in self._without_names:
            group.collect(found, method, tier, facts)
        by_name = self._by_name
        if by_name:  # whichever is shorter; a group whose attribute is missing has nothing for us
            for name in facts if len(facts) < len(by_name) else by_name:
                for group in by_name.get(name, ()):
                    group.collect(found, method, tier, facts)
