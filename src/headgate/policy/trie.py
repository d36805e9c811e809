"""Endpoint patterns, and the rules whose pattern and conditions match a request, independently of their number.

A pattern is a path whose segments are literal, ``*`` or ``{name}`` (any one segment), and, as the last one, ``**`` (any
number of further segments, including none). ``**`` alone matches everything. Literal segments are put into the
canonical form of `headgate.policy.paths`, like the paths of requests.

The walk follows the literal child and the ``*`` child of each node. It reaches as many nodes as there are prefixes of
patterns that match a prefix of the path: nearly always one or two for each segment; 2^n only if patterns combine
literals and ``*`` at each of n places in all ways.

At the end of a pattern are its rules. Those with the same kinds of conditions (such as a method and the attribute
"region") form a group, in which a dict finds them by the values of the conditions. So the cost depends on the number of
groups that could match the request, not on the number of rules in them.
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
    """Whether a parsed pattern matches a canonical path. For many patterns, use a `Trie`."""
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
            raise InvalidRule("** matches the rest, and must be the last segment")
        return REST
    if text == ANY or _NAMED.fullmatch(text):
        return ANY
    if "*" in text or "{" in text or "}" in text:
        raise InvalidRule(f"{short(text)} is neither literal nor * nor {{name}}, each of which is a whole segment")
    for sign in "?#;":
        if sign in text:
            raise InvalidRule(f"paths are matched without {sign}: remove it and the rest")
    segment = canonical_segment(text)
    if segment in {"", ".", ".."}:
        raise InvalidRule(f"no path has a segment {short(text)} once it is normalised")
    return segment


class Conditions(NamedTuple):
    """The conditions of a rule besides its endpoint; empty ones match everything."""

    methods: frozenset[str] = frozenset()
    """In capitals."""
    tier: str = ""
    when: Mapping[str, str] = {}
    """Facts that must be equal."""


_Shape = tuple[tuple[str, ...], bool, bool]
"""The kinds of conditions of a group: the names of attributes, whether there are methods, and a tier."""
_Group = tuple[_Shape, dict[tuple[str | None, ...], list[T]]]
"""Entries with the same kinds of conditions, by their values."""


class End(Generic[T]):
    """All entries with the same pattern."""

    __slots__ = ("_by_name", "_unconditional", "_without_names", "entries")

    def __init__(self, entries: Mapping[T, Conditions]) -> None:
        self.entries = entries
        self._unconditional: list[T] = []
        self._without_names: list[_Group[T]] = []
        """Groups without attributes."""
        self._by_name: dict[str, list[_Group[T]]] = {}
        """The other groups, by their first attribute."""
        groups: dict[_Shape, dict[tuple[str | None, ...], list[T]]] = {}
        for item, conditions in entries.items():
            names = tuple(sorted(conditions.when))
            shape = names, bool(conditions.methods), bool(conditions.tier)
            if not any(shape):
                self._unconditional.append(item)
                continue
            if shape not in groups:
                group = shape, groups.setdefault(shape, {})
                (self._by_name.setdefault(names[0], []) if names else self._without_names).append(group)
            values = [conditions.when[name] for name in names]
            for method in conditions.methods or ("",):
                groups[shape].setdefault((method, conditions.tier, *values), []).append(item)

    def collect(self, found: list[T], method: str, tier: str, facts: Mapping[str, str]) -> None:
        """Append to `found` the entries whose conditions match a method in capitals, a tier and facts."""
        found += self._unconditional
        for (_, has_methods, has_tier), by_values in self._without_names:
            found += by_values.get((method if has_methods else "", tier if has_tier else ""), ())
        by_name = self._by_name
        if by_name:  # whichever is shorter; a group whose attribute is missing cannot match
            for name in facts if len(facts) < len(by_name) else by_name:
                for (names, has_methods, has_tier), by_values in by_name.get(name, ()):
                    values = [facts.get(each) for each in names]
                    found += by_values.get((method if has_methods else "", tier if has_tier else "", *values), ())


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
    """Finds all entries whose pattern and conditions (methods, tier, attributes) match a request.

    Args:
        entries: parsed patterns, conditions, and different items to find.
        base: a trie whose entries this one has, too. It does not change; the two share equal parts.
        without: patterns and items of the base that this one does not have.
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
        own = {self._root}  # nodes that the base does not have
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

    def find(self, path: str, method: str, tier: str, facts: Mapping[str, str]) -> list[T]:
        """Return all items whose pattern matches a canonical path, and whose conditions match; see `End.collect`."""
        found: list[T] = []
        segments = segments_of(path)
        ways = [(self._root, segments)]
        while ways:
            node, segments = ways.pop()
            for place, segment in enumerate(segments, 1):
                if node.rest is not None:
                    node.rest.collect(found, method, tier, facts)
                child = node.literal.get(segment)
                if child is None:
                    child = node.wild
                    if child is None:
                        break
                elif node.wild is not None:
                    ways.append((node.wild, segments[place:]))
                node = child
            else:
                if node.here is not None:
                    node.here.collect(found, method, tier, facts)
                if node.rest is not None:
                    node.rest.collect(found, method, tier, facts)
        return found
