"""A request and a response, whatever version of HTTP carries them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Names in lower case, in the order they came; a name may come several times."""
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Headers to be sent, their names in lower case."""


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end of a connection. One for each connection."""

    address: str | None = None
    """Without the port; None on a Unix socket."""
    names: tuple[str, ...] = ()
    """Of the client certificate, if one was verified: subject alternative names, each with its kind (``DNS:api``)."""


NOBODY = Peer()


class Request(msgspec.Struct, frozen=True, gc=False):
    """A whole request."""

    method: bytes
    path: bytes
    """As it was sent, not decoded, without the query; of the absolute form only the path."""
    query: bytes = b""
    """What follows the question mark."""
    headers: Headers = []
    body: bytes = b""
    peer: Peer = NOBODY

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header; its name is given in lower case."""
        for each, value in self.headers:
            if each == name:
                return value
        return None


class Response(msgspec.Struct, frozen=True, gc=False):
    """A whole response. The wire adds ``content-length``, and whatever the protocol needs besides."""

    status: int
    body: bytes = b""
    headers: Fields = ()


Handler: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]
"""Answers a request. An error that it raises is answered 500, and logged."""
