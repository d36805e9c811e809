"""What is remembered of questions that come again: by policies, metrics and the answers of the service."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """Remembers so many values; when there are more, it begins anew.

    Half of the room is for whatever comes, the other half for what comes again. Otherwise, where far more different
    values come than there is room for, most of them once, it would forget all the time, and be of no use.
    """

    __slots__ = ("_most", "_seen")

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._seen: set[int] = set()
        """Hashes of keys that came when half of the room was taken."""

    def keep(self, key: K, value: V) -> V:
        """Remember a value, or at least that it was here, and return it."""
        if 2 * len(self) >= self._most and key not in self:
            seen, known = self._seen, hash(key)
            if known not in seen:
                if len(seen) >= self._most:
                    seen.clear()
                seen.add(known)
                return value
            if len(self) >= self._most:
                self.clear()
                seen.clear()
        self[key] = value
        return value
