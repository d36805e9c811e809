"""As much of Protocol Buffers as a few small messages need: https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_LONGEST = 10
"""Bytes of a varint."""


def varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode a field that is a number."""
    return varint(field << 3 | _VARINT) + varint(value)


def text(field: int, value: bytes) -> bytes:
    """Encode a field that is text, bytes or a message."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def read(message: bytes) -> dict[int, int | bytes]:
    """Return the last value of each field: numbers, and bytes for all else; ValueError if it is no message."""
    found: dict[int, int | bytes] = {}
    place, end = 0, len(message)
    while place < end:
        tag, place = _read_varint(message, place)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            found[field], place = _read_varint(message, place)
            continue
        if kind == _BYTES:
            length, place = _read_varint(message, place)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > end:
            raise ValueError("a field is cut off")
        found[field] = message[place : place + length]
        place += length
    return found


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = message[place] if place < len(message) else -1
    if 0 <= value < 0x80:
        return value, place + 1
    value = 0
    for shift, byte in enumerate(message[place : place + _LONGEST]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("a varint is cut off, or too long")
