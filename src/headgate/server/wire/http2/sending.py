"""What goes to the client: frames, as many as its windows let through, and the rest in queues."""

from __future__ import annotations

from collections import deque
from typing import Final

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import DATA, END_HEADERS, END_STREAM, FRAME_SIZE, HEADERS, ErrorCode
from headgate.server.wire.http2.streams import Stream, Streams

_LAST_HEADERS: Final = END_STREAM | END_HEADERS
_EMPTY_TABLE: Final = b"\x20"
_USEFUL_BYTES: Final = 1024
_pack = frames.pack_header


class Sender:
    """The sending half of a connection. Whatever is meant for a stream that is gone, goes nowhere."""

    __slots__ = ("_before_block", "_open", "_out", "_streams", "frame_size", "initial_window", "resumed", "window")

    def __init__(self, streams: Streams) -> None:
        self._streams, self._open = streams, streams.open
        self._out: list[bytes | memoryview] = []
        self._before_block = b""
        self.window = frames.DEFAULT_WINDOW
        """Bytes of DATA that the client takes on the connection."""
        self.initial_window = frames.DEFAULT_WINDOW
        """What it takes on a new stream."""
        self.frame_size = FRAME_SIZE
        """What it takes in a frame."""
        self.resumed = 0
        """How often data that waited could go on: that much the client has done to take it."""

    def outgoing(self) -> bytes:
        """Take what is to be written now."""
        out = self._out
        if not out:
            return b""
        taken = b"".join(out)
        out.clear()
        return taken

    def control(self, frame: bytes) -> None:
        """Send a frame that no window holds back."""
        self._out.append(frame)

    def without_table(self) -> None:
        """Tell the client, with the next block, that its table stays empty: it wants a smaller one (RFC 7541, 4.2)."""
        self._before_block = _EMPTY_TABLE

    def respond(self, number: int, head: bytes, body: bytes, trailers: bytes = b"") -> None:
        """Send a whole response."""
        stream = self._open.get(number)
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
            self._respond_in_parts(number, head, body, trailers)
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

    def _respond_in_parts(self, number: int, head: bytes, body: bytes, trailers: bytes) -> None:
        self.send_headers(number, head, end=not body and not trailers)
        if body:
            self.send_data(number, body, end=not trailers)
        if trailers:
            self.send_headers(number, trailers, end=True)

    def send_headers(self, number: int, block: bytes, *, end: bool) -> None:
        """Send headers, or trailers: what comes when data waits can only be trailers, and ends the stream."""
        stream = self._open.get(number)
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
        """Send data as soon as the client's windows let it through."""
        stream = self._open.get(number)
        if stream is None or stream.finished:
            return
        stream.finished = end
        if data:
            self._streams.useful += 1
            self._streams.waiting += len(data)
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

    def widened(self, number: int) -> list[int]:
        """Send what a stream's window lets through, which has changed; return the streams that can take more."""
        stream = self._open[number]
        if stream.queue is None or stream.window <= 0:
            return []
        self._streams.blocked.setdefault(number, stream)
        return self.flush()

    def flush(self) -> list[int]:
        """Send what the connection's window lets through by now; return the streams that can take more."""
        blocked = self._streams.blocked
        writable = []
        while blocked and self.window > 0:
            number, stream = blocked.popitem(last=False)
            self.resumed += 1
            if self._pump(number, stream) and not stream.finished:
                writable.append(number)
        return writable

    def _pump(self, number: int, stream: Stream) -> bool:
        """Send what the windows let through of a stream's queue; return whether it is empty.

        If not, the stream is blocked, or waits for its own window: then nobody looks at it until that is wider.
        """
        queue, streams = stream.queue, self._streams
        assert queue is not None  # noqa: S101  for the type checker
        while queue:
            room = min(self.window, stream.window, self.frame_size)
            if room <= 0:
                if stream.window > 0:
                    streams.blocked[number] = stream
                return False
            piece = queue.popleft()
            if len(piece) > room:
                queue.appendleft(piece[room:])
                piece = piece[:room]
            size = len(piece)
            self.window -= size
            stream.window -= size
            streams.waiting -= size
            streams.useful += size // _USEFUL_BYTES
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

    def _finish(self, number: int, stream: Stream) -> None:
        """Close a stream whose response is sent; ask the client not to send the rest of its request, if any."""
        streams = self._streams
        streams.useful += 1
        if stream.ended and not stream.held:
            del self._open[number]
        elif stream.ended:
            streams.close(number)
        else:
            streams.drop(number)
            self._out.append(frames.reset(number, ErrorCode.NO_ERROR))
