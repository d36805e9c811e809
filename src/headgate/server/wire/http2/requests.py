"""Header blocks on their way in (RFC 9113 sections 4.3, 6.2, 6.10): they open streams, or end them as trailers."""

from __future__ import annotations

from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.compression import Undecodable
from headgate.server.wire.http2.decoding import Heads
from headgate.server.wire.http2.events import Event, Head, Opened, Received
from headgate.server.wire.http2.faults import ConnectionFault, protocol_error
from headgate.server.wire.http2.frames import END_HEADERS, END_STREAM, LARGEST_ID, PADDED, WITH_PRIORITY, ErrorCode
from headgate.server.wire.http2.headers import encode
from headgate.server.wire.http2.heads import Malformed, check_trailers
from headgate.server.wire.http2.inflow import STREAM_WINDOW, Inflow, unpadded
from headgate.server.wire.http2.state import State
from headgate.server.wire.http2.streams import Stream

_BLOCK_BYTES: Final = 4
"""How many times larger than all headers a block may be and be answered; a larger one ends the connection."""
_CONTINUATIONS: Final = 16
_TOO_LARGE: Final = encode([(b":status", b"431"), (b"content-length", b"0")])
_TOO_LONG: Final = encode([(b":status", b"414"), (b"content-length", b"0")])
_NO_TUNNELS: Final = encode([(b":status", b"501"), (b"content-length", b"0")])


class Requests:
    """The header blocks that come in on one connection."""

    __slots__ = ("_block", "_continuations", "_flags", "_inflow", "_state", "_streams", "heads", "number", "room")

    def __init__(self, state: State, inflow: Inflow) -> None:
        self._state, self._streams, self._inflow = state, state.streams, inflow
        self.heads = Heads(state.limits)
        self.room = state.limits.streams
        """How many streams may be open."""
        self.number = 0
        """The stream whose block is incomplete: nothing but its continuation may follow. 0 if there is none."""
        self._flags = 0
        self._block = bytearray()
        self._continuations = 0

    def read_headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read a HEADERS frame; may raise ConnectionFault."""
        if number & 1 == 0:
            raise protocol_error("HEADERS of a stream that is no client's")
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS with priority hold 5 bytes or more")
            if frames.word(payload) & LARGEST_ID == number:
                raise protocol_error("a stream depends on itself")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._complete(flags, number, payload, events)
        else:
            self.number, self._flags, self._continuations = number, flags, 0
            self._block += payload

    def read_continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        """Read a CONTINUATION frame; may raise ConnectionFault."""
        if number != self.number or number == 0:
            raise protocol_error("CONTINUATION of nothing")
        self._block += payload
        self._continuations += 1
        if self._continuations > _CONTINUATIONS or len(self._block) > self._state.limits.header_bytes * _BLOCK_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & END_HEADERS:
            block = bytes(self._block)
            self._block.clear()
            self.number = 0
            self._complete(self._flags, number, block, events)

    def _complete(self, flags: int, number: int, block: bytes, events: list[Event]) -> None:
        ended = flags & END_STREAM == END_STREAM
        stream = self._streams.open.get(number)
        try:
            if stream is not None:
                self._end(number, stream, block, events, ended=ended)
            elif number > self._streams.last:
                self._begin(number, block, events, ended=ended)
            else:
                self._overlook(number, block)
        except Undecodable as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        except Malformed:
            self._state.fail(number, ErrorCode.PROTOCOL_ERROR, events)

    def _begin(self, number: int, block: bytes, events: list[Event], *, ended: bool) -> None:
        streams = self._streams
        streams.saw(number)
        head = self.heads.known.get(block)
        refusal = None
        if head is None:
            head = self.heads.read(block)
            refusal = self._refusal(head)
            if head is not None and refusal is None:
                self.heads.keep(block, head)
        if len(streams.open) >= self.room:
            self._state.guard.saw_control()
            self._state.reset(number, ErrorCode.REFUSED_STREAM)
            return
        missing = -1 if head is None else head.content_length
        if ended and missing > 0:
            raise Malformed("a content-length, and no content")
        streams.open[number] = Stream(self._state.sender.initial_window, STREAM_WINDOW, missing, ended)
        if head is None or refusal is not None:
            self._state.sender.respond(number, refusal or _TOO_LARGE, b"")
            streams.useful -= 1  # an answer, and no work that anybody wants
            self._state.guard.saw_reset()
        else:
            events.append(Opened(number, head.headers, ended, head))

    def _refusal(self, head: Head | None) -> bytes | None:
        """Return the header block of the answer to a request that goes no further."""
        if head is None:
            return _TOO_LARGE
        if len(head.path) > self._state.limits.target_bytes:
            return _TOO_LONG
        return _NO_TUNNELS if head.method == b"CONNECT" else None

    def _end(self, number: int, stream: Stream, block: bytes, events: list[Event], *, ended: bool) -> None:
        """Read trailers."""
        fields = self.heads.fields(block)
        if stream.ended:
            self._state.fail(number, ErrorCode.STREAM_CLOSED, events)
            return
        if fields is None or not ended:
            raise Malformed("trailers that are too large, or do not end the stream")
        check_trailers(fields)
        if stream.missing > 0:
            raise Malformed("less content than its content-length")
        self._inflow.end(stream)
        events.append(Received(number, b"", True))

    def _overlook(self, number: int, block: bytes) -> None:
        """Read headers of a stream that is not open, for what they do to the table."""
        if self._streams.was_skipped(number):
            raise protocol_error("a stream with a lower number than the one before")
        if not self._streams.was_dropped(number):
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS of a stream that is over")
        self.heads.fields(block)
        self._state.guard.saw_control()
