"""An HTTP/2 connection, server side (RFC 9113), without I/O: bytes in, events out, and bytes to be written.

The laws:

* `receive` takes any bytes, however they are split, and never raises for what a client does. A stream error resets
  that stream; a connection error ends the connection, with the reason in GOAWAY and in `fault`.
* Sending on a stream that is closed is no error, since the client may have just reset it. It does nothing.
* Time comes in with the bytes. Deadlines are the transport's.
* Everything that a client could make grow is bounded, by `WireLimits` or by the constants of these modules.

Nearly all requests are HEADERS with a known block, and one DATA frame with the whole body, often the next one. These
are read in the loop itself; every other frame goes to the method for its type.
"""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEADER_SIZE,
    HEADERS,
    LARGEST_ID,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    SETTINGS,
    WITH_PRIORITY,
    ConnectionFault,
    ErrorCode,
    Setting,
    protocol_error,
    read_header,
    size_error,
)
from headgate.server.wire.http2.heads import HeaderBlocks, Http2Head, Http2Heads, Malformed, check_trailers
from headgate.server.wire.http2.hpack import TABLE_SIZE, Undecodable, encode
from headgate.server.wire.http2.streams import (
    CONNECTION_WINDOW,
    LOW,
    STREAM_WINDOW,
    Aborted,
    Event,
    Http2Stream,
    Opened,
    Received,
    Streams,
)
from headgate.server.wire.limits import DEFAULT, WireLimits

_LARGEST: Final = FRAME_SIZE << 8 | 0xFF
_HEADERS_FLAGS: Final = PADDED | WITH_PRIORITY | END_HEADERS
_DATA_FLAGS: Final = PADDED | END_STREAM
_TOO_LARGE: Final = encode([(b":status", b"431"), (b"content-length", b"0")])
_TOO_LONG: Final = encode([(b":status", b"414"), (b"content-length", b"0")])
_NO_TUNNELS: Final = encode([(b":status", b"501"), (b"content-length", b"0")])
_ANY: Final = (0, (1 << 32) - 1, ErrorCode.NO_ERROR)
_RANGES: Final[dict[int, tuple[int, int, ErrorCode]]] = {
    Setting.ENABLE_PUSH: (0, 1, ErrorCode.PROTOCOL_ERROR),
    Setting.INITIAL_WINDOW_SIZE: (0, LARGEST_WINDOW, ErrorCode.FLOW_CONTROL_ERROR),
    Setting.MAX_FRAME_SIZE: (FRAME_SIZE, frames.LARGEST_FRAME_SIZE, ErrorCode.PROTOCOL_ERROR),
}
"""The range of each setting, and the error code of a value outside it."""


class Http2Connection:
    """One connection: `receive` reads what the client sends, and `streams` sends the responses."""

    def __init__(self, limits: WireLimits = DEFAULT) -> None:
        self._limits = limits
        self._heads, self._blocks = Http2Heads(limits), HeaderBlocks(limits)
        streams = self.streams = Streams(limits)
        """All open streams, and the bytes to be written."""
        self._abuse = streams.abuse
        self._room = limits.streams
        """How many streams may be open."""
        self._buffer = b""
        self._preface = PREFACE
        self._greeted = False
        """Whether the client's first SETTINGS have arrived."""
        self._leaving = self._over = self._peer_leaves = False
        self.fault = ""
        """The client's error that ended the connection, for logs; empty without one."""
        ours = {
            Setting.MAX_CONCURRENT_STREAMS: limits.streams,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_HEADER_LIST_SIZE: limits.header_bytes,
        }
        streams.send_control(frames.settings(ours.items()))
        streams.send_control(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    def receive(self, data: bytes, now: float) -> list[Event]:  # noqa: C901, PLR0912, PLR0915  the hot path, in one piece
        """Return the events in these bytes; `now` is in seconds of a monotonic clock."""
        events: list[Event] = []
        if self._over:
            return events
        self._abuse.now = now
        if self._buffer:
            data = self._buffer + data
        position, end = 0, len(data)
        streams, known = self.streams, self._heads.known
        is_open = streams.open
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
                if (
                    kind == HEADERS
                    and flags & _HEADERS_FLAGS == END_HEADERS
                    and streams.last + 2 == number <= LARGEST_ID
                    and (head := known.get(data[start:stop])) is not None
                    and len(is_open) < self._room
                    and not self._blocks.number
                ):
                    body, missing = None, head.content_length
                    if flags & END_STREAM:
                        body = b""
                    elif stop + HEADER_SIZE <= end and data[stop + 3] == DATA:
                        word, flags, following = read_header(data, stop)
                        begin = stop + HEADER_SIZE
                        size = word >> 8
                        if (
                            following == number
                            and flags & _DATA_FLAGS == END_STREAM
                            and size <= FRAME_SIZE
                            and begin + size <= end
                            and (missing < 0 or missing == size)
                        ):
                            position = begin + size
                            body = data[begin:position]
                            streams.credit -= size
                            if streams.credit < LOW:
                                streams.replenish()
                    if body is None or body or missing <= 0:
                        streams.last = number
                        is_open[number] = Http2Stream(streams.initial_window, STREAM_WINDOW, missing, body is not None)
                        events.append(Opened(number, head, body))
                        continue
                elif kind == DATA and flags & _DATA_FLAGS == END_STREAM:
                    stream = is_open.get(number)
                    size = stop - start
                    if (
                        stream is not None
                        and not stream.held
                        and not stream.ended
                        and not stream.withholds  # so its window has more than a frame left
                        and (stream.missing < 0 or stream.missing == size)
                        and not self._blocks.number
                    ):
                        streams.credit -= size
                        if streams.credit < LOW:
                            streams.replenish()
                        stream.ended = True
                        events.append(Received(number, data[start:stop], True))
                        continue
                self._read(kind, flags, number & LARGEST_ID, data[start:stop], events)
        except ConnectionFault as fault:
            self._give_up(fault, events)
        else:
            self._buffer = data[position:] if position < end else b""
        return events

    def drain(self) -> None:
        """Ask the client to open no more streams; those in transit are still served."""
        if not self._leaving and not self._over:
            self.streams.send_control(frames.goaway(LARGEST_ID, ErrorCode.NO_ERROR))

    def finish_draining(self) -> None:
        """Refuse further streams; the connection ends with the last open one."""
        if not self._leaving and not self._over:
            self._leaving, self._room = True, 0
            self.streams.send_control(frames.goaway(self.streams.last, ErrorCode.NO_ERROR))

    @property
    def held(self) -> int:
        """Buffered bytes of incomplete requests, and of data that waits for the client's windows."""
        return len(self._buffer) + self.streams.held + self.streams.waiting

    @property
    def is_over(self) -> bool:
        """Whether the connection is to be closed once the outgoing bytes are written."""
        return self._over or ((self._leaving or self._peer_leaves) and not self.streams.open)

    @property
    def awaits_headers(self) -> bool:
        """Whether the client should soon complete a preface, a frame or a header block."""
        return not self._greeted or self._blocks.number != 0 or self._buffer != b""

    def _begin(self, data: bytes) -> int:
        """Check a part of the client's preface; return where it ends."""
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise protocol_error("the connection does not begin with the HTTP/2 preface")
        self._preface = self._preface[size:]
        return size

    def _read(self, kind: int, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read a frame outside the fast path; unknown types are ignored."""
        if not self._greeted:
            if kind != SETTINGS or flags & ACK:
                raise protocol_error("the first frame must be SETTINGS")
            self._greeted = True
        if self._blocks.number and kind != frames.CONTINUATION:
            raise protocol_error("another frame interrupts a header block")
        read = self._READERS.get(kind)
        if read is None:
            self._abuse.saw_control()
        else:
            read(self, flags, number, payload, events)

    def _give_up(self, fault: ConnectionFault, events: list[Event]) -> None:
        self.streams.send_control(frames.goaway(self.streams.last, fault.code, fault.text.encode()))
        self.fault = fault.text
        self._over, self._buffer = True, b""
        for number in list(self.streams.open):
            self.streams.close(number)
            events.append(Aborted(number))

    # Frames of requests

    def _read_data(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self.streams.receive(flags, number, payload, events)

    def _read_headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._read_block(number, self._blocks.begin(flags, number, payload), events)

    def _read_continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._read_block(number, self._blocks.resume(flags, number, payload), events)

    def _read_block(self, number: int, block: bytes | None, events: list[Event]) -> None:
        """Read a complete header block: it opens a stream, or ends it as trailers."""
        if block is None:
            return
        streams, ended = self.streams, self._blocks.flags & END_STREAM == END_STREAM
        stream = streams.open.get(number)
        try:
            if stream is not None:
                self._read_trailers(number, stream, block, events, ended=ended)
            elif number > streams.last:
                self._open(number, block, events, ended=ended)
            elif streams.was_skipped(number):
                raise protocol_error("the number of a new stream must be above that of the previous one")
            elif not streams.was_dropped(number):
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS on a closed stream")
            else:  # of a stream that was reset here; the block may still change the table
                self._heads.fields(block)
                self._abuse.saw_control()
        except Undecodable as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        except Malformed:
            streams.fail(number, ErrorCode.PROTOCOL_ERROR, events)

    def _open(self, number: int, block: bytes, events: list[Event], *, ended: bool) -> None:
        streams, heads = self.streams, self._heads
        streams.saw(number)
        head, refusal = heads.known.get(block), None
        if head is None:
            head = heads.read(block)
            refusal = self._refusal(head)
            if head is not None and refusal is None:
                heads.remember(block, head)
        if len(streams.open) >= self._room:
            self._abuse.saw_control()
            streams.reset(number, ErrorCode.REFUSED_STREAM)
            return
        missing = -1 if head is None else head.content_length
        if ended and missing > 0:
            raise Malformed("a content-length without content")
        streams.begin(number, missing, ended=ended)
        if head is None or refusal is not None:
            streams.respond(number, refusal or _TOO_LARGE, b"")
            self._abuse.useful -= 1  # a response, but not useful work
            self._abuse.saw_reset()
        else:
            events.append(Opened(number, head, b"" if ended else None))

    def _refusal(self, head: Http2Head | None) -> bytes | None:
        """Return the header block of the response if the request is refused."""
        if head is None:
            return _TOO_LARGE
        if len(head.path) > self._limits.target_bytes:
            return _TOO_LONG
        return _NO_TUNNELS if head.method == b"CONNECT" else None

    def _read_trailers(
        self, number: int, stream: Http2Stream, block: bytes, events: list[Event], *, ended: bool
    ) -> None:
        fields = self._heads.fields(block)
        if stream.ended:
            self.streams.fail(number, ErrorCode.STREAM_CLOSED, events)
            return
        if fields is None or not ended:
            raise Malformed("trailers that are too large, or do not end the stream")
        check_trailers(fields)
        if stream.missing > 0:
            raise Malformed("less content than its content-length")
        self.streams.end(stream)
        events.append(Received(number, b"", True))

    # Frames of the connection, its windows, or a whole stream

    def _read_priority(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Only check it: such priorities are deprecated (section 5.3.2)."""
        self._abuse.saw_control()
        if number == 0:
            raise protocol_error("PRIORITY on stream 0")
        if number not in self.streams.open:
            if len(payload) != 5 or frames.word(payload) & LARGEST_ID == number:
                raise protocol_error("PRIORITY must have 5 bytes, and a stream cannot depend on itself")
        elif len(payload) != 5:
            self.streams.fail(number, ErrorCode.FRAME_SIZE_ERROR, events)
        elif frames.word(payload) & LARGEST_ID == number:
            self.streams.fail(number, ErrorCode.PROTOCOL_ERROR, events)

    def _read_rst_stream(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        streams = self.streams
        if number == 0 or streams.is_idle(number):
            raise protocol_error("RST_STREAM on a stream that was never opened")
        if len(payload) != 4:
            raise size_error("RST_STREAM must have 4 bytes")
        stream = streams.open.get(number)
        if stream is None:
            self._abuse.saw_control()
            return
        streams.close(number)
        events.append(Aborted(number))
        if not (stream.ended and self._limits.free_resets):
            self._abuse.saw_reset()

    def _read_settings(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._abuse.saw_control()
        if number != 0:
            raise protocol_error("SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise size_error("an acknowledgement of SETTINGS must be empty")
            return
        if len(payload) % 6:
            raise size_error("each setting must have 6 bytes")
        streams = self.streams
        window = streams.initial_window
        for what, value in frames.read_settings(payload):
            low, high, code = _RANGES.get(what, _ANY)
            if not low <= value <= high:
                raise ConnectionFault(code, f"{Setting(what).name} is {low} to {high}, not {value}")
            if what == Setting.INITIAL_WINDOW_SIZE:
                window = value
            elif what == Setting.MAX_FRAME_SIZE:
                streams.frame_size = value
            elif what == Setting.HEADER_TABLE_SIZE and value < TABLE_SIZE:
                streams.send_empty_table()
        streams.send_control(frames.SETTINGS_ACK)
        streams.widen_all(window, events)

    def _read_push_promise(self, _flags: int, _number: int, _payload: bytes, _events: list[Event]) -> None:
        raise protocol_error("a client cannot push")

    def _read_ping(self, flags: int, number: int, payload: bytes, _events: list[Event]) -> None:
        self._abuse.saw_control()
        if number != 0:
            raise protocol_error("PING on a stream")
        if len(payload) != 8:
            raise size_error("PING must have 8 bytes")
        if not flags & ACK:
            self.streams.send_control(frames.ping(payload, ack=True))

    def _read_goaway(self, _flags: int, number: int, payload: bytes, _events: list[Event]) -> None:
        self._abuse.saw_control()
        if number != 0:
            raise protocol_error("GOAWAY on a stream")
        if len(payload) < 8:
            raise size_error("GOAWAY must have at least 8 bytes")
        self._peer_leaves = True

    def _read_window_update(self, _flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        self._abuse.saw_control()
        if len(payload) != 4:
            raise size_error("WINDOW_UPDATE must have 4 bytes")
        self.streams.widen(number, frames.word(payload) & LARGEST_WINDOW, events)

    _READERS: Final = {
        frames.DATA: _read_data,
        frames.HEADERS: _read_headers,
        frames.PRIORITY: _read_priority,
        frames.RST_STREAM: _read_rst_stream,
        frames.SETTINGS: _read_settings,
        frames.PUSH_PROMISE: _read_push_promise,
        frames.PING: _read_ping,
        frames.GOAWAY: _read_goaway,
        frames.WINDOW_UPDATE: _read_window_update,
        frames.CONTINUATION: _read_continuation,
    }
