"""The keys with the most checks, the most refusals, and the most refusals by shadow rules.

One in `EVERY` decisions is sampled, and counts as many. Up to `DENIALS` refusals a second, including those
of shadow rules, are all counted; beyond that, one in `EVERY` is sampled. So the lists are estimates: hot keys are
certainly found, with rates within a few percent. Sampling is random, since traffic may be periodic.

Memory is bounded by the algorithm of Misra and Gries, in batches, with decay. At most 2 K keys are counted. Beyond
that, the K-th largest count is subtracted from all, and keys with nothing left are removed. So a key with more than 1 /
K of all is never missed; a count is too low by at most what was subtracted, and never too high. All counts decay every
second.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import nlargest
from random import random
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headgate.observe.logs import Principals

EVERY = 32
DENIALS = 1000
SIZE = 500
"""This many hot keys of each kind are certainly found."""
SHOWN = 50
HALF_LIFE = 10
"""Seconds after which a count has half its weight."""
KEEP = 0.5 ** (1 / HALF_LIFE)
_LEAST = 0.25
K = TypeVar("K", bound=Hashable)

Key: TypeAlias = tuple[str, str]
"""A rule and the principal that it counts."""


class HotKey(msgspec.Struct, frozen=True, gc=False):
    rule: str
    key: str
    per_second: float
    """A decaying average: 10 seconds ago weighs half of now."""


class HotList(msgspec.Struct, frozen=True):
    hot: tuple[HotKey, ...] = ()
    """Keys with the most checks, of any cost."""
    denied: tuple[HotKey, ...] = ()
    """Keys with the most refusals."""
    would_refuse: tuple[HotKey, ...] = ()
    """Keys that shadow rules would refuse most."""


def stride() -> int:
    """Return the distance to the next sample: `EVERY` on average."""
    return 1 + int(random() * (2 * EVERY - 1))


class HotKeys:
    def __init__(self, principals: Principals) -> None:
        self._principals = principals
        self._lists: list[Frequent[Key]] = [Frequent(SIZE) for _ in HotList.__struct_fields__]
        self._hot, self._denied, self._would_refuse = self._lists
        self._denials = 0

    def add(self, rule: str, value: str) -> None:
        """Count one of `EVERY` decisions."""
        self._hot.add((rule, value), EVERY)

    def denial_stride(self) -> int:
        """Return the distance to the next refusal to count, which is its weight too."""
        self._denials += 1
        return 1 if self._denials < DENIALS else stride()

    def add_denial(self, rule: str, value: str, weight: int) -> None:
        """Count a sampled refusal; see `denial_stride`."""
        self._denied.add((rule, value), weight)

    def add_shadow_denial(self, rule: str, value: str, weight: int) -> None:
        """Count a sampled refusal by a shadow rule; see `denial_stride`."""
        self._would_refuse.add((rule, value), weight)

    def second(self) -> None:
        self._denials = 0
        for each in self._lists:
            each.second()

    def top(self, most: int = SHOWN) -> HotList:
        shown = self._principals.shown
        return HotList(
            *[
                tuple([HotKey(rule, shown(value), round(rate, 2)) for (rule, value), rate in each.top(most)])
                for each in self._lists
            ]
        )


def merged_lists(lists: Iterable[HotList], most: int = SHOWN) -> HotList:
    return HotList(*[_merge(each, most) for each in zip(*map(msgspec.structs.astuple, lists), strict=True)])


def _merge(lists: Iterable[Iterable[HotKey]], most: int) -> tuple[HotKey, ...]:
    rates: dict[tuple[str, str], float] = {}
    for keys in lists:
        for each in keys:
            rates[each.rule, each.key] = rates.get((each.rule, each.key), 0) + each.per_second
    first = sorted(rates.items(), key=lambda item: -item[1])[:most]
    return tuple([HotKey(rule, key, round(rate, 2)) for (rule, key), rate in first])


class Frequent(Generic[K]):
    """Counts the most frequent keys; `size` is K, the number of frequent keys that are certainly counted."""

    __slots__ = ("_counts", "_size", "missed")

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: dict[K, float] = {}
        self.missed: float = 0
        """The most that a count may be too low."""

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: K, weight: int = 1) -> None:
        counts = self._counts
        counts[key] = counts.get(key, 0) + weight
        if len(counts) > 2 * self._size:
            self._purge()

    def second(self) -> None:
        """Apply a second of decay."""
        self._counts = {key: left for key, count in self._counts.items() if (left := count * KEEP) >= _LEAST}

    def top(self, most: int) -> list[tuple[K, float]]:
        """Return the most frequent keys with their rates per second."""
        return [(key, count * (1 - KEEP)) for key, count in self.largest(most)]

    def largest(self, most: int) -> list[tuple[K, float]]:
        return nlargest(most, self._counts.items(), key=lambda item: item[1])

    def _purge(self) -> None:
        less = sorted(self._counts.values(), reverse=True)[self._size]
        self.missed += less
        self._counts = {key: left for key, count in self._counts.items() if (left := count - less) > 0}
