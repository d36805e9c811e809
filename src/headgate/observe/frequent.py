"""Which keys come most often, in bounded memory: the algorithm of Misra and Gries, in batches, with decay.

At most 2 K keys are counted. When there are more, the K-th largest count is subtracted from all, and those that have
nothing left are forgotten. So a key that makes up more than 1 / K of all is never missed; a count is too low by at most
what was subtracted, and never too high. Between two seconds all counts shrink by a factor: what was hot an hour ago is
not hot now.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import nlargest
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
HALF_LIFE = 10
"""Seconds after which a count weighs half."""
KEEP = 0.5 ** (1 / HALF_LIFE)
_LEAST = 0.25


class Frequent(Generic[K]):
    """Counts the keys that come most often.

    Args:
        size: K: so many keys are surely among those counted, if they come often enough.
    """

    __slots__ = ("_counts", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: dict[K, float] = {}

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
        first = nlargest(most, self._counts.items(), key=lambda item: item[1])
        return [(key, count * (1 - KEEP)) for key, count in first]

    def _purge(self) -> None:
        less = sorted(self._counts.values(), reverse=True)[self._size]
        self._counts = {key: left for key, count in self._counts.items() if (left := count - less) > 0}
