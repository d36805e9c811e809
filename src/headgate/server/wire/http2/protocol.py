"""HTTP/2 connections on the loop's transports: a service sees to their streams."""

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
"""Bytes that are looked at before other connections get their turn: some hundred requests, or a few milliseconds."""


class Http2Service(Protocol):
    """What is served on a connection: HTTP requests, or gRPC calls. What it sends is in the machine."""

    @property
    def in_flight(self) -> int:
        """How many requests are in the hands of handlers."""
        ...

    def handle(self, events: list[Event]) -> None:
        """Do what events ask for."""
        ...

    def look(self, now: float) -> None:
        """End requests that take too long to arrive."""
        ...

    def resume(self) -> None:
        """Note that the client takes what is written again."""
        ...

    def leave(self) -> None:
        """End what has no end of its own, if all else is answered."""
        ...

    def lose(self) -> None:
        """Give everything up: the connection is gone."""
        ...


class Http2Protocol(asyncio.Protocol):
    """A connection. Everything that comes of some bytes is written at once.

    A client that sends faster than we answer would have the loop for itself: its transport reads, without a pause,
    whatever has arrived. So of many bytes a part is looked at, reading pauses, and the rest waits for its turn.

    Args:
        registry: where it belongs.
        serve: makes the service of this connection.
        limits: of this connection, if they are not those of the registry.
    """

    __slots__ = (
        "_end",
        "_events",
        "_flushing",
        "_has_ended",
        "_headers",
        "_registry",
        "_serve",
        "_service",
        "_unread",
        "admission",
        "is_blocked",
        "limits",
        "machine",
        "peer",
    )

    def __init__(self, registry: ConnectionRegistry, serve: Serve, limits: WireLimits | None = None) -> None:
        self._registry, self._serve = registry, serve
        self._service: Http2Service
        self._end = SocketEnd()
        self._flushing = False
        self._has_ended = False
        """The client sends no more, and may still read."""
        self._unread = b""
        """Waits for its turn."""
        self._events = 0
        self._headers = Stopwatch()
        self.limits = limits or registry.limits
        self.machine = Http2Connection(self.limits)
        self.peer: Peer = NOBODY
        self.admission: Admission | None = None
        self.is_blocked = False
        """The client does not take what was written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        registry = self._registry
        registry.connections.add(self)
        self.peer = self._end.attach(transport, registry.limits)
        if registry.admit is not None:
            self.admission = registry.admit(self.peer)
        self._service = self._serve(self)
        if registry.is_draining:
            self.machine.drain()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._unread:  # it was on its way when reading paused
            self._unread += data
            return
        if len(data) > _TURN:
            self._unread, data = data[_TURN:], data[:_TURN]
            self._end.pause()
            self._registry.loop.call_soon(self._next_turn)
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        events = self.machine.receive(data, self._registry.loop.time())
        if events:
            self._events += len(events)
            self._service.handle(events)
        self._flush()

    def eof_received(self) -> bool:
        """Answer what was asked, for the client may still read; over TLS it cannot.

        Streams end: a client that is gone looks the same, and as long as they are silent nothing else would tell.
        """
        self._has_ended = True
        self._flush()
        return self._end.outlives_client and (self._service.in_flight > 0 or self._unread != b"")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        self._end.transport, self._unread = None, b""
        self._registry.remove(self)
        self._service.lose()
        del self._service  # it knows us as well: without this, both would wait for the garbage collector
        if self.machine.fault:
            _log.debug("An HTTP/2 connection ended: %s", self.machine.fault)

    def pause_writing(self) -> None:
        self.is_blocked = True
        self._end.pause()

    def resume_writing(self) -> None:
        self.is_blocked = False
        if self._unread:
            self._registry.loop.call_soon(self._next_turn)
        else:
            self._end.resume()
        self._service.resume()

    def flush_soon(self) -> None:
        """Write what the machine has to send, with whatever else comes up in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._registry.loop.call_soon(self._flush_now)

    @property
    def held(self) -> int:
        return len(self._unread) + self.machine.held + self._end.unsent

    def look(self, now: float) -> None:
        """End what takes too long."""
        limits, machine, end = self._registry.limits, self.machine, self._end
        if end.look(now, limits, is_blocked=self.is_blocked):
            return
        begun = self._headers.lasted((machine.awaits_headers, self._events), now)
        if machine.awaits_headers and begun > limits.header_time:
            self._give_up()
            return
        if machine.is_idle:
            state: tuple[object, ...] = ("idle", self._events)
            longest = limits.idle_time
        else:
            self._service.look(now)
            state, longest = ("waiting", machine.waiting_bytes, machine.resumed), limits.write_time
        if end.watch.lasted(state, now) > longest and (machine.is_idle or machine.waiting_bytes):
            self._give_up()

    def drain(self) -> None:
        self.machine.drain()
        self._flush()

    def finish_draining(self) -> None:
        end = self._end
        if end.transport is not None and not self._unread and not end.has_unread:
            self.machine.finish_draining()
            self._service.leave()
            self._flush()

    def abort(self) -> None:
        self._end.abort()

    def _next_turn(self) -> None:
        """Look at more of what waits, unless the client does not take what was written."""
        if self.is_blocked or not self._unread:
            return
        data, self._unread = self._unread[:_TURN], self._unread[_TURN:]
        try:
            self._receive(data)
        except Exception:  # noqa: BLE001  as a transport does when it calls
            _log.exception("A connection failed, and is closed")
            self.abort()
            return
        if self._unread:
            self._registry.loop.call_soon(self._next_turn)
        elif not self.is_blocked:
            self._end.resume()

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        end, machine = self._end, self.machine
        transport = end.transport
        if transport is None or end.is_closing:
            return
        data = machine.outgoing()
        if data:
            transport.write(data)
        if machine.is_over:
            self._close()
        elif self._has_ended and not self._unread:
            self._service.leave()
            if not self._service.in_flight:
                self._close()

    def _give_up(self) -> None:
        """Say good-bye, and close."""
        self.machine.finish_draining()
        self._flush()
        if not self._end.is_closing:
            self._close()

    def _close(self) -> None:
        """Close; if reading is paused, `_next_turn` resumes it."""
        end = self._end
        end.close(is_sending=not self.is_blocked and (self.machine.fault != "" or end.has_unread))


Serve: TypeAlias = Callable[[Http2Protocol], Http2Service]
"""Makes the service of a connection."""
