"""A request and a response, whatever version of HTTP carries them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any, Self, TypeAlias

import msgspec

from headgate.web import problem

_log = logging.getLogger(__name__)

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Names in lower case, in the order in which they came; a name may come several times."""
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Headers to be sent, their names in lower case."""

WITHOUT_BODY = frozenset({204, 304})
"""Statuses of responses that never have a body."""
_PROBLEM = (b"content-type", problem.CONTENT_TYPE.encode())


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end of a connection. There is one for each connection."""

    address: str | None = None
    """Without the port; None on a Unix socket."""
    names: tuple[str, ...] = ()
    """Of the client certificate, if one was verified: subject alternative names, each with its kind (``DNS:api``)."""


NOBODY = Peer()


class HttpRequest(msgspec.Struct, gc=False):
    """A whole request."""

    method: bytes
    path: bytes
    """As it was sent, not decoded, without the query; of the absolute form only the path."""
    query: bytes = b""
    """What follows the question mark."""
    headers: Headers = []
    body: bytes = b""
    peer: Peer = NOBODY
    is_abandoned: bool = False
    """Whether its client is gone, so that the response reaches nobody."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header; its name is given in lower case."""
        for each, value in self.headers:
            if each == name:
                return value
        return None


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """A whole response. The wire adds ``date``, ``content-length`` and whatever else the protocol needs."""

    status: int
    body: bytes = b""
    fields: Fields = ()
    lines: bytes = b""
    """More headers as HTTP/1 has them, each with its line end, for those who write the same ones again and again. No
    value has a line break in it."""

    @property
    def headers(self) -> Fields:
        """All headers."""
        if not self.lines:
            return self.fields
        cut = [line.partition(b": ") for line in self.lines.split(b"\r\n")[:-1]]
        return (*[(name, value) for name, _, value in cut], *self.fields)

    @classmethod
    def of_problem(cls, status: int, detail: str, headers: Fields = ()) -> Self:
        """Return a problem (RFC 9457) as a response."""
        return cls(status, problem.of_status(status, detail).encode(), (_PROBLEM, *headers))

    @classmethod
    def of_failure(cls, error: BaseException, method: bytes, target: bytes) -> Self:
        """Return what the client is told of an error that a handler raised, and log the error.

        The query of the target is left out of the log: it may hold secrets.
        """
        path = target.partition(b"?")[0]
        _log.error("%s %s failed", method.decode(), path.decode(errors="replace"), exc_info=error)
        return cls.of_problem(500, "The request failed. The error is in the server's log.")


class DateHeader:
    """The ``date`` of responses, set anew by whoever has a clock. There is one for all connections of a process."""

    __slots__ = ("line", "value")

    value: bytes
    line: bytes
    """The whole line of HTTP/1."""

    def __init__(self) -> None:
        self.set(0)

    def set(self, seconds: float) -> None:
        """Say what time it is, in seconds since 1970."""
        self.value = formatdate(seconds, usegmt=True).encode()
        self.line = b"date: %b\r\n" % self.value


Handler: TypeAlias = Callable[[HttpRequest], HttpResponse | Coroutine[Any, Any, HttpResponse]]
"""Answers a request: at once or, where it may have to wait, by a coroutine. An error that it raises is answered with
500, and logged."""


async def answered(handler: Handler, request: HttpRequest) -> HttpResponse:
    """Return the answer of a handler, when it is there."""
    response = handler(request)
    return response if isinstance(response, HttpResponse) else await response
