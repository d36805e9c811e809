"""Responses as bytes."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

from headgate.server.wire.http1.head import Refused
from headgate.server.wire.messages import WITHOUT_BODY, HttpResponse

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_NO_STORE = (b"cache-control", b"no-store")
_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in set(HTTPStatus) else ''}\r\n".encode()
    for status in range(200, 600)
}


class Date:
    """The time as responses tell it, set anew by whoever has a clock. One for all connections of a process."""

    __slots__ = ("line", "value")

    line: bytes
    value: bytes

    def __init__(self) -> None:
        self.set(0)

    def set(self, seconds: float) -> None:
        """Say what time it is, in seconds since 1970."""
        self.value = formatdate(seconds, usegmt=True).encode()
        self.line = b"date: " + self.value + b"\r\n"


def encode(response: HttpResponse, date: Date, *, closes: bool = False, has_body: bool = True) -> bytes:
    """Return a response as it is sent; `has_body` is false for an answer to HEAD, which has headers alone."""
    status, body, headers = response.status, response.body, response.headers
    parts = [_LINES[status], date.line]
    for field in headers:
        parts.append(b"%b: %b\r\n" % field)  # noqa: PERF401  a comprehension is a call, and there are few
    lines = len(headers) + 4
    if closes:
        parts.append(_CLOSE)
        lines += 1
    if status in WITHOUT_BODY:
        parts.append(b"\r\n")
        lines -= 1
        has_body = False
    else:
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
    head = b"".join(parts)
    if head.count(b"\n") != lines or head.count(b"\r") != lines:
        raise ValueError(f"A header of the response contains a line break: {headers!r:.200}")
    return head + body if has_body else head


def of_refused(refused: Refused, status: int | None = None) -> HttpResponse:
    """Return what a request is answered that was not understood; with another status, if there is one for its path."""
    response = HttpResponse.of_problem(refused.status, refused.detail)
    return response if status is None else HttpResponse(status, response.body, (*response.headers, _NO_STORE))
