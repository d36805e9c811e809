"""The keys that are asked about, refused, and would be refused by shadow rules, most often.

Most decisions are sampled: one in `EVERY` is looked at, and weighs as much. Refusals, also those of shadow rules, are
all looked at, up to `DENIALS` in a second; beyond that, one in `EVERY`, which stands for those that were passed over.
So the lists are estimates: what is hot is surely found, and how hot it is comes out right by a few percent. Which ones
are looked at is left to chance, as traffic may have a rhythm of its own.

They are counted in bounded memory, by the algorithm of Misra and Gries, in batches, with decay. At most 2 K keys are
counted. When there are more, the K-th largest count is subtracted from all, and those that have nothing left are
forgotten. So a key that makes up more than 1 / K of all is never missed; a count is too low by at most what was
subtracted, and never too high. Between two seconds all counts shrink by a factor: what was hot an hour ago is not hot
now.
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
"""So many keys of each kind are surely found, if they are hot."""
SHOWN = 50
HALF_LIFE = 10
"""Seconds after which a count weighs half."""
KEEP = 0.5 ** (1 / HALF_LIFE)
_LEAST = 0.25
K = TypeVar("K", bound=Hashable)

Key: TypeAlias = tuple[str, str]
"""A rule, and who is counted by it."""


class HotKey(msgspec.Struct, frozen=True, gc=False):
    """A key as it is shown."""

    rule: str
    key: str
    per_second: float
    """How often, of late: an average in which 10 seconds ago weighs half of now."""


class HotList(msgspec.Struct, frozen=True):
    """What is hot."""

    hot: tuple[HotKey, ...] = ()
    """Asked about most often, the costs not regarded."""
    denied: tuple[HotKey, ...] = ()
    """Refused most often."""
    would_refuse: tuple[HotKey, ...] = ()
    """What shadow rules would refuse most often."""


def stride() -> int:
    """Return how many to pass over until the next one is looked at, that one included: `EVERY` on average."""
    return 1 + int(random() * (2 * EVERY - 1))


class HotKeys:
    """Finds the keys that are asked about, and refused, most often. Its memory is bounded.

    Args:
        principals: what is shown of those who asked.
        size: see `SIZE`.
    """

    def __init__(self, principals: Principals, *, size: int = SIZE) -> None:
        self._principals = principals
        self._hot: Frequent[Key] = Frequent(size)
        self._denied: Frequent[Key] = Frequent(size)
        self._would_refuse: Frequent[Key] = Frequent(size)
        self._denials = 0

    def asked(self, rule: str, value: str) -> None:
        """Note one of `EVERY` decisions."""
        self._hot.add((rule, value), EVERY)

    def denial_stride(self) -> int:
        """Return after how many refusals more one is looked at: that one weighs as many."""
        self._denials += 1
        return 1 if self._denials < DENIALS else stride()

    def denied(self, rule: str, value: str, weight: int) -> None:
        """Note a refusal that is looked at; see `denial_stride`."""
        self._denied.add((rule, value), weight)

    def would_refuse(self, rule: str, value: str, weight: int) -> None:
        """Note what a shadow rule would refuse, if it is looked at; see `denial_stride`."""
        self._would_refuse.add((rule, value), weight)

    def second(self) -> None:
        """Let a second pass."""
        self._denials = 0
        self._hot.second()
        self._denied.second()
        self._would_refuse.second()

    def top(self, most: int = SHOWN) -> HotList:
        """Return the lists, the hottest first."""
        lists = (self._hot, self._denied, self._would_refuse)
        return HotList(*[self._shown(each, most) for each in lists])

    def _shown(self, keys: Frequent[Key], most: int) -> tuple[HotKey, ...]:
        shown = self._principals.shown
        return tuple([HotKey(rule, shown(value), round(rate, 2)) for (rule, value), rate in keys.top(most)])


def merged_lists(lists: Iterable[HotList], most: int = SHOWN) -> HotList:
    """Return the lists of several workers as one."""
    every = list(lists)
    return HotList(
        _merged([each.hot for each in every], most),
        _merged([each.denied for each in every], most),
        _merged([each.would_refuse for each in every], most),
    )


def _merged(lists: Iterable[Iterable[HotKey]], most: int) -> tuple[HotKey, ...]:
    rates: dict[tuple[str, str], float] = {}
    for keys in lists:
        for each in keys:
            rates[each.rule, each.key] = rates.get((each.rule, each.key), 0) + each.per_second
    first = sorted(rates.items(), key=lambda item: -item[1])[:most]
    return tuple([HotKey(rule, key, round(rate, 2)) for (rule, key), rate in first])


class Frequent(Generic[K]):
    """Counts the keys that come most often.

    Args:
        size: K: so many keys are surely among those counted, if they come often enough.
    """

    __slots__ = ("_counts", "_size", "missed")

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: dict[K, float] = {}
        self.missed: float = 0
        """By how much a count may be too low."""

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: K, weight: int = 1) -> None:
        """Count a key `weight` times."""
        counts = self._counts
        counts[key] = counts.get(key, 0) + weight
        if len(counts) > 2 * self._size:
            self._purge()

    def second(self) -> None:
        """Let a second pass."""
        self._counts = {key: left for key, count in self._counts.items() if (left := count * KEEP) >= _LEAST}

    def top(self, most: int) -> list[tuple[K, float]]:
        """Return the most frequent keys, each with how often it came in a second of late."""
        return [(key, count * (1 - KEEP)) for key, count in self.largest(most)]

    def largest(self, most: int) -> list[tuple[K, float]]:
        """Return the most frequent keys, each with its count."""
        return nlargest(most, self._counts.items(), key=lambda item: item[1])

    def _purge(self) -> None:
        less = sorted(self._counts.values(), reverse=True)[self._size]
        self.missed += less
        self._counts = {key: left for key, count in self._counts.items() if (left := count - less) > 0}
