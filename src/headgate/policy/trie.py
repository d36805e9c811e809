"""Endpoint patterns, and all rules whose pattern and conditions a request meets, however many rules there are.

A pattern is a path whose segments are literal, ``*`` or ``{name}`` (any one segment), and, as the last one, ``**`` (any
number of further segments, also none). ``**`` alone matches everything. Literal segments are put into the canonical
form of `headgate.policy.paths`, as are the paths that they are compared with.

The walk follows the literal child and the ``*`` child of each node it reaches. So a path of n segments reaches as many
nodes as there are beginnings of patterns that match its beginning: nearly always one or two for each segment, 2^n only
where patterns mix literals and ``*`` at every place in all ways.

Where a pattern ends there are the rules that have it. Those that ask for the same things besides (for a method and the
attribute "region", say) make a group, and within a group they are found by the values they ask for, all at once, in a
dict. So the cost depends on how many different groups the request could meet, not on how many rules are
in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from headgate.core.errors import InvalidRule
from headgate.core.numbers import short
from headgate.policy.paths import LONGEST, canonical_segment
from headgate.policy.request import InvalidRequest

T = TypeVar("T")
ANY, REST = "*", "**"
_NAMED = re.compile(r"\{[A-Za-z_][A-Za-z0-9_-]{0,63}\}")


def parsed(pattern: str, *, ignore_case: bool = False) -> tuple[str, ...]:
    """Return the segments of a pattern, each ``*``, ``**`` or literal in canonical form. Raises InvalidRule."""
    if not isinstance(pattern, str) or not pattern or len(pattern) > LONGEST:
        raise InvalidRule(f"an endpoint is a pattern such as /api/orders/**, not {short(pattern)}")
    if pattern == REST:
        return (REST,)
    if not pattern.startswith("/"):
        raise InvalidRule(f"endpoint {short(pattern)}: a pattern begins with a slash, or is **")
    written = pattern[1:].removesuffix("/").split("/") if pattern != "/" else []
    segments = []
    for place, text in enumerate(written, 1):
        try:
            segment = _segment(text, is_last=place == len(written))
        except (InvalidRule, InvalidRequest) as error:
            raise InvalidRule(f"endpoint {short(pattern)}, segment {place}: {error}") from None
        segments.append(segment.lower() if ignore_case else segment)
    return tuple(segments)


def matches(segments: tuple[str, ...], path: str) -> bool:
    """Does a parsed pattern match a canonical path? For one pattern; a `Trie` answers for all at once."""
    steps = segments_of(path)
    if segments and segments[-1] == REST:
        segments = segments[:-1]
        steps = steps[: len(segments)]
    return len(segments) == len(steps) and all(
        expected in (ANY, step) for expected, step in zip(segments, steps, strict=True)
    )


def segments_of(path: str) -> list[str]:
    """Return the segments of a canonical path."""
    return path[1:].split("/") if path != "/" else []


def _segment(text: str, *, is_last: bool) -> str:
    if text == REST:
        if not is_last:
            raise InvalidRule("** stands for the rest, and only at the end")
        return REST
    if text == ANY or _NAMED.fullmatch(text):
        return ANY
    if "*" in text or "{" in text or "}" in text:
        raise InvalidRule(f"{short(text)} is neither literal nor * nor {{name}}, which stand for a whole segment each")
    for sign in "?#;":
        if sign in text:
            raise InvalidRule(f"a path is matched without {sign}: leave it and what follows out")
    segment = canonical_segment(text)
    if segment in {"", ".", ".."}:
        raise InvalidRule(f"no path has a segment {short(text)} once it is normalised")
    return segment


class Conditions(NamedTuple):
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

    def add(self, asked: Conditions, item: T) -> None:
        values = [asked.when[name] for name in self._names]
        for method in asked.methods or ("",):
            self._by_values.setdefault((method, asked.tier, *values), []).append(item)

    def collect(self, found: list[T], method: str, tier: str, facts: Mapping[str, str]) -> None:
        first = method if self._has_methods else "", tier if self._has_tier else ""
        found += self._by_values.get((*first, *[facts.get(name) for name in self._names]), ())


class End(Generic[T]):
    """Where a pattern ends: all that have this pattern."""

    __slots__ = ("_by_name", "_groups", "_unconditional", "_without_names", "entries", "values")

    def __init__(self, entries: Mapping[T, Conditions]) -> None:
        self.entries = entries
        self._unconditional: list[T] = []
        self._groups: dict[tuple[tuple[str, ...], bool, bool], _Group[T]] = {}
        self._without_names: list[_Group[T]] = []
        """Groups that ask for no attribute."""
        self._by_name: dict[str, list[_Group[T]]] = {}
        """The other groups, by one of the attributes each asks for."""
        self.values: dict[str, set[str]] = {}
        """All values that are asked for, by name."""
        for item, asked in entries.items():
            self._add(asked, item)

    def _add(self, asked: Conditions, item: T) -> None:
        names = tuple(sorted(asked.when))
        for name in names:
            self.values.setdefault(name, set()).add(asked.when[name])
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
        """Append to `found` all whose conditions are met by a method in capitals, a tier and facts."""
        found += self._unconditional
        for group in self._without_names:
            group.collect(found, method, tier, facts)
        by_name = self._by_name
        if by_name:  # whichever is shorter; a group whose attribute is missing has nothing for us
            for name in facts if len(facts) < len(by_name) else by_name:
                for group in by_name.get(name, ()):
                    group.collect(found, method, tier, facts)


Ends = tuple[End[T], ...]
"""All that a path reaches: the same for all paths that the same patterns match."""


class _Node(Generic[T]):
    __slots__ = ("here", "literal", "rest", "wild")

    def __init__(self, like: _Node[T] | None = None) -> None:
        self.literal: dict[str, _Node[T]] = dict(like.literal) if like else {}
        self.wild: _Node[T] | None = like.wild if like else None
        self.here: End[T] | None = like.here if like else None
        """Patterns that end here."""
        self.rest: End[T] | None = like.rest if like else None
        """Patterns that end here with ``**``."""

    @property
    def is_empty(self) -> bool:
        return not (self.literal or self.wild or self.here or self.rest)

    def child(self, segment: str) -> _Node[T] | None:
        return self.wild if segment == ANY else self.literal.get(segment)

    def put(self, segment: str, child: _Node[T] | None) -> None:
        if segment == ANY:
            self.wild = child
        elif child is not None:
            self.literal[segment] = child
        else:
            self.literal.pop(segment, None)


class Trie(Generic[T]):
    """Finds all whose pattern and conditions (methods, tier, attributes) a request meets; see `End.collect`.

    Args:
        entries: parsed patterns, conditions, and what to find: things that are all different.
        base: one whose entries this one has, too. It stays as it is; the two share what is the same.
        without: patterns and things of the base that this one does not have.
    """

    __slots__ = ("_root",)

    def __init__(
        self,
        entries: Iterable[tuple[tuple[str, ...], Conditions, T]],
        base: Trie[T] | None = None,
        without: Iterable[tuple[tuple[str, ...], T]] = (),
    ) -> None:
        by_pattern: dict[tuple[str, ...], tuple[list[T], dict[T, Conditions]]] = {}
        for segments, item in without:
            by_pattern.setdefault(segments, ([], {}))[0].append(item)
        for segments, conditions, item in entries:
            by_pattern.setdefault(segments, ([], {}))[1][item] = conditions
        self._root: _Node[T] = _Node(None if base is None else base._root)  # noqa: SLF001  of the same class
        own = {self._root}  # those that the base does not have
        for segments, (fewer, more) in by_pattern.items():
            is_rest = segments[-1:] == (REST,)
            way = [self._root]
            for segment in segments[:-1] if is_rest else segments:
                child = way[-1].child(segment)
                if child not in own:
                    child = _Node(child)
                    own.add(child)
                    way[-1].put(segment, child)
                way.append(child)
            node = way.pop()
            end = node.rest if is_rest else node.here
            there = {**(end.entries if end else {}), **more}
            for item in fewer:
                del there[item]
            end = End(there) if there else None
            if is_rest:
                node.rest = end
            else:
                node.here = end
            for segment, parent in zip(reversed(segments[: len(way)]), reversed(way), strict=True):
                if node.is_empty:
                    parent.put(segment, None)
                node = parent

    def ends(self, path: str) -> Ends[T]:
        """Return the ends of all patterns that match a canonical path."""
        found: list[End[T]] = []
        segments = segments_of(path)
        ways = [(self._root, segments)]
        while ways:
            node, segments = ways.pop()
            for place, segment in enumerate(segments, 1):
                if node.rest is not None:
                    found.append(node.rest)
                child = node.literal.get(segment)
                if child is None:
                    child = node.wild
                    if child is None:
                        break
                elif node.wild is not None:
                    ways.append((node.wild, segments[place:]))
                node = child
            else:
                found += [end for end in (node.here, node.rest) if end is not None]
        return tuple(found)
