"""gRPC on one HTTP/2 connection: events in, calls of methods, responses out.

A unary call runs as soon as its message has arrived; most are answered before the next event is processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from heapq import heapify, heappop, heappush

import msgspec

from headgate.eager import Waiting, begin
from headgate.server.wire.grpc import framing
from headgate.server.wire.grpc.calls import DEADLINE_PASSED, Methods, RpcError, StatusCode, UnaryCall, error_of
from headgate.server.wire.grpc.routing import Route, route_of
from headgate.server.wire.grpc.streaming import StreamingCall
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.protocol import Http2Protocol
from headgate.server.wire.http2.streams import Aborted, Event, Opened, Received, Writable
from headgate.server.wire.limits import WireLimits

_RESOLUTION = 0.001
"""Seconds that a timer of the loop may be early."""
_SPARE = 64
"""Deadlines of ended calls that are kept, in addition to one for each waiting call, before they are removed."""
_SLOW = RpcError(StatusCode.DEADLINE_EXCEEDED, "The message took too long to arrive.")
_LEAVING = RpcError(StatusCode.UNAVAILABLE, "This server is shutting down: call another one.")
_CARDINALITY = RpcError(StatusCode.UNIMPLEMENTED, "A unary call must have exactly one message.")


class _PartialCall:
    """A unary call whose message is incomplete."""

    __slots__ = ("_since", "message", "messages", "route")

    def __init__(self, route: Route, limits: WireLimits, now: float) -> None:
        self.route, self._since = route, now
        self.messages = framing.MessageReader(limits.message_bytes, route.encoding)
        self.message: bytes | None = None

    def left(self, now: float) -> Route:
        if self.route.timeout is None:
            return self.route
        return msgspec.structs.replace(self.route, timeout=max(self.route.timeout - (now - self._since), 0))


class Deadlines:
    """The deadlines of the calls of one connection, with one timer for all of them.

    Nearly all calls end in time, and nothing is done when they do: the deadlines of streams that are not `waiting` are
    removed now and then. `expire` is called with each stream whose deadline has passed.
    """

    __slots__ = ("_expire", "_heap", "_loop", "_timer", "_waiting")

    def __init__(self, waiting: Container[int], expire: Callable[[int], None]) -> None:
        self._waiting, self._expire = waiting, expire
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: int, seconds: float, calls: int) -> None:
        """Add the deadline of a call, in seconds from now; `calls` is the number of waiting calls."""
        if len(self._heap) > 2 * calls + _SPARE:
            self._heap = [each for each in self._heap if each[1] in self._waiting]
            heapify(self._heap)
        deadline = self._loop.time() + seconds
        heappush(self._heap, (deadline, stream))
        if self._timer is None or deadline < self._timer.when():
            self._set_timer()

    def clear(self) -> None:
        self._heap.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._ring) if self._heap else None

    def _ring(self) -> None:
        heap, now = self._heap, self._loop.time() + _RESOLUTION
        while heap and (heap[0][0] <= now or heap[0][1] not in self._waiting):
            stream = heappop(heap)[1]
            if stream in self._waiting:
                self._expire(stream)
        self._set_timer()


class GrpcService:
    """The calls of one connection. It implements `Http2Service`."""

    def __init__(self, connection: Http2Protocol, methods: Methods) -> None:
        self._connection, self._streams, self._limits = connection, connection.streams, connection.limits
        self._admission, self._peer = connection.admission, connection.peer
        self._methods = methods
        self._loop = asyncio.get_running_loop()
        self._expected: dict[int, Route | _PartialCall] = {}
        """Unary calls whose message is incomplete."""
        self._since: dict[int, float] = {}
        """When `enforce_timeouts` first saw them."""
        self._waiting: dict[int, UnaryCall] = {}
        """Unary calls whose method waits, and whose client waits for the response."""
        self._deadlines = Deadlines(self._waiting, self._expire)
        self._running = 0
        """The number of unary calls whose method waits, including abandoned ones."""
        self._lasting: dict[int, StreamingCall] = {}

    @property
    def in_flight(self) -> int:
        """The number of calls that methods are processing."""
        return self._running + len(self._lasting)

    def handle(self, events: list[Event]) -> None:  # noqa: C901  one event after the other, and hot
        is_flooded = self._streams.waiting > self._limits.outgoing_bytes
        expected = self._expected
        for event in events:
            if isinstance(event, Opened):
                stream, head, body = event.stream, event.head, event.body
                route: Route = head.derived or route_of(self._methods, head)
                head.derived = route
                if is_flooded:
                    self._streams.abort(stream, ErrorCode.REFUSED_STREAM)
                elif route.unary is None:
                    self._open(stream, route, body)
                elif body is None:
                    expected[stream] = route
                else:
                    self._read(stream, route, body)
            elif isinstance(event, Received):
                stream = event.stream
                call = expected.get(stream)
                if type(call) is Route and event.ended:
                    del expected[stream]
                    self._read(stream, call, event.data)
                elif call is not None:
                    self._receive(stream, call, event.data, ended=event.ended)
                elif stream in self._lasting:
                    self._lasting[stream].receive(event.data, ended=event.ended)
            elif isinstance(event, Aborted):
                self._abort(event.stream)
            elif isinstance(event, Writable) and event.stream in self._lasting:
                self._lasting[event.stream].widen()

    def enforce_timeouts(self, now: float) -> None:
        since = {stream: self._since.get(stream, now) for stream in self._expected}
        self._since = since
        for stream, start in list(since.items()):
            if now - start > self._limits.body_time:
                del self._expected[stream], since[stream]
                self._fail(stream, _SLOW)
                self._connection.flush_soon()

    def resume(self) -> None:
        for stream in list(self._lasting.values()):
            stream.resume()

    def leave(self) -> None:
        if not self._running and not self._expected:
            for stream in list(self._lasting.values()):
                stream.end(_LEAVING)

    def lose(self) -> None:
        self._expected.clear()
        for stream in list(self._lasting.values()):
            stream.cancel()
        for call in self._waiting.values():
            call.is_abandoned = True
        self._waiting.clear()
        self._deadlines.clear()
        del self._deadlines  # breaks a reference cycle, which would wait for the garbage collector

    def _open(self, stream: int, route: Route, body: bytes | None) -> None:
        if route.refusal is not None:
            self._streams.respond(stream, *route.refusal)
        elif self._admission is not None and (refusal := self._admission.admit_stream(route.path, route.headers)):
            self._fail(stream, refusal.error())
        else:
            self._lasting[stream] = StreamingCall(self._connection, stream, route, partial(self._over, stream))
            if body is not None:
                self._lasting[stream].receive(body, ended=True)

    def _read(self, stream: int, route: Route, body: bytes) -> None:
        """Run a unary call whose body arrived at once: nearly always one message, not compressed."""
        size = len(body) - framing.PREFIX
        if (
            0 <= size <= self._limits.message_bytes
            and body[0] == 0
            and int.from_bytes(body[1 : framing.PREFIX], "big") == size
        ):
            self._call(stream, route, body[framing.PREFIX :])
        else:
            self._receive(stream, route, body, ended=True)

    def _receive(self, stream: int, route: Route | _PartialCall, data: bytes, *, ended: bool) -> None:
        call = _PartialCall(route, self._limits, self._loop.time()) if isinstance(route, Route) else route
        self._expected[stream] = call
        call.messages.receive(data)
        try:
            if call.message is None:
                call.message = call.messages.take()
        except RpcError as error:
            del self._expected[stream]
            if call.route.unreadable is None:
                self._fail(stream, error)
            else:
                self._answer(stream, call.route, call.route.unreadable)
            return
        has_more = call.message is not None and call.messages.pending
        if has_more or (ended and call.message is None):
            del self._expected[stream]
            self._fail(stream, _CARDINALITY)
            return
        if ended and call.message is not None:
            del self._expected[stream]
            self._call(stream, call.left(self._loop.time()), call.message)

    def _call(self, stream: int, route: Route, message: bytes) -> None:
        if stream not in self._streams.open:  # it was cancelled before it was processed
            return
        if route.timeout == 0:
            self._fail(stream, DEADLINE_PASSED)
            return
        admission = self._admission
        if admission is not None and (refusal := admission.admit(route.path, route.headers)) is not None:
            self._fail(stream, refusal.error())
            return
        method = route.unary
        assert method is not None  # noqa: S101  for the type checker
        call = UnaryCall(message, route.metadata, self._peer, route.timeout)
        answer: bytes | RpcError | Waiting[bytes | RpcError] = begin(method, call, error_of, route.path)
        if not isinstance(answer, Waiting):
            self._answer(stream, route, answer)
            return
        if admission is not None:
            admission.hold()
        self._running += 1
        self._waiting[stream] = call
        if route.timeout is not None:
            self._deadlines.add(stream, route.timeout, len(self._waiting))
        answer.then(partial(self._done, stream, route))

    def _done(self, stream: int, route: Route, answer: bytes | RpcError) -> None:
        self._running -= 1
        if self._admission is not None:
            self._admission.release()
        if self._waiting.pop(stream, None) is not None:  # the client still waits
            self._answer(stream, route, answer)
            self._connection.flush_soon()

    def _expire(self, stream: int) -> None:
        self._waiting.pop(stream).is_abandoned = True
        self._fail(stream, DEADLINE_PASSED)
        self._connection.flush_soon()

    def _answer(self, stream: int, route: Route, message: bytes | RpcError) -> None:
        if isinstance(message, RpcError):
            self._fail(stream, message)
            return
        try:
            body = b"\0" + len(message).to_bytes(4, "big") + message
        except TypeError as error:  # the method did not return bytes
            self._fail(stream, error_of(error, route.path))
            return
        self._streams.respond(stream, framing.HEAD, body, framing.OK)

    def _fail(self, stream: int, error: RpcError) -> None:
        try:
            head = framing.error_head(error)
        except ValueError as mistake:  # its trailers are invalid
            head = framing.error_head(error_of(mistake, b"the status of a call"))
        self._streams.respond(stream, head, b"")

    def _abort(self, stream: int) -> None:
        self._expected.pop(stream, None)
        if (call := self._waiting.pop(stream, None)) is not None:
            call.is_abandoned = True
        if not self._waiting:
            self._deadlines.clear()
        if stream in self._lasting:
            self._lasting[stream].cancel()

    def _over(self, stream: int) -> None:
        del self._lasting[stream]
        if self._admission is not None:
            self._admission.release_stream()
