"""Header blocks to be sent (RFC 7541), without state: nothing enters the peer's table, nothing is compressed.

A block can therefore be made once and be sent on any connection, any number of times. Names and whole fields of the
static table take one byte; all else is a literal. The price is a few bytes more than a table would take.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap
from typing import Final

from hpack.table import HeaderTable

_VALUES: Final[dict[bytes, dict[bytes, int]]] = {}
"""Names of the static table, with the index of each of their values; the first is good for the name alone."""
for _index, (_name, _value) in enumerate(HeaderTable.STATIC_TABLE, 1):
    _VALUES.setdefault(_name, {})[_value] = _index

TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
"""What the name of a field may consist of, in HTTP/2."""
CONTROLS: Final = bytes(byte for byte in range(32) if byte != 9) + b"\x7f"
"""What the value of a field may not contain."""
_SECRET: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})
_WITHOUT_INDEXING: Final = 0x00
_NEVER_INDEXED: Final = 0x10


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the header block of these fields, pseudo-headers first.

    Raises:
        ValueError: a name is not in lower case or no name, or a value has a byte that no value may have.
    """
    return b"".join(starmap(_encoded, fields))


@lru_cache(maxsize=1024)
def _encoded(name: bytes, value: bytes) -> bytes:
    start, whole = _name_encoded(name)
    if value in whole:
        return whole[value]
    if value.translate(None, CONTROLS) != value or value.strip(b" \t") != value:
        raise ValueError(f"the value of {name.decode()} has a control character, or a space at its ends: {value!r}")
    size = len(value)
    return b"%b%c%b" % (start, size, value) if size < 0x7F else start + string(value)


@lru_cache(maxsize=256)
def _name_encoded(name: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return how a field of this name begins, and the fields of this name that are but an index, by their values."""
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
