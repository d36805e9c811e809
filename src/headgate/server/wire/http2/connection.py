"""An HTTP/2 connection from the server's side (RFC 9113), without I/O: bytes in, events out, and bytes to be written.

The laws:

* `receive` takes any bytes, however they are split, and never raises for what a client does. A mistake on a stream
  resets that stream; a mistake on the connection ends it, with the reason in GOAWAY and in `fault`.
* Sending on a stream that is gone is no mistake: the client may have reset it a moment ago. It does nothing.
* Time comes in with the bytes. Deadlines are the transport's.
* Everything that a client could make grow is bounded, by `WireLimits` or by the constants of these modules.

Nearly all frames are HEADERS of a block that was seen before, or one DATA frame that is a whole body. These two are
read in the loop itself; all others, and these when anything about them is unusual, go to the modules beside this one.
"""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.control import Control
from headgate.server.wire.http2.events import Aborted, Event, Opened, Received
from headgate.server.wire.http2.faults import ConnectionFault, protocol_error, size_error
from headgate.server.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEADER_SIZE,
    HEADERS,
    LARGEST_ID,
    PADDED,
    PREFACE,
    SETTINGS,
    WITH_PRIORITY,
    ErrorCode,
    Setting,
    read_header,
)
from headgate.server.wire.http2.inflow import LOW, STREAM_WINDOW, Inflow
from headgate.server.wire.http2.requests import Requests
from headgate.server.wire.http2.state import State
from headgate.server.wire.http2.streams import Stream
from headgate.server.wire.limits import DEFAULT, WireLimits

_LARGEST: Final = FRAME_SIZE << 8 | 0xFF
_UNUSUAL_HEADERS: Final = PADDED | WITH_PRIORITY | END_HEADERS
_UNUSUAL_DATA: Final = PADDED | END_STREAM


class Connection:
    """One connection; its SETTINGS are the first of what is `outgoing`.

    Args:
        limits: what the client may ask for.
    """

    __slots__ = (
        "_buffer",
        "_control",
        "_greeted",
        "_guard",
        "_inflow",
        "_leaving",
        "_over",
        "_preface",
        "_requests",
        "_sender",
        "_state",
        "_streams",
        "fault",
        "outgoing",
        "respond",
        "send_data",
        "send_headers",
    )

    def __init__(self, limits: WireLimits = DEFAULT) -> None:
        state = self._state = State(limits)
        self._streams, self._guard = state.streams, state.guard
        sender = self._sender = state.sender
        sender.control(
            frames.settings(
                [
                    (Setting.MAX_CONCURRENT_STREAMS, limits.streams),
                    (Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
                    (Setting.MAX_HEADER_LIST_SIZE, limits.header_bytes),
                ]
            )
        )
        self._inflow = Inflow(state)
        self._requests = Requests(state, self._inflow)
        self._control = Control(state)
        self._buffer = b""
        self._preface = PREFACE
        self._greeted = False
        self._leaving = self._over = False
        self.fault = ""
        """What the client did wrong that ended the connection, for logs; empty if nothing."""
        self.outgoing = sender.outgoing
        """Take what is to be written now."""
        self.respond = sender.respond
        """Send a whole response: (stream, header block, body, block of trailers)."""
        self.send_headers = sender.send_headers
        """Send headers or trailers: (stream, header block, end=)."""
        self.send_data = sender.send_data
        """Send data, as soon as the client's windows let it through: (stream, data, end=)."""

    def receive(self, data: bytes, now: float) -> list[Event]:  # noqa: C901, PLR0912  the hot path, in one piece
        """Return what these bytes bring.

        Args:
            data: what was read.
            now: seconds of a monotonic clock.
        """
        events: list[Event] = []
        if self._over:
            return events
        self._guard.now = now
        if self._buffer:
            data = self._buffer + data
        position, end = 0, len(data)
        requests, inflow, streams = self._requests, self._inflow, self._streams
        is_open, known = streams.open, requests.heads.known
        try:
            if self._preface:
                position = self._begin(data)
            while position + HEADER_SIZE <= end:
                word, flags, number = read_header(data, position)
                if word > _LARGEST:
                    raise size_error(f"a frame of more than {FRAME_SIZE} bytes")
                start = position + HEADER_SIZE
                stop = start + (word >> 8)
                if stop > end:
                    break
                position = stop
                kind = word & 0xFF
                if kind == DATA and flags & _UNUSUAL_DATA == END_STREAM:
                    stream = is_open.get(number)
                    size = stop - start
                    if (
                        stream is not None
                        and not stream.held
                        and not stream.ended
                        and not stream.withholds  # so more than a frame is left of its window
                        and (stream.missing < 0 or stream.missing == size)
                        and not requests.number
                    ):
                        inflow.credit -= size
                        if inflow.credit < LOW:
                            inflow.replenish()
                        stream.ended = True
                        events.append(Received(number, data[start:stop], True))
                        continue
                elif (
                    kind == HEADERS
                    and flags & _UNUSUAL_HEADERS == END_HEADERS
                    and streams.last + 2 == number <= LARGEST_ID
                ):
                    head = known.get(data[start:stop])
                    if head is not None and len(is_open) < requests.room and not requests.number:
                        ended = flags & END_STREAM == END_STREAM
                        if not ended or head.content_length <= 0:
                            streams.last = number
                            is_open[number] = Stream(
                                self._sender.initial_window, STREAM_WINDOW, head.content_length, ended
                            )
                            events.append(Opened(number, head.headers, ended, head))
                            continue
                self._read(kind, flags, number & LARGEST_ID, data[start:stop], events)
        except ConnectionFault as fault:
            self._give_up(fault, events)
        else:
            self._buffer = data[position:] if position < end else b""
        return events

    def _begin(self, data: bytes) -> int:
        """Check what comes of the client's preface; return where it ends."""
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise protocol_error("this is not HTTP/2")
        self._preface = self._preface[size:]
        return size

    def _read(self, kind: int, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read a frame that the loop did not."""
        if not self._greeted:
            if kind != SETTINGS or flags & ACK:
                raise protocol_error("the first frame must be SETTINGS")
            self._greeted = True
        requests = self._requests
        if kind == CONTINUATION:
            requests.read_continuation(flags, number, payload, events)
        elif requests.number:
            raise protocol_error("a header block is interrupted")
        elif kind == HEADERS:
            requests.read_headers(flags, number, payload, events)
        elif kind == DATA:
            self._inflow.read(flags, number, payload, events)
        else:
            self._control.read(kind, flags, number, payload, events)

    def _give_up(self, fault: ConnectionFault, events: list[Event]) -> None:
        self._sender.control(frames.goaway(self._streams.last, fault.code, fault.text.encode()))
        self.fault = fault.text
        self._over, self._buffer = True, b""
        for number in list(self._streams.open):
            self._streams.close(number)
            events.append(Aborted(number))

    def reset(self, stream: int, code: ErrorCode) -> None:
        """Give a stream up."""
        if stream in self._streams.open:
            self._state.reset(stream, code)

    def withhold(self, stream: int) -> None:
        """Let a client send only as much on a stream as was `acknowledge`d; for bodies without a foreseeable end."""
        opened = self._streams.open.get(stream)
        if opened is not None:
            opened.withholds = True

    def acknowledge(self, stream: int, size: int) -> None:
        """Note that so many bytes of a stream that is withheld are dealt with."""
        self._inflow.acknowledge(stream, size)

    def drain(self) -> None:
        """Ask the client to open no more streams; those that are on their way are still served."""
        if not self._leaving and not self._over:
            self._sender.control(frames.goaway(LARGEST_ID, ErrorCode.NO_ERROR))

    def finish_draining(self) -> None:
        """Refuse all further streams; the connection is over with the last of those that are open."""
        if not self._leaving and not self._over:
            self._leaving, self._requests.room = True, 0
            self._sender.control(frames.goaway(self._streams.last, ErrorCode.NO_ERROR))

    @property
    def open_streams(self) -> int:
        """How many requests are incomplete, or not answered completely."""
        return len(self._streams.open)

    @property
    def waiting_bytes(self) -> int:
        """How much data waits for the client's windows."""
        return self._streams.waiting

    @property
    def resumed(self) -> int:
        """How often data that waited for a window could go on."""
        return self._sender.resumed

    @property
    def held(self) -> int:
        """How many bytes are kept: of requests that are incomplete, and of what waits for the client's windows."""
        return len(self._buffer) + self._streams.held + self._streams.waiting

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open."""
        return not self._streams.open

    @property
    def is_over(self) -> bool:
        """Whether the connection is to be closed, after `outgoing` is written."""
        return self._over or ((self._leaving or self._control.peer_leaves) and not self._streams.open)

    @property
    def awaits_headers(self) -> bool:
        """Whether the client has begun what it should complete soon: its preface, a frame, a header block."""
        return not self._greeted or self._requests.number != 0 or self._buffer != b""
