"""The header that marks a request which may be sent twice: ``Idempotency-Key``, or ``X-Idempotency-Key``."""

from __future__ import annotations

from headgate.server.api.body import InvalidBody
from headgate.server.wire.messages import Headers

_NAMES = frozenset({b"idempotency-key", b"x-idempotency-key"})


def key_in(headers: Headers) -> str:
    """Return the key of a request; empty if it has none.

    The standard's quotation marks (``"8e03978e"``) are optional. Raises InvalidBody where the key is not printable
    ASCII, is empty, or where there are several.
    """
    found = b""
    for name, value in headers:
        if name in _NAMES:
            key = _bare(value)
            if found not in {b"", key}:
                raise InvalidBody("the request has several idempotency keys", (name.decode(), "is to be sent once"))
            found = key
    return found.decode("ascii") if found else ""


def _bare(value: bytes) -> bytes:
    value = value.strip(b" \t")
    if len(value) >= 2 and value[:1] == value[-1:] == b'"':
        value = value[1:-1].replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    if not value or not value.isascii() or not value.decode("ascii").isprintable():
        raise InvalidBody(
            "the idempotency key of the header cannot be used",
            ("idempotency-key", "is 1 to 512 printable characters of ASCII, with quotation marks or without"),
        )
    return value
