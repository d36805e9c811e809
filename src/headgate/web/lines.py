"""Header lines as they arrived: names and values as bytes, one pair per line, in order.

A header is found by its exact name, whatever its case. The names that settings may ask for are tokens of RFC 9110
without an underscore; so a line such as ``X_Forwarded_For`` or ``X-Api-Key :``, which another parser might take for
the real one, is never found here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from headgate.core.numbers import short
from headgate.web.errors import InvalidSettings

Lines = Iterable[tuple[bytes, bytes]]
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]{1,64}")


def header_name(name: object) -> bytes:
    """Return `name` as `collect` looks for it; raise InvalidSettings unless it can be the name of a header."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSettings(
            f"a header name has 1 to 64 letters, digits or hyphens, and no underscore, unlike {short(name)}"
        )
    return name.lower().encode()


def collect(lines: Lines, wanted: Container[bytes]) -> dict[bytes, list[bytes]]:
    """Return the values of the `wanted` headers, by lower-case name, in order of arrival."""
    found: dict[bytes, list[bytes]] = {}
    for line, value in lines:
        name = line.lower()
        if name in wanted:
            found.setdefault(name, []).append(value)
    return found
