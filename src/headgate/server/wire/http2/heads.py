"""The headers of a request: from frames to a block, from a block to fields, from fields to a validated `Http2Head`.

Clients repeat blocks: Envoy, grpcio and load generators first put all fields of a call into the table, and then send
indices. The meaning of such a block changes only with the table, so it is cached by the whole block, with everything
derived from it. The cache is cleared when the table changes; a block that changes the table is not cached.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headgate.cache import BoundedCache
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import (
    END_HEADERS,
    LARGEST_ID,
    PADDED,
    WITH_PRIORITY,
    ConnectionFault,
    ErrorCode,
    protocol_error,
    size_error,
    strip_padding,
)
from headgate.server.wire.http2.hpack import PSEUDO, Decoder, ImproperField, size_of
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Headers

_CACHED: Final = 32
"""Blocks at most, and decoded bytes of each: this bounds what a client can make us keep."""
_CACHED_BYTES: Final = 4096
_BLOCK_FACTOR: Final = 4
"""How many times larger than all headers a block may be to get a response; a larger one ends the connection."""
_CONTINUATIONS: Final = 16
_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Fields about an HTTP/1 connection, which are forbidden."""
_SINGLE: Final = frozenset({b"host", b"content-length", b"content-type"})
_SPECIAL: Final = _CONNECTION_FIELDS | PSEUDO | _SINGLE | {b"te", b"cookie"}
_NOT_IN_TARGETS: Final = bytes(range(0x21)) + bytes(range(0x7F, 0x100))
"""Bytes that a path or an authority may not contain."""
_METHOD: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SCHEME: Final = b"+-.0123456789abcdefghijklmnopqrstuvwxyz"


class Http2Head(msgspec.Struct, gc=False):
    """The validated headers of a request, shared by all requests with the same header block."""

    method: bytes
    path: bytes
    """With the query, as sent: it begins with a slash, or is ``*``."""
    scheme: bytes
    authority: bytes
    """The value of ``:authority``, otherwise of ``host``; empty without either."""
    headers: Headers
    """Including pseudo-headers, which come first."""
    fields: Headers
    """Without pseudo-headers."""
    content_length: int
    """Negative if it is not given."""
    derived: Any = None
    """What the service derived from it, kept for further requests; it must not refer to this head."""


class Malformed(Exception):
    """Invalid headers: the stream is reset."""


class HeaderBlocks:
    """Assembles header blocks from HEADERS and CONTINUATION frames (RFC 9113 sections 6.2 and 6.10).

    Its methods return the block when it is complete, None until then, and may raise ConnectionFault.
    """

    __slots__ = ("_block", "_continuations", "_largest", "flags", "number")

    def __init__(self, limits: WireLimits) -> None:
        self._largest = limits.header_bytes * _BLOCK_FACTOR
        self._block = bytearray()
        self._continuations = 0
        self.number = 0
        """The stream of an incomplete block, which only its continuation may follow; 0 without one."""
        self.flags = 0
        """Of the HEADERS frame that began the block."""

    def begin(self, flags: int, number: int, payload: bytes) -> bytes | None:
        if number & 1 == 0:
            raise protocol_error("HEADERS on a stream that a client cannot open")
        if flags & PADDED:
            payload = strip_padding(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise size_error("HEADERS with priority must have at least 5 bytes")
            if frames.word(payload) & LARGEST_ID == number:
                raise protocol_error("a stream depends on itself")
            payload = payload[5:]
        self.flags = flags
        if flags & END_HEADERS:
            return payload
        self.number, self._continuations = number, 0
        self._block += payload
        return None

    def resume(self, flags: int, number: int, payload: bytes) -> bytes | None:
        if number != self.number or number == 0:
            raise protocol_error("CONTINUATION without HEADERS before it")
        self._block += payload
        self._continuations += 1
        if self._continuations > _CONTINUATIONS or len(self._block) > self._largest:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block that does not end")
        if not flags & END_HEADERS:
            return None
        block = bytes(self._block)
        self._block.clear()
        self.number = 0
        return block


class Http2Heads:
    """Reads the header blocks of one client, and caches those that it repeats."""

    __slots__ = ("_decoder", "_is_cacheable", "known")

    def __init__(self, limits: WireLimits) -> None:
        self._decoder = Decoder(limits.header_bytes, limits.headers)
        self._is_cacheable = False
        self.known = BoundedCache[bytes, Http2Head](_CACHED)
        """Heads by their blocks; look here before calling `read`."""

    def fields(self, block: bytes) -> Headers | None:
        """Return the fields of a block, or None if they are too large. Every block must be read, except known ones.

        Raises Undecodable: the connection must end.
        """
        before = self._decoder.changes
        fields = self._decoder.decode(block)
        self._is_cacheable = self._decoder.changes == before
        if not self._is_cacheable:
            self.known.clear()
        return fields

    def read(self, block: bytes) -> Http2Head | None:
        """Return the head of a block, or None if it is too large.

        Raises:
            Undecodable: the connection must end.
            Malformed: the request is invalid.
        """
        fields = self.fields(block)
        return None if fields is None else read_head(fields)

    def remember(self, block: bytes, head: Http2Head) -> None:
        """Cache the head that was just read, if possible."""
        if self._is_cacheable and size_of(head.headers) <= _CACHED_BYTES:
            self.known.keep(block, head)


def read_head(headers: Headers) -> Http2Head:
    """Validate the headers of a request (RFC 9113 section 8). Raises Malformed.

    Decoding has checked their characters: see `hpack.ImproperField`.
    """
    special, pseudo = _special(headers)
    method, path, scheme = special.get(b":method", b""), special.get(b":path", b""), special.get(b":scheme", b"")
    authority = _authority(special)
    if method == b"CONNECT":
        if scheme or path or b":authority" not in special:
            raise Malformed("CONNECT has an :authority, and neither :scheme nor :path")
    else:
        _check_target(method, scheme, path)
    fields = headers[pseudo:]
    if b"cookie" in special:
        fields = _with_one_cookie(fields)
        headers = headers[:pseudo] + fields
    return Http2Head(method, path, scheme, authority, headers, fields, _content_length(special))


def check_trailers(fields: Headers) -> None:
    if _special(fields)[1]:
        raise Malformed("pseudo-headers after a body")


def _special(headers: Headers) -> tuple[dict[bytes, bytes], int]:
    """Return the headers with a meaning in the protocol, and the number of pseudo-headers."""
    special: dict[bytes, bytes] = {}
    pseudo, pseudo_end = 0, False
    for field in headers:
        if type(field) is ImproperField:
            raise Malformed(f"a character of {field[0][:40]!r}, or of its value, is forbidden")
        name = field[0]
        if name not in _SPECIAL:
            pseudo_end = True
            continue
        value = field[1]
        if name in PSEUDO:
            if pseudo_end or name in special:
                raise Malformed(f"{name.decode()} comes twice, or after other headers")
            pseudo += 1
        else:
            pseudo_end = True
            if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
                raise Malformed(f"{name.decode()} belongs to HTTP/1")
            if name in _SINGLE and special.get(name, value) != value:
                raise Malformed(f"{name.decode()} comes twice")
        special[name] = value
    return special, pseudo


def _authority(special: dict[bytes, bytes]) -> bytes:
    authority, host = special.get(b":authority"), special.get(b"host")
    if authority is None:
        authority = host
    elif host is not None and host.lower() != authority.lower():
        raise Malformed("host and :authority differ")
    if authority is None:
        return b""
    if not authority or _has(authority, _NOT_IN_TARGETS) or b"@" in authority:
        raise Malformed("the authority is not a host")
    return authority


def _check_target(method: bytes, scheme: bytes, path: bytes) -> None:
    if not method or method.translate(None, _METHOD):
        raise Malformed("the :method is missing or malformed")
    if not scheme or scheme.translate(None, _SCHEME):
        raise Malformed("the :scheme is missing or malformed")
    if _has(path, _NOT_IN_TARGETS) or (path[:1] != b"/" and (path != b"*" or method != b"OPTIONS")):
        raise Malformed("a :path begins with a slash and has no spaces; only OPTIONS can have the target *")


def _content_length(special: dict[bytes, bytes]) -> int:
    value = special.get(b"content-length")
    if value is None:
        return -1
    if not value.isdigit() or len(value) > 18:
        raise Malformed("the content-length is not a number")
    return int(value)


def _with_one_cookie(fields: Headers) -> Headers:
    """Join the parts of a cookie that the client may have split (section 8.2.3)."""
    parts = [value for name, value in fields if name == b"cookie"]
    return [*(field for field in fields if field[0] != b"cookie"), (b"cookie", b"; ".join(parts))]


def _has(text: bytes, some: bytes) -> bool:
    return len(text.translate(None, some)) != len(text)
