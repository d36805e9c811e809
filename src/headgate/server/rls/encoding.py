"""Writes the parts of Envoy's answer as they go over the wire. Fields that have their default are left out.

Written by hand, as `decoding` is: most of an answer is the same as that of the answer before, and is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import pack
from typing import Any

from headgate.policy.envoy.answering import Code

OK = b"\x08\x01"
"""The beginning of an answer: its overall code."""
OVER_LIMIT = b"\x08\x02"
BODY = b"\x2a"
"""The tag of `raw_body`."""
_DEEPEST = 32
"""Of lists and mappings within each other, in metadata."""
_SHORT = 64
"""Values of header fields with fewer bytes have what comes before them prepared, their length included."""
_SMALL = tuple([bytes([number]) for number in range(128)])
_DURATIONS = (b"\x22\x00", *[bytes((0x22, 2, 8, seconds)) for seconds in range(1, 128)])


def varint(number: int) -> bytes:
    """Return a number that is not negative, in as few bytes as it takes."""
    if number < 128:
        return _SMALL[number]
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _duration(seconds: int) -> bytes:
    if seconds < 128:
        return _DURATIONS[seconds]
    after = varint(seconds)
    return b"\x22" + _SMALL[len(after) + 1] + b"\x08" + after


def framed(tag: bytes, content: bytes) -> bytes:
    """Return a field with bytes, or with a message."""
    return tag + varint(len(content)) + content


def status(code: Code, limit: bytes = b"", remaining: int = 0, seconds: int = 0) -> bytes:
    """Return one of the `statuses`; `limit` is that of `current_limit`."""
    left = b"\x18" + varint(remaining) if remaining else b""
    reset = _duration(seconds) if seconds or limit else b""
    return b"\x12" + varint(2 + len(limit) + len(left) + len(reset)) + b"\x08" + _SMALL[code] + limit + left + reset


def current_limit(requests_per_unit: int, unit: int, name: str) -> bytes:
    """Return the field of a status that says what the limit is."""
    content = b"\x08" + varint(requests_per_unit) if requests_per_unit else b""
    content += b"\x10" + _SMALL[unit]
    return framed(b"\x12", content + framed(b"\x1a", name.encode()) if name else content)


def header(name: str) -> Callable[[str], bytes]:
    """Return what writes `response_headers_to_add` of this name: a spelling, as `headgate.web.headers` has them."""
    opening = framed(b"\x0a", name.encode()) + b"\x12"
    openings = [b"\x1a" + varint(len(opening) + 1 + size) + opening + _SMALL[size] for size in range(_SHORT)]

    def write(value: str) -> bytes:
        raw = value.encode()
        size = len(raw)
        if size < _SHORT:
            return openings[size] + raw
        return framed(b"\x1a", opening + varint(size) + raw)

    return write


def entry(key: str, value: Any, depth: int = 0) -> bytes:
    """Return an entry of the `dynamic_metadata`: text, numbers, booleans, lists and mappings."""
    return framed(b"\x0a", framed(b"\x0a", str(key).encode()) + framed(b"\x12", _value(value, depth)))


def metadata(entries: bytes) -> bytes:
    """Return the field `dynamic_metadata`, which an access log or a later filter may read."""
    return framed(b"\x32", entries)


def _value(value: Any, depth: int) -> bytes:
    if isinstance(value, str):
        return framed(b"\x1a", value.encode())
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, int | float):
        return b"\x11" + pack("<d", value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return framed(b"\x2a", b"".join([entry(key, each, depth + 1) for key, each in value.items()]))
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return framed(b"\x32", b"".join([framed(b"\x0a", _value(each, depth + 1)) for each in value]))
    return b"\x08\x00" if value is None else framed(b"\x1a", str(value).encode())
