"""Infer the endpoints of an API from requested paths: /orders/17 and /orders/18 are /orders/*.

A segment that looks like an identifier (digits, a UUID, hexadecimal, a long token) becomes ``*``. A place with more
than `MOST_NAMES` different names has identifiers too, unless a few names make up most of the requests: then those few
are kept, and the rule for all endpoints covers the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import nlargest

from headgate.policy.trie import ANY, REST

MOST_NAMES = 100
"""Distinct segments at one place before they count as identifiers."""
FEW_NAMES, MOST_REQUESTS = 20, 0.75
"""This many names with this share of the requests are not identifiers."""
MOST_NODES = 20_000
MOST_SEGMENTS = 8
"""Segments of a path; the rest is `**`."""
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", ""})
"""Methods with separate endpoints; "" for logs without methods. HEAD counts as GET."""
_IDENTIFIER = re.compile(
    r"""\d+ | \d{4}-\d\d-\d\d.* | [0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12} | (?=.*\d)[0-9a-fA-F]{8,}
      | [A-Za-z]{1,16}[_-](?=.*\d)[A-Za-z0-9]{6,} | (?=.*\d).{20,} | .*[@*].* | .{65,}""",
    re.VERBOSE,
).fullmatch
_SERVED = frozenset({0, 304, 402, 409, 422, 429})


class Endpoint:
    __slots__ = ("_merged", "method", "pattern", "requests")

    def __init__(self, method: str, pattern: str) -> None:
        self.method, self.pattern = method, pattern
        self.requests = 0
        self._merged: Endpoint | None = None

    @property
    def current(self) -> Endpoint:
        """The endpoint that this one was merged into, or itself."""
        found = self
        while found._merged is not None:
            found = found._merged
        return found

    def merge_into(self, other: Endpoint) -> None:
        other.requests += self.requests
        self._merged = other

    def __str__(self) -> str:
        return f"{self.method} {self.pattern}".strip()


class _Node:
    __slots__ = ("children", "ends", "full", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.children: dict[str, _Node] = {}
        self.ends: dict[str, Endpoint] = {}
        self.full = False
        """Whether it accepts no more names."""

    def requests(self) -> int:
        return sum(end.requests for end in self.endpoints())

    def endpoints(self) -> Iterator[Endpoint]:
        yield from self.ends.values()
        for child in self.children.values():
            yield from child.endpoints()


class Endpoints:
    """Endpoints inferred from requests, in bounded memory."""

    def __init__(self) -> None:
        self._root = _Node("")
        self._nodes = 0

    def __iter__(self) -> Iterator[Endpoint]:
        return self._root.endpoints()

    def find(self, method: str, path: str, status: int) -> Endpoint | None:
        """Count a request and return its endpoint, or None if it has no known one.

        Only served requests create endpoints: clients may send paths that do not exist.
        """
        if method not in METHODS:
            if method != "HEAD":
                return None
            method = "GET"
        node = self._root
        if path != "/":
            for depth, segment in enumerate(path[1:].split("/")):
                child = node.children.get(segment)
                if child is None:
                    child = self._child(node, segment if depth < MOST_SEGMENTS else REST, status)
                    if child is None:
                        return None
                node = child
                if depth == MOST_SEGMENTS:
                    break
        found = node.ends.get(method)
        if found is None:
            if not _is_served(status):
                return None
            found = node.ends[method] = Endpoint(method, node.pattern or "/")
        found.requests += 1
        return found

    def _child(self, node: _Node, segment: str, status: int) -> _Node | None:
        """Return the node for a segment that has none yet."""
        name = ANY if (ANY in node.children and node.full) or _IDENTIFIER(segment) else segment
        name = REST if segment == REST else name
        found = node.children.get(name)
        if found is not None or not _is_served(status) or self._nodes >= MOST_NODES:
            return found
        if name not in {ANY, REST}:
            if node.full:
                return None
            if len(node.children) >= MOST_NAMES:
                self._fill(node)
                return node.children.get(ANY)
        self._nodes += 1
        found = node.children[name] = _Node(f"{node.pattern}/{name}")
        return found

    def _fill(self, node: _Node) -> None:
        """Treat the names at a node as identifiers, except a few that make up nearly all requests."""
        node.full = True
        counts = {name: child.requests() for name, child in node.children.items() if name != ANY}
        few = nlargest(FEW_NAMES, counts, key=counts.__getitem__)
        names = [name for name in counts if name not in few]
        if sum(counts[name] for name in few) < MOST_REQUESTS * sum(counts.values()):
            names = [*counts]
            node.children.setdefault(ANY, _Node(f"{node.pattern}/{ANY}"))
        for name in names:
            child = node.children.pop(name)
            if ANY in node.children:
                _merge(child, node.children[ANY])


def _merge(source: _Node, target: _Node) -> None:
    for method, end in source.ends.items():
        end.merge_into(target.ends.setdefault(method, Endpoint(method, target.pattern)))
    for name, child in source.children.items():
        _merge(child, target.children.setdefault(name, _Node(f"{target.pattern}/{name}")))


def _is_served(status: int) -> bool:
    return 200 <= status < 300 or status >= 500 or status in _SERVED
