"""An HTTP/1.1 connection: bytes in, requests out, responses in, bytes out.

Requests may be pipelined: they are handed out as soon as they are complete, up to a bound, and responses are sent in
the order of their requests, whichever is ready first. A request that cannot be understood is the last: it is answered
with a problem, and all that follows it is ignored, for nobody knows where the next one begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from types import MappingProxyType

from headgate.server.wire.http1.parsing import CHUNKED, BadRequest, ChunkedBody, Http1Head, Http1Heads, path_of
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import NOBODY, WITHOUT_BODY, DateHeader, HttpRequest, HttpResponse, Peer


class Phase(Enum):
    """What a connection waits for, and so how long it may take."""

    IDLE = "idle"
    """The next request."""
    HEADERS = "headers"
    """The rest of the headers of a request."""
    BODY = "body"
    """The rest of a body."""
    BUSY = "busy"
    """Us: requests are being answered."""
    OVER = "over"
    """Nothing: no request is read any more."""


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_NO_STORE = (b"cache-control", b"no-store")
_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in set(HTTPStatus) else ''}\r\n".encode()
    for status in range(200, 600)
}
_LENGTHS = [b"content-length: %d\r\n\r\n" % length for length in range(1024)]
"""The last lines of a head, of bodies that are not long."""
_EMPTY_LINES = 100
"""That come at once: more than old clients send by mistake."""
_LAST = Http1Head(b"", b"", b"", [], 0, closes=True, expects=False, is_plain=False)
"""Stands for the request that could not be understood."""


def encode_response(response: HttpResponse, date: DateHeader, *, closes: bool = False, has_body: bool = True) -> bytes:
    """Return a response as it is sent; `has_body` is false for an answer to HEAD, which has headers alone."""
    status, body, lines = response.status, response.body, response.lines
    for field in response.fields:
        line = b"%b: %b\r\n" % field
        if line.count(b"\n") > 1 or line.count(b"\r") > 1:
            raise ValueError(f"A header of the response contains a line break: {field!r:.200}")
        lines += line
    if closes:
        lines += _CLOSE
    if status in WITHOUT_BODY:
        return b"".join((_LINES[status], date.line, lines, b"\r\n"))
    size = len(body)
    length = _LENGTHS[size] if size < len(_LENGTHS) else b"content-length: %d\r\n\r\n" % size
    return b"".join((_LINES[status], date.line, lines, length, body if has_body else b""))


class Http1Connection:
    """The server's side of a connection, for one peer.

    Requests are numbered in the order they come, from 0: `received` of them were handed out.

    Args:
        limits: of what a client may ask of it.
        heads: those that are known.
        date: of responses.
        peer: who is at the other end.
        statuses: of requests that are not understood, by path, in place of 400, 431 and others: a proxy that asks on
            behalf of clients may know no status but one for "this does not pass".
    """

    def __init__(
        self,
        limits: WireLimits,
        heads: Http1Heads,
        date: DateHeader,
        peer: Peer = NOBODY,
        statuses: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self._limits, self._heads, self._date, self._peer, self._statuses = limits, heads, date, peer, statuses
        self._find, self._most = heads.find, limits.pipelined
        self._buffer = b""
        """Not understood yet: a part of a head, or requests that wait because too many are in flight."""
        self._head: Http1Head | None = None
        """Of the request whose body is being read."""
        self._body: list[bytes] | ChunkedBody = []
        self._missing = 0
        """Bytes of the body, unless it comes in chunks."""
        self._unanswered: deque[Http1Head] = deque()
        self._held: dict[int, HttpResponse] = {}
        """Responses whose turn has not come, by the number of the request."""
        self._continued: int | None = None
        """The number of the request whose client waits for ``100 Continue``."""
        self._outgoing: list[bytes] = []
        self._no_more = False
        self._is_draining = False
        self._is_stalled = False
        """Whole requests may wait in the buffer."""
        self.received = 0
        self.answered = 0
        self.is_refused = False
        """A request was not understood, or not wanted: more of it may be on its way."""

    @property
    def in_flight(self) -> int:
        """Requests that were handed out and are not answered."""
        return len(self._unanswered)

    @property
    def held(self) -> int:
        """How many bytes are kept of requests that are incomplete, or wait."""
        if self._head is None:
            return len(self._buffer)
        return self._body.size if isinstance(self._body, ChunkedBody) else self._head.length - self._missing

    @property
    def is_full(self) -> bool:
        """Whether so many requests are in flight that no more bytes should be read before some are answered."""
        return len(self._unanswered) >= self._most

    @property
    def has_more(self) -> bool:
        """Whether bytes wait that `receive` might understand, now that requests were answered."""
        return self._is_stalled and not self._no_more and len(self._unanswered) < self._most

    def is_calm(self) -> bool:
        """Say whether nothing is to be done but to read on: the connection is neither full nor at its end."""
        return not (self._no_more or self._is_stalled or len(self._unanswered) >= self._most)

    @property
    def is_over(self) -> bool:
        """Whether all is said: when `outgoing` is sent, the connection is to be closed."""
        return self._no_more and not self._unanswered

    @property
    def phase(self) -> Phase:
        """What the connection waits for."""
        if self._no_more:
            return Phase.BUSY if self._unanswered else Phase.OVER
        if self.is_full:
            return Phase.BUSY
        if self._head is not None:
            return Phase.BODY
        if self._buffer:
            return Phase.HEADERS
        return Phase.BUSY if self._unanswered else Phase.IDLE

    def receive(self, data: bytes) -> list[HttpRequest]:  # noqa: C901, PLR0912  one pass over the bytes, and hot
        """Take bytes, and return the requests that they complete.

        They are at most so many that the connection is full; the rest waits, and `has_more` says when to call this
        again, with no bytes.
        """
        if self._no_more:
            return []
        if self._buffer:
            data = self._buffer + data
            self._buffer, self._is_stalled = b"", False
        requests: list[HttpRequest] = []
        position, end, empty_lines = 0, len(data), 0
        while position < end and not self._no_more:
            if self._head is not None:
                head, body, position = self._read_body(self._head, data, position)
                if body is None:
                    break
            elif len(self._unanswered) >= self._most:
                self._buffer, self._is_stalled = data[position:], True
                break
            else:
                start = data.find(b"\r\n\r\n", position) + 4
                if start < 4:
                    self._wait_for_head(data[position:])
                    break
                raw = data[position:start]
                known = self._find(raw)
                if known is None:
                    if raw.startswith(b"\r\n") and empty_lines < _EMPTY_LINES:  # those before a request are ignored
                        position, empty_lines = position + 2, empty_lines + 1
                        continue
                    read = self._heads.read(raw)
                    if isinstance(read, BadRequest):
                        self._refuse(read, path_of(raw))
                        break
                    known = read
                head = known
                position = start + head.length
                if not start <= position <= end:
                    position = start
                    self._begin_body(head, start == end)
                    continue
                body = data[start:position]
            requests.append(HttpRequest(head.method, head.path, head.query, head.headers, body, self._peer))
            self._unanswered.append(head)
            self.received += 1
            if head.closes:
                self._no_more = True
        return requests

    def answer(self, number: int, response: HttpResponse) -> None:
        """Answer the request with this number; when it is its turn, the response is in `outgoing`.

        Raises:
            Exception: the response cannot be sent, because of a malformed header for example; another one can.
        """
        if number != self.answered:
            encode_response(response, self._date)  # whoever answers hears of what cannot be sent, and hears it now
            self._held[number] = response
            return
        head = self._unanswered[0]
        if head.is_plain and not self._is_draining:
            self._outgoing.append(encode_response(response, self._date))
            self._unanswered.popleft()
            self.answered += 1
        else:
            self._send(head, response)
        if self._held or self._continued is not None:
            self._send_held()

    def outgoing(self) -> bytes:
        """Return what is to be sent, once."""
        parts = self._outgoing
        if len(parts) == 1:
            return parts.pop()
        data = b"".join(parts)
        parts.clear()
        return data

    def expire(self) -> None:
        """Give up on a request that takes too long: it is answered 408 if its headers began to come."""
        if self.phase is Phase.HEADERS or self.phase is Phase.BODY:
            path = path_of(self._buffer) if self._head is None else self._head.path
            self._refuse(BadRequest(408, "The request took too long to arrive."), path)
        self._no_more = True

    def drain(self) -> None:
        """Say with the last response to what has arrived that it is the last."""
        self._is_draining = True

    def finish_draining(self) -> None:
        """Read no more requests than those that have begun."""
        self._is_draining = True
        if self.phase is Phase.IDLE:
            self._no_more = True

    def _begin_body(self, head: Http1Head, is_waiting: bool) -> None:  # noqa: FBT001  a fact, and private
        if head.length > self._limits.body_bytes:
            self._refuse(BadRequest(413, f"The body is longer than {self._limits.body_bytes} bytes."), head.path)
            return
        self._head = head
        self._missing = head.length
        self._body = ChunkedBody(self._limits) if head.length == CHUNKED else []
        if head.expects and is_waiting:
            self._continued = self.received
            if not self._unanswered:
                self._send_held()

    def _read_body(self, head: Http1Head, data: bytes, position: int) -> tuple[Http1Head, bytes | None, int]:
        """Read from a body; return it when it is complete, and where it ends in `data`."""
        body = self._body
        if isinstance(body, ChunkedBody):
            whole = body.receive(data[position:])
            if body.refused is not None:
                self._refuse(body.refused, head.path)
                return head, None, len(data)
            position = len(data) - len(body.rest)
        else:
            part = data[position : position + self._missing]
            body.append(part)
            if len(body) > 1024:  # many small ones would take more room than their bytes
                body[:] = [b"".join(body)]
            position += len(part)
            self._missing -= len(part)
            whole = None if self._missing else b"".join(body)
        if whole is not None:
            self._head, self._body, self._continued = None, [], None
        return head, whole, position

    def _wait_for_head(self, data: bytes) -> None:
        """Keep a part of a head, unless it is already clear that it will be refused."""
        while data.startswith(b"\r\n"):
            data = data[2:]
        line = data.find(b"\r\n")
        if data and not b"A" <= data[:1] <= b"Z" and data != b"\r":
            self._refuse(BadRequest(400, "This is not an HTTP request."))
        elif data.count(b"\n") != data.count(b"\r\n"):
            self._refuse(BadRequest(400, "A line does not end with CR LF."), path_of(data))
        elif line < 0 and len(data) > self._limits.target_bytes + 64:
            self._refuse(BadRequest(414, f"The target is longer than {self._limits.target_bytes} bytes."))
        elif len(data) - max(line, 0) > self._limits.header_bytes + 64 and line >= 0:
            refused = BadRequest(431, f"The headers are longer than {self._limits.header_bytes} bytes.")
            self._refuse(refused, path_of(data))
        else:
            self._buffer = data

    def _refuse(self, refused: BadRequest, path: bytes = b"") -> None:
        """Answer with a problem, when its turn comes, and read no more."""
        self._no_more = self.is_refused = True
        self._buffer, self._head, self._body = b"", None, []
        self._continued = None
        self._unanswered.append(_LAST)
        self.received += 1
        response = HttpResponse.of_problem(refused.status, refused.detail)
        status = self._statuses.get(path)
        if status is not None:
            response = HttpResponse(status, response.body, (*response.fields, _NO_STORE))
        self.answer(self.received - 1, response)

    def _send(self, head: Http1Head, response: HttpResponse) -> None:
        """Send a response that is special: without a body, or the last."""
        is_last = len(self._unanswered) == 1
        closes = head.closes or (self._is_draining and is_last and self._head is None and not self._buffer)
        self._outgoing.append(encode_response(response, self._date, closes=closes, has_body=head.method != b"HEAD"))
        self._unanswered.popleft()
        self.answered += 1
        if closes:
            self._no_more = True

    def _send_held(self) -> None:
        """Send what waited for its turn."""
        while (response := self._held.pop(self.answered, None)) is not None:
            self._send(self._unanswered[0], response)
        if self._continued == self.answered:
            self._continued = None
            self._outgoing.append(_CONTINUE)
