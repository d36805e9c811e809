"""HTTP/2 connections on asyncio transports; a service handles their streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias

from headgate.server.wire.admission import Admission
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.streams import Event
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import NOBODY, Peer
from headgate.server.wire.registry import ConnectionRegistry, Stopwatch
from headgate.server.wire.socket_end import SocketEnd

_log = logging.getLogger(__name__)

_TURN = 16_384
"""Bytes processed before other connections get their turn: some hundred requests, or a few milliseconds."""


class Http2Service(Protocol):
    """The service on a connection, HTTP requests or gRPC calls. It sends through `streams`."""

    @property
    def in_flight(self) -> int:
        """The number of requests that handlers are processing."""

    def handle(self, events: list[Event]) -> None: ...

    def enforce_timeouts(self, now: float) -> None:
        """End requests that take too long to arrive."""

    def resume(self) -> None:
        """Continue to send: the client reads again."""

    def leave(self) -> None:
        """End calls that may never end, once all others have their response."""

    def lose(self) -> None:
        """Abandon everything: the connection is lost."""


class Http2Protocol(asyncio.Protocol):
    """A connection. Responses to the bytes of one read are written at once, late ones in batches.

    A client that sends faster than we answer would monopolize the loop, since its transport reads all that has arrived
    without a pause. So a part of many bytes is processed, reading pauses, and the rest waits for its turn. Its limits
    are the registry's, unless others are given.
    """

    def __init__(self, registry: ConnectionRegistry, serve: Serve, limits: WireLimits | None = None) -> None:
        self._registry, self._serve = registry, serve
        self._service: Http2Service
        self._end = SocketEnd()
        self._has_ended = False
        """Whether the client sends no more; it may still read."""
        self._unread = b""
        """Bytes that have arrived and wait for their turn."""
        self._is_due = False
        """Whether it is served and flushed in this turn of the loop, or the next."""
        self._events = 0
        self._headers = Stopwatch()
        self.limits = limits or registry.limits
        self._machine = Http2Connection(self.limits)
        self.streams = self._machine.streams
        self.peer: Peer = NOBODY
        self.admission: Admission | None = None
        self.is_blocked = False
        """Whether the client does not read what was written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        registry = self._registry
        registry.connections.add(self)
        self.peer = self._end.attach(transport, registry.limits)
        if registry.admit is not None:
            self.admission = registry.admit(self.peer)
        self._service = self._serve(self)
        if registry.is_draining:
            self._machine.drain()
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if self._unread:  # it arrived before reading paused
            self._unread += data
            return
        self._unread = data
        if len(data) > _TURN:
            self._end.pause()
        self.serve()
        self.flush()

    def flush_soon(self) -> None:
        """Flush together with other connections in this turn of the loop."""
        if not self._is_due:
            self._is_due = True
            self._registry.serve_soon(self)

    def serve(self) -> None:
        """Process what has arrived, unless the client does not read."""
        self._is_due = False
        if not self._unread or self.is_blocked:
            return
        data, self._unread = self._unread[:_TURN], self._unread[_TURN:]
        events = self._machine.receive(data, self._registry.loop.time())
        if events:
            self._events += len(events)
            self._service.handle(events)

    def flush(self) -> None:
        """Send, and then process more input, or close."""
        end, machine = self._end, self._machine
        transport = end.transport
        if transport is None:
            return
        if not end.is_closing:
            data = self.streams.outgoing()
            if data:
                transport.write(data)
            if machine.is_over:
                self._close()
            elif self._has_ended and not self._unread:
                self._service.leave()
                if not self._service.in_flight:
                    self._close()
        if not self.is_blocked:
            if self._unread:
                self.flush_soon()
            elif end.is_paused:
                end.resume()

    def eof_received(self) -> bool:
        """Finish the requests in progress, since the client may still read; over TLS it cannot.

        Streams end: a client that has left looks the same, and nothing else would show it while they are silent.
        """
        self._has_ended = True
        self.serve()
        self.flush()
        return self._end.outlives_client and (self._service.in_flight > 0 or self._unread != b"")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        self._end.transport, self._unread = None, b""
        self._registry.remove(self)
        self._service.lose()
        del self._service  # breaks a reference cycle, which would wait for the garbage collector
        if self._machine.fault:
            _log.debug("an HTTP/2 connection ended: %s", self._machine.fault)

    def pause_writing(self) -> None:
        self.is_blocked = True
        self._end.pause()

    def resume_writing(self) -> None:
        self.is_blocked = False
        self.flush_soon()
        self._service.resume()

    @property
    def held(self) -> int:
        return len(self._unread) + self._machine.held + self._end.unsent

    def enforce_timeouts(self, now: float) -> None:
        limits, end = self._registry.limits, self._end
        machine, streams = self._machine, self.streams
        if end.enforce_timeouts(now, limits, is_blocked=self.is_blocked) or self._unread:
            return
        begun = self._headers.seconds_in((machine.awaits_headers, self._events), now)
        if machine.awaits_headers and begun > limits.header_time:
            self._give_up()
            return
        if not streams.open:
            state: tuple[object, ...] = ("idle", self._events)
            longest = limits.idle_time
        else:
            self._service.enforce_timeouts(now)
            state, longest = ("waiting", streams.waiting, streams.resumed), limits.write_time
        if end.watch.seconds_in(state, now) > longest and (not streams.open or streams.waiting):
            self._give_up()

    def drain(self) -> None:
        self._machine.drain()
        self.flush()

    def finish_draining(self) -> None:
        end = self._end
        if end.transport is not None and not self._unread and not end.has_unread:
            self._machine.finish_draining()
            self._service.leave()
            self.flush()

    def abort(self) -> None:
        self._end.abort()

    def _give_up(self) -> None:
        self._machine.finish_draining()
        self.flush()
        if not self._end.is_closing:
            self._close()

    def _close(self) -> None:
        end = self._end
        end.close(is_sending=not self.is_blocked and (self._machine.fault != "" or end.has_unread))


Serve: TypeAlias = Callable[[Http2Protocol], Http2Service]
"""Returns the service of a connection."""
