"""The keys that are asked about, and refused, most often.

Most decisions are sampled: one in `EVERY` is looked at, and weighs as much. Refusals are all looked at, up to `DENIALS`
in a second; beyond that, one in `EVERY`. So the lists are estimates: what is hot is surely found, and how hot it is
comes out right by a few percent. Which ones are looked at is left to chance, as traffic may have a rhythm of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import random
from typing import TypeAlias

import msgspec

from headgate.observe.frequent import Frequent
from headgate.observe.principals import Principals

EVERY = 32
DENIALS = 1000
SIZE = 500
"""So many keys of each kind are surely found, if they are hot."""
SHOWN = 50


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
        self._denials = 0
        self._until_denial = stride()

    def asked(self, rule: str, value: str) -> None:
        """Note one of `EVERY` decisions."""
        self._hot.add((rule, value), EVERY)

    def wants_denial(self) -> int:
        """Return what this refusal weighs; 0: it is not wanted."""
        if self._denials < DENIALS:
            self._denials += 1
            return 1
        self._until_denial -= 1
        if self._until_denial:
            return 0
        self._until_denial = stride()
        return EVERY

    def denied(self, rule: str, value: str, weight: int) -> None:
        """Note a refusal that is wanted."""
        self._denied.add((rule, value), weight)

    def second(self) -> None:
        """Let a second pass."""
        self._denials = 0
        self._hot.second()
        self._denied.second()

    def top(self, most: int = SHOWN) -> HotList:
        """Return the lists, the hottest first."""
        return HotList(self._shown(self._hot, most), self._shown(self._denied, most))

    def _shown(self, keys: Frequent[Key], most: int) -> tuple[HotKey, ...]:
        shown = self._principals.shown
        return tuple([HotKey(rule, shown(value), round(rate, 2)) for (rule, value), rate in keys.top(most)])


def merged(lists: Iterable[HotList], most: int = SHOWN) -> HotList:
    """Return the lists of several workers as one."""
    every = list(lists)
    return HotList(_merged([each.hot for each in every], most), _merged([each.denied for each in every], most))


def _merged(lists: Iterable[Iterable[HotKey]], most: int) -> tuple[HotKey, ...]:
    rates: dict[tuple[str, str], float] = {}
    for keys in lists:
        for each in keys:
            rates[each.rule, each.key] = rates.get((each.rule, each.key), 0) + each.per_second
    first = sorted(rates.items(), key=lambda item: -item[1])[:most]
    return tuple([HotKey(rule, key, round(rate, 2)) for (rule, key), rate in first])
