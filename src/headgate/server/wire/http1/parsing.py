"""The parts of a request, parsed strictly: its head, and a chunked body.

llhttp (the `httptools` package) checks the head, that is the request line and the headers, in its strict mode. What it
accepts, but two servers in a row could interpret differently, is refused here: more than one space in the request line,
versions other than 1.0 and 1.1, fragments, transfer codings other than ``chunked``, several hosts or none.
"""

from __future__ import annotations

from typing import TypeAlias

import httptools
import msgspec

from headgate.cache import BoundedCache
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Headers

CHUNKED = -1
"""In place of a length: the body ends with its last chunk."""
_NO_CALLBACKS = object()
"""llhttp only checks: a valid head is easy to split."""
_Target: TypeAlias = tuple[bytes, bytes, bytes | None]
"""Path, query, and the host if the target contains one."""
MOST_CACHED, _LONGEST_CACHED = 1024, 2048
"""Heads that are cached, and the bytes of each."""
_MOST_DIGITS = 20
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_HOST = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+;=:[]"
_LINE = 1024
"""The longest line before a chunk, with its size and extensions, in bytes."""
_USEFUL = 4
"""Bytes of content required per byte of overhead (sizes, extensions, line ends), beyond a first few thousand."""
_HEX = b"0123456789abcdefABCDEF"
_UNSEEN = bytes(range(9)) + bytes(range(10, 32)) + b"\x7f"
"""Control characters, which no line may contain."""


class Http1Head(msgspec.Struct, frozen=True, gc=False):
    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    """Shared by all requests with the same head: never modified."""
    length: int
    """Of the body, or `CHUNKED`."""
    closes: bool
    """Whether the connection ends with the response."""
    expects: bool
    """Whether the client waits for ``100 Continue`` before it sends the body."""
    is_plain: bool = True
    """Whether the response has a body, and others may follow it."""


class BadRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that is answered with a problem, after which the connection is closed."""

    status: int
    detail: str


class Http1Heads(BoundedCache[bytes, Http1Head]):
    """Parses heads, and caches those that clients repeat, by their bytes. All connections of a process share it."""

    __slots__ = ("_limits",)

    def __init__(self, limits: WireLimits) -> None:
        super().__init__(MOST_CACHED)
        self._limits = limits

    def read(self, raw: bytes) -> Http1Head | BadRequest:
        """Parse a head: all bytes up to and including the empty line."""
        head = _read(raw, self._limits)
        if len(raw) <= _LONGEST_CACHED and isinstance(head, Http1Head):
            self.keep(raw, head)
        return head


def path_of(raw: bytes) -> bytes:
    """Return the path of a request that may be incomplete or malformed; empty if it cannot be found."""
    parts = raw.partition(b"\r\n")[0].split(b" ", 2)
    return parts[1].partition(b"?")[0] if len(parts) == 3 else b""


def is_section(section: bytes) -> bool:
    """Return whether these are well-formed header lines, each with its line end."""
    try:
        httptools.HttpRequestParser(_NO_CALLBACKS).feed_data(b"GET / HTTP/1.1\r\n" + section + b"\r\n")
    except httptools.HttpParserUpgrade:
        return True
    except httptools.HttpParserError:
        return False
    return True


def _read(raw: bytes, limits: WireLimits) -> Http1Head | BadRequest:  # noqa: C901, PLR0911  one refusal after the other
    line, _, section = raw.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3:
        return BadRequest(400, "The request line is not: method, space, target, space, version.")
    method, target, version = parts
    if len(target) > limits.target_bytes:
        return BadRequest(414, f"The target is longer than {limits.target_bytes} bytes.")
    if len(section) > limits.header_bytes:
        return BadRequest(431, f"The headers are longer than {limits.header_bytes} bytes.")
    if not b"A" <= method[:1] <= b"Z":  # llhttp accepts bare line feeds before it
        return BadRequest(400, "This is not an HTTP request.")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return BadRequest(505, "The version is neither HTTP/1.1 nor HTTP/1.0.")
    try:
        httptools.HttpRequestParser(_NO_CALLBACKS).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the client offers another protocol, which we ignore
    except httptools.HttpParserInvalidMethodError:
        return BadRequest(501, "The method is unknown.")
    except httptools.HttpParserError as error:
        if str(error) == "Request has invalid `Transfer-Encoding`":
            return BadRequest(501, "The only transfer coding is chunked.")
        return BadRequest(400, f"{error}.")
    where = _target(method, target)
    if isinstance(where, BadRequest):
        return where
    cut = [each.partition(b":") for each in section[:-4].split(b"\r\n")] if len(section) > 2 else []
    if len(cut) > limits.headers:
        return BadRequest(431, f"There are more than {limits.headers} headers.")
    fields = [(name.lower(), value.strip(b" \t")) for name, _, value in cut]
    return _frame(method, where, fields, is_old=version == b"HTTP/1.0")


def _target(method: bytes, target: bytes) -> _Target | BadRequest:  # noqa: PLR0911  one form after the other
    if method == b"CONNECT":
        return BadRequest(501, "CONNECT is not served: this is not a proxy.")
    if b"#" in target:
        return BadRequest(400, "The target has a fragment.")
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
        return path, query, None
    if target == b"*":
        return (b"*", b"", None) if method == b"OPTIONS" else BadRequest(400, "Only OPTIONS can have the target *.")
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in {b"http", b"https"}:
        return BadRequest(400, "The target is neither a path nor an http or https address.")
    located, _, query = rest.partition(b"?")
    host, slash, path = located.partition(b"/")
    if not _is_host(host):
        return BadRequest(400, "The host of the target is malformed.")
    return slash + path or b"/", query, host


def _frame(  # noqa: C901, PLR0911, PLR0912  one header after the other
    method: bytes, where: _Target, fields: Headers, *, is_old: bool
) -> Http1Head | BadRequest:
    """Find the length of the body, and whether the connection closes, in the headers."""
    path, query, named = where
    hosts, codings, length, closes, expects = 0, 0, 0, is_old, False
    for name, value in fields:
        if name not in _FRAMING:
            continue
        if name == b"host":
            hosts += 1
            if not _is_host(value) and value:
                return BadRequest(400, "The Host header is malformed.")
        elif name == b"content-length":
            if len(value) > _MOST_DIGITS:  # leading zeros; llhttp bounds the number
                return BadRequest(400, f"The Content-Length has more than {_MOST_DIGITS} digits.")
            length = int(value)
        elif name == b"transfer-encoding":
            codings, length = codings + 1, CHUNKED
            if value.lower() != b"chunked" or codings > 1:
                return BadRequest(501, "The only transfer coding is chunked, and it is given once.")
        elif name == b"connection":
            closes = closes or b"close" in [token.strip(b" \t") for token in value.lower().split(b",")]
        elif name == b"expect":
            if value.lower() != b"100-continue":
                return BadRequest(417, "The only expectation that can be met is 100-continue.")
            expects = not is_old
    if hosts > 1 or (not hosts and not is_old):
        return BadRequest(400, "There must be exactly one Host header.")
    if codings and is_old:
        return BadRequest(400, "HTTP/1.0 has no transfer codings.")
    if named is not None:  # RFC 9112 3.2.2: the host in the target counts
        fields = [(name, named if name == b"host" else value) for name, value in fields]
    return Http1Head(method, path, query, fields, length, closes, expects, not closes and method != b"HEAD")


def _is_host(host: bytes) -> bool:
    return bool(host) and not host.translate(None, _HOST)


class ChunkedBody:
    """A body that is being received. Extensions and trailers are checked and discarded."""

    __slots__ = ("_at_end", "_left", "_limits", "_overhead", "_parts", "refused", "rest", "size")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self.size, self._overhead = 0, 0
        """Bytes of the body that are received or announced, and those around them."""
        self._left = 0
        """Bytes left of the current chunk, with its line end; 0 before a line with a size."""
        self._at_end = False
        """Whether the last chunk is read; trailers may follow."""
        self.rest = b""
        """Unparsed bytes; after the end of the body, those that follow it."""
        self.refused: BadRequest | None = None

    def receive(self, data: bytes) -> bytes | None:
        """Take more bytes; returns the complete body, or None while it is incomplete or if it was `refused`."""
        data = self.rest + data if self.rest else data
        position = 0
        while not self._at_end:
            if self._left:
                taken = min(self._left, len(data) - position)
                chunk = data[position : position + taken]
                if not self._take(chunk):
                    return None
                position += taken
                if self._left:
                    self.rest = b""
                    return None
            end = data.find(b"\n", position, position + _LINE)
            if end < 0:
                self.rest = data[position:]
                if len(self.rest) >= _LINE:
                    self.refused = BadRequest(400, f"The line before a chunk is longer than {_LINE} bytes.")
                return None
            if not self._begin(data[position : end + 1]):
                return None
            position = end + 1
        return self._end(data[position:])

    def _begin(self, line: bytes) -> bool:
        """Parse the line before a chunk, with its size and extensions."""
        size, extension, extensions = line[:-2].partition(b";")
        self._overhead += len(line) + 2
        if not line.endswith(b"\r\n") or not size or len(size) > 8 or size.translate(None, _HEX):
            self.refused = BadRequest(
                400, "A chunk does not begin with its size in hexadecimal digits, and a line end."
            )
        elif extension and len(extensions.translate(None, _UNSEEN)) != len(extensions):
            self.refused = BadRequest(400, "A chunk extension contains a control character.")
        elif self._overhead > self._limits.header_bytes + self.size // _USEFUL:
            self.refused = BadRequest(
                400, "The chunks are too small, or their extensions too long, for what they hold."
            )
        elif (length := int(size, 16)) + self.size > self._limits.body_bytes:
            self.refused = BadRequest(413, f"The body is longer than {self._limits.body_bytes} bytes.")
        else:
            self.size += length
            self._left = length + 2 if length else 0
            self._at_end = not length
        return self.refused is None

    def _take(self, chunk: bytes) -> bool:
        """Take a part of a chunk; its last two bytes are its line end."""
        before, self._left = self._left, self._left - len(chunk)
        content = before - 2
        if len(chunk) > content:
            ending = chunk[max(content, 0) :]
            if ending != b"\r\n"[2 - min(before, 2) :][: len(ending)]:
                self.refused = BadRequest(400, "A chunk does not end where its size says.")
                return False
            chunk = chunk[: max(content, 0)]
        if chunk:
            self._parts.append(chunk)
            if len(self._parts) > 1024:  # many small parts need more memory than their bytes
                self._parts = [b"".join(self._parts)]
        return True

    def _end(self, data: bytes) -> bytes | None:
        if data.startswith(b"\r\n"):
            self.rest = data[2:]
            return b"".join(self._parts)
        end = data.find(b"\r\n\r\n")
        if end > self._limits.header_bytes or (end < 0 and len(data) > self._limits.header_bytes):
            self.refused = BadRequest(431, f"The trailers are longer than {self._limits.header_bytes} bytes.")
        elif end < 0:
            self.rest = data
        elif not is_section(data[: end + 2]):
            self.refused = BadRequest(400, "The trailers are malformed.")
        else:
            self.rest = data[end + 4 :]
            return b"".join(self._parts)
        return None
