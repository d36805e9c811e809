"""Requests: how header blocks open streams and end them (RFC 9113 sections 4.3, 5.1, 6.2, 6.10, 8.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PADDED,
    WITH_PRIORITY,
    ErrorCode,
)
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.streams import Aborted, Received
from headgate.server.wire.limits import DEFAULT
from headgate.server.wire.messages import Headers
from tests.server.wire.http2.conversation import (
    BLOCK,
    OK,
    REQUEST,
    Conversation,
    index,
    indexed,
    opened,
    unchecked,
)

PRIORITY = b"\0\0\0\0\x10"


def test_a_request_opens_a_stream() -> None:
    client = Conversation()
    for stream in (1, 3, 5):  # the second from the cache
        event = opened(client.open(stream, end=stream == 5)[0])
        assert (event.stream, event.head.headers, event.body) == (stream, REQUEST, b"" if stream == 5 else None)
        assert event.head.path == b"/check"
    assert len(client.server.streams.open) == 3


def test_blocks_in_pieces_follow_each_other() -> None:
    client = Conversation()
    for stream in (1, 3, 5):
        own = [*REQUEST, (b"x", b"%d" % stream)]
        block = encode(own)
        pieces = (
            frames.frame(HEADERS, 0, stream, block[:7]),
            frames.frame(CONTINUATION, 0, stream, block[7:9]),
            frames.frame(CONTINUATION, END_HEADERS, stream, block[9:]),
        )
        assert opened(client.say(*pieces)[0]).head.headers == own


def test_numbers_may_be_left_out() -> None:
    client = Conversation()
    assert [opened(client.open(stream)[0]).stream for stream in (1, 9, 11, 2**31 - 1)] == [1, 9, 11, 2**31 - 1]


@pytest.mark.parametrize(
    "frame",
    [
        frames.frame(HEADERS, END_HEADERS | PADDED, 1, b"\x03" + BLOCK + b"\0\0\0"),
        frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, PRIORITY + BLOCK),
        frames.frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x01" + PRIORITY + BLOCK + b"\0"),
        frames.frame(HEADERS, 0, 1, BLOCK[:7]) + frames.frame(CONTINUATION, END_HEADERS, 1, BLOCK[7:]),
        frames.frame(HEADERS, 0, 1, b"")
        + frames.frame(CONTINUATION, 0, 1, BLOCK)
        + frames.frame(CONTINUATION, END_HEADERS, 1, b""),
        frames.frame(HEADERS, END_HEADERS | 0x80 | 0x02, 1, BLOCK),  # flags that mean nothing
        frames.frame(HEADERS, END_HEADERS, 1 | 1 << 31, BLOCK),  # the reserved bit
    ],
)
def test_a_block_comes_in_many_shapes(frame: bytes) -> None:
    client = Conversation()
    (event,) = client.say(frame)
    assert (opened(event).stream, opened(event).head.headers, opened(event).body) == (1, REQUEST, None)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frames.headers(0, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frames.headers(2, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(HEADERS, END_HEADERS | PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09" + b"x" * 8), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0\1\0" + BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frames.headers(1, b"\x80"), ErrorCode.COMPRESSION_ERROR),
        (frames.frame(CONTINUATION, END_HEADERS, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(CONTINUATION, END_HEADERS, 0, BLOCK), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_what_no_header_frame_may_be_ends_the_connection(bad: bytes, code: ErrorCode) -> None:
    client = Conversation()
    assert client.say(bad) == []
    assert client.gave_up() is code


@pytest.mark.parametrize(
    "other",
    [
        frames.data(1, b"x"),
        frames.headers(3, BLOCK),
        frames.ping(b"12345678"),
        frames.settings([]),
        frames.frame(0xBA, 0, 1, b""),
        frames.frame(CONTINUATION, END_HEADERS, 3, BLOCK),
    ],
)
def test_nothing_may_interrupt_a_block(other: bytes) -> None:
    client = Conversation()
    assert client.say(frames.frame(HEADERS, 0, 1, BLOCK), other) == []
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("frame", [frames.headers(3, BLOCK), frames.data(1, b"x", end=True)])
def test_not_even_the_usual_frames_may_interrupt_a_block(frame: bytes) -> None:
    """They are read by shorter ways once they were seen before."""
    client = Conversation()
    client.open(1)
    client.say(frames.frame(HEADERS, 0, 3, BLOCK))
    assert client.say(frame) == [Aborted(1)]
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [*REQUEST, (b"Upper", b"1")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"a", b"b\r\nc: d")],
        [*REQUEST, (b"a", b" b")],
        [*REQUEST, (b":status", b"200")],
        [*REQUEST, (b":protocol", b"websocket")],
        [*REQUEST, (b"", b"1")],
        REQUEST[1:],
    ],
)
@pytest.mark.parametrize("block", [unchecked, indexed])
def test_a_malformed_request_is_reset_and_others_go_on(fields: Headers, block: Callable[[Headers], bytes]) -> None:
    client = Conversation()
    for stream in (1, 3):
        assert client.open(stream, block=block(fields)) == []
        assert client.reset_with() == [(stream, ErrorCode.PROTOCOL_ERROR)]
    assert len(client.server.streams.open) == 0
    assert opened(client.open(5)[0]).head.headers == REQUEST


@pytest.mark.parametrize("status", range(8, 15))
def test_a_request_with_a_status_of_the_static_table_is_reset(status: int) -> None:
    client = Conversation()
    assert client.open(1, block=index(status) + BLOCK) == []
    assert client.open(3, block=BLOCK + index(status)) == []
    assert client.reset_with() == [(1, ErrorCode.PROTOCOL_ERROR), (3, ErrorCode.PROTOCOL_ERROR)]


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize(
    ("more", "status"),
    [
        ([(b"x", b"y" * DEFAULT.header_bytes)], b"431"),
        ([(b"x", b"y")] * DEFAULT.headers, b"431"),
    ],
)
def test_headers_that_are_too_large_are_answered(more: Headers, status: bytes, end: bool) -> None:  # noqa: FBT001
    client = Conversation()
    assert client.say(frames.headers(1, BLOCK + unchecked(more), end=end)) == []
    answer = client.answer()
    assert client.fields(answer[0])[0] == (b":status", status)
    assert [frame.kind for frame in answer[1:]] == ([] if end else [frames.RST_STREAM])
    assert len(client.server.streams.open) == 0
    assert client.is_alive()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ([*REQUEST[:2], (b":path", b"/" * (DEFAULT.target_bytes + 1))], b"414"),
        ([(b":method", b"CONNECT"), (b":authority", b"x:443")], b"501"),
    ],
)
def test_requests_that_go_no_further_are_answered_each_time(request_: Headers, status: bytes) -> None:
    client = Conversation()
    for stream in (1, 3, 5):
        assert client.open(stream, end=True, block=encode(request_)) == []
        assert client.fields(client.answer()[0])[0] == (b":status", status)


def test_headers_that_are_too_large_leave_the_table_right() -> None:
    client = Conversation()
    client.open(1, block=BLOCK + indexed([(b"x", b"1")]) + unchecked([(b"y", b"z" * DEFAULT.header_bytes)]))
    assert opened(client.open(3, block=BLOCK + index(62))[0]).head.fields == [(b"x", b"1")]


def test_trailers_end_a_request() -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frames.data(1, b"abc")) == [Received(1, b"abc", False)]
    assert client.say(frames.headers(1, unchecked([(b"checksum", b"1")]), end=True)) == [Received(1, b"", True)]


@pytest.mark.parametrize(
    ("block", "end"),
    [
        (unchecked([(b"checksum", b"1")]), False),
        (unchecked([(b":path", b"/")]), True),
        (unchecked([(b"Upper", b"/")]), True),
        (unchecked([(b"a", b"b" * DEFAULT.header_bytes)]), True),
    ],
)
def test_trailers_that_are_none_reset_the_stream(block: bytes, end: bool) -> None:  # noqa: FBT001
    client = Conversation()
    client.open(1)
    assert client.say(frames.headers(1, block, end=end)) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.PROTOCOL_ERROR)]


def test_headers_after_the_end_of_a_request_reset_the_stream() -> None:
    """Section 5.1, half-closed (remote)."""
    client = Conversation()
    client.open(1, end=True)
    assert client.open(1, end=True) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.STREAM_CLOSED)]


def test_headers_of_a_stream_that_was_answered_end_the_connection() -> None:
    """Section 5.1, closed: both sides said so."""
    client = Conversation()
    client.open(1, end=True)
    client.server.streams.respond(1, OK, b"")
    client.open(1, end=True)
    assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_headers_of_a_stream_that_the_client_reset_end_the_connection() -> None:
    client = Conversation()
    client.open(1)
    client.say(frames.reset(1, ErrorCode.CANCEL))
    client.open(1)
    assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_a_number_lower_than_the_last_ends_the_connection() -> None:
    """Section 5.1.1: it was never used, and cannot be any more."""
    client = Conversation()
    client.open(5)
    client.open(3)
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


def test_the_reserved_bit_does_not_make_a_number_higher() -> None:
    client = Conversation()
    client.open(2**31 - 1)
    client.say(frames.headers(2**31 + 1, BLOCK))
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


def test_headers_that_were_on_their_way_when_we_reset_are_read_for_the_table_and_overlooked() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.abort(1, ErrorCode.CANCEL)
    assert client.say(frames.headers(1, indexed([(b"x", b"1")]), end=True)) == []
    assert opened(client.open(3, block=BLOCK + index(62))[0]).head.fields == [(b"x", b"1")]


def test_streams_beyond_the_most_are_refused_and_leave_the_table_right() -> None:
    client = Conversation(replace(DEFAULT, streams=2))
    client.open(1)
    client.open(3)
    assert client.open(5, block=BLOCK + indexed([(b"x", b"1")])) == []
    assert client.open(7) == []
    assert client.reset_with() == [(5, ErrorCode.REFUSED_STREAM), (7, ErrorCode.REFUSED_STREAM)]
    client.say(frames.reset(1, ErrorCode.CANCEL))
    assert opened(client.open(9, block=BLOCK + index(62))[0]).head.fields == [(b"x", b"1")]


def test_a_content_length_and_no_content_is_malformed() -> None:
    client = Conversation()
    block = BLOCK + encode([(b"content-length", b"3")])
    opened(client.open(1, block=block)[0])
    assert client.open(3, block=block, end=True) == []
    assert client.reset_with() == [(3, ErrorCode.PROTOCOL_ERROR)]
