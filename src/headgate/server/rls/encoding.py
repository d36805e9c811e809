"""Writes the parts of Envoy's answer as they go over the wire. Fields that have their default are left out.

Written by hand: most of an answer is the same as that of the answer before, and is prepared.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.policy.envoy.answering import Code
from headgate.protos import framed, varint
from headgate.web.headers import Numbers

OK = b"\x08\x01"
"""The beginning of an answer: its overall code."""
OVER_LIMIT = b"\x08\x02"
BODY = b"\x2a"
"""The tag of `raw_body`."""
_SHORT = 64
"""Values of header fields with fewer bytes have what comes before them prepared, their length included."""
_SMALL = tuple([bytes([number]) for number in range(128)])
_LEFT = (b"", *[bytes((0x18, number)) for number in range(1, 128)])


def _duration(seconds: int) -> bytes:
    return framed(b"\x22", b"\x08" + varint(seconds) if seconds else b"")


_durations = Numbers(_duration)


def status(content: bytes, remaining: int = 0, seconds: int | None = None) -> bytes:
    """Return one of the `statuses`; `content` is what `status_content` returns, None for no time until the reset."""
    left = _LEFT[remaining] if remaining < 128 else b"\x18" + varint(remaining)
    reset = b"" if seconds is None else _durations[seconds]
    size = len(content) + len(left) + len(reset)
    return b"\x12" + (_SMALL[size] if size < 128 else varint(size)) + content + left + reset


def status_content(code: Code, limit: bytes = b"") -> bytes:
    """Return the beginning of a status; `limit` is that of `current_limit`."""
    return b"\x08" + _SMALL[code] + limit


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


def metadata(entries: bytes) -> bytes:
    """Return the field `dynamic_metadata`, which an access log or a later filter may read."""
    return framed(b"\x32", entries)
