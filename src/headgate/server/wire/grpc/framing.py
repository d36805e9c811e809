"""The encoding of gRPC in HTTP/2: prefixed messages, timeouts, statuses with a text."""

from __future__ import annotations

import zlib
from urllib.parse import quote_from_bytes

from headgate.server.wire.grpc.calls import RpcError, StatusCode
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.messages import Fields

PREFIX = 5
"""Bytes before a message: a compression flag, and the length."""
_SHOWN = "".join([chr(byte) for byte in range(0x21, 0x7F) if byte != 0x25])
_TEXT = 1000
"""The most characters of a status message."""
_COMPACT = 65_536
"""Consumed bytes that may stay in the buffer."""
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

_CODINGS = {b"gzip": 31, b"deflate": 15}
"""Compressions of messages, with the window bits of zlib."""
_ACCEPTED = (b"grpc-accept-encoding", b",".join([b"identity", *_CODINGS]))

HEAD = encode([(b":status", b"200"), (b"content-type", b"application/grpc"), _ACCEPTED])
"""The header block before messages."""
OK = encode([(b"grpc-status", b"0")])
"""The trailers of a successful call."""


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def timeout(value: bytes) -> float | None:
    """Return a ``grpc-timeout`` in seconds; None if it is malformed."""
    digits, unit = value[:-1], _UNITS.get(value[-1:])
    if unit is None or not 1 <= len(digits) <= 8 or not digits.isdigit():
        return None
    return int(digits) * unit


def status(error: RpcError) -> Fields:
    text = error.message[:_TEXT].encode(errors="backslashreplace")
    return ((b"grpc-status", b"%d" % error.code), (b"grpc-message", _percent_encode(text)), *error.trailers)


def error_head(error: RpcError) -> bytes:
    return HEAD + encode(status(error))


class MessageReader:
    """Splits the input of a stream into messages of up to `largest` bytes; `encoding` is that of ``grpc-encoding``."""

    __slots__ = ("_buffer", "_encoding", "_largest", "_position", "size")

    def __init__(self, largest: int, encoding: bytes = b"identity") -> None:
        self._largest, self._encoding = largest, encoding
        self._buffer = bytearray()
        self._position = 0
        self.size = 0
        """Bytes of the last message, as it was sent."""

    @property
    def pending(self) -> int:
        """Bytes received and not yet taken."""
        return len(self._buffer) - self._position

    def receive(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the next message, or None if it is incomplete. Raises RpcError if it is too large or unreadable."""
        buffer, start = self._buffer, self._position + PREFIX
        if start > len(buffer):
            return None
        flag = buffer[self._position]
        if flag and (flag != 1 or self._encoding not in _CODINGS):
            raise self._unknown(flag)
        size = int.from_bytes(buffer[start - 4 : start], "big")
        if size > self._largest:
            raise self._too_large(f"A message of {size} bytes")
        end = start + size
        if end > len(buffer):
            return None
        message = bytes(buffer[start:end])
        self._position, self.size = end, size
        if end == len(buffer) or end > _COMPACT:
            del buffer[:end]
            self._position = 0
        return self._inflate(message) if flag else message

    def _inflate(self, message: bytes) -> bytes:
        inflating = zlib.decompressobj(_CODINGS[self._encoding])
        try:
            inflated = inflating.decompress(message, self._largest + 1)
        except zlib.error:
            inflated = b""
        if len(inflated) > self._largest:
            raise self._too_large("A decompressed message")
        if not inflating.eof or inflating.unused_data:
            text = f"A message cannot be decompressed: it is not {self._encoding.decode()}."
            raise RpcError(StatusCode.INTERNAL, text)
        return inflated

    def _too_large(self, what: str) -> RpcError:
        return RpcError(StatusCode.RESOURCE_EXHAUSTED, f"{what} is larger than {self._largest} bytes.")

    def _unknown(self, flag: int) -> RpcError:
        if flag == 1 and self._encoding not in {b"", b"identity"}:
            name = self._encoding.decode(errors="replace")[:50]
            text = f"Messages compressed with {name} cannot be read: send {_ACCEPTED[1].decode()}."
            return RpcError(StatusCode.UNIMPLEMENTED, text)
        return RpcError(
            StatusCode.INTERNAL, "A message is marked as compressed, but grpc-encoding does not name the encoding."
        )


def _percent_encode(text: bytes) -> bytes:
    """Leave printable characters, and inner spaces: headers lose spaces at their ends."""
    inside = text.strip(b" ")
    before, _, after = text.partition(inside) if inside else (text, b"", b"")
    shown = quote_from_bytes(inside, safe=_SHOWN + " ").encode()
    return before.replace(b" ", b"%20") + shown + after.replace(b" ", b"%20")
