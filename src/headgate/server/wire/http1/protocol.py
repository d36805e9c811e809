"""HTTP/1.1 connections on the loop's transports: a handler answers their requests, most of them without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from headgate.eager import Waiting, begin
from headgate.server.wire.admission import Admission
from headgate.server.wire.http1.connection import Http1Connection, Phase
from headgate.server.wire.messages import Handler, HttpRequest, HttpResponse
from headgate.server.wire.registry import ConnectionRegistry
from headgate.server.wire.socket_end import SocketEnd

_MUCH = 65_536
"""Bytes after which reading pauses until other connections had their turn."""


class Http1Protocol(asyncio.Protocol):
    """A connection. Requests and late responses are processed in batches: see `ConnectionRegistry`.

    If `is_single`, it closes after the first response. For `statuses`, see `Http1Connection`.
    """

    def __init__(
        self,
        registry: ConnectionRegistry,
        handler: Handler,
        *,
        is_single: bool = False,
        statuses: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self._registry, self._handler, self._is_single, self._statuses = registry, handler, is_single, statuses
        self._machine: Http1Connection
        self._end = SocketEnd()
        self._admission: Admission | None = None
        self._is_blocked = False
        """The client does not read what was written."""
        self._has_ended = False
        """The client sends no more, and may still read."""
        self._waiting: dict[int, HttpRequest] = {}
        """Requests whose handler waits, by number."""
        self._unread = b""
        """Bytes that have arrived in this turn of the loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        registry = self._registry
        registry.connections.add(self)
        peer = self._end.attach(transport, registry.limits)
        self._machine = Http1Connection(registry.limits, registry.heads, registry.date, peer, self._statuses)
        if registry.admit is not None:
            self._admission = registry.admit(peer)
        if registry.is_draining or self._is_single:
            self._machine.drain()

    def data_received(self, data: bytes) -> None:
        if not self._unread:
            self._unread = data
            self._registry.serve_soon(self)
            if len(data) > _MUCH:
                self._pause()
        else:  # the transport filled its buffer, and there is more
            self._unread += data
            self.serve()
            self.flush()

    def serve(self) -> None:
        """Process the requests that have arrived; handlers that wait answer later."""
        machine, admission, data = self._machine, self._admission, self._unread
        if not data and (self._is_blocked or not machine.has_more):
            return
        self._unread = b""
        number = machine.received
        for request in machine.receive(data):
            if admission is not None and (refusal := admission.admit(request.path, request.headers)) is not None:
                machine.answer(number, refusal.response())
                number += 1
                continue
            response = begin(self._handler, request, HttpResponse.of_failure, request.method, request.path)
            if isinstance(response, Waiting):
                if admission is not None:
                    admission.hold()
                self._waiting[number] = request
                response.then(partial(self._done, number, request))
            else:
                self._answer(number, request, response)
            number += 1

    def eof_received(self) -> bool:
        """Answer the requests received, since the client may still read; over TLS it cannot."""
        self.serve()
        self.flush()
        self._has_ended = True
        return self._end.outlives_client and (self._machine.in_flight > 0 or self._machine.has_more)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        self._end.transport, self._unread = None, b""
        for request in self._waiting.values():
            request.is_abandoned = True
        self._registry.remove(self)

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._pause()

    def resume_writing(self) -> None:
        self._is_blocked = False
        self.flush()

    @property
    def held(self) -> int:
        return len(self._unread) + self._machine.held + self._end.unsent

    def enforce_timeouts(self, now: float) -> None:
        end, machine, limits = self._end, self._machine, self._registry.limits
        if end.enforce_timeouts(now, limits, is_blocked=self._is_blocked):
            return
        phase = machine.phase
        waited = end.watch.seconds_in((phase, machine.received, machine.answered), now)
        if phase is Phase.BUSY or self._unread:
            return
        patience = {Phase.HEADERS: limits.header_time, Phase.BODY: limits.body_time}.get(phase, limits.idle_time)
        if phase is Phase.OVER or waited > patience:
            machine.expire()
            self.flush()

    def drain(self) -> None:
        self._machine.drain()

    def finish_draining(self) -> None:
        end = self._end
        if end.transport is not None and not self._unread and not end.has_unread:
            self._machine.finish_draining()
            self.flush()

    def abort(self) -> None:
        self._end.abort()

    def flush(self) -> None:
        end, machine = self._end, self._machine
        transport = end.transport
        if transport is None or end.is_closing:
            return
        data = machine.outgoing()
        if data:
            transport.write(data)
        if machine.can_read_on() and not end.is_paused and not self._has_ended:
            return
        if machine.is_over or (self._has_ended and not machine.in_flight and not machine.has_more):
            if end.close(is_sending=not self._has_ended and (machine.is_refused or end.has_unread)):
                end.resume()
        elif self._is_blocked or machine.is_full:
            end.pause()
        elif machine.has_more:  # others are served in between
            end.pause()
            self._registry.loop.call_soon(self._go_on)
        else:
            end.resume()

    def _answer(self, number: int, request: HttpRequest, response: HttpResponse) -> None:
        try:
            self._machine.answer(number, response)
        except Exception as error:  # noqa: BLE001  a response that cannot be sent is a failure of the handler
            self._machine.answer(number, HttpResponse.of_failure(error, request.method, request.path))

    def _done(self, number: int, request: HttpRequest, response: HttpResponse) -> None:
        self._waiting.pop(number, None)
        if self._admission is not None:
            self._admission.release()
        if self._end.transport is not None:
            self._answer(number, request, response)
            self._registry.flush_soon(self)

    def _pause(self) -> None:
        """Pause reading, except while the connection closes."""
        if not self._end.is_closing:
            self._end.pause()

    def _go_on(self) -> None:
        if self._end.transport is not None:
            self.serve()
            self.flush()
