"""HTTP/2 connections: a service sees to their streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias, cast

from headgate.server.wire.http2.connection import Connection
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.link import Link, Service
from headgate.server.wire.transports.house import House, Stopwatch, peer_of
from headgate.server.wire.transports.socket_end import SocketEnd

_log = logging.getLogger(__name__)


_TURN = 16_384
"""Bytes that are looked at before other connections get their turn: some hundred requests, or a few milliseconds."""
Serve: TypeAlias = Callable[[Link], Service]
"""Makes the service of a connection."""


class Http2(asyncio.Protocol):
    """A connection. All that comes of some bytes is written at once.

    A client that sends faster than we answer would have the loop for itself: its transport reads, without a pause,
    whatever has arrived. So of many bytes a part is looked at, reading pauses, and the rest waits for its turn.
    """

    __slots__ = (
        "_end",
        "_events",
        "_flushing",
        "_has_ended",
        "_headers",
        "_house",
        "_machine",
        "_serve",
        "_service",
        "_unread",
        "is_paused",
    )

    def __init__(self, house: House, serve: Serve, limits: WireLimits | None = None) -> None:
        self._house, self._serve = house, serve
        self._machine = Connection(limits or house.limits)
        self._service: Service
        self._end = SocketEnd()
        self._flushing = False
        self._has_ended = False
        """The client sends no more, and may still read."""
        self._unread = b""
        """Waits for its turn."""
        self._events = 0
        self._headers = Stopwatch()
        self.is_paused = False
        """The client does not take what was written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by inheritance
        house = self._house
        house.guests.add(self)
        peer = peer_of(transport)
        self._end.transport = transport
        admission = None if house.admit is None else house.admit(peer)
        self._service = self._serve(Link(self._machine, peer, house.limits, admission, self))
        transport.set_write_buffer_limits(high=house.limits.outgoing_bytes)
        if house.is_draining:
            self._machine.drain()
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._unread:  # it was on its way when reading paused
            self._unread += data
            return
        if len(data) > _TURN:
            self._unread, data = data[_TURN:], data[:_TURN]
            self._end.hold()
            self._house.loop.call_soon(self._next_turn)
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        events = self._machine.receive(data, self._house.loop.time())
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

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the other end is gone, for whatever reason
        self._end.transport, self._unread = None, b""
        self._house.leave(self)
        self._service.lose()
        del self._service  # it knows us as well: without this, both would wait for the collector of garbage
        if self._machine.fault:
            _log.debug("An HTTP/2 connection ended: %s", self._machine.fault)

    def pause_writing(self) -> None:
        self.is_paused = True
        self._end.hold()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._unread:
            self._house.loop.call_soon(self._next_turn)
        else:
            self._end.let_go()
        self._service.resume()

    def flush_soon(self) -> None:
        """Write what the machine has to send, with whatever else comes up in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._house.loop.call_soon(self._flush_now)

    @property
    def held(self) -> int:
        return len(self._unread) + self._machine.held + self._end.unsent

    def look(self, now: float) -> None:
        """End what takes too long."""
        limits, machine, end = self._house.limits, self._machine, self._end
        if end.look(now, limits, is_paused=self.is_paused):
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
        self._machine.drain()
        self._flush()

    def finish_draining(self) -> None:
        end = self._end
        if end.transport is not None and not self._unread and not end.has_unread:
            self._machine.finish_draining()
            self._service.leave()
            self._flush()

    def abort(self) -> None:
        self._end.abort()

    def _next_turn(self) -> None:
        """Look at more of what waits, unless the client does not take what was written."""
        if self.is_paused or not self._unread:
            return
        data, self._unread = self._unread[:_TURN], self._unread[_TURN:]
        try:
            self._receive(data)
        except Exception:  # noqa: BLE001  as a transport does when it calls
            _log.exception("A connection failed, and is closed")
            self.abort()
            return
        if self._unread:
            self._house.loop.call_soon(self._next_turn)
        elif not self.is_paused:
            self._end.let_go()

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        end, machine = self._end, self._machine
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
        self._machine.finish_draining()
        self._flush()
        if not self._end.is_closing:
            self._close()

    def _close(self) -> None:
        """Close; if reading is held, `_next_turn` lets go."""
        end = self._end
        end.close(is_sending=not self.is_paused and (self._machine.fault != "" or end.has_unread))
