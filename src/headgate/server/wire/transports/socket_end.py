"""Our end of a connection's socket: when it is read from, and how it is closed."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from contextlib import suppress

from headgate.server.wire.limits import WireLimits
from headgate.server.wire.transports.house import Stopwatch

_LINGER = 2.0
"""Seconds for a client to read the last of what was sent and close, while it may still be sending."""


class SocketEnd:
    """What a connection does with its transport, whatever its protocol. Without a transport, nothing is done."""

    __slots__ = ("is_closing", "is_held", "transport", "watch")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """There is one from when the connection is made until it is lost."""
        self.is_closing = False
        """All is written, and what still arrives is of no interest."""
        self.is_held = False
        """Reading is paused."""
        self.watch = Stopwatch()
        """Tells for how long the connection has been as it is."""

    @property
    def unsent(self) -> int:
        """Bytes that were written, and that the client does not take."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    @property
    def has_unread(self) -> bool:
        """Whether bytes have arrived that were not read yet."""
        transport = self.transport
        return transport is not None and has_unread(transport)

    @property
    def outlives_client(self) -> bool:
        """Whether a client that sends no more can still be answered; over TLS it cannot."""
        transport = self.transport
        return transport is not None and not self.is_closing and transport.get_extra_info("ssl_object") is None

    def hold(self) -> None:
        """Read no more for now."""
        transport = self.transport
        if not self.is_held and transport is not None and not transport.is_closing():
            self.is_held = True
            transport.pause_reading()

    def let_go(self) -> None:
        """Read on."""
        transport = self.transport
        if self.is_held and transport is not None and not transport.is_closing():
            self.is_held = False
            transport.resume_reading()

    def look(self, now: float, limits: WireLimits, *, is_paused: bool) -> bool:
        """End it if the client takes too long to close, or to take what was written; false if it does neither."""
        if self.is_closing:
            longest = limits.write_time if self.unsent else min(_LINGER, limits.write_time)
            waited = self.watch.lasted("closing", now)
        elif is_paused:
            longest = limits.write_time
            waited = self.watch.lasted("paused", now)
        else:
            return False
        if waited > longest:
            self.abort()
        return True

    def close(self, *, is_sending: bool) -> bool:
        """Close so that the last bytes arrive: they are lost if the socket is closed while the client still sends.

        Args:
            is_sending: it does, as far as we know.

        Returns:
            Whether it is left to the client to close, and what it sends until then is still to be read.
        """
        transport = self.transport
        if transport is None:
            return False
        self.is_closing = True
        if is_sending and transport.can_write_eof():
            with suppress(OSError):  # the client is gone already, and a refusal is no reason to log that
                transport.write_eof()
            return True
        transport.close()
        return False

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether bytes have arrived at the socket that were not read yet."""
    try:
        unread = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
    except (AttributeError, OSError, ValueError):  # it is closed already
        return False
    return bool(struct.unpack("i", unread)[0])
