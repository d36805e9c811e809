"""The wire format of protobuf, for messages that are encoded by hand: without the package, and faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import pack
from typing import Any

_SMALL = tuple([bytes([number]) for number in range(128)])
_DEEPEST = 32
"""Nesting of lists and mappings in a `google.protobuf.Struct`."""
_SHORT = 128
"""Texts with fewer bytes have a prepared prefix."""


def varint(number: int) -> bytes:
    """Encode a number that is not negative."""
    if number < 128:
        return _SMALL[number]
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    if number < 268_435_456:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21))
    if number < 34_359_738_368:  # times since 1970
        last = number >> 28
        return bytes(
            (number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128, number >> 21 & 127 | 128, last)
        )
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def framed(tag: bytes, content: bytes) -> bytes:
    """Encode a field that holds bytes or a message."""
    return tag + varint(len(content)) + content


def text_writer(before: Callable[[int], bytes], after: bytes = b"") -> Callable[[str], bytes]:
    """Return an encoder of texts; `before` returns the prefix of a text by its size in bytes."""
    openings = [before(size) for size in range(_SHORT)]

    def write(value: str) -> bytes:
        raw = value.encode()
        size = len(raw)
        written = (openings[size] if size < _SHORT else before(size)) + raw
        return written + after if after else written

    return write


def entry(key: str, value: Any, depth: int = 0) -> bytes:
    """Encode an entry of a `google.protobuf.Struct`: text, a number, a boolean, a list or a mapping."""
    return framed(b"\x0a", framed(b"\x0a", str(key).encode()) + framed(b"\x12", _value(value, depth)))


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
