"""Allow and deny lists: who is let through, or refused, unasked. Found without going through the list.

Exact values are found in a dict; networks in one dict per prefix length, longest first; values with ``*`` in one dict
per length of what stands before the first ``*`` (or, if nothing does, after the last). Only values such as ``*bot*``
are tried one by one, by a search of their pieces that cannot run away as a regular expression can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.address import NetworkMap, canonical
from headgate.policy.addresses import address_of
from headgate.policy.model import Entry
from headgate.policy.paths import normalised
from headgate.policy.request import ENDPOINT


class Pattern:
    """Text in which ``*`` stands for any characters, also none."""

    __slots__ = ("_pieces", "_shortest", "head", "tail")

    def __init__(self, text: str) -> None:
        self.head, *self._pieces, self.tail = text.split("*")
        self._shortest = len(text) - text.count("*")

    def matches(self, text: str) -> bool:
        """Look for the pieces one after the other, each as far left as it is found: that is enough."""
        if len(text) < self._shortest or not text.startswith(self.head) or not text.endswith(self.tail):
            return False
        at, end = len(self.head), len(text) - len(self.tail)
        for piece in self._pieces:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class _Values:
    """The entries of one dimension."""

    __slots__ = ("_by_head", "_by_tail", "_exact", "_others")

    def __init__(self) -> None:
        self._exact: dict[str, Entry] = {}
        self._by_head: dict[int, dict[str, list[tuple[Pattern, Entry]]]] = {}
        self._by_tail: dict[int, dict[str, list[tuple[Pattern, Entry]]]] = {}
        self._others: list[tuple[Pattern, Entry]] = []

    def add(self, value: str, entry: Entry) -> None:
        if "*" not in value:
            self._exact.setdefault(value, entry)
            return
        pattern = Pattern(value)
        if pattern.head:
            self._by_head.setdefault(len(pattern.head), {}).setdefault(pattern.head, []).append((pattern, entry))
        elif pattern.tail:
            self._by_tail.setdefault(len(pattern.tail), {}).setdefault(pattern.tail, []).append((pattern, entry))
        else:
            self._others.append((pattern, entry))

    def find(self, value: str) -> Entry | None:
        found = self._exact.get(value)
        if found is not None:
            return found
        for length, by_head in self._by_head.items():
            for pattern, entry in by_head.get(value[:length], ()):
                if pattern.matches(value):
                    return entry
        for length, by_tail in self._by_tail.items():
            for pattern, entry in by_tail.get(value[-length:], ()):
                if pattern.matches(value):
                    return entry
        for pattern, entry in self._others:
            if pattern.matches(value):
                return entry
        return None


class Entries:
    """One list: allow or deny."""

    __slots__ = ("_by_dimension", "_networks")

    def __init__(self, entries: Sequence[Entry], *, ignore_case: bool = False) -> None:
        self._networks = NetworkMap((canonical(each.network), each) for each in entries if each.network is not None)
        self._by_dimension: dict[str, _Values] = {}
        for entry in entries:
            values = self._by_dimension.setdefault(entry.dimension, _Values())
            if entry.network is None:
                values.add(
                    _path_of(entry, ignore_case=ignore_case) if entry.dimension == ENDPOINT else entry.value, entry
                )

    def find(self, facts: Mapping[str, str], address: str = "") -> Entry | None:
        """Return an entry that is about one of `facts`; for the dimension "ip" about `address`, if that is given."""
        for dimension, values in self._by_dimension.items():
            value = facts.get(dimension)
            if dimension == "ip":
                whole = address_of(address or value) if address or value else None
                if whole is not None:
                    value, found = whole.text, self._networks.find(whole)
                    if found is not None:
                        return found
            if value is not None:
                found = values.find(value)
                if found is not None:
                    return found
        return None


def _path_of(entry: Entry, *, ignore_case: bool) -> str:
    """Return the paths that an entry is about as they are compared; with a ``*`` they are taken as they stand."""
    path = entry.value if "*" in entry.value else normalised(entry.value)
    return path.lower() if ignore_case else path
