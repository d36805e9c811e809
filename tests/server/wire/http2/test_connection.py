"""A connection from its preface to its end, and its control frames (RFC 9113 sections 3.4, 5.4, 6)."""

from __future__ import annotations

from dataclasses import replace

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    LARGEST_ID,
    LARGEST_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    Setting,
)
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.streams import Aborted, Received, Writable
from headgate.server.wire.limits import DEFAULT
from headgate.server.wire.messages import Headers
from tests.server.wire.http2.conversation import (
    BLOCK,
    GREETING,
    OK,
    REQUEST,
    Conversation,
    Frame,
    index,
    indexed,
    opened,
    split,
    unchecked,
)


def test_the_server_sends_its_settings_first() -> None:
    server = Http2Connection()
    settings, update = split(server.streams.outgoing())
    assert (settings.kind, settings.flags, settings.stream) == (SETTINGS, 0, 0)
    assert dict(frames.read_settings(settings.payload)) == {
        Setting.MAX_CONCURRENT_STREAMS: DEFAULT.streams,
        Setting.INITIAL_WINDOW_SIZE: 262_144,
        Setting.MAX_HEADER_LIST_SIZE: DEFAULT.header_bytes,
    }
    assert update == Frame(WINDOW_UPDATE, 0, 0, (1_048_576 - 65_535).to_bytes(4, "big"))
    assert server.streams.outgoing() == b"", "it is taken once"


def test_the_preface_comes_in_any_pieces() -> None:
    for cut in (0, 1, 23, 24, 25, 32, 33):
        client = Conversation(greeting=b"")
        assert client.server.awaits_headers
        assert client.say(GREETING[:cut]) == client.say(GREETING[cut:]) == []
        assert not client.server.awaits_headers
        assert [frame.kind for frame in client.answer()] == [SETTINGS]


def test_other_protocols_are_refused_and_the_first_frame_must_be_settings() -> None:
    for sent in (b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", b"\x16\x03\x01", b"P\0"):
        client = Conversation(greeting=b"")
        client.say(sent)
        assert (client.gave_up(), client.server.fault) == (
            ErrorCode.PROTOCOL_ERROR,
            "the connection does not begin with the HTTP/2 preface",
        )
    for first in (frames.SETTINGS_ACK, frames.ping(b"12345678"), frames.headers(1, BLOCK)):
        client = Conversation(greeting=b"")
        assert client.say(frames.PREFACE, first) == []
        assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


def test_the_reason_why_a_connection_ends_names_the_last_stream_and_nothing_is_done_after_it() -> None:
    client = Conversation()
    client.open(1)
    client.open(7)
    client.say(frames.ping(b"short"))
    (goaway,) = client.answer()
    assert goaway.payload == b"\0\0\0\7\0\0\0\6" + client.server.fault.encode()
    client.server.drain()
    client.server.finish_draining()
    assert (client.say(frames.headers(9, BLOCK)), client.answer()) == ([], [])


def test_a_block_that_is_not_complete_is_awaited() -> None:
    client, whole = Conversation(), frames.headers(1, BLOCK)
    seen = []
    begun, ended = (
        frames.frame(frames.HEADERS, 0, 3, BLOCK),
        frames.frame(frames.CONTINUATION, frames.END_HEADERS, 3, b""),
    )
    for part in (whole[:5], whole[5:], begun, ended):
        client.say(part)
        seen.append(client.server.awaits_headers)
    assert seen == [True, False, True, False]


def test_draining_serves_requests_in_transit_and_then_refuses() -> None:
    """Section 6.8: the first GOAWAY names no stream, as some may be on their way."""
    client = Conversation()
    client.open(1, end=True)
    client.server.drain()
    assert client.answer() == [Frame(GOAWAY, 0, 0, LARGEST_ID.to_bytes(4, "big") + b"\0\0\0\0")]
    opened(client.open(3, end=True)[0])
    client.server.finish_draining()
    client.server.finish_draining()
    client.server.drain()
    assert client.answer() == [Frame(GOAWAY, 0, 0, b"\0\0\0\3\0\0\0\0")]
    assert client.open(5) == []
    assert client.reset_with() == [(5, ErrorCode.REFUSED_STREAM)]
    for stream in (1, 3):
        assert not client.server.is_over
        client.server.streams.respond(stream, OK, b"")
    assert (client.server.is_over, client.server.fault) == (True, "")


def test_draining_an_idle_connection_ends_it() -> None:
    client = Conversation()
    client.server.drain()
    assert not client.server.is_over
    client.server.finish_draining()
    assert client.server.is_over


def test_a_stream_that_either_side_resets_is_gone() -> None:
    client = Conversation()
    streams = client.server.streams
    client.open(1)
    for _ in range(2):
        streams.abort(1, ErrorCode.CANCEL)
    assert (client.reset_with(), [*streams.open]) == ([(1, ErrorCode.CANCEL)], [])
    client.open(3)
    assert client.say(frames.reset(3, ErrorCode.CANCEL)) == [Aborted(3)]
    assert client.say(frames.reset(3, ErrorCode.CANCEL), frames.window_update(3, 1)) == []
    streams.respond(3, OK, b"too late")
    streams.send_headers(3, OK, end=False)
    streams.send_data(3, b"too late", end=True)
    streams.abort(3, ErrorCode.CANCEL)
    streams.withhold(3)
    streams.acknowledge(3, 5)
    assert client.answer() == []


FATAL = {
    ErrorCode.PROTOCOL_ERROR: [
        *[frames.frame(PRIORITY, 0, *each) for each in ((0, b"\0\0\0\0\0"), (5, b"\0\0\0\5\0"), (5, b"\0\0"))],
        *[frames.reset(stream, ErrorCode.CANCEL) for stream in (0, 2, 3)],
        *[frames.data(stream, b"x") for stream in (0, 2, 3)],
        *[frames.window_update(*each) for each in ((0, 0), (2, 1), (3, 1))],
        *[frames.settings([each]) for each in ((Setting.ENABLE_PUSH, 2), (Setting.MAX_FRAME_SIZE, 16_383))],
        frames.settings([(Setting.MAX_FRAME_SIZE, 1 << 24)]),
        frames.frame(SETTINGS, 0, 1, b""),
        frames.frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"),
        frames.frame(PING, 0, 1, b"12345678"),
        frames.frame(GOAWAY, 0, 1, b"\0" * 8),
    ],
    ErrorCode.FRAME_SIZE_ERROR: [
        frames.frame(RST_STREAM, 0, 1, b"\0\0\0"),
        frames.frame(SETTINGS, ACK, 0, b"\0\0\0\0\0\0"),
        frames.frame(SETTINGS, 0, 0, b"\0\0\0"),
        frames.frame(PING, 0, 0, b"1234567"),
        frames.frame(GOAWAY, 0, 0, b"\0" * 7),
        frames.frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"),
        frames.pack_header(16_385 << 8 | frames.DATA, 0, 1),
        frames.frame(0xBA, 0, 0, b"x" * 16_385),
    ],
    ErrorCode.FLOW_CONTROL_ERROR: [
        frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]),
        frames.window_update(0, LARGEST_WINDOW),
        frames.window_update(1, LARGEST_WINDOW - 65_535) + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 65_536)]),
    ],
}


def test_a_mistake_on_the_connection_ends_it_and_all_streams() -> None:
    for code, mistakes in FATAL.items():
        for bad in mistakes:
            client = Conversation()
            client.open(1)
            assert client.say(bad) == [Aborted(1)], bad
            assert client.gave_up() is code, bad
            assert len(client.server.streams.open) == 0
            assert (client.say(frames.ping(b"12345678")), client.answer()) == ([], [])


def test_a_mistake_on_a_stream_resets_it_and_others_go_on() -> None:
    for bad, code in (
        (frames.frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(PRIORITY, 0, 1, b"\0\0\0\1"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(1, LARGEST_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    ):
        client = Conversation()
        client.open(1)
        assert client.say(bad) == [Aborted(1)], bad
        assert client.reset_with() == [(1, code)], bad
        assert client.is_alive()


def test_frames_without_a_reply_get_none() -> None:
    for frame in (
        *(frames.frame(PRIORITY, 0, 1, b"\0\0\0\0\xff"), frames.frame(PRIORITY, 0, 99, b"\x80\0\0\1\0")),
        *(frames.ping(b"12345678", ack=True), frames.SETTINGS_ACK),
        *(frames.frame(0xBA, 0xFF, 1, b"anything"), frames.frame(0xBA, 0, 0, b"")),
        *(frames.window_update(1, 5), frames.window_update(0, 5)),
    ):
        client = Conversation()
        client.open(1)
        assert (client.say(frame), client.answer()) == ([], []), frame
        assert client.is_alive()


def test_pings_are_answered_with_their_bytes_and_settings_acknowledged_known_or_not() -> None:
    client = Conversation()
    client.say(frames.ping(b"abcdefgh"), frames.ping(b"ijklmnop"))
    assert client.answer() == [Frame(PING, ACK, 0, b"abcdefgh"), Frame(PING, ACK, 0, b"ijklmnop")]
    client.say(frames.settings([(Setting.MAX_CONCURRENT_STREAMS, 0), (0x99, 7), (Setting.MAX_HEADER_LIST_SIZE, 1)]))
    assert client.answer() == [Frame(SETTINGS, ACK, 0, b"")]


def test_a_client_that_leaves_gets_its_answers_first() -> None:
    client = Conversation()
    client.open(1, end=True)
    assert client.say(frames.goaway(0, ErrorCode.NO_ERROR, b"bye")) == []
    assert not client.server.is_over
    client.server.streams.respond(1, OK, b"")
    assert (client.server.is_over, client.server.fault) == (True, "")


def test_a_smaller_table_is_confirmed_before_the_next_block() -> None:
    """RFC 7541 section 4.2: some clients insist. We need no table at all."""
    client = Conversation()
    for stream in (1, 3):
        client.open(stream, end=True)
    client.say(frames.settings([(Setting.HEADER_TABLE_SIZE, 100)]))
    for stream in (1, 3):
        client.server.streams.respond(stream, OK, b"")
    assert [frame.payload for frame in client.answer()[1:]] == [b"\x20" + OK, OK]


def test_wider_initial_windows_let_waiting_data_through() -> None:
    client = Conversation(greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    client.open(1)
    client.server.streams.send_data(1, b"abc", end=False)
    assert client.answer() == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 2)])) == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 3)])) == [Writable(1)]
    assert [frame.payload for frame in client.answer() if frame.kind == frames.DATA] == [b"ab", b"c"]


BY_PRIORITY = b"\0\0\0\0\x10"


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
        parts = (HEADERS, 0, block[:7]), (CONTINUATION, 0, block[7:9]), (CONTINUATION, END_HEADERS, block[9:])
        pieces = [frames.frame(kind, flags, stream, part) for kind, flags, part in parts]
        assert opened(client.say(*pieces)[0]).head.headers == own


def test_numbers_may_be_left_out() -> None:
    client = Conversation()
    assert [opened(client.open(stream)[0]).stream for stream in (1, 9, 11, 2**31 - 1)] == [1, 9, 11, 2**31 - 1]


def test_a_block_comes_in_many_shapes() -> None:
    end = frames.frame(CONTINUATION, END_HEADERS, 1, b"")
    for frame in (
        frames.frame(HEADERS, END_HEADERS | PADDED, 1, b"\x03" + BLOCK + b"\0\0\0"),
        frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, BY_PRIORITY + BLOCK),
        frames.frame(HEADERS, END_HEADERS | PADDED | WITH_PRIORITY, 1, b"\x01" + BY_PRIORITY + BLOCK + b"\0"),
        frames.frame(HEADERS, 0, 1, BLOCK[:7]) + frames.frame(CONTINUATION, END_HEADERS, 1, BLOCK[7:]),
        frames.frame(HEADERS, 0, 1, b"") + frames.frame(CONTINUATION, 0, 1, BLOCK) + end,
        frames.frame(HEADERS, END_HEADERS | 0x80 | 0x02, 1, BLOCK),  # flags that mean nothing
        frames.frame(HEADERS, END_HEADERS, 1 | 1 << 31, BLOCK),  # the reserved bit
    ):
        (event,) = Conversation().say(frame)
        assert (opened(event).stream, opened(event).head.headers, opened(event).body) == (1, REQUEST, None), frame


def test_invalid_header_frames_end_the_connection() -> None:
    mistakes = {
        ErrorCode.PROTOCOL_ERROR: [
            *(frames.headers(0, BLOCK), frames.headers(2, BLOCK)),
            frames.frame(HEADERS, END_HEADERS | PADDED, 1, b""),
            frames.frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09" + b"x" * 8),
            frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0\0\1\0" + BLOCK),
            *[frames.frame(CONTINUATION, END_HEADERS, stream, BLOCK) for stream in (0, 1)],
        ],
        ErrorCode.FRAME_SIZE_ERROR: [frames.frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\0\0")],
        ErrorCode.COMPRESSION_ERROR: [frames.headers(1, b"\x80")],
    }
    for code, bad in [(code, bad) for code, each in mistakes.items() for bad in each]:
        client = Conversation()
        assert client.say(bad) == [], bad
        assert client.gave_up() is code, bad


def test_nothing_may_interrupt_a_block() -> None:
    """Usual frames are read by shorter ways once they were seen before."""
    for other in (
        *(frames.data(1, b"x"), frames.data(1, b"x", end=True), frames.headers(3, BLOCK), frames.headers(5, BLOCK)),
        *(frames.ping(b"12345678"), frames.settings([]), frames.frame(0xBA, 0, 1, b"")),
        frames.frame(CONTINUATION, END_HEADERS, 5, BLOCK),
    ):
        for streams in ((), (1,)):
            client = Conversation()
            for stream in streams:
                client.open(stream)
            assert client.say(frames.frame(HEADERS, 0, 3, BLOCK), other) == [Aborted(each) for each in streams], other
            assert client.gave_up() is ErrorCode.PROTOCOL_ERROR, other


def test_a_malformed_request_is_reset_and_others_go_on() -> None:
    for more in (
        *((b"Upper", b"1"), (b"connection", b"close"), (b"a", b"b\r\nc: d"), (b"a", b" b"), (b":status", b"200")),
        *((b":protocol", b"websocket"), (b"", b"1"), None),
    ):
        for block in (unchecked, indexed):
            client = Conversation()
            for stream in (1, 3):
                assert client.open(stream, block=block([*REQUEST, more] if more else REQUEST[1:])) == [], more
                assert client.reset_with() == [(stream, ErrorCode.PROTOCOL_ERROR)], more
            assert len(client.server.streams.open) == 0
            assert opened(client.open(5)[0]).head.headers == REQUEST
    for status in range(8, 15):  # of the static table
        client = Conversation()
        assert client.open(1, block=index(status) + BLOCK) == client.open(3, block=BLOCK + index(status)) == []
        assert client.reset_with() == [(1, ErrorCode.PROTOCOL_ERROR), (3, ErrorCode.PROTOCOL_ERROR)]


def test_headers_that_are_too_large_are_answered_and_leave_the_table_right() -> None:
    much: tuple[Headers, ...] = ([(b"x", b"y" * DEFAULT.header_bytes)], [(b"x", b"y")] * DEFAULT.headers)
    for more in much:
        for end in (True, False):
            client = Conversation()
            assert client.say(frames.headers(1, BLOCK + unchecked(more), end=end)) == []
            answer = client.answer()
            assert client.fields(answer[0])[0] == (b":status", b"431")
            assert [frame.kind for frame in answer[1:]] == ([] if end else [frames.RST_STREAM])
            assert len(client.server.streams.open) == 0
            assert client.is_alive()
    client = Conversation()
    client.open(1, block=BLOCK + indexed([(b"x", b"1")]) + unchecked([(b"y", b"z" * DEFAULT.header_bytes)]))
    assert opened(client.open(3, block=BLOCK + index(62))[0]).head.fields == [(b"x", b"1")]


def test_requests_that_go_no_further_are_answered_each_time() -> None:
    for request, status in (
        ([*REQUEST[:2], (b":path", b"/" * (DEFAULT.target_bytes + 1))], b"414"),
        ([(b":method", b"CONNECT"), (b":authority", b"x:443")], b"501"),
    ):
        client = Conversation()
        for stream in (1, 3, 5):
            assert client.open(stream, end=True, block=encode(request)) == []
            assert client.fields(client.answer()[0])[0] == (b":status", status)


def test_trailers_end_a_request_unless_they_are_malformed() -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frames.data(1, b"abc")) == [Received(1, b"abc", False)]
    assert client.say(frames.headers(1, unchecked([(b"checksum", b"1")]), end=True)) == [Received(1, b"", True)]
    for field, end in (
        *(((b"checksum", b"1"), False), ((b":path", b"/"), True), ((b"Upper", b"/"), True)),
        ((b"a", b"b" * DEFAULT.header_bytes), True),
    ):
        client = Conversation()
        client.open(1)
        assert client.say(frames.headers(1, unchecked([field]), end=end)) == [Aborted(1)], field
        assert client.reset_with() == [(1, ErrorCode.PROTOCOL_ERROR)], field


def test_headers_after_the_end_of_a_request_reset_the_stream() -> None:
    """Section 5.1, half-closed (remote)."""
    client = Conversation()
    client.open(1, end=True)
    assert client.open(1, end=True) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.STREAM_CLOSED)]


def test_headers_of_a_stream_that_is_over_end_the_connection() -> None:
    """Section 5.1, closed: it was answered, or the client reset it."""
    answered, reset = Conversation(), Conversation()
    answered.open(1, end=True)
    answered.server.streams.respond(1, OK, b"")
    reset.open(1)
    reset.say(frames.reset(1, ErrorCode.CANCEL))
    for client in (answered, reset):
        client.open(1, end=True)
        assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_a_number_lower_than_the_last_ends_the_connection() -> None:
    """Section 5.1.1: it was never used, and cannot be any more; the reserved bit does not make it higher."""
    for first, second in ((5, 3), (2**31 - 1, 2**31 + 1)):
        client = Conversation()
        client.open(first)
        client.open(second)
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
    assert client.open(5, block=BLOCK + indexed([(b"x", b"1")])) == client.open(7) == []
    assert client.reset_with() == [(5, ErrorCode.REFUSED_STREAM), (7, ErrorCode.REFUSED_STREAM)]
    client.say(frames.reset(1, ErrorCode.CANCEL))
    assert opened(client.open(9, block=BLOCK + index(62))[0]).head.fields == [(b"x", b"1")]


def test_a_content_length_and_no_content_is_malformed() -> None:
    client, block = Conversation(), BLOCK + encode([(b"content-length", b"3")])
    opened(client.open(1, block=block)[0])
    assert client.open(3, block=block, end=True) == []
    assert client.reset_with() == [(3, ErrorCode.PROTOCOL_ERROR)]
