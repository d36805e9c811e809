"""Header lines as they arrived: pairs of name and value in bytes, one per line, in order.

A header is found by its exact name, ignoring case. Configurable names are tokens of RFC 9110 without an underscore, so
lines such as ``X_Forwarded_For`` or ``X-Api-Key :``, which other parsers might accept, never match.

Proxies append to lists, so these are read from the right: only the right end is trustworthy. What the client sent is on
the left and can be anything: an open quote, a megabyte, a forged list. No element is read before everything right of
it, and only the last 4 KiB are read.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from urllib.parse import unquote_to_bytes

from headgate.core.numbers import short
from headgate.web.errors import InvalidSettings

HeaderLines = Iterable[tuple[bytes, bytes]]
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]{1,64}")
LONGEST = 4096
"""Bytes of a header that are read, from the right."""
_PARAMETER = re.compile(r"[A-Za-z0-9_.~-]{1,64}")
_PAIR = re.compile(r'([!#$%&\'*+.^_`|~0-9A-Za-z-]+)=(?:([!#$%&\'*+.^_`|~0-9A-Za-z-]+)|"((?:[^"\\]|\\.)*)")')
_ESCAPED = re.compile(r"\\(.)")


def header_name(name: object) -> bytes:
    """Return a header name as `collect` needs it. Raises InvalidSettings."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSettings(
            f"a header name must have 1 to 64 letters, digits or hyphens, and no underscore, got {short(name)}"
        )
    return name.lower().encode()


def collect(lines: HeaderLines, wanted: Container[bytes]) -> dict[bytes, list[bytes]]:
    """Return the values of the `wanted` headers, by lower-case name, in order of arrival."""
    found: dict[bytes, list[bytes]] = {}
    for line, value in lines:
        name = line.lower()
        if name in wanted:
            found.setdefault(name, []).append(value)
    return found


def parameter_name(name: object) -> bytes:
    """Return the name of a query parameter as `parameters` needs it. Raises InvalidSettings."""
    if not isinstance(name, str) or not _PARAMETER.fullmatch(name):
        raise InvalidSettings(f"a query parameter must have 1 to 64 of A-Z a-z 0-9 _ . ~ -, got {short(name)}")
    return name.encode()


def parameters(query: bytes, name: bytes) -> list[bytes]:
    """Return the decoded values of a query parameter, in order; its name may be percent-encoded."""
    return [unquote_to_bytes(value) for _, value in _pairs(query, name)]


def spellings(query: bytes, name: bytes) -> list[bytes]:
    """Return the name of a query parameter as encoded, for each occurrence."""
    return [key for key, _ in _pairs(query, name)]


def _pairs(query: bytes, name: bytes) -> list[tuple[bytes, bytes]]:
    if name not in query and b"%" not in query:
        return []
    pairs = [(key, value) for key, _, value in [pair.partition(b"=") for pair in query.split(b"&")]]
    return [pair for pair in pairs if pair[0] == name or (b"%" in pair[0] and unquote_to_bytes(pair[0]) == name)]


def right_end(values: Sequence[bytes]) -> tuple[str, bool]:
    """Return the lines of a header as one, and whether its left end was cut off as too long."""
    whole = b",".join(values)
    if len(whole) <= LONGEST:
        return whole.decode("latin-1"), False
    _, _, end = whole[-LONGEST:].partition(b",")  # the element at the cut is incomplete
    return end.decode("latin-1"), True


def plain_elements(text: str) -> Iterator[str]:
    """Yield the elements of X-Forwarded-For from right to left."""
    while True:
        text, comma, element = text.rpartition(",")
        yield element
        if not comma:
            return


def forwarded_elements(text: str) -> Iterator[str]:
    """Yield the ``for`` of each element of Forwarded (RFC 7239) from right to left; "" if it has none or is malformed.

    Quoted strings are skipped from their right end: from the left, a quote that the client leaves open would hide what
    proxies append.
    """
    end = len(text)
    while True:
        start = _start_of_element(text, end)
        yield _for(text[max(start, 0) : end])
        if start <= 0:
            return
        end = start - 1


def _start_of_element(text: str, end: int) -> int:
    """Return the start of the element that ends before `end`; -1 if a quoted string in it has no opening quote."""
    while True:
        comma, quote = text.rfind(",", 0, end), text.rfind('"', 0, end)
        if quote <= comma or quote < 0:
            return comma + 1
        end = text.rfind('"', 0, quote)
        while end > 0 and _is_escaped(text, end):
            end = text.rfind('"', 0, end)
        if end < 0:
            return -1


def _is_escaped(text: str, at: int) -> bool:
    start = at
    while start and text[start - 1] == "\\":
        start -= 1
    return (at - start) % 2 == 1


def _for(element: str) -> str:
    """Return the value of ``for`` in an element such as ``for="[2001:db8::1]";proto=https``."""
    found, at = "", 0
    element = element.strip(" \t")
    while pair := _PAIR.match(element, at):
        name, token, quoted = pair.groups()
        if name.lower() == "for":
            if found:
                return ""
            found = token or _ESCAPED.sub(r"\1", quoted)
        at = pair.end()
        if at == len(element):
            return found
        if element[at] != ";":
            return ""
        at += 1
    return ""
