"""A client of gRPC over HTTP/2 (RFC 9113) without I/O, for unary calls whose messages fit into one frame.

It asks the server for header compression without a dynamic table, so that equal blocks of headers mean the same, and
are decoded once.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate.load_generator.blocks import Ending, Endings, literal_block
from headgate.load_generator.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    LAST_STREAM,
    MOST_FRAME,
    PADDED,
    PREFACE,
    PRIORITY,
    Reset,
    Setting,
    Status,
    Type,
    frame,
)
from headgate.load_generator.outcomes import NOT_UNDERSTOOD, SHED, BadAnswer, Outcome, failed
from headgate.load_generator.questions import Method, caller_fields
from headgate.load_generator.targets import Target

MOST_HEADERS = 65_536
MOST_ANSWER = 262_144
"""Bytes of one answer, which is also the window of its stream."""
WINDOW = 1 << 24
"""Bytes that the server may send on the connection before we say that we have read them."""
MOST_REPLY = 1 << 20
"""Bytes of acknowledgements that frames which came at once can cause."""


class Http2:
    """One connection.

    Args:
        target: whom it is connected to.
        method: what is called.
        streams: the most calls that are open at the same time.
        caller_key: who calls, where the service wants to know.
    """

    def __init__(self, target: Target, method: Method, streams: int, caller_key: str | None = None) -> None:
        fields = [
            (":method", "POST"),
            (":scheme", "https" if target.tls else "http"),
            (":path", method.path),
            (":authority", target.place),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *caller_fields(caller_key),
        ]
        block = literal_block(fields)
        size = method.message.size
        self._data_size = 5 + size
        self._head = len(block).to_bytes(3, "big") + bytes((Type.HEADERS, END_HEADERS))
        self._middle = block + self._data_size.to_bytes(3, "big") + bytes((Type.DATA, END_STREAM))
        self._prefix = b"\0" + size.to_bytes(4, "big")
        self._method, self._streams = method, streams
        self._has_settings = False
        self._next, self._allowed_streams, self._window = 1, 0, DEFAULT_WINDOW
        self._calls: dict[int, bytes] = {}
        """What came of the answers to open calls."""
        self._endings = Endings()
        self._buffer, self._block, self._block_of = b"", b"", (0, 0)
        self._unread = 0
        self._reply: list[bytes] = []
        self._reply_size = 0
        self._ended: list[tuple[int, Outcome | None]] = []
        self._acts: dict[int, Callable[[int, int, bytes], None]] = {
            Type.DATA: self._on_data,
            Type.HEADERS: self._on_headers,
            Type.RST_STREAM: self._on_reset,
            Type.SETTINGS: self._on_settings,
            Type.PUSH_PROMISE: self._on_push,
            Type.PING: self._on_ping,
            Type.GOAWAY: self._on_goaway,
            Type.WINDOW_UPDATE: self._on_window_update,
            Type.CONTINUATION: self._on_continuation,
        }
        self.is_over = False

    def greeting(self) -> bytes:
        settings = ((Setting.HEADER_TABLE_SIZE, 0), (Setting.ENABLE_PUSH, 0), (Setting.INITIAL_WINDOW, MOST_ANSWER))
        payload = b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in settings)
        more = (WINDOW - DEFAULT_WINDOW).to_bytes(4, "big")
        return PREFACE + frame(Type.SETTINGS, 0, 0, payload) + frame(Type.WINDOW_UPDATE, 0, 0, more)

    def room(self) -> int:
        """Nothing before the server has said how much it takes."""
        if self.is_over:
            return 0
        return max(0, min(self._allowed_streams - len(self._calls), self._window // self._data_size))

    def ask(self, user: int) -> tuple[int, bytes]:
        stream = self._next
        self._next = stream + 2
        if self._next > LAST_STREAM:
            self.is_over = True
        self._calls[stream] = b""
        self._window -= self._data_size
        name = stream.to_bytes(4, "big")
        message = self._method.message.filled(user)
        return stream, b"".join((self._head, name, self._middle, name, self._prefix, message))

    def receive(self, data: bytes) -> list[tuple[int, Outcome | None]]:
        buffer = self._buffer + data if self._buffer else data
        place, end = 0, len(buffer)
        while end - place >= 9:
            length = int.from_bytes(buffer[place : place + 3], "big")
            if length > MOST_FRAME:
                raise BadAnswer("a frame is too long")
            if end - place < 9 + length:
                break
            kind, flags = buffer[place + 3], buffer[place + 4]
            stream = int.from_bytes(buffer[place + 5 : place + 9], "big") & LAST_STREAM
            self._frame(kind, flags, stream, buffer[place + 9 : place + 9 + length])
            place += 9 + length
        self._buffer = buffer[place:]
        ended, self._ended = self._ended, []
        return ended

    def reply(self) -> bytes:
        if not self._reply:
            return b""
        reply, self._reply, self._reply_size = b"".join(self._reply), [], 0
        return reply

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block_of[0] and kind != Type.CONTINUATION:
            raise BadAnswer("headers are interrupted")
        act = self._acts.get(kind)
        if act is not None:  # others are to be ignored
            act(flags, stream, payload)

    def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        self._unread += len(payload)
        if self._unread >= WINDOW // 2:
            self._answer(frame(Type.WINDOW_UPDATE, 0, 0, self._unread.to_bytes(4, "big")))
            self._unread = 0
        if flags & PADDED:
            payload = _without_padding(payload)
        before = self._calls.get(stream)
        if before is None:
            self._check_known(stream)
            return
        answer = before + payload if before else payload
        if len(answer) > MOST_ANSWER:
            raise BadAnswer("an answer is too long")
        self._calls[stream] = answer
        if flags & END_STREAM:  # there should have been trailers
            self._end(stream, NOT_UNDERSTOOD)

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITY:
            if len(payload) < 5:
                raise BadAnswer("a priority is cut off")
            payload = payload[5:]
        if not stream:
            raise BadAnswer("headers of no stream")
        if flags & END_HEADERS:
            self._on_block(stream, flags, payload)
        else:
            self._block, self._block_of = payload, (stream, flags)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream or stream != self._block_of[0]:
            raise BadAnswer("headers that continue nothing")
        self._block += payload
        if len(self._block) > MOST_HEADERS or (not payload and not flags & END_HEADERS):
            raise BadAnswer("headers do not end")
        if flags & END_HEADERS:
            block, first_flags = self._block, self._block_of[1]
            self._block, self._block_of = b"", (0, 0)
            self._on_block(stream, first_flags, block)

    def _on_block(self, stream: int, flags: int, block: bytes) -> None:
        ending = self._endings.of(block)  # even of a stream that is over: blocks may build on each other
        if stream not in self._calls:
            self._check_known(stream)
        elif flags & END_STREAM:
            self._end(stream, self._outcome(ending, self._calls[stream]))
        elif ending.http_status not in {None, 200}:
            self._answer(frame(Type.RST_STREAM, 0, stream, Reset.CANCEL.to_bytes(4, "big")))
            self._end(stream, failed(f"HTTP {ending.http_status}"))

    def _outcome(self, ending: Ending, answer: bytes) -> Outcome:
        if ending.http_status not in {None, 200}:
            return failed(f"HTTP {ending.http_status}")
        code = ending.grpc_status
        if code is None or code > max(Status):
            return NOT_UNDERSTOOD
        if code:
            return SHED if code == Status.RESOURCE_EXHAUSTED else failed(f"gRPC {Status(code).name}")
        if len(answer) < 5 or answer[0] or int.from_bytes(answer[1:5], "big") != len(answer) - 5:
            return NOT_UNDERSTOOD
        return self._method.read(answer[5:])

    def _on_reset(self, _: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BadAnswer("a reset of a wrong size")
        if stream not in self._calls:
            self._check_known(stream)
            return
        code = int.from_bytes(payload, "big")
        self._end(stream, failed(f"stream reset: {Reset(code).name if code <= max(Reset) else 'unknown'}"))

    def _on_window_update(self, _: int, stream: int, payload: bytes) -> None:
        more = int.from_bytes(payload, "big") & LAST_STREAM
        if len(payload) != 4 or not more:
            raise BadAnswer("a window update of nothing")
        if stream == 0:
            self._window += more
            if self._window > LAST_STREAM:
                raise BadAnswer("a window beyond all measure")

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & ACK and payload):
            raise BadAnswer("settings of a wrong size")
        if flags & ACK:
            return
        allowed = self._allowed_streams if self._has_settings else self._streams
        self._has_settings = True
        for place in range(0, len(payload), 6):
            name = int.from_bytes(payload[place : place + 2], "big")
            value = int.from_bytes(payload[place + 2 : place + 6], "big")
            if name == Setting.MAX_STREAMS:
                allowed = min(value, self._streams)
            elif name == Setting.INITIAL_WINDOW and value < self._data_size:
                raise BadAnswer(f"a window of {value} bytes, too small for a question")
        self._allowed_streams = allowed
        self._answer(frame(Type.SETTINGS, ACK, 0))

    def _on_push(self, _: int, stream: int, payload: bytes) -> None:
        raise BadAnswer(f"a push on stream {stream}, of {len(payload)} bytes, which was forbidden")

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise BadAnswer("a ping of a wrong size")
        if not flags & ACK:
            self._answer(frame(Type.PING, ACK, 0, payload))

    def _on_goaway(self, _: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) < 8:
            raise BadAnswer("a goodbye of a wrong size")
        self.is_over = True
        last = int.from_bytes(payload[:4], "big") & LAST_STREAM
        for each in [each for each in self._calls if each > last]:
            self._end(each, None)

    def _end(self, stream: int, outcome: Outcome | None) -> None:
        del self._calls[stream]
        self._ended.append((stream, outcome))

    def _check_known(self, stream: int) -> None:
        """A stream that is over may still have frames on the way; one that never was may not."""
        if not stream % 2 or stream >= self._next:
            raise BadAnswer("an answer that nobody asked for")

    def _answer(self, data: bytes) -> None:
        self._reply_size += len(data)
        if self._reply_size > MOST_REPLY:
            raise BadAnswer("a flood of frames")
        self._reply.append(data)


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise BadAnswer("more padding than frame")
    return payload[1 : len(payload) - payload[0]]
