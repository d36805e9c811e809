"""Bodies on their way in (RFC 9113 sections 5.2 and 6.1): what a client may send before it has to wait.

The connection's window is given back as soon as half of it is used, so one stream cannot stop another. A stream's
window is given back likewise, unless the layer above withholds it until it has dealt with what came. What all streams
together hold, received and not dealt with, is bounded apart from the windows: the stream that goes beyond is reset.
"""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.events import Event, Received
from headgate.server.wire.http2.faults import ConnectionFault, protocol_error
from headgate.server.wire.http2.frames import END_STREAM, PADDED, ErrorCode
from headgate.server.wire.http2.state import State
from headgate.server.wire.http2.streams import Stream

STREAM_WINDOW: Final = 262_144
CONNECTION_WINDOW: Final = 1_048_576
HELD: Final = 8 * CONNECTION_WINDOW
"""Bytes of unfinished bodies, and of data that is not acknowledged, on one connection."""
LOW: Final = CONNECTION_WINDOW // 2
_STREAM_LOW: Final = STREAM_WINDOW // 2
_USEFUL_BYTES: Final = 1024


class Inflow:
    """The DATA that comes in on one connection."""

    __slots__ = ("_guard", "_sender", "_state", "_streams", "credit")

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams, self._sender, self._guard = state.streams, state.sender, state.guard
        self.credit = CONNECTION_WINDOW
        """Bytes of DATA that the client may send on the connection."""
        self._sender.control(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    def replenish(self) -> None:
        """Give back the connection's window."""
        if self.credit < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._sender.control(frames.window_update(0, CONNECTION_WINDOW - self.credit))
        self.credit = CONNECTION_WINDOW

    def read(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read a DATA frame; may raise ConnectionFault."""
        self.credit -= len(payload)
        if self.credit < LOW:
            self.replenish()
        stream = self._streams.open.get(number)
        if stream is None:
            self._overlook(number)
            return
        if stream.ended:
            self._state.fail(number, ErrorCode.STREAM_CLOSED, events)
            return
        stream.credit -= len(payload)
        if stream.credit < 0:
            self._state.fail(number, ErrorCode.FLOW_CONTROL_ERROR, events)
            return
        data = unpadded(payload) if flags & PADDED else payload
        self._take(number, stream, data, events, ended=flags & END_STREAM == END_STREAM)

    def _overlook(self, number: int) -> None:
        """Read DATA of a stream that is not open: that we reset it, the client may not know yet."""
        if number > self._streams.last or number & 1 == 0:
            raise protocol_error("DATA of a stream that never was")
        if not self._streams.was_dropped(number):
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "DATA of a stream that is over")
        self._guard.saw_control()

    def _take(self, number: int, stream: Stream, data: bytes, events: list[Event], *, ended: bool) -> None:
        size = len(data)
        if stream.missing >= 0:
            stream.missing -= size
            if stream.missing < 0 or (ended and stream.missing):
                self._state.fail(number, ErrorCode.PROTOCOL_ERROR, events)
                return
        self._streams.useful += size // _USEFUL_BYTES
        if ended:
            self.end(stream)
        elif not size:
            self._guard.saw_control()
        if stream.withholds or not ended:
            stream.held += size
            self._streams.held += size
            if self._streams.held > HELD:
                self._state.fail(number, ErrorCode.ENHANCE_YOUR_CALM, events)
                return
            self._grant(number, stream)
        if size or ended:
            events.append(Received(number, data, ended))

    def end(self, stream: Stream) -> None:
        """Note that a request is complete: it is dealt with at once, unless it is acknowledged bit by bit."""
        stream.ended = True
        if stream.held and not stream.withholds:
            self._streams.held -= stream.held
            stream.held = 0

    def acknowledge(self, number: int, size: int) -> None:
        """Note that so many bytes of a stream are dealt with."""
        stream = self._streams.open.get(number)
        if stream is not None:
            size = min(size, stream.held)
            stream.held -= size
            self._streams.held -= size
            self._grant(number, stream)

    def _grant(self, number: int, stream: Stream) -> None:
        """Give back a stream's window, when half of it can be."""
        more = STREAM_WINDOW - stream.credit - (stream.held if stream.withholds else 0)
        if more >= _STREAM_LOW and not stream.ended:
            stream.credit += more
            self._sender.control(frames.window_update(number, more))


def unpadded(payload: bytes) -> bytes:
    """Return what a padded DATA or HEADERS frame holds."""
    if not payload or payload[0] >= len(payload):
        raise protocol_error("more padding than there is of the frame")
    return payload[1 : len(payload) - payload[0]]
