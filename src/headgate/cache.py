"""Bounded caches of what is compiled or encoded once per rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Thing = TypeVar("Thing")
_PARTS = 64
"""One part of a full cache is evicted at once."""


class BoundedCache(dict[K, V]):
    """A dictionary with a bound; when it is full, the oldest entries are evicted.

    Some at once, since a dictionary is slow to find its first key after deletions; and few, since all requests wait.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Store a value, and return it."""
        if len(self) >= self._most and key not in self:
            for old in [*islice(self, self._most // _PARTS + 1)]:
                self.pop(old, None)
        self[key] = value
        return value


class Prepared(Generic[Thing, V]):
    """A bounded cache by name and identity, for things that are slow to compare."""

    __slots__ = ("_kept", "_prepare")

    def __init__(self, prepare: Callable[[str, Thing], V], most: int) -> None:
        self._prepare = prepare
        self._kept = BoundedCache[tuple[str, int], tuple[Any, V]](most)
        """With the thing, which keeps its identity unique."""

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: str, thing: Thing) -> V:
        try:
            return self._kept[name, id(thing)][1]
        except KeyError:
            return self._kept.keep((name, id(thing)), (thing, self._prepare(name, thing)))[1]
