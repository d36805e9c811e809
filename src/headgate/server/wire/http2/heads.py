"""What the headers of a request must be (RFC 9113 section 8)."""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2.events import Head
from headgate.server.wire.http2.headers import CONTROLS, TOKEN
from headgate.server.wire.messages import Headers

_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_FORBIDDEN: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
"""They speak of a connection of HTTP/1."""
_NO_TARGET: Final = bytes(range(0x21)) + bytes(range(0x7F, 0x100))
"""What a path or an authority may not contain."""
_LETTERS: Final = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SCHEME: Final = b"+-.0123456789abcdefghijklmnopqrstuvwxyz"
_GRPC: Final = b"application/grpc"


class Malformed(Exception):
    """Headers that no request has: its stream is reset."""


def read_head(headers: Headers) -> Head:
    """Return what the headers of a request say.

    Raises:
        Malformed: they break a rule of section 8.
    """
    pseudo: dict[bytes, bytes] = {}
    for name, value in headers:
        if name[:1] != b":":
            break
        if name not in _PSEUDO or name in pseudo:
            raise Malformed(f"the pseudo-header {name!r} is unknown, or comes twice")
        pseudo[name] = value
    fields = headers[len(pseudo) :]
    content_length, content_type, host = _checked(fields)
    method, scheme, path = pseudo.get(b":method", b""), pseudo.get(b":scheme", b""), pseudo.get(b":path", b"")
    authority = pseudo.get(b":authority")
    if not method or method.translate(None, _LETTERS):
        raise Malformed("a request without a proper :method")
    if authority is not None and (not authority or _has(authority, _NO_TARGET) or b"@" in authority):
        raise Malformed("an :authority that is none")
    if authority is not None and host is not None and host.lower() != authority.lower():
        raise Malformed("host and :authority differ")
    if method == b"CONNECT":
        if scheme or path or authority is None:
            raise Malformed("CONNECT goes to an :authority, and has neither :scheme nor :path")
    else:
        _check_target(method, scheme, path)
    fields = _with_one_cookie(fields)
    return Head(
        method=method,
        path=path,
        scheme=scheme,
        authority=authority or host or b"",
        headers=[*headers[: len(pseudo)], *fields],
        fields=fields,
        is_grpc=content_type[: len(_GRPC)] == _GRPC,
        content_length=content_length,
    )


def check_trailers(fields: Headers) -> None:
    """Raise Malformed unless these may follow a body."""
    _checked(fields)


def _check_target(method: bytes, scheme: bytes, path: bytes) -> None:
    if not scheme or scheme.translate(None, _SCHEME):
        raise Malformed("a request without a proper :scheme")
    if _has(path, _NO_TARGET) or (path[:1] != b"/" and (path != b"*" or method != b"OPTIONS")):
        raise Malformed("a :path begins with a slash, and has no spaces; OPTIONS may go to *")


def _checked(fields: Headers) -> tuple[int, bytes, bytes | None]:
    """Check the fields that are no pseudo-headers; return the length and type of the content, and the host."""
    length, kind = -1, b""
    host: bytes | None = None
    for name, value in fields:
        if not name or name.translate(None, TOKEN):
            raise Malformed(f"{name[:40]!r} is no name, or not in lower case, or a pseudo-header after other headers")
        if value and (_has(value, CONTROLS) or value[0] in b" \t" or value[-1] in b" \t"):
            raise Malformed(f"the value of {name[:40]!r} has a control character, or a space at its ends")
        if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise Malformed(f"{name!r} is of HTTP/1")
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = _length(value, length)
        elif name == b"host":
            if host is not None or not value or _has(value, _NO_TARGET):
                raise Malformed("a host that comes twice, or is none")
            host = value
    return length, kind, host


def _has(text: bytes, some: bytes) -> bool:
    """Whether a text has any of these bytes."""
    return len(text.translate(None, some)) != len(text)


def _length(value: bytes, earlier: int) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Malformed("a content-length that is no number")
    length = int(value)
    if earlier not in {-1, length}:
        raise Malformed("two content-lengths")
    return length


def _with_one_cookie(fields: Headers) -> Headers:
    """Join the crumbs into which a client may split a cookie (section 8.2.3)."""
    crumbs = [value for name, value in fields if name == b"cookie"]
    if len(crumbs) < 2:
        return fields
    return [*(field for field in fields if field[0] != b"cookie"), (b"cookie", b"; ".join(crumbs))]
