"""What happens on an HTTP/2 connection, as far as those above it need to know."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headgate.server.wire.messages import Headers


class Head(msgspec.Struct, frozen=True, gc=False):
    """The headers of a request, checked. All requests with the same header block share one: it must not be changed."""

    method: bytes
    path: bytes
    """With the query, as it was sent: begins with a slash, or is ``*``."""
    scheme: bytes
    authority: bytes
    """What ``:authority`` says, or else ``host``; empty without either."""
    headers: Headers
    """All of them, pseudo-headers first."""
    fields: Headers
    """Those that are no pseudo-headers."""
    content_length: int
    """Negative if it is not given."""
    is_kept: bool = False
    """Whether requests that follow may share it: only then is it worth while to remember something about it."""


class Opened(msgspec.Struct, frozen=True, gc=False):
    """A stream began: the headers of a request, checked, pseudo-headers among them, first."""

    stream: int
    headers: Headers
    ended: bool
    """Whether that is all."""
    head: Head
    """The same headers, taken apart."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A part of the body; trailers are checked, and left out."""

    stream: int
    data: bytes
    ended: bool


class Aborted(msgspec.Struct, frozen=True, gc=False):
    """A stream is over before its time: the client reset it, or broke the protocol. Nothing more can be sent on it."""

    stream: int


class Writable(msgspec.Struct, frozen=True, gc=False):
    """All data that waited for the client's window is on its way, and the stream has not ended."""

    stream: int


Event: TypeAlias = Opened | Received | Aborted | Writable
