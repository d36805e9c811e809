"""Frames of HTTP/2 and their numbers (RFC 9113, section 6), and the statuses of gRPC."""

from __future__ import annotations

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAME = 16_384
DEFAULT_WINDOW = 65_535
LAST_STREAM = 2**31 - 1
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20


class Type(IntEnum):
    """What a frame is."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Those that matter to a client like this."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_STREAMS = 3
    INITIAL_WINDOW = 4


class Reset(IntEnum):
    """Why a stream ended early."""

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


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


def frame(kind: Type, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return b"%b%b%b%b" % (len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream.to_bytes(4, "big"), payload)
