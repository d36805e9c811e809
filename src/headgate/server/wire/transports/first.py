"""A connection whose protocol is not known yet: ALPN says it, or the first bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from headgate.server.wire.http1.responses import encode
from headgate.server.wire.messages import HttpResponse
from headgate.server.wire.transports.house import House, Stopwatch
from headgate.server.wire.transports.socket_end import has_unread

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ENOUGH = 4
"""Bytes of the preface that no request of HTTP/1 begins with."""


class First(asyncio.Protocol):
    """Waits for enough bytes to know the protocol, and hands the connection over."""

    __slots__ = ("_data", "_house", "_http1", "_http2", "_transport", "_watch")

    def __init__(
        self, house: House, http1: Callable[[], asyncio.Protocol], http2: Callable[[], asyncio.Protocol]
    ) -> None:
        self._house, self._http1, self._http2 = house, http1, http2
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._watch = Stopwatch()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are none by inheritance
        self._transport = transport
        tls = transport.get_extra_info("ssl_object")
        if not self._house.enter(self):
            if tls is not None:  # to close it properly would take time
                transport.abort()
                return
            transport.write(
                encode(HttpResponse.of_problem(503, "There are too many connections."), self._house.date, closes=True)
            )
            transport.close()
            return
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            self._hand_over(self._http2, b"")

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data[:_ENOUGH] == _PREFACE[:_ENOUGH]:
            self._hand_over(self._http2, self._data)
        elif not _PREFACE.startswith(self._data):
            self._hand_over(self._http1, self._data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the other end is gone, for whatever reason
        self._house.leave(self)
        self._transport = None

    @property
    def held(self) -> int:
        return 0

    def look(self, now: float) -> None:
        limits = self._house.limits
        waited = self._watch.lasted(bool(self._data), now)
        if waited > (limits.header_time if self._data else limits.idle_time):
            self.abort()

    def drain(self) -> None:
        """Wait for `finish_draining`: a request may be on its way."""

    def finish_draining(self) -> None:
        if self._transport is not None and not self._data and not has_unread(self._transport):
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, successor: Callable[[], asyncio.Protocol], data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._house.leave(self)
        protocol = successor()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
