"""Endpoint patterns, and all of them that a path matches, in time that depends on the path and not on their number.

A pattern is a path whose segments are literal, ``*`` or ``{name}`` (any one segment), and, as the last one, ``**`` (any
number of further segments, also none). ``**`` alone matches everything. Literal segments are put into the canonical
form of `headgate.policy.paths`, as the paths are that they are compared with.

The walk follows the literal child and the ``*`` child of each node it reaches. So a path of n segments reaches as many
nodes as there are beginnings of patterns that match its beginning: nearly always one or two for each segment, 2^n only
where patterns mix literals and ``*`` at every place in all ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from headgate.core.errors import InvalidRule
from headgate.core.numbers import short
from headgate.policy.conditions import Conditions, Indexed
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


class _Node(Generic[T]):
    __slots__ = ("here", "literal", "rest", "wild")

    def __init__(self) -> None:
        self.literal: dict[str, _Node[T]] = {}
        self.wild: _Node[T] | None = None
        self.here: Conditions[T] | None = None
        """Patterns that end here."""
        self.rest: Conditions[T] | None = None
        """Patterns that end here with ``**``."""


class Trie(Generic[T]):
    """Finds all whose pattern and conditions (methods, tier, attributes) a request meets.

    Args:
        entries: parsed patterns, conditions, and what to find.
    """

    __slots__ = ("_root",)

    def __init__(self, entries: Iterable[tuple[tuple[str, ...], Indexed, T]]) -> None:
        self._root: _Node[T] = _Node()
        for segments, conditions, item in entries:
            self._end_of(segments).add(conditions, item)

    def find(self, path: str, method: str, tier: str, facts: Mapping[str, str]) -> list[T]:
        """Return all that match a canonical path, a method in capitals, a tier and facts; in no particular order."""
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

    def _end_of(self, segments: tuple[str, ...]) -> Conditions[T]:
        node = self._root
        for segment in segments:
            if segment == REST:
                node.rest = node.rest or Conditions()
                return node.rest
            if segment == ANY:
                node.wild = node.wild or _Node()
                node = node.wild
            else:
                node = node.literal.setdefault(segment, _Node())
        node.here = node.here or Conditions()
        return node.here
