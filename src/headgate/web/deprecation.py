"""Deprecated paths, and the header fields that announce it.

``Deprecation`` (RFC 9745) is the time of the deprecation, ``Sunset`` (RFC 8594) the time after which the path no longer
responds, and ``Link`` the documentation.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import NamedTuple, TypeAlias

_SECOND = 1_000_000
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Header fields, their names in lower case."""


class Deprecation(NamedTuple):
    """A deprecated path and all paths below it. Times are in microseconds since the epoch."""

    path: str
    deprecated: int
    sunset: int | None = None
    link: str = ""

    @property
    def fields(self) -> Fields:
        """The header fields of responses."""
        found = [(b"deprecation", b"@%d" % (self.deprecated // _SECOND))]
        if self.sunset is not None:
            found.append((b"sunset", formatdate(self.sunset / _SECOND, usegmt=True).encode()))
        if self.link:
            found.append((b"link", f'<{self.link}>; rel="deprecation"'.encode()))
        return tuple(found)


class Deprecations:
    """Deprecated paths, each once. Of several that match, the longest counts."""

    def __init__(self, entries: tuple[Deprecation, ...] = ()) -> None:
        longest_first = sorted(entries, key=lambda entry: -len(entry.path))
        self._entries = [(entry.path, f"{entry.path.rstrip('/')}/", entry.fields) for entry in longest_first]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def fields(self, path: str) -> Fields:
        """Return the header fields of a path; none if it is not deprecated."""
        return next((fields for own, below, fields in self._entries if path == own or path.startswith(below)), ())
