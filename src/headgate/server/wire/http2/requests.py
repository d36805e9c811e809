"""HTTP requests on an HTTP/2 connection: events in, calls of the handler, responses out."""

from __future__ import annotations

from functools import partial

from headgate.eager import Waiting, begin
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.heads import Http2Head
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.protocol import Http2Protocol
from headgate.server.wire.http2.streams import Aborted, Event, Opened, Received
from headgate.server.wire.messages import WITHOUT_BODY, DateHeader, Handler, HttpRequest, HttpResponse


class _PartialRequest:
    __slots__ = ("head", "parts", "since", "size")

    def __init__(self, head: Http2Head) -> None:
        self.head = head
        self.parts: list[bytes] = []
        self.size = 0
        self.since: float | None = None
        """When `enforce_timeouts` first saw it."""


class HttpService:
    """The requests of one connection. It implements `Http2Service`."""

    def __init__(self, connection: Http2Protocol, handler: Handler, date: DateHeader) -> None:
        self._connection, self._streams, self._limits = connection, connection.streams, connection.limits
        self._handler, self._date = handler, date
        self._expected: dict[int, _PartialRequest] = {}
        """Requests whose body is incomplete."""
        self._waiting: dict[int, HttpRequest] = {}
        """Requests whose handler waits, and whose client waits for the response."""
        self.in_flight = 0

    def handle(self, events: list[Event]) -> None:
        is_flooded = self._streams.waiting > self._limits.outgoing_bytes
        for event in events:
            if isinstance(event, Opened):
                stream, head, body = event.stream, event.head, event.body
                if is_flooded:
                    self._streams.abort(stream, ErrorCode.REFUSED_STREAM)
                elif head.content_length > self._limits.body_bytes or (body and len(body) > self._limits.body_bytes):
                    self._too_long(stream, head)
                elif body is not None:
                    self._ask(stream, head, body)
                else:
                    self._expected[stream] = _PartialRequest(head)
            elif isinstance(event, Received):
                self._receive(event.stream, event.data, ended=event.ended)
            elif isinstance(event, Aborted):
                self._expected.pop(event.stream, None)
                if event.stream in self._waiting:
                    self._waiting.pop(event.stream).is_abandoned = True

    def enforce_timeouts(self, now: float) -> None:
        for stream, expected in list(self._expected.items()):
            if expected.since is None:
                expected.since = now
            elif now - expected.since > self._limits.body_time:
                del self._expected[stream]
                late = HttpResponse.of_problem(408, "The request took too long to arrive.")
                self._answer(stream, expected.head, late)
                self._connection.flush_soon()

    def resume(self) -> None:
        """Do nothing: responses are sent as a whole."""

    def leave(self) -> None:
        """Do nothing: all requests end."""

    def lose(self) -> None:
        self._expected.clear()
        for request in self._waiting.values():
            request.is_abandoned = True

    def _receive(self, stream: int, data: bytes, *, ended: bool) -> None:
        expected = self._expected.get(stream)
        if expected is None:
            return
        expected.size += len(data)
        expected.parts.append(data)
        if len(expected.parts) > 1024:  # many small parts need more memory than their bytes
            expected.parts = [b"".join(expected.parts)]
        if expected.size > self._limits.body_bytes:
            del self._expected[stream]
            self._too_long(stream, expected.head)
        elif ended:
            del self._expected[stream]
            self._ask(stream, expected.head, b"".join(expected.parts))

    def _ask(self, stream: int, head: Http2Head, body: bytes) -> None:
        if stream not in self._streams.open:  # it was cancelled before it was processed
            return
        if head.derived is None:
            path, _, query = head.path.partition(b"?")
            fields = head.fields
            if head.authority and all(name != b"host" for name, _ in fields):
                fields = [(b"host", head.authority), *fields]
            head.derived = path, query, fields
        path, query, fields = head.derived
        connection = self._connection
        admission = connection.admission
        if admission is not None and (refusal := admission.admit(path, head.headers)) is not None:
            self._answer(stream, head, refusal.response())
            return
        request = HttpRequest(head.method, path, query, fields, body, connection.peer)
        response = begin(self._handler, request, HttpResponse.of_failure, head.method, head.path)
        if not isinstance(response, Waiting):
            self._answer(stream, head, response)
            return
        if admission is not None:
            admission.hold()
        self.in_flight += 1
        self._waiting[stream] = request
        response.then(partial(self._done, stream, head))

    def _done(self, stream: int, head: Http2Head, response: HttpResponse) -> None:
        self.in_flight -= 1
        self._waiting.pop(stream, None)
        if self._connection.admission is not None:
            self._connection.admission.release()
        self._answer(stream, head, response)
        self._connection.flush_soon()

    def _too_long(self, stream: int, head: Http2Head) -> None:
        detail = f"The body is longer than {self._limits.body_bytes} bytes."
        self._answer(stream, head, HttpResponse.of_problem(413, detail))

    def _answer(self, stream: int, head: Http2Head, response: HttpResponse) -> None:
        try:
            block = self._block(response)
        except Exception as error:  # noqa: BLE001  a response that cannot be sent is a failure of the handler
            response = HttpResponse.of_failure(error, head.method, head.path)
            block = self._block(response)
        has_body = head.method != b"HEAD" and response.status not in WITHOUT_BODY
        self._streams.respond(stream, block, response.body if has_body else b"")

    def _block(self, response: HttpResponse) -> bytes:
        status = response.status
        if not 200 <= status <= 599 or not isinstance(response.body, bytes):
            raise ValueError(f"The handler did not return a response: {response!r:.200}")
        fields = [(b":status", b"%d" % status), (b"date", self._date.value), *response.headers]
        if status not in WITHOUT_BODY:
            fields.append((b"content-length", b"%d" % len(response.body)))
        return encode(fields)
