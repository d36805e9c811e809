"""Huffman's code of RFC 7541, appendix B, a byte at a time.

The code is canonical: symbols of the same length have consecutive numbers, in their order, and shorter ones come first.
So their lengths say it all.
"""

from __future__ import annotations

from typing import Final

_SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: bytes.fromhex("5cc3d0"),
    20: bytes.fromhex("808283a2b8c2e0e2"),
    21: bytes.fromhex("99a1a7acb0b1b3d1d8d9e3e5e6"),
    22: bytes.fromhex("8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9"),
    23: bytes.fromhex("0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef"),
    24: bytes.fromhex("098e9091949fabced7e1eced"),
    25: bytes.fromhex("c7cfeaeb"),
    26: bytes.fromhex("c0c1c8c9cacdd2d5dadbeef0f2f3ff"),
    27: bytes.fromhex("cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe"),
    28: bytes.fromhex("020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9"),
    30: bytes.fromhex("0a0d16"),
}
"""By the bits of their codes."""
_END: Final = (1 << 31) - 1
"""The symbol that ends texts, 30 ones; none may have it, as texts have lengths."""
_START: Final = 1
_PADDING: Final = frozenset((1 << bits) - 1 for bits in range(1, 9))
"""At most seven ones may fill up the last byte."""


def _codes() -> dict[int, int]:
    """Return symbols by their codes. A code has a one before its first bit here, so zeros at its start count."""
    codes: dict[int, int] = {}
    number, before = 0, 0
    for bits, symbols in _SYMBOLS.items():
        number <<= bits - before
        before = bits
        for symbol in symbols:
            codes[1 << bits | number] = symbol
            number += 1
    return codes


_CODES: Final = _codes()
_STEPS: Final[dict[int, tuple[int, bytes, bool]]] = {}
"""What a byte does, by (bits of an incomplete code) << 8 | byte: the bits that are incomplete after it << 8, the
symbols that it completes, and whether the text may end there. Each is worked out when it is first needed; there are
65,536 of them, and few in use."""


def decode(code: bytes) -> bytes:
    """Return the text of a code.

    Raises:
        ValueError: it is none: it has the end symbol, or ends amid a symbol, or is filled up with other bits than ones.
    """
    text = bytearray()
    bits, may_end = _START << 8, True
    get = _STEPS.get
    for byte in code:
        bits, symbols, may_end = get(bits | byte) or _step(bits | byte)
        text += symbols
    if not may_end:
        raise ValueError("a text in Huffman's code ends amid a symbol")
    return bytes(text)


def _step(key: int) -> tuple[int, bytes, bool]:
    bits, byte = key >> 8, key & 0xFF
    symbols = bytearray()
    for place in range(7, -1, -1):
        bits = bits << 1 | byte >> place & 1
        symbol = _CODES.get(bits)
        if symbol is not None:
            symbols.append(symbol)
            bits = _START
        elif bits == _END:
            raise ValueError("a text in Huffman's code has the symbol for its end")
    step = _STEPS[key] = bits << 8, bytes(symbols), bits in _PADDING
    return step
