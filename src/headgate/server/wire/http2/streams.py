"""The streams of a connection. Everything that changes the state of a stream is in this file.

Both directions are here: what the client may send before it must wait, and what waits to be sent because the client's
windows are full (RFC 9113 sections 5 and 6.9). Sending on a closed stream does nothing.

The connection's receive window is replenished when half of it is used, so one stream cannot block another. So is a
stream's window, unless the layer above withholds it until it has processed the data. Received data that is not
processed has its own bound over all streams: the stream that exceeds it is reset.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, TypeAlias

import msgspec

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.abuse import AbuseGuard
from headgate.server.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEADERS,
    LARGEST_WINDOW,
    ConnectionFault,
    ErrorCode,
    protocol_error,
)
from headgate.server.wire.http2.heads import Http2Head
from headgate.server.wire.limits import WireLimits

STREAM_WINDOW: Final = 262_144
CONNECTION_WINDOW: Final = 1_048_576
HELD: Final = 8 * CONNECTION_WINDOW
"""Bytes of incomplete bodies, and of data that is not acknowledged, on one connection."""
LOW: Final = CONNECTION_WINDOW // 2
_STREAM_LOW: Final = STREAM_WINDOW // 2
_USEFUL_BYTES: Final = 1024
_SKIPS: Final = 64
_LAST_HEADERS: Final = END_STREAM | END_HEADERS
_EMPTY_TABLE: Final = b"\x20"
_pack = frames.pack_header


class Opened(msgspec.Struct, frozen=True, gc=False):
    """A request began. A request in one piece is one event: `Opened` with its body, and no `Received`."""

    stream: int
    head: Http2Head
    body: bytes | None
    """The whole body, or None if it has not arrived."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A part of the body; trailers are checked and discarded."""

    stream: int
    data: bytes
    ended: bool


class Aborted(msgspec.Struct, frozen=True, gc=False):
    """A stream ended early: the client reset it, or violated the protocol. Nothing more can be sent on it."""

    stream: int


class Writable(msgspec.Struct, frozen=True, gc=False):
    """All data that waited for the client's window was sent, and the stream has not ended."""

    stream: int


Event: TypeAlias = Opened | Received | Aborted | Writable


class Http2Stream(msgspec.Struct, gc=False):
    """A request and its response. Closed streams are forgotten.

    Attributes:
        window: bytes of DATA that we may send; negative after the client shrank the windows of all streams.
        credit: bytes of DATA that the client may send.
        missing: missing bytes of the body by its content-length; negative if that is not given.
        ended: whether the request is complete.
        held: received bytes that are not processed.
        withholds: whether only `acknowledge` replenishes the credit.
        finished: whether the end of the response is sent, or waits in `queue` and `trailers`.
        queue: DATA that waits for the client's windows; None without any.
        trailers: the header block after the queue, if any.
    """

    window: int
    credit: int
    missing: int
    ended: bool
    held: int = 0
    withholds: bool = False
    finished: bool = False
    queue: deque[memoryview] | None = None
    trailers: bytes | None = None


class Streams:
    """All streams of a connection, and their shared state: windows, and the bytes to be written.

    Streams that were reset here are remembered for a while, as many as may be open, to ignore frames in transit.
    Methods with `events` may raise ConnectionFault.
    """

    def __init__(self, limits: WireLimits) -> None:
        self.abuse = AbuseGuard(limits)
        self.open: dict[int, Http2Stream] = {}
        self.last = 0
        """The newest stream of the client."""
        self.held = 0
        """Received bytes of all streams that are not processed."""
        self.waiting = 0
        """Bytes of all streams that wait for the client's windows."""
        self.blocked: OrderedDict[int, Http2Stream] = OrderedDict()
        """Streams that wait only for the connection's window, in the order of their turns."""
        self.resumed = 0
        """How often waiting data was resumed, which shows that the client reads."""
        self.window = frames.DEFAULT_WINDOW
        """Bytes of DATA that we may send on the connection."""
        self.initial_window = frames.DEFAULT_WINDOW
        """Bytes of DATA that we may send on a new stream."""
        self.frame_size = FRAME_SIZE
        """The largest frame that the client accepts, in bytes."""
        self.credit = CONNECTION_WINDOW
        """Bytes of DATA that the client may send on the connection."""
        self._out: list[bytes | memoryview] = []
        self._before_block = b""
        self._dropped: dict[int, None] = {}
        self._remembered = limits.streams
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPS)

    def outgoing(self) -> bytes:
        out = self._out
        if not out:
            return b""
        taken = b"".join(out)
        out.clear()
        return taken

    def send_control(self, frame: bytes) -> None:
        self._out.append(frame)

    def send_empty_table(self) -> None:
        """Declare an empty table with the next block, since the client wants a smaller one (RFC 7541, 4.2)."""
        self._before_block = _EMPTY_TABLE

    # Opening and closing

    def saw(self, number: int) -> None:
        """Record a stream number, after which lower ones are invalid."""
        if number != self.last + 2 and number > 1:
            self._skipped.append((self.last, number))
        self.last = number

    def begin(self, number: int, missing: int, *, ended: bool) -> None:
        """Open a stream with `missing` bytes of body to come; negative if that is unknown."""
        self.open[number] = Http2Stream(self.initial_window, STREAM_WINDOW, missing, ended)

    def is_idle(self, number: int) -> bool:
        """Whether a stream has never been opened; even numbers would be the server's, which opens none."""
        return number > self.last or number & 1 == 0

    def was_dropped(self, number: int) -> bool:
        """Whether late frames of a closed stream are to be ignored."""
        return number in self._dropped

    def was_skipped(self, number: int) -> bool:
        """Whether a closed stream was never opened, because the client used a higher number before."""
        return any(low < number < high for low, high in self._skipped)

    def close(self, number: int) -> bool:
        stream = self.open.pop(number, None)
        if stream is None:
            return False
        self.held -= stream.held
        if stream.queue is not None:
            self.waiting -= sum(map(len, stream.queue))
            self.blocked.pop(number, None)
        return True

    def abort(self, number: int, code: ErrorCode) -> None:
        if number in self.open:
            self.reset(number, code)

    def reset(self, number: int, code: ErrorCode) -> bool:
        self._out.append(frames.reset(number, code))
        return self._drop(number)

    def fail(self, number: int, code: ErrorCode, events: list[Event]) -> None:
        """Reset a stream for a client's error; raises ConnectionFault if there are too many."""
        if self.reset(number, code):
            events.append(Aborted(number))
        self.abuse.saw_reset()

    def _drop(self, number: int) -> bool:
        """Forget a stream that is open for the client, which may continue to send for a while."""
        self._dropped[number] = None
        if len(self._dropped) > self._remembered:
            del self._dropped[next(iter(self._dropped))]
        return self.close(number)

    # Receiving

    def replenish(self) -> None:
        if self.credit < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._out.append(frames.window_update(0, CONNECTION_WINDOW - self.credit))
        self.credit = CONNECTION_WINDOW

    def receive(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:  # noqa: C901, PLR0912  one rule after the other
        ended = flags & END_STREAM == END_STREAM
        self.credit -= len(payload)
        if self.credit < LOW:
            self.replenish()
        stream = self.open.get(number)
        if stream is None:
            if self.is_idle(number):
                raise protocol_error("DATA on a stream that was never opened")
            if not self.was_dropped(number):
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
            self.abuse.saw_control()
            return
        if stream.ended:
            self.fail(number, ErrorCode.STREAM_CLOSED, events)
            return
        stream.credit -= len(payload)
        if stream.credit < 0:
            self.fail(number, ErrorCode.FLOW_CONTROL_ERROR, events)
            return
        data = frames.strip_padding(payload) if flags & frames.PADDED else payload
        size = len(data)
        if stream.missing >= 0:
            stream.missing -= size
            if stream.missing < 0 or (ended and stream.missing):
                self.fail(number, ErrorCode.PROTOCOL_ERROR, events)
                return
        self.abuse.useful += size // _USEFUL_BYTES
        if ended:
            self.end(stream)
        elif not size:
            self.abuse.saw_control()
        if stream.withholds or not ended:
            stream.held += size
            self.held += size
            if self.held > HELD:
                self.fail(number, ErrorCode.ENHANCE_YOUR_CALM, events)
                return
            self._grant(number, stream)
        if size or ended:
            events.append(Received(number, data, ended))

    def end(self, stream: Http2Stream) -> None:
        """Mark a request as complete, and its data as processed unless that is acknowledged explicitly."""
        stream.ended = True
        if stream.held and not stream.withholds:
            self.held -= stream.held
            stream.held = 0

    def withhold(self, number: int) -> None:
        """Let a client send only as much on a stream as is `acknowledge`d, for bodies without a foreseeable end."""
        stream = self.open.get(number)
        if stream is not None:
            stream.withholds = True

    def acknowledge(self, number: int, size: int) -> None:
        """Mark bytes of a withheld stream as processed."""
        stream = self.open.get(number)
        if stream is not None:
            size = min(size, stream.held)
            stream.held -= size
            self.held -= size
            self._grant(number, stream)

    def _grant(self, number: int, stream: Http2Stream) -> None:
        """Replenish a stream's window by at least half of it."""
        more = STREAM_WINDOW - stream.credit - (stream.held if stream.withholds else 0)
        if more >= _STREAM_LOW and not stream.ended:
            stream.credit += more
            self._out.append(frames.window_update(number, more))

    # Sending

    def respond(self, number: int, head: bytes, body: bytes, trailers: bytes = b"") -> None:
        """Send a complete response: a header block, a body, a block of trailers."""
        stream = self.open.get(number)
        if stream is None or stream.finished:
            return
        size = len(body)
        if (
            size > self.window
            or size > stream.window
            or size > FRAME_SIZE
            or len(head) + len(trailers) > FRAME_SIZE
            or stream.queue is not None
            or self._before_block
            or (trailers and not body)
        ):
            self.send_headers(number, head, end=not body and not trailers)
            if body:
                self.send_data(number, body, end=not trailers)
            if trailers:
                self.send_headers(number, trailers, end=True)
            return
        if trailers:
            self._out += (
                _pack(len(head) << 8 | HEADERS, END_HEADERS, number),
                head,
                _pack(size << 8 | DATA, 0, number),
                body,
                _pack(len(trailers) << 8 | HEADERS, _LAST_HEADERS, number),
                trailers,
            )
        elif size:
            self._out += (
                _pack(len(head) << 8 | HEADERS, END_HEADERS, number),
                head,
                _pack(size << 8 | DATA, END_STREAM, number),
                body,
            )
        else:
            self._out += (_pack(len(head) << 8 | HEADERS, _LAST_HEADERS, number), head)
        self.window -= size
        stream.finished = True
        self._finish(number, stream)

    def send_headers(self, number: int, block: bytes, *, end: bool) -> None:
        """Send headers or trailers; while data waits, only trailers are possible, which end the stream."""
        stream = self.open.get(number)
        if stream is None or stream.finished:
            return
        if stream.queue is not None:
            stream.trailers, stream.finished = block, True
            return
        stream.finished = end
        self._out.append(self._headers(number, block, end=end))
        if end:
            self._finish(number, stream)

    def send_data(self, number: int, data: bytes, *, end: bool) -> None:
        """Send data as soon as the client's windows permit."""
        stream = self.open.get(number)
        if stream is None or stream.finished:
            return
        stream.finished = end
        if data:
            self.abuse.useful += 1
            self.waiting += len(data)
            if stream.queue is not None:
                stream.queue.append(memoryview(data))
                return
            stream.queue = deque((memoryview(data),))
            self._pump(number, stream)
        elif end and stream.queue is not None:
            stream.trailers = b""
        elif end:
            self._out.append(frames.data(number, b"", end=True))
            self._finish(number, stream)

    def widen(self, number: int, more: int, events: list[Event]) -> None:
        """Widen the send window of a stream, or of the connection if the number is 0."""
        if number == 0:
            if more == 0:
                raise protocol_error("WINDOW_UPDATE with an increment of 0")
            self.window += more
            if self.window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2^31-1 bytes")
            self._flush(events)
            return
        stream = self.open.get(number)
        if stream is None:
            if self.is_idle(number):
                raise protocol_error("WINDOW_UPDATE on a stream that was never opened")
            return
        stream.window += more
        if more == 0:
            self.fail(number, ErrorCode.PROTOCOL_ERROR, events)
        elif stream.window > LARGEST_WINDOW:
            self.fail(number, ErrorCode.FLOW_CONTROL_ERROR, events)
        else:
            self._widened(number, stream, events)

    def widen_all(self, initial_window: int, events: list[Event]) -> None:
        """Change the windows of all open streams; some may become negative (section 6.9.2)."""
        more, self.initial_window = initial_window - self.initial_window, initial_window
        if not more:
            return
        for stream in self.open.values():
            stream.window += more
            if stream.window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS increase a window beyond 2^31-1 bytes")
        for number, stream in list(self.open.items()):
            if number in self.open:  # widening another one may have ended it
                self._widened(number, stream, events)

    def _widened(self, number: int, stream: Http2Stream, events: list[Event]) -> None:
        if stream.queue is not None and stream.window > 0:
            self.blocked.setdefault(number, stream)
            self._flush(events)

    def _flush(self, events: list[Event]) -> None:
        blocked = self.blocked
        while blocked and self.window > 0:
            number, stream = blocked.popitem(last=False)
            self.resumed += 1
            if self._pump(number, stream) and not stream.finished:
                events.append(Writable(number))

    def _pump(self, number: int, stream: Http2Stream) -> bool:
        """Send what the windows permit of a stream's queue; returns whether the queue is empty.

        Otherwise, the stream is blocked, or waits for its own window, which must widen first.
        """
        queue = stream.queue
        assert queue is not None  # noqa: S101  for the type checker
        while queue:
            room = min(self.window, stream.window, self.frame_size)
            if room <= 0:
                if stream.window > 0:
                    self.blocked[number] = stream
                return False
            piece = queue.popleft()
            if len(piece) > room:
                queue.appendleft(piece[room:])
                piece = piece[:room]
            size = len(piece)
            self.window -= size
            stream.window -= size
            self.waiting -= size
            self.abuse.useful += size // _USEFUL_BYTES
            last = not queue and stream.finished and not stream.trailers
            self._out += (_pack(size << 8 | DATA, END_STREAM if last else 0, number), piece)
        stream.queue = None
        if stream.trailers:
            self._out.append(self._headers(number, stream.trailers, end=True))
        if stream.finished:
            self._finish(number, stream)
        return True

    def _headers(self, number: int, block: bytes, *, end: bool) -> bytes:
        block, self._before_block = self._before_block + block, b""
        return frames.headers(number, block, end=end, size=self.frame_size)

    def _finish(self, number: int, stream: Http2Stream) -> None:
        """Close a stream after its response; ask the client not to send the rest of an incomplete request."""
        self.abuse.useful += 1
        if stream.ended and not stream.held:
            del self.open[number]
        elif stream.ended:
            self.close(number)
        else:
            self._drop(number)
            self._out.append(frames.reset(number, ErrorCode.NO_ERROR))
