"""Header blocks (RFC 7541), written and read. The static table and Huffman's code are those of the `hpack` package.

Writing has no state: nothing enters the peer's table, nothing is compressed. So a block can be made once and be sent on
any connection, any number of times. Names and whole fields of the static table take one byte; all else is a literal.
The price is a few bytes more than a table would take.

Reading keeps the table that the client fills. The decoder of the `hpack` package is not used: it takes 19 us for a
block with one new field, where this one takes 6, and it loses its place in a list that is too large. Here, reading goes
on to the end of such a list, so that the table is right and the client can be told. A field is checked once, when it
comes as a literal, and not each time it is referred to. One that no request may have is kept as an `ImproperField`,
because the table holds it like any other.
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
"""What a field counts besides its name and value."""
PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
"""The pseudo-headers of a request."""
TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
"""The characters of a field's name, in HTTP/2."""
_CONTROLS: Final = bytes(byte for byte in range(32) if byte != 9) + b"\x7f"
"""Bytes that the value of a field may not contain."""
_SECRET: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})
_WITHOUT_INDEXING: Final = 0x00
_NEVER_INDEXED: Final = 0x10
_SIZES: Final = 200
"""Bytes at the beginning of a block that may change the size of the table: a client has reason to do so twice."""
_LARGEST_INTEGER_SHIFT: Final = 28


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the header block of these fields, pseudo-headers first.

    Raises:
        ValueError: a name is malformed or not in lower case, or a value has a byte that no value may have.
    """
    return b"".join(starmap(_encoded, fields))


_VALUES: Final[dict[bytes, dict[bytes, int]]] = {}
"""Names of the static table, with the index of each of their values; the first is good for the name alone."""
for _index, (_name, _value) in enumerate(HeaderTable.STATIC_TABLE, 1):
    _VALUES.setdefault(_name, {})[_value] = _index


@lru_cache(maxsize=1024)
def _encoded(name: bytes, value: bytes) -> bytes:
    start, whole = _name_encoded(name)
    if value in whole:
        return whole[value]
    if value.translate(None, _CONTROLS) != value or value.strip(b" \t") != value:
        raise ValueError(f"the value of {name.decode()} has a control character, or a space at its ends: {value!r}")
    size = len(value)
    return b"%b%c%b" % (start, size, value) if size < 0x7F else start + string(value)


@lru_cache(maxsize=256)
def _name_encoded(name: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return how a field of this name begins, and the fields of this name that are only an index, by their values."""
    bare = name[1:] if name[:1] == b":" else name
    if not bare or bare.translate(None, TOKEN):
        raise ValueError(f"the name of a header is lower-case letters, digits and some signs, not {name!r}")
    kind = _NEVER_INDEXED if name in _SECRET else _WITHOUT_INDEXING
    values = _VALUES.get(name)
    if values is None:
        return bytes((kind,)) + string(name), {}
    whole = {value: bytes((0x80 | index,)) for value, index in values.items() if value}
    return integer(min(values.values()), 4, kind), whole


def integer(number: int, bits: int, first: int) -> bytes:
    """Return a number as RFC 7541 section 5.1 writes it: in the low bits of the first byte, and what follows it."""
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
    """Return a string as RFC 7541 section 5.2 writes it, not compressed."""
    return integer(len(text), 7, 0) + text


class ImproperField(tuple[bytes, bytes]):
    """A field that no request may have: its name or its value has a character that is forbidden."""

    __slots__ = ()


def is_proper(name: bytes, value: bytes) -> bool:
    """Whether a field has only characters that it may have (RFC 9113 section 8.2.1)."""
    if value and (value[0] in b" \t" or value[-1] in b" \t" or len(value.translate(None, _CONTROLS)) != len(value)):
        return False
    return name in PSEUDO or (name != b"" and not name.translate(None, TOKEN))


def size_of(fields: Headers) -> int:
    """Return what a list of fields counts, by SETTINGS_MAX_HEADER_LIST_SIZE."""
    return sum(len(name) + len(value) + FIELD_OVERHEAD for name, value in fields)


_STATIC: Final[tuple[tuple[bytes, bytes], ...]] = (
    ImproperField((b"", b"")),
    *(field if is_proper(*field) else ImproperField(field) for field in HeaderTable.STATIC_TABLE),
)
"""The fields that all tables begin with, from 1; ``:status`` is not for requests."""
_DYNAMIC: Final = len(_STATIC)


class Undecodable(Exception):
    """A block that breaks RFC 7541: the table no longer is what the client believes it to be."""


class Decoder:
    """What one client's blocks mean.

    Args:
        size: the most bytes of a list of fields, each counting 32 more than its name and value.
        count: the most fields of a list.
    """

    __slots__ = ("_count", "_entries", "_size", "_table_limit", "_table_size", "changes")

    def __init__(self, size: int, count: int) -> None:
        self._size, self._count = size, count
        self._entries: deque[tuple[bytes, bytes]] = deque()  # the newest first
        self._table_size = 0
        self._table_limit = TABLE_SIZE
        self.changes = 0
        """How often the table was changed: what an index means is certain only until then."""

    def decode(self, block: bytes) -> Headers | None:
        """Return the fields of a block, or None if they are too many or too large; the table is right either way.

        Raises:
            Undecodable: the block is broken.
        """
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
    """Read the rest of a number that did not fit into its first byte; return it, and where it ended."""
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
