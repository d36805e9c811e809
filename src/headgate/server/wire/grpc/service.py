"""gRPC on one HTTP/2 connection: events in, calls of methods, responses out.

A unary call is run as soon as its message is there, and most are answered before the next event is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from headgate.server.wire import eager
from headgate.server.wire.grpc import framing
from headgate.server.wire.grpc.calls import Methods, RpcError, StatusCode, UnaryCall, error_of
from headgate.server.wire.grpc.plans import Plan, Plans
from headgate.server.wire.grpc.streaming import StreamingCall
from headgate.server.wire.http2.events import Aborted, Event, Opened, Received, Writable
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.link import Link

_LATE = RpcError(StatusCode.DEADLINE_EXCEEDED, "The deadline of the call has passed.")
_SLOW = RpcError(StatusCode.DEADLINE_EXCEEDED, "The message took too long to arrive.")
_LEAVING = RpcError(StatusCode.UNAVAILABLE, "This server is going away: call another one.")
_CARDINALITY = RpcError(StatusCode.UNIMPLEMENTED, "A unary call has one message.")


class _Unfinished:
    """A unary call whose message is incomplete."""

    __slots__ = ("_since", "message", "messages", "plan")

    def __init__(self, plan: Plan, limits: WireLimits, now: float) -> None:
        self.plan, self._since = plan, now
        self.messages = framing.Messages(limits.message_bytes, plan.encoding)
        self.message: bytes | None = None

    def left(self, now: float) -> Plan:
        """Return the plan with the time that is left of it."""
        if self.plan.timeout is None:
            return self.plan
        return msgspec.structs.replace(self.plan, timeout=max(self.plan.timeout - (now - self._since), 0))


class GrpcService:
    """The calls of one connection.

    Args:
        link: the connection.
        methods: what can be called.
    """

    __slots__ = (
        "_admission",
        "_expected",
        "_limits",
        "_link",
        "_loop",
        "_machine",
        "_outlet",
        "_plans",
        "_running",
        "_since",
        "_streams",
        "_waiting",
    )

    def __init__(self, link: Link, methods: Methods) -> None:
        self._link, self._machine, self._limits, self._outlet = link, link.machine, link.limits, link.outlet
        self._admission = link.admission
        self._plans = Plans(methods)
        self._loop = asyncio.get_running_loop()
        self._expected: dict[int, Plan | _Unfinished] = {}
        """Unary calls whose message has not come."""
        self._since: dict[int, float] = {}
        """When they were first looked at."""
        self._waiting: dict[int, asyncio.TimerHandle | None] = {}
        """Unary calls whose method waits for something, and their deadlines."""
        self._running = 0
        """As many of these, and of those among them that nobody waits for any more."""
        self._streams: dict[int, StreamingCall] = {}

    @property
    def in_flight(self) -> int:
        """How many calls are in the hands of methods."""
        return self._running + len(self._streams)

    def handle(self, events: list[Event]) -> None:
        """Do what events ask for. What is to be sent is in the machine."""
        expected = self._expected
        is_flooded = self._machine.waiting_bytes > self._limits.outgoing_bytes
        for event in events:
            if isinstance(event, Received):
                stream, data = event.stream, event.data
                plan = expected.get(stream)
                if (
                    type(plan) is Plan
                    and event.ended
                    and len(data) >= framing.PREFIX
                    and data[0] == 0
                    and int.from_bytes(data[1:5], "big") == len(data) - framing.PREFIX <= self._limits.message_bytes
                ):
                    del expected[stream]
                    self._call(stream, plan, data[framing.PREFIX :])
                elif plan is not None:
                    self._receive(stream, plan, data, ended=event.ended)
                elif stream in self._streams:
                    self._streams[stream].receive(data, ended=event.ended)
            elif isinstance(event, Opened):
                plan = self._plans.of(event.head)
                if is_flooded:
                    self._machine.reset(event.stream, ErrorCode.REFUSED_STREAM)
                elif plan.unary is not None and not event.ended:
                    expected[event.stream] = plan
                else:
                    self._open(event.stream, plan, ended=event.ended)
            else:
                self._note(event)

    def look(self, now: float) -> None:
        """End calls whose message takes too long."""
        since = {stream: self._since.get(stream, now) for stream in self._expected}
        self._since = since
        for stream, start in list(since.items()):
            if now - start > self._limits.body_time:
                del self._expected[stream], since[stream]
                self._fail(stream, _SLOW)
                self._outlet.flush_soon()

    def resume(self) -> None:
        """Tell streams that the connection takes more."""
        for stream in list(self._streams.values()):
            stream.resume()

    def leave(self) -> None:
        """End streams when nothing else is left to be answered: they could go on forever."""
        if not self._running and not self._expected:
            for stream in list(self._streams.values()):
                stream.end(_LEAVING)

    def lose(self) -> None:
        """Give up all calls: the connection is gone."""
        self._expected.clear()
        for stream in list(self._streams.values()):
            stream.cancel()
        for timer in self._waiting.values():
            if timer is not None:
                timer.cancel()
        self._waiting.clear()

    def _open(self, stream: int, plan: Plan, *, ended: bool) -> None:
        """Begin a call that is not unary, or cannot be made."""
        if plan.refusal is not None:
            self._machine.respond(stream, *plan.refusal)
        elif plan.streaming is None:
            self._fail(stream, _CARDINALITY)
        elif self._admission is not None and (
            refusal := self._admission.admit_stream(plan.head.path, plan.head.headers)
        ):
            self._fail(stream, refusal.error())
        else:
            self._streams[stream] = StreamingCall(self._link, stream, plan, partial(self._over, stream))
            if ended:
                self._streams[stream].receive(b"", ended=True)

    def _receive(self, stream: int, plan: Plan | _Unfinished, data: bytes, *, ended: bool) -> None:
        """Take a part of a message."""
        call = _Unfinished(plan, self._limits, self._loop.time()) if isinstance(plan, Plan) else plan
        self._expected[stream] = call
        call.messages.receive(data)
        try:
            if call.message is None:
                call.message = call.messages.take()
        except RpcError as error:
            del self._expected[stream]
            if call.plan.unreadable is None:
                self._fail(stream, error)
            else:
                self._answer(stream, call.plan, call.plan.unreadable)
            return
        has_more = call.message is not None and call.messages.pending
        if has_more or (ended and call.message is None):
            del self._expected[stream]
            self._fail(stream, _CARDINALITY)
            return
        if ended and call.message is not None:
            del self._expected[stream]
            self._call(stream, call.left(self._loop.time()), call.message)

    def _call(self, stream: int, plan: Plan, message: bytes) -> None:
        """Run a unary call until it waits or ends."""
        if plan.timeout == 0:
            self._fail(stream, _LATE)
            return
        admission = self._admission
        if admission is not None and (refusal := admission.admit(plan.head.path, plan.head.headers)) is not None:
            self._fail(stream, refusal.error())
            return
        method = plan.unary
        assert method is not None  # noqa: S101  for the type checker
        try:
            coroutine = method(UnaryCall(message, plan.head.fields, self._link.peer, plan.timeout))
            awaited = coroutine.send(None)
        except StopIteration as stop:
            self._answer(stream, plan, stop.value)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  whatever it is, it is told
            self._fail(stream, error_of(error, plan.head.path))
        else:
            self._wait(stream, plan, coroutine, awaited)
            return
        if self._admission is not None:
            self._admission.release()

    def _wait(self, stream: int, plan: Plan, coroutine: Coroutine[Any, Any, bytes], awaited: Any) -> None:
        timer = None
        if plan.timeout is not None:
            timer = self._loop.call_later(plan.timeout, self._expire, stream)
        self._waiting[stream] = timer
        self._running += 1
        eager.go_on(coroutine, awaited, partial(self._done, stream, plan), partial(self._failed, stream, plan))

    def _done(self, stream: int, plan: Plan, message: bytes) -> None:
        if self._end_wait(stream):
            self._answer(stream, plan, message)
            self._outlet.flush_soon()

    def _failed(self, stream: int, plan: Plan, error: BaseException) -> None:
        failure = error_of(error, plan.head.path)
        if self._end_wait(stream):
            self._fail(stream, failure)
            self._outlet.flush_soon()

    def _end_wait(self, stream: int) -> bool:
        """Return whether somebody still waits for the answer."""
        self._running -= 1
        is_wanted = stream in self._waiting
        timer = self._waiting.pop(stream, None)
        if timer is not None:
            timer.cancel()
        if self._admission is not None:
            self._admission.release()
        return is_wanted

    def _expire(self, stream: int) -> None:
        if self._waiting.pop(stream, None) is not None:
            self._fail(stream, _LATE)
            self._outlet.flush_soon()

    def _answer(self, stream: int, plan: Plan, message: bytes) -> None:
        try:
            body = b"\0" + len(message).to_bytes(4, "big") + message
        except TypeError as error:  # it answered with something else than bytes
            self._fail(stream, error_of(error, plan.head.path))
            return
        self._machine.respond(stream, framing.HEAD, body, framing.OK)

    def _fail(self, stream: int, error: RpcError) -> None:
        try:
            head = framing.error_head(error)
        except ValueError as mistake:  # its trailers cannot be sent
            head = framing.error_head(error_of(mistake, b"the status of a call"))
        self._machine.respond(stream, head, b"")

    def _note(self, event: Event) -> None:
        """See to events that have nothing to do with the beginning of a call."""
        if isinstance(event, Aborted):
            self._expected.pop(event.stream, None)
            timer = self._waiting.pop(event.stream, None)
            if timer is not None:
                timer.cancel()
            if (stream := self._streams.get(event.stream)) is not None:
                stream.cancel()
        elif isinstance(event, Writable) and (stream := self._streams.get(event.stream)) is not None:
            stream.widen()

    def _over(self, stream: int) -> None:
        """Forget a stream that has ended."""
        del self._streams[stream]
        if self._admission is not None:
            self._admission.release_stream()
