"""What the headers of a request must be (RFC 9113 section 8)."""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2.compression import Improper
from headgate.server.wire.http2.events import Head
from headgate.server.wire.messages import Headers

_FORBIDDEN: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""They speak of a connection of HTTP/1."""
_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_SINGLE: Final = frozenset({b"host", b"content-length", b"content-type"})
_SPECIAL: Final = _FORBIDDEN | _PSEUDO | _SINGLE | {b"te", b"cookie"}
_NO_TARGET: Final = bytes(range(0x21)) + bytes(range(0x7F, 0x100))
"""What a path or an authority may not contain."""
_METHOD: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SCHEME: Final = b"+-.0123456789abcdefghijklmnopqrstuvwxyz"


class Malformed(Exception):
    """Headers that no request has: its stream is reset."""


def read_head(headers: Headers, *, is_kept: bool = False) -> Head:
    """Return what the headers of a request say; their characters are checked before, see `compression.Improper`.

    Args:
        headers: all of them.
        is_kept: see `Head`.

    Raises:
        Malformed: they break a rule of section 8.
    """
    special, pseudo = _special(headers)
    method, path, scheme = special.get(b":method", b""), special.get(b":path", b""), special.get(b":scheme", b"")
    authority = _authority(special)
    if method == b"CONNECT":
        if scheme or path or b":authority" not in special:
            raise Malformed("CONNECT goes to an :authority, and has neither :scheme nor :path")
    else:
        _check_target(method, scheme, path)
    fields = headers[pseudo:]
    if b"cookie" in special:
        fields = _with_one_cookie(fields)
        headers = headers[:pseudo] + fields
    return Head(
        method=method,
        path=path,
        scheme=scheme,
        authority=authority,
        headers=headers,
        fields=fields,
        content_length=_content_length(special),
        is_kept=is_kept,
    )


def check_trailers(fields: Headers) -> None:
    """Raise Malformed unless these may follow a body."""
    if _special(fields)[1]:
        raise Malformed("pseudo-headers after a body")


def _special(headers: Headers) -> tuple[dict[bytes, bytes], int]:
    """Return the headers that mean something to the protocol, and how many of all are pseudo-headers."""
    special: dict[bytes, bytes] = {}
    pseudo, pseudo_end = 0, False
    for field in headers:
        if type(field) is Improper:
            raise Malformed(f"a character of {field[0][:40]!r}, or of its value, is forbidden")
        name = field[0]
        if name not in _SPECIAL:
            pseudo_end = True
            continue
        value = field[1]
        if name in _PSEUDO:
            if pseudo_end or name in special:
                raise Malformed(f"{name.decode()} comes twice, or after other headers")
            pseudo += 1
        else:
            pseudo_end = True
            if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
                raise Malformed(f"{name.decode()} is of HTTP/1")
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
    if not authority or _has(authority, _NO_TARGET) or b"@" in authority:
        raise Malformed("an authority that is none")
    return authority


def _check_target(method: bytes, scheme: bytes, path: bytes) -> None:
    if not method or method.translate(None, _METHOD):
        raise Malformed("a request without a proper :method")
    if not scheme or scheme.translate(None, _SCHEME):
        raise Malformed("a request without a proper :scheme")
    if _has(path, _NO_TARGET) or (path[:1] != b"/" and (path != b"*" or method != b"OPTIONS")):
        raise Malformed("a :path begins with a slash, and has no spaces; OPTIONS may go to *")


def _content_length(special: dict[bytes, bytes]) -> int:
    value = special.get(b"content-length")
    if value is None:
        return -1
    if not value.isdigit() or len(value) > 18:
        raise Malformed("a content-length that is not a number")
    return int(value)


def _with_one_cookie(fields: Headers) -> Headers:
    """Join the crumbs into which a client may split a cookie (section 8.2.3)."""
    crumbs = [value for name, value in fields if name == b"cookie"]
    return [*(field for field in fields if field[0] != b"cookie"), (b"cookie", b"; ".join(crumbs))]


def _has(text: bytes, some: bytes) -> bool:
    """Whether a text has any of these bytes."""
    return len(text.translate(None, some)) != len(text)
