"""An HTTP/2 client for tests: it sends any bytes, and decodes the reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import hpack

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.hpack import encode, integer, string
from headgate.server.wire.http2.protocol import Http2Protocol
from headgate.server.wire.http2.streams import Event, Opened, Received
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import NOBODY, Headers

REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/check"), (b":authority", b"api")]
BLOCK = encode(REQUEST)
OK = encode([(b":status", b"200")])
GREETING = frames.PREFACE + frames.settings([])


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


def split(answer: bytes) -> list[Frame]:
    found = []
    while answer:
        word, flags, stream = frames.read_header(answer, 0)
        size = word >> 8
        assert len(answer) >= 9 + size
        found.append(Frame(word & 0xFF, flags, stream, answer[9 : 9 + size]))
        answer = answer[9 + size :]
    return found


def unchecked(fields: Headers) -> bytes:
    """Return a block of fields as they are, right or wrong."""
    return b"".join(b"\x00" + string(name) + string(value) for name, value in fields)


def indexed(fields: Headers) -> bytes:
    """Return a block whose fields all enter the table, right or wrong."""
    return b"".join(b"\x40" + string(name) + string(value) for name, value in fields)


def index(number: int) -> bytes:
    return integer(number, 7, 0x80)


class Unconnected:
    """What a service knows of a connection, without a socket: nothing is written anywhere."""

    admission = None
    peer = NOBODY
    is_blocked = False

    def __init__(self, limits: WireLimits = DEFAULT) -> None:
        self.limits, self.machine = limits, Http2Connection(limits)
        self.streams = self.machine.streams

    def flush_soon(self) -> None: ...

    def as_protocol(self) -> Http2Protocol:
        return cast("Http2Protocol", self)


class Conversation:
    def __init__(self, limits: WireLimits = DEFAULT, *, greeting: bytes = GREETING) -> None:
        self.server = Http2Connection(limits)
        self.now = 0.0
        self.first = split(self.server.streams.outgoing())
        self.decoder = hpack.Decoder()
        if greeting:
            assert self.say(greeting) == []
            self.answer()

    def say(self, *data: bytes) -> list[Event]:
        return self.server.receive(b"".join(data), self.now)

    def open(self, stream: int, *, end: bool = False, block: bytes = BLOCK) -> list[Event]:
        return self.say(frames.headers(stream, block, end=end))

    def answer(self) -> list[Frame]:
        return split(self.server.streams.outgoing())

    def fields(self, frame: Frame) -> Headers:
        return [(name, value) for name, value in self.decoder.decode(frame.payload, raw=True)]

    def reset_with(self) -> list[tuple[int, ErrorCode]]:
        """Take the answer; return which streams it resets, and why."""
        return [
            (frame.stream, ErrorCode(frames.word(frame.payload)))
            for frame in self.answer()
            if frame.kind == frames.RST_STREAM
        ]

    def gave_up(self) -> ErrorCode | None:
        """Take the answer; return why it ends the connection, or None if it does not."""
        if not self.server.is_over:
            return None
        assert self.server.fault
        (last,) = self.answer()[-1:]
        assert last.kind == frames.GOAWAY
        return ErrorCode(frames.word(last.payload[4:]))

    def is_alive(self) -> bool:
        events = self.say(frames.ping(b"are you?"))
        return events == [] and Frame(frames.PING, frames.ACK, 0, b"are you?") in self.answer()


def opened(event: Event) -> Opened:
    assert isinstance(event, Opened)
    return event


def body(events: list[Event], stream: int) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Received) and event.stream == stream)
