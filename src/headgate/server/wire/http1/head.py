"""The head of a request: its first line and headers, understood in one way or refused.

llhttp (the `httptools` package) reads it, in its strict mode. What that lets through, and two servers in a row could
understand differently, is refused here: more than one space in the first line, versions other than 1.0 and 1.1,
fragments, transfer codings other than ``chunked``, several hosts or none.
"""

from __future__ import annotations

from typing import TypeAlias

import httptools
import msgspec

from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Headers

CHUNKED = -1
"""The length of a body whose end is told by its last chunk."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What was understood."""

    method: bytes
    path: bytes
    query: bytes
    headers: Headers
    """Shared by all requests with the same head: nobody changes them."""
    length: int
    """Of the body, or `CHUNKED`."""
    closes: bool
    """The connection ends with the response."""
    expects: bool
    """The client waits for ``100 Continue`` before it sends the body."""
    is_plain: bool = True
    """The response has a body, and others may follow it."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A request that is answered with a problem, after which the connection is closed."""

    status: int
    detail: str


class Heads:
    """Reads heads, and remembers those that clients repeat. One for all connections of a process."""

    __slots__ = ("_known", "_limits", "find")

    REMEMBERED = 1024
    LONGEST = 2048
    """In bytes: with it, what is remembered is bounded."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, Head] = {}
        self.find = self._known.get
        """Return the head that was read before from the very same bytes, if it is remembered."""

    def read(self, raw: bytes) -> Head | Refused:
        """Understand a head: all bytes up to and with the empty line."""
        head = _read(raw, self._limits)
        if len(raw) <= self.LONGEST and isinstance(head, Head):
            if len(self._known) >= self.REMEMBERED:
                self._known.clear()
            self._known[raw] = head
        return head


def path_of(raw: bytes) -> bytes:
    """Return the path of a request that may be incomplete or malformed; empty if it is not to be seen."""
    parts = raw.partition(b"\r\n")[0].split(b" ", 2)
    return parts[1].partition(b"?")[0] if len(parts) == 3 else b""


def is_section(section: bytes) -> bool:
    """Return whether these are well-formed header lines, each with its line end."""
    try:
        httptools.HttpRequestParser(_NOBODY).feed_data(b"GET / HTTP/1.1\r\n" + section + b"\r\n")
    except httptools.HttpParserUpgrade:
        return True
    except httptools.HttpParserError:
        return False
    return True


_NOBODY = object()
"""Listens to llhttp: what it has checked is simple to take apart."""
_Target: TypeAlias = tuple[bytes, bytes, bytes | None]
"""Path, query, and the host if the target names one."""


def _read(raw: bytes, limits: WireLimits) -> Head | Refused:  # noqa: C901, PLR0911  one refusal after the other
    line, _, section = raw.partition(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3:
        return Refused(400, "The request line is not: method, space, target, space, version.")
    method, target, version = parts
    if len(target) > limits.target_bytes:
        return Refused(414, f"The target is longer than {limits.target_bytes} bytes.")
    if len(section) > limits.header_bytes:
        return Refused(431, f"The headers are longer than {limits.header_bytes} bytes.")
    if not b"A" <= method[:1] <= b"Z":  # llhttp overlooks bare line feeds before it
        return Refused(400, "This is no request of HTTP.")
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return Refused(505, "The version is neither HTTP/1.1 nor HTTP/1.0.")
    try:
        httptools.HttpRequestParser(_NOBODY).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # the client offers to change the protocol; we stay
    except httptools.HttpParserInvalidMethodError:
        return Refused(501, "The method is not known.")
    except httptools.HttpParserError as error:
        if str(error) == "Request has invalid `Transfer-Encoding`":
            return Refused(501, "The only transfer coding is chunked.")
        return Refused(400, f"{error}.")
    where = _target(method, target)
    if isinstance(where, Refused):
        return where
    cut = [each.partition(b":") for each in section[:-4].split(b"\r\n")] if len(section) > 2 else []
    if len(cut) > limits.headers:
        return Refused(431, f"There are more than {limits.headers} headers.")
    fields = [(name.lower(), value.strip(b" \t")) for name, _, value in cut]
    return _framed(method, where, fields, is_old=version == b"HTTP/1.0")


def _target(method: bytes, target: bytes) -> _Target | Refused:  # noqa: PLR0911  one form after the other
    if method == b"CONNECT":
        return Refused(501, "This is no proxy: CONNECT is not served.")
    if b"#" in target:
        return Refused(400, "A target has no fragment.")
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
        return path, query, None
    if target == b"*":
        return (b"*", b"", None) if method == b"OPTIONS" else Refused(400, "Only OPTIONS may ask for *.")
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in {b"http", b"https"}:
        return Refused(400, "The target is neither a path nor an http or https address.")
    located, _, query = rest.partition(b"?")
    host, slash, path = located.partition(b"/")
    if not _is_host(host):
        return Refused(400, "The target has no proper host.")
    return slash + path or b"/", query, host


def _framed(  # noqa: C901, PLR0911, PLR0912  one header after the other
    method: bytes, where: _Target, fields: Headers, *, is_old: bool
) -> Head | Refused:
    """Say how long the body is, and whether the connection goes on, from what the headers say of it."""
    path, query, named = where
    hosts, codings, length, closes, expects = 0, 0, 0, is_old, False
    for name, value in fields:
        if name not in _OF_FRAMING:
            continue
        if name == b"host":
            hosts += 1
            if not _is_host(value) and value:
                return Refused(400, "The Host header is not a host.")
        elif name == b"content-length":
            if len(value) > _MOST_DIGITS:  # zeros at the beginning, for llhttp knows how large a number may be
                return Refused(400, f"The Content-Length has more than {_MOST_DIGITS} digits.")
            length = int(value)
        elif name == b"transfer-encoding":
            codings, length = codings + 1, CHUNKED
            if value.lower() != b"chunked" or codings > 1:
                return Refused(501, "The only transfer coding is chunked, said once.")
        elif name == b"connection":
            closes = closes or b"close" in [token.strip(b" \t") for token in value.lower().split(b",")]
        elif name == b"expect":
            if value.lower() != b"100-continue":
                return Refused(417, "The only expectation is 100-continue.")
            expects = not is_old
    if hosts > 1 or (not hosts and not is_old):
        return Refused(400, "There must be one Host header.")
    if codings and is_old:
        return Refused(400, "HTTP/1.0 has no transfer codings.")
    if named is not None:  # RFC 9112 3.2.2: the host in the target counts
        fields = [(name, named if name == b"host" else value) for name, value in fields]
    return Head(method, path, query, fields, length, closes, expects, not closes and method != b"HEAD")


def _is_host(host: bytes) -> bool:
    return bool(host) and not host.translate(None, _OF_HOSTS)


_MOST_DIGITS = 20
_OF_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_OF_HOSTS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+;=:[]"
