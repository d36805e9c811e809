"""Blocks of headers: those that are asked with, and what matters of those that are answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headgate.core.errors import not_installed
from headgate.load_generator.outcomes import BadAnswer

_REMEMBERED = 1000
"""Different blocks; most answers have one of a few."""
_LONGEST_NUMBER = 4


def literal_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a block of literals without indexing (RFC 7541, 6.2.2), the same for every request."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def _string(value: str) -> bytes:
    data = value.encode()
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    size = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    size.append(length)
    return bytes(size) + data


class Ending(msgspec.Struct, frozen=True, gc=False):
    """What headers or trailers say about how a call went; None where they do not."""

    http_status: int | None = None
    grpc_status: int | None = None


class Endings:
    """Reads blocks of headers of one connection.

    A block that was read before is not decoded again, as long as the server puts nothing into the dynamic table.
    """

    def __init__(self) -> None:
        try:
            import hpack  # noqa: PLC0415  an extra
        except ImportError:
            raise ImportError(not_installed("hpack", "server")) from None
        self._decoder: Any = hpack.Decoder()
        self._error = hpack.HPACKError
        self._known: dict[bytes, Ending] = {}

    def of(self, block: bytes) -> Ending:
        """Return what a block says; BadAnswer if it cannot be decoded."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields = self._decoder.decode(block, raw=True)
        except (self._error, UnicodeDecodeError) as error:
            raise BadAnswer(f"headers cannot be decoded: {error}") from None
        statuses = {name: _number(value) for name, value in fields if name in {b":status", b"grpc-status"}}
        ending = Ending(statuses.get(b":status"), statuses.get(b"grpc-status"))
        if self._decoder.header_table.dynamic_entries:
            self._known.clear()
        elif len(self._known) < _REMEMBERED:
            self._known[block] = ending
        return ending


def _number(value: bytes) -> int:
    if len(value) > _LONGEST_NUMBER or not value.isdigit():
        raise BadAnswer("a status is not a number")
    return int(value)
