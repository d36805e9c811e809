"""An HTTP/1.1 connection: bytes in, requests out, responses in, bytes out.

Requests may be pipelined: complete ones are returned at once, up to a bound, and responses are sent in the order of
their requests. A malformed request is the last: it is answered with a problem, and all bytes after it are ignored,
since no one can tell where the next request begins.
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
    """What a connection waits for, which decides how long it may take."""

    IDLE = "idle"
    """The next request."""
    HEADERS = "headers"
    """The rest of the headers of a request."""
    BODY = "body"
    """The rest of a body."""
    BUSY = "busy"
    """Responses to complete requests."""
    OVER = "over"
    """Nothing: no more requests are read."""


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_NO_STORE = (b"cache-control", b"no-store")
_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in set(HTTPStatus) else ''}\r\n".encode()
    for status in range(200, 600)
}
_LENGTHS = [b"content-length: %d\r\n\r\n" % length for length in range(1024)]
"""The last lines of the head of short responses."""
_EMPTY_LINES = 100
"""In a row: more than old clients send by mistake."""
_LAST = Http1Head(b"", b"", b"", [], 0, closes=True, expects=False, is_plain=False)
"""The placeholder for a malformed request."""


def encode_response(response: HttpResponse, date: DateHeader, *, closes: bool = False, has_body: bool = True) -> bytes:
    """Encode a response; `has_body` is false for the answer to HEAD, which has only headers."""
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

    Requests are numbered in order, from 0: `received` of them were returned. `statuses` replace those of malformed
    requests (400, 431 and others), by path: a proxy may accept only one status as a refusal.
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
        self._find, self._most = heads.get, limits.pipelined
        self._buffer = b""
        """Unparsed bytes: a part of a head, or requests that wait because too many are in flight."""
        self._head: Http1Head | None = None
        """The head of the request whose body is being read."""
        self._body: list[bytes] | ChunkedBody = []
        self._missing = 0
        """Missing bytes of the body, unless it is chunked."""
        self._unanswered: deque[Http1Head] = deque()
        self._held: dict[int, HttpResponse] = {}
        """Responses that wait for earlier ones, by the number of their request."""
        self._continued: int | None = None
        """The number of the request whose client waits for ``100 Continue``."""
        self._outgoing: list[bytes] = []
        self._no_more = False
        self._is_draining = False
        self._is_stalled = False
        """Whether the buffer may contain complete requests."""
        self.received = 0
        self.answered = 0
        self.is_refused = False
        """Whether a request was malformed or refused: more of it may arrive."""

    @property
    def in_flight(self) -> int:
        return len(self._unanswered)

    @property
    def held(self) -> int:
        """Buffered bytes of incomplete or waiting requests."""
        if self._head is None:
            return len(self._buffer)
        return self._body.size if isinstance(self._body, ChunkedBody) else self._head.length - self._missing

    @property
    def is_full(self) -> bool:
        """Whether too many requests are in flight to read more bytes."""
        return len(self._unanswered) >= self._most

    @property
    def has_more(self) -> bool:
        """Whether buffered bytes may contain requests, since others were answered."""
        return self._is_stalled and not self._no_more and len(self._unanswered) < self._most

    def can_read_on(self) -> bool:
        """Return whether there is nothing to do but to read: the connection is neither full nor at its end."""
        return not (self._no_more or self._is_stalled or len(self._unanswered) >= self._most)

    @property
    def is_over(self) -> bool:
        """Whether the connection is to be closed once `outgoing` is sent."""
        return self._no_more and not self._unanswered

    @property
    def phase(self) -> Phase:
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
        """Take bytes, and return the requests that they complete, at most until the connection is full.

        Then the rest waits until `has_more`: call this again, with no bytes.
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
                    if raw.startswith(b"\r\n") and empty_lines < _EMPTY_LINES:  # ignored before a request
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
        """Answer the request with this number; `outgoing` returns the response when its turn comes.

        Raises an exception if the response cannot be sent, for example because of a malformed header; another one can.
        """
        if number != self.answered:
            encode_response(response, self._date)  # an invalid response fails here, for its handler
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
        parts = self._outgoing
        if len(parts) == 1:
            return parts.pop()
        data = b"".join(parts)
        parts.clear()
        return data

    def expire(self) -> None:
        """End a request that takes too long: it is answered with 408 if its headers have begun to arrive."""
        if self.phase is Phase.HEADERS or self.phase is Phase.BODY:
            path = path_of(self._buffer) if self._head is None else self._head.path
            self._refuse(BadRequest(408, "The request took too long to arrive."), path)
        self._no_more = True

    def drain(self) -> None:
        """Announce the close with the last response to the requests that have arrived."""
        self._is_draining = True

    def finish_draining(self) -> None:
        """Read no more requests except those that have begun."""
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
        """Read a part of the body; return the body when it is complete, and the position of its end in `data`."""
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
            if len(body) > 1024:  # many small parts need more memory than their bytes
                body[:] = [b"".join(body)]
            position += len(part)
            self._missing -= len(part)
            whole = None if self._missing else b"".join(body)
        if whole is not None:
            self._head, self._body, self._continued = None, [], None
        return head, whole, position

    def _wait_for_head(self, data: bytes) -> None:
        """Buffer a part of a head, unless it is certain to be refused."""
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
        """Answer with a problem, in order, and read no more."""
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
        """Send a special response: without a body, or the last one."""
        is_last = len(self._unanswered) == 1
        closes = head.closes or (self._is_draining and is_last and self._head is None and not self._buffer)
        self._outgoing.append(encode_response(response, self._date, closes=closes, has_body=head.method != b"HEAD"))
        self._unanswered.popleft()
        self.answered += 1
        if closes:
            self._no_more = True

    def _send_held(self) -> None:
        """Send the responses whose turn has come."""
        while (response := self._held.pop(self.answered, None)) is not None:
            self._send(self._unanswered[0], response)
        if self._continued == self.answered:
            self._continued = None
            self._outgoing.append(_CONTINUE)
