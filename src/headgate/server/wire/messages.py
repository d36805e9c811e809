"""Requests and responses, for any version of HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any, Self, TypeAlias

import msgspec

from headgate.web import problem

_log = logging.getLogger(__name__)

Headers: TypeAlias = list[tuple[bytes, bytes]]
"""Names in lower case, in the order of arrival; a name may be repeated."""
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Headers to be sent, names in lower case."""

WITHOUT_BODY = frozenset({204, 304})
"""Statuses of responses that never have a body."""
_PROBLEM = (b"content-type", problem.CONTENT_TYPE.encode())


class Peer(msgspec.Struct, frozen=True, gc=False):
    """The other end of a connection. Each connection has its own object."""

    address: str | None = None
    """Without the port; None on a Unix socket."""
    names: tuple[str, ...] = ()
    """Subject alternative names of the verified client certificate, each with its kind (``DNS:api``)."""


NOBODY = Peer()


class HttpRequest(msgspec.Struct, gc=False):
    method: bytes
    path: bytes
    """As sent, not decoded, without the query; of an absolute target, only the path."""
    query: bytes = b""
    """The part after the question mark."""
    headers: Headers = []
    body: bytes = b""
    peer: Peer = NOBODY
    is_abandoned: bool = False
    """Whether the client has left, so that no one reads the response."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, whose name is in lower case."""
        for each, value in self.headers:
            if each == name:
                return value
        return None


class HttpResponse(msgspec.Struct, frozen=True, gc=False):
    """A complete response. The wire adds ``date``, ``content-length`` and others that the protocol needs."""

    status: int
    body: bytes = b""
    fields: Fields = ()
    lines: bytes = b""
    """More headers, already encoded as HTTP/1 lines with their line ends; no value contains a line break."""

    @property
    def headers(self) -> Fields:
        if not self.lines:
            return self.fields
        cut = [line.partition(b": ") for line in self.lines.split(b"\r\n")[:-1]]
        return (*[(name, value) for name, _, value in cut], *self.fields)

    @classmethod
    def of_problem(cls, status: int, detail: str, headers: Fields = ()) -> Self:
        """Return a response with a problem document (RFC 9457)."""
        return cls(status, problem.of_status(status, detail).encode(), (_PROBLEM, *headers))

    @classmethod
    def of_failure(cls, error: BaseException, method: bytes, target: bytes) -> Self:
        """Log an error that a handler raised, without the query, which may contain secrets; return the response."""
        path = target.partition(b"?")[0]
        _log.error("%s %s failed", method.decode(), path.decode(errors="replace"), exc_info=error)
        return cls.of_problem(500, "The request failed. The error is in the server's log.")


class DateHeader:
    """The ``date`` of responses, kept current by a timer. All connections of a process share it."""

    __slots__ = ("line", "value")

    def __init__(self, seconds: float = 0) -> None:
        self.set(seconds)

    def set(self, seconds: float) -> None:
        self.value = formatdate(seconds, usegmt=True).encode()
        self.line = b"date: %b\r\n" % self.value  # of HTTP/1


Handler: TypeAlias = Callable[[HttpRequest], HttpResponse | Coroutine[Any, Any, HttpResponse]]
"""Answers a request: at once or, if it may have to wait, by a coroutine. An exception is logged, and answered with
500."""


async def answered(handler: Handler, request: HttpRequest) -> HttpResponse:
    response = handler(request)
    return response if isinstance(response, HttpResponse) else await response
