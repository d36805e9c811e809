"""Huffman's code of RFC 7541, appendix B, a byte at a time.

The `hpack` package reads it by half-bytes, from a table of 256 states. Two steps together are a step by a byte; each of
these is worked out when it is first needed, and kept: there are 65,536 of them, and few in use.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

_STEPS: Final[dict[int, tuple[int, bytes, bool]]] = {}
"""By state << 8 | byte: the next state << 8, the symbols it brings, and whether the text may end there."""


def decode(code: bytes) -> bytes:
    """Return the text of a code.

    Raises:
        ValueError: it is none: it has the end symbol, or ends amid a symbol, or is filled up with other bits than ones.
    """
    text = bytearray()
    state, complete = 0, True
    get = _STEPS.get
    for byte in code:
        state, symbols, complete = get(state | byte) or _step(state | byte)
        text += symbols
    if not complete:
        raise ValueError("a text in Huffman's code ends amid a symbol")
    return bytes(text)


def _step(key: int) -> tuple[int, bytes, bool]:
    state, first, some = HUFFMAN_TABLE[(key >> 8) * 16 + (key >> 4 & 15)]
    state, second, more = HUFFMAN_TABLE[state * 16 + (key & 15)]
    if (first | second) & HUFFMAN_FAIL:
        raise ValueError("a text in Huffman's code has a symbol that is none")
    symbols = bytes([some] * bool(first & HUFFMAN_EMIT_SYMBOL) + [more] * bool(second & HUFFMAN_EMIT_SYMBOL))
    step = _STEPS[key] = state << 8, symbols, second & HUFFMAN_COMPLETE != 0
    return step
