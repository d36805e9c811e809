"""Allow and deny lists, which are searched without a scan.

Exact values are in a dict; networks in one dict per prefix length, longest first; values with ``*`` in one dict per
length of the text before the first ``*`` (or, if there is none, after the last). Only values such as ``*bot*`` are
tried one by one, by a search for their pieces in linear time, unlike a regular expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.networks import NetworkMap, canonical
from headgate.policy.addresses import address_of
from headgate.policy.model import Entry
from headgate.policy.paths import normalised
from headgate.policy.request import ENDPOINT


class Pattern:
    """Text in which ``*`` stands for any characters, or none."""

    __slots__ = ("_pieces", "_shortest", "head", "tail")

    def __init__(self, text: str) -> None:
        self.head, *self._pieces, self.tail = text.split("*")
        self._shortest = len(text) - text.count("*")

    def matches(self, text: str) -> bool:
        """Search for the pieces in turn, each as far left as possible, which is enough."""
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

    __slots__ = ("_by_end", "_exact")

    def __init__(self) -> None:
        self._exact: dict[str, Entry] = {}
        self._by_end: dict[tuple[int | None, int | None], dict[str, list[tuple[Pattern, Entry]]]] = {}
        """By the slice and the text of one end of the pattern."""

    def add(self, value: str, entry: Entry) -> None:
        if "*" not in value:
            self._exact.setdefault(value, entry)
            return
        pattern = Pattern(value)
        end = (-len(pattern.tail), None) if pattern.tail and not pattern.head else (0, len(pattern.head))
        self._by_end.setdefault(end, {}).setdefault(pattern.head or pattern.tail, []).append((pattern, entry))

    def find(self, value: str) -> Entry | None:
        found = self._exact.get(value)
        if found is not None:
            return found
        for (start, stop), patterns in self._by_end.items():
            for pattern, entry in patterns.get(value[start:stop], ()):
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
                value = entry.value
                if entry.dimension == ENDPOINT:
                    value = value if "*" in value else normalised(value)
                    value = value.lower() if ignore_case else value
                values.add(value, entry)

    def find(self, facts: Mapping[str, str], address: str = "") -> Entry | None:
        """Return an entry that matches one of `facts`; for the dimension "ip", `address` if given."""
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
