"""Caches with a bound: of what is compiled or written once for a rule, and used for many requests."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Thing = TypeVar("Thing")


class BoundedCache(dict[K, V]):
    """Remembers so many values; when it is full, it forgets the older half of them."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Remember a value, and return it."""
        if len(self) >= self._most and key not in self:
            for old in [*islice(self, (self._most + 1) // 2)]:  # one by one would take longer each time
                self.pop(old, None)
        self[key] = value
        return value


class Prepared(Generic[Thing, V]):
    """Keeps what is prepared of things by their name and identity, where to compare them takes longer.

    Args:
        prepare: makes what is kept.
        most: how many are kept.
    """

    __slots__ = ("_kept", "_prepare")

    def __init__(self, prepare: Callable[[str, Thing], V], most: int) -> None:
        self._prepare = prepare
        self._kept = BoundedCache[tuple[str, int], tuple[Any, V]](most)
        """With the thing, so that no other gets its identity."""

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: str, thing: Thing) -> V:
        """Return what is prepared of a thing."""
        try:
            return self._kept[name, id(thing)][1]
        except KeyError:
            return self._kept.keep((name, id(thing)), (thing, self._prepare(name, thing)))[1]
