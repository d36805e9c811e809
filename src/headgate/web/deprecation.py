"""Paths that are going to go, and the header fields by which their answers say so.

``Deprecation`` (RFC 9745) says since when a path should not be used any more, ``Sunset`` (RFC 8594) when it stops to
answer, and a ``Link`` where it is written what to do instead.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import NamedTuple, TypeAlias

_SECOND = 1_000_000
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Header fields, their names in lower case."""


class Deprecation(NamedTuple):
    """A path that is going to go, with all below it. Times are in microseconds since the epoch."""

    path: str
    deprecated: int
    sunset: int | None = None
    link: str = ""

    @property
    def fields(self) -> Fields:
        """The header fields that say so."""
        found = [(b"deprecation", b"@%d" % (self.deprecated // _SECOND))]
        if self.sunset is not None:
            found.append((b"sunset", formatdate(self.sunset / _SECOND, usegmt=True).encode()))
        if self.link:
            found.append((b"link", f'<{self.link}>; rel="deprecation"'.encode()))
        return tuple(found)


class Deprecations:
    """All of them; of several for a path, the longest counts.

    Args:
        entries: no two of the same path.
    """

    def __init__(self, entries: tuple[Deprecation, ...] = ()) -> None:
        longest_first = sorted(entries, key=lambda entry: -len(entry.path))
        self._entries = [(entry.path, f"{entry.path.rstrip('/')}/", entry.fields) for entry in longest_first]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def fields(self, path: str) -> Fields:
        """Return the header fields of answers at a path; none unless it is going to go."""
        return next((fields for own, below, fields in self._entries if path == own or path.startswith(below)), ())
