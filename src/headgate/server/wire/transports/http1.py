"""HTTP/1.1 connections: a handler answers their requests, most of them before the next bytes are read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from headgate.server.wire import eager
from headgate.server.wire.admission import Admission
from headgate.server.wire.http1.connection import Connection, Phase
from headgate.server.wire.messages import Handler, HttpRequest, HttpResponse
from headgate.server.wire.transports.house import House, peer_of
from headgate.server.wire.transports.socket_end import SocketEnd

_MUCH = 65_536
"""Bytes after which reading pauses until others had their turn."""


class Http1(asyncio.Protocol):
    """A connection. What arrives, and what answers are ready, is dealt with in turns; see `House`.

    Args:
        house: where it belongs.
        handler: answers requests.
        is_single: close after the first response.
        statuses: of requests that are not understood, by path; see `Connection`.
    """

    __slots__ = (
        "_admission",
        "_end",
        "_handler",
        "_has_ended",
        "_house",
        "_is_paused",
        "_is_single",
        "_machine",
        "_statuses",
        "_unread",
        "_waiting",
    )

    def __init__(
        self,
        house: House,
        handler: Handler,
        *,
        is_single: bool = False,
        statuses: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        self._house, self._handler, self._is_single, self._statuses = house, handler, is_single, statuses
        self._machine: Connection
        self._end = SocketEnd()
        self._admission: Admission | None = None
        self._waiting = 0
        """Requests that are in the hands of the handler."""
        self._is_paused = False
        """The client does not take what we write."""
        self._has_ended = False
        """The client sends no more, and may still read."""
        self._unread = b""
        """What has arrived in this turn."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by inheritance
        house = self._house
        house.guests.add(self)
        peer = peer_of(transport)
        self._end.transport = transport
        self._machine = Connection(house.limits, house.heads, house.date, peer, self._statuses)
        transport.set_write_buffer_limits(high=house.limits.outgoing_bytes)
        if house.admit is not None:
            self._admission = house.admit(peer)
        if house.is_draining or self._is_single:
            self._machine.drain()

    def data_received(self, data: bytes) -> None:
        if not self._unread:
            self._unread = data
            self._house.await_turn(self)
            if len(data) > _MUCH:
                self._hold()
        else:  # it is much
            self._deal_with(self._unread + data)
            self.flush()

    def serve(self) -> None:
        """Deal with what has arrived."""
        if self._unread:
            self._deal_with(self._unread)

    def _deal_with(self, data: bytes) -> None:
        self._unread = b""
        machine, admission = self._machine, self._admission
        number = machine.received
        for request in machine.receive(data):
            if admission is not None and (refusal := admission.admit(request.path, request.headers)) is not None:
                machine.answer(number, refusal.response())
                number += 1
                continue
            try:
                coroutine = self._handler(request)
                awaited = coroutine.send(None)
            except StopIteration as stop:
                self._answer(number, request, stop.value)
                if admission is not None:
                    admission.release()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  whatever it is, it is told
                self._answer(number, request, HttpResponse.of_failure(error, request.method, request.path))
                if admission is not None:
                    admission.release()
            else:
                self._wait(number, request, coroutine, awaited)
            number += 1

    def eof_received(self) -> bool:
        """Answer what was asked, for the client may still read; over TLS it cannot."""
        self.serve()
        self.flush()
        self._has_ended = True
        return self._end.outlives_client and (self._machine.in_flight > 0 or self._machine.has_more)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the other end is gone, for whatever reason
        self._end.transport, self._unread = None, b""
        self._house.leave(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._hold()

    def resume_writing(self) -> None:
        self._is_paused = False
        self.flush()

    @property
    def held(self) -> int:
        return len(self._unread) + self._machine.held + self._end.unsent

    def look(self, now: float) -> None:
        """End what takes too long."""
        end, machine = self._end, self._machine
        if end.look(now, self._house.limits, is_paused=self._is_paused):
            return
        phase = machine.phase
        waited = end.watch.lasted((phase, machine.received, machine.answered), now)
        if phase is Phase.BUSY or self._unread:
            return
        if phase is Phase.OVER or waited > _patience(phase, self._house):
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

    def _answer(self, number: int, request: HttpRequest, response: HttpResponse) -> None:
        try:
            self._machine.answer(number, response)
        except Exception as error:  # noqa: BLE001  a response that cannot be sent is a failure of the handler
            self._machine.answer(number, HttpResponse.of_failure(error, request.method, request.path))

    def _wait(
        self, number: int, request: HttpRequest, coroutine: Coroutine[Any, Any, HttpResponse], awaited: Any
    ) -> None:
        self._waiting += 1
        eager.go_on(coroutine, awaited, partial(self._done, number, request), partial(self._failed, number, request))

    def _done(self, number: int, request: HttpRequest, response: HttpResponse) -> None:
        self._waiting -= 1
        admission = self._admission
        if admission is not None:
            admission.release()
        if self._end.transport is not None:
            self._answer(number, request, response)
            self._house.await_turn(self)

    def _failed(self, number: int, request: HttpRequest, error: BaseException) -> None:
        self._done(number, request, HttpResponse.of_failure(error, request.method, request.path))

    def flush(self) -> None:
        """Send what is to be sent, and see what is next: more requests, a pause, or the end."""
        end, machine = self._end, self._machine
        transport = end.transport
        if transport is None or end.is_closing:
            return
        data = machine.outgoing()
        if data:
            transport.write(data)
        if machine.is_calm and not end.is_held and not self._has_ended:
            return
        if machine.is_over or (self._has_ended and not machine.in_flight and not machine.has_more):
            self._close()
        elif self._is_paused or machine.is_full:
            end.hold()
        elif machine.has_more:  # others are served in between
            end.hold()
            self._house.loop.call_soon(self._go_on)
        else:
            end.let_go()

    def _hold(self) -> None:
        """Read no more for now; while we close, we read on."""
        if not self._end.is_closing:
            self._end.hold()

    def _go_on(self) -> None:
        if self._end.transport is not None and self._machine.has_more and not self._is_paused:
            self._deal_with(self._unread)
            self.flush()

    def _close(self) -> None:
        end = self._end
        if end.close(is_sending=not self._has_ended and (self._machine.is_refused or end.has_unread)):
            end.let_go()


def _patience(phase: Phase, house: House) -> float:
    limits = house.limits
    if phase is Phase.HEADERS:
        return limits.header_time
    return limits.body_time if phase is Phase.BODY else limits.idle_time
