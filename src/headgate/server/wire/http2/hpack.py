"""Header blocks (RFC 7541). The static table and the Huffman code are those of the `hpack` package.

Encoding has no state: it adds nothing to the peer's table and compresses nothing. So a block can be encoded once, and
sent on any connection, any number of times. Names and whole fields of the static table take one byte; all else is a
literal, a few bytes longer than with a table.

Decoding maintains the table that the client fills. The decoder of the `hpack` package takes 19 us for a block with one
new field, this one 6, and that one stops in the middle of a list that is too large. This one reads such a list to its
end, so that the table stays correct and the client gets a response. A field is checked once, as a literal, and not each
time an index refers to it. An invalid field is kept as an `ImproperField`, since the table has it like any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from headgate.server.wire.messages import Headers

TABLE_SIZE: Final = 4096
"""Bytes of the table that a client may fill: the default of SETTINGS_HEADER_TABLE_SIZE."""
FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts in addition to its name and value."""
PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
"""The characters of a field name in HTTP/2."""
_CONTROLS: Final = bytes(byte for byte in range(32) if byte != 9) + b"\x7f"
"""Bytes that a field value may not contain."""
_SECRET: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})
_WITHOUT_INDEXING: Final = 0x00
_NEVER_INDEXED: Final = 0x10
_SIZES: Final = 200
"""Bytes at the beginning of a block that may change the size of the table; two changes are legitimate."""
_LARGEST_INTEGER_SHIFT: Final = 28


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode fields, pseudo-headers first. Raises ValueError for an invalid name or value."""
    return b"".join(starmap(_encode_field, fields))


_VALUES: Final[dict[bytes, dict[bytes, int]]] = {}
"""Names of the static table, with the index of each of their values; the first is also that of the name alone."""
for _index, (_name, _value) in enumerate(HeaderTable.STATIC_TABLE, 1):
    _VALUES.setdefault(_name, {})[_value] = _index


@lru_cache(maxsize=1024)
def _encode_field(name: bytes, value: bytes) -> bytes:
    bare = name[1:] if name[:1] == b":" else name
    if not bare or bare.translate(None, TOKEN):
        raise ValueError(f"a header's name must be lower-case letters, digits and some signs, not {name!r}")
    values = _VALUES.get(name, {})
    if value and value in values:
        return bytes((0x80 | values[value],))
    if value.translate(None, _CONTROLS) != value or value.strip(b" \t") != value:
        raise ValueError(f"the value of {name.decode()} has a control character, or a space at its ends: {value!r}")
    kind = _NEVER_INDEXED if name in _SECRET else _WITHOUT_INDEXING
    start = integer(min(values.values()), 4, kind) if values else bytes((kind,)) + string(name)
    return start + string(value)


def integer(number: int, bits: int, first: int) -> bytes:
    """Encode a number (RFC 7541 section 5.1): in the low bits of the first byte, and further bytes."""
    most = (1 << bits) - 1
    if number < most:
        return bytes((first | number,))
    parts = [first | most]
    number -= most
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def string(text: bytes) -> bytes:
    """Encode a string (RFC 7541 section 5.2), not compressed."""
    return integer(len(text), 7, 0) + text


class ImproperField(tuple[bytes, bytes]):
    """An invalid field: its name or value has a forbidden character."""

    __slots__ = ()


def is_proper(name: bytes, value: bytes) -> bool:
    """Whether a field has only valid characters (RFC 9113 section 8.2.1)."""
    if value and (value[0] in b" \t" or value[-1] in b" \t" or len(value.translate(None, _CONTROLS)) != len(value)):
        return False
    return name in PSEUDO or (name != b"" and not name.translate(None, TOKEN))


def size_of(fields: Headers) -> int:
    """Return the size of a list of fields in terms of SETTINGS_MAX_HEADER_LIST_SIZE."""
    return sum(len(name) + len(value) + FIELD_OVERHEAD for name, value in fields)


_STATIC: Final[tuple[tuple[bytes, bytes], ...]] = (
    ImproperField((b"", b"")),
    *(field if is_proper(*field) else ImproperField(field) for field in HeaderTable.STATIC_TABLE),
)
"""The first fields of all tables, from 1; ``:status`` is not for requests."""
_DYNAMIC: Final = len(_STATIC)


class Undecodable(Exception):
    """A block that violates RFC 7541: the table may differ from the client's."""


class Decoder:
    """Decodes the blocks of one client, with up to `count` fields of up to `size` bytes; each field counts 32 more."""

    __slots__ = ("_count", "_entries", "_size", "_table_limit", "_table_size", "changes")

    def __init__(self, size: int, count: int) -> None:
        self._size, self._count = size, count
        self._entries: deque[tuple[bytes, bytes]] = deque()  # the newest first
        self._table_size = 0
        self._table_limit = TABLE_SIZE
        self.changes = 0
        """The number of changes of the table; each may change the meaning of indices."""

    def decode(self, block: bytes) -> Headers | None:
        """Return the fields of a block, or None if there are too many or too large ones. Raises Undecodable."""
        fields: Headers = []
        room = self._size
        position, end = 0, len(block)
        try:
            while position < end:
                first = block[position]
                if first & 0x80:
                    index = first & 0x7F
                    position += 1
                    if index == 0x7F:
                        index, position = _read_integer(block, position, index)
                    field = _STATIC[index] if 0 < index < _DYNAMIC else self._entry(index)
                elif first & 0x40:
                    field, position = self._read_literal(block, position, 0x3F)
                    self._add(field)
                elif first & 0x20:
                    if fields or room != self._size or position > _SIZES:
                        raise Undecodable("the size of the table changes in the middle of a block, or too often")
                    position = self._resize(block, position)
                    continue
                else:
                    field, position = self._read_literal(block, position, 0x0F)
                room -= len(field[0]) + len(field[1]) + FIELD_OVERHEAD
                if room >= 0:
                    fields.append(field)
        except IndexError:
            raise Undecodable("a block ends within a field, or refers to a field that is not in the table") from None
        except HPACKDecodingError as error:
            raise Undecodable(str(error)) from None
        return fields if room >= 0 and len(fields) <= self._count else None

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index < _DYNAMIC:
            raise Undecodable("a field with index 0")
        return self._entries[index - _DYNAMIC]

    def _read_literal(self, block: bytes, position: int, mask: int) -> tuple[tuple[bytes, bytes], int]:
        index = block[position] & mask
        position += 1
        if index == 0:
            name, position = _read_string(block, position)
        else:
            if index == mask:
                index, position = _read_integer(block, position, index)
            name = (_STATIC[index] if index < _DYNAMIC else self._entries[index - _DYNAMIC])[0]
        value, position = _read_string(block, position)
        return (name, value) if is_proper(name, value) else ImproperField((name, value)), position

    def _add(self, field: tuple[bytes, bytes]) -> None:
        self.changes += 1
        self._table_size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
        self._entries.appendleft(field)
        if self._table_size > self._table_limit:
            self._evict()

    def _resize(self, block: bytes, position: int) -> int:
        size, position = block[position] & 0x1F, position + 1
        if size == 0x1F:
            size, position = _read_integer(block, position, size)
        if size > TABLE_SIZE:
            raise Undecodable(f"a table of {size} bytes, where {TABLE_SIZE} are allowed")
        self.changes += 1
        self._table_limit = size
        self._evict()
        return position

    def _evict(self) -> None:
        while self._table_size > self._table_limit:
            name, value = self._entries.pop()
            self._table_size -= len(name) + len(value) + FIELD_OVERHEAD


def _read_integer(block: bytes, position: int, number: int) -> tuple[int, int]:
    """Read the rest of a number that exceeds its first byte; return it, and where it ends."""
    shift = 0
    while True:
        byte = block[position]
        position += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > _LARGEST_INTEGER_SHIFT:
            raise Undecodable("a number of too many bytes")


def _read_string(block: bytes, position: int) -> tuple[bytes, int]:
    first = block[position]
    length, position = first & 0x7F, position + 1
    if length == 0x7F:
        length, position = _read_integer(block, position, length)
    end = position + length
    if end > len(block):
        raise Undecodable("a string is longer than its block")
    text = block[position:end]
    return (decode_huffman(text) if first & 0x80 else text), end
