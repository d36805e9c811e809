"""The server's end of a connection's socket, for any protocol: the peer, flow control, and closing.

A new connection is a `FirstBytes` until its protocol is known.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from headgate.server.wire.http1.connection import encode_response
from headgate.server.wire.http2.frames import PREFACE
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import HttpResponse, Peer
from headgate.server.wire.registry import ConnectionRegistry, Stopwatch

_LINGER = 2.0
"""Seconds for a client to read the last bytes and close, while it may still be sending."""
_DISTINCTIVE = 4
"""Bytes of the HTTP/2 preface that begin no HTTP/1 request."""


class SocketEnd:
    """What a connection does with its transport; without a transport, nothing."""

    __slots__ = ("is_closing", "is_paused", "transport", "watch")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """Set from when the connection is made until it is lost."""
        self.is_closing = False
        """Everything is written, and further input is ignored."""
        self.is_paused = False
        """Reading is paused."""
        self.watch = Stopwatch()
        """How long the connection has been in its state."""

    def attach(self, transport: asyncio.BaseTransport, limits: WireLimits) -> Peer:
        """Take the transport of a new connection; returns its peer."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        self.transport.set_write_buffer_limits(high=limits.outgoing_bytes)
        address = transport.get_extra_info("peername")
        certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
        names = tuple([f"{kind}:{name}" for kind, name in certificate.get("subjectAltName", ())])
        return Peer(address[0] if isinstance(address, tuple) else None, names)

    @property
    def unsent(self) -> int:
        """Bytes written that the client has not read."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that are not read yet."""
        if self.transport is None:
            return False
        try:
            unread = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        except (AttributeError, OSError, ValueError):  # it is closed already
            return False
        return bool(struct.unpack("i", unread)[0])

    @property
    def outlives_client(self) -> bool:
        """Whether a client that sends no more can still be answered; over TLS it cannot."""
        transport = self.transport
        return transport is not None and not self.is_closing and transport.get_extra_info("ssl_object") is None

    def pause(self) -> None:
        if not self.is_paused and self.transport is not None and not self.transport.is_closing():
            self.is_paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self.transport is not None and not self.transport.is_closing():
            self.is_paused = False
            self.transport.resume_reading()

    def enforce_timeouts(self, now: float, limits: WireLimits, *, is_blocked: bool) -> bool:
        """Abort if the client is too slow to close or to read; returns whether one of these is awaited."""
        if self.is_closing:
            state, longest = "closing", limits.write_time if self.unsent else min(_LINGER, limits.write_time)
        elif is_blocked:
            state, longest = "blocked", limits.write_time
        else:
            return False
        if self.watch.seconds_in(state, now) > longest:
            self.abort()
        return True

    def close(self, *, is_sending: bool) -> bool:
        """Close so that the last bytes arrive: closing while the client may still be sending would discard them.

        Returns whether the client is to close, and its input must be read until then.
        """
        transport = self.transport
        if transport is None:
            return False
        self.is_closing = True
        if is_sending and transport.can_write_eof():
            with suppress(OSError):  # the client has left already
                transport.write_eof()
            return True
        transport.close()
        return False

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class FirstBytes(asyncio.Protocol):
    """A connection of unknown protocol: ALPN or the first bytes decide, and the protocol takes over."""

    __slots__ = ("_data", "_end", "_http1", "_http2", "_registry")
    held = 0

    def __init__(
        self, registry: ConnectionRegistry, http1: Callable[[], asyncio.Protocol], http2: Callable[[], asyncio.Protocol]
    ) -> None:
        self._registry, self._http1, self._http2 = registry, http1, http2
        self._data, self._end = b"", SocketEnd()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._end.transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        tls = transport.get_extra_info("ssl_object")
        if not self._registry.add(self):
            if tls is not None:  # a proper close would take time
                transport.abort()
                return
            refusal = HttpResponse.of_problem(503, "There are too many connections.")
            transport.write(encode_response(refusal, self._registry.date, closes=True))
            transport.close()
        elif tls is not None and tls.selected_alpn_protocol() == "h2":
            self._hand_over(self._http2, b"")

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data[:_DISTINCTIVE] == PREFACE[:_DISTINCTIVE]:
            self._hand_over(self._http2, self._data)
        elif not PREFACE.startswith(self._data):
            self._hand_over(self._http1, self._data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  the reason does not matter
        self._registry.remove(self)
        self._end.transport = None

    def enforce_timeouts(self, now: float) -> None:
        limits = self._registry.limits
        if self._end.watch.seconds_in(bool(self._data), now) > (limits.header_time if self._data else limits.idle_time):
            self.abort()

    def drain(self) -> None:
        """Wait for `finish_draining`: a request may be in transit."""

    def finish_draining(self) -> None:
        transport = self._end.transport
        if transport is not None and not self._data and not self._end.has_unread:
            transport.close()

    def abort(self) -> None:
        self._end.abort()

    def _hand_over(self, successor: Callable[[], asyncio.Protocol], data: bytes) -> None:
        transport = self._end.transport
        if transport is None or transport.is_closing():
            return
        self._registry.remove(self)
        protocol = successor()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
