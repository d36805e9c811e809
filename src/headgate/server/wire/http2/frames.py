"""HTTP/2 frames (RFC 9113 sections 4 and 6): their numbers, encoding and errors."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_SIZE: Final = 9
LARGEST_ID: Final = (1 << 31) - 1
LARGEST_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
"""Of a connection, and of every stream until SETTINGS change it."""
FRAME_SIZE: Final = 16_384
"""The largest payload of a frame until SETTINGS raise it."""
LARGEST_FRAME_SIZE: Final = (1 << 24) - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x01
END_STREAM: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
WITH_PRIORITY: Final = 0x20


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """The reason of a stream's reset or a connection's end."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """An error of the client that ends its connection."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def protocol_error(text: str) -> ConnectionFault:
    """Return the fault of most errors."""
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, text)


def size_error(text: str) -> ConnectionFault:
    """Return the fault of a frame whose size does not suit its type."""
    return ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)


_HEADER = Struct(">IBI")
_SETTING = Struct(">HI")
_WORD = Struct(">I")
_TWO_WORDS = Struct(">II")

pack_header = _HEADER.pack
"""Return the nine bytes of a frame header, from (length << 8 | type, flags, stream)."""
read_header = _HEADER.unpack_from
"""Return (length << 8 | type, flags, stream with its reserved bit) of the frame header at an offset."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    """Return one DATA frame, which the payload must fit into."""
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def headers(stream: int, block: bytes, *, end: bool = False, size: int = FRAME_SIZE) -> bytes:
    """Return a HEADERS frame, and CONTINUATION frames for what exceeds the `size` of a frame."""
    flags = END_STREAM if end else 0
    if len(block) <= size:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[start : start + size] for start in range(0, len(block), size)]
    return b"".join(
        (
            frame(HEADERS, flags, stream, parts[0]),
            *(frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]),
            frame(CONTINUATION, END_HEADERS, stream, parts[-1]),
        )
    )


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(what, value) for what, value in values]))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return pairs of a setting and its value, in order; the payload's length is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last: int, code: ErrorCode, text: bytes = b"") -> bytes:
    """Return a GOAWAY frame: streams after the last one are not processed."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last, code) + text)


def reset(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def window_update(stream: int, more: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(more))


def strip_padding(payload: bytes) -> bytes:
    """Return the content of a padded DATA or HEADERS frame. Raises ConnectionFault."""
    if not payload or payload[0] >= len(payload):
        raise protocol_error("the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def word(payload: bytes) -> int:
    number: int = _WORD.unpack_from(payload)[0]
    return number
