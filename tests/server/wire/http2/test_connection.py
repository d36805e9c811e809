"""A connection from its preface to its end, and its control frames (RFC 9113 sections 3.4, 5.4, 6)."""

from __future__ import annotations

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import (
    ACK,
    GOAWAY,
    LARGEST_ID,
    LARGEST_WINDOW,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
)
from headgate.server.wire.http2.streams import Aborted, Writable
from headgate.server.wire.limits import DEFAULT
from tests.server.wire.http2.conversation import BLOCK, GREETING, OK, Conversation, Frame, opened, split


def test_we_speak_first_and_say_what_we_take() -> None:
    settings, update = split(Http2Connection().streams.outgoing())
    assert (settings.kind, settings.flags, settings.stream) == (SETTINGS, 0, 0)
    assert dict(frames.read_settings(settings.payload)) == {
        Setting.MAX_CONCURRENT_STREAMS: DEFAULT.streams,
        Setting.INITIAL_WINDOW_SIZE: 262_144,
        Setting.MAX_HEADER_LIST_SIZE: DEFAULT.header_bytes,
    }
    assert update == Frame(WINDOW_UPDATE, 0, 0, (1_048_576 - 65_535).to_bytes(4, "big"))


def test_what_is_outgoing_is_taken_once() -> None:
    server = Http2Connection()
    assert server.streams.outgoing()
    assert server.streams.outgoing() == b""


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 25, 32, 33])
def test_the_preface_comes_in_any_pieces(cut: int) -> None:
    client = Conversation(greeting=b"")
    assert client.server.awaits_headers
    assert client.say(GREETING[:cut]) == []
    assert client.say(GREETING[cut:]) == []
    assert not client.server.awaits_headers
    assert [frame.kind for frame in client.answer()] == [SETTINGS]


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", b"\x16\x03\x01", b"P\0"])
def test_other_protocols_are_refused(said: bytes) -> None:
    client = Conversation(greeting=b"")
    client.say(said)
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR
    assert client.server.fault == "this is not HTTP/2"


@pytest.mark.parametrize("first", [frames.SETTINGS_ACK, frames.ping(b"12345678"), frames.headers(1, BLOCK)])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    client = Conversation(greeting=b"")
    assert client.say(frames.PREFACE, first) == []
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


def test_the_reason_why_a_connection_ends_names_the_last_stream() -> None:
    client = Conversation()
    client.open(1)
    client.open(7)
    client.say(frames.ping(b"short"))
    (goaway,) = client.answer()
    assert goaway.payload == b"\0\0\0\7\0\0\0\6" + client.server.fault.encode()


def test_a_block_that_is_not_complete_is_awaited() -> None:
    client = Conversation()
    whole = frames.headers(1, BLOCK)
    client.say(whole[:5])
    assert client.server.awaits_headers
    client.say(whole[5:])
    assert not client.server.awaits_headers
    client.say(frames.frame(frames.HEADERS, 0, 3, BLOCK))
    assert client.server.awaits_headers
    client.say(frames.frame(frames.CONTINUATION, frames.END_HEADERS, 3, b""))
    assert not client.server.awaits_headers


def test_draining_serves_what_is_on_its_way_and_then_refuses() -> None:
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
    assert client.server.is_over
    assert client.server.fault == ""


def test_draining_an_idle_connection_ends_it() -> None:
    client = Conversation()
    client.server.drain()
    assert not client.server.is_over
    client.server.finish_draining()
    assert client.server.is_over


def test_a_connection_that_is_over_does_nothing_more() -> None:
    client = Conversation()
    client.say(frames.ping(b"short"))
    client.answer()
    client.server.drain()
    client.server.finish_draining()
    assert client.say(frames.headers(1, BLOCK)) == []
    assert client.answer() == []


def test_a_stream_that_we_reset_is_gone() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.abort(1, ErrorCode.CANCEL)
    client.server.streams.abort(1, ErrorCode.CANCEL)
    assert client.reset_with() == [(1, ErrorCode.CANCEL)]
    assert not client.server.streams.open


FATAL = [
    (frames.frame(PRIORITY, 0, 0, b"\0\0\0\0\0"), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(PRIORITY, 0, 5, b"\0\0\0\5\0"), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(PRIORITY, 0, 5, b"\0\0"), ErrorCode.PROTOCOL_ERROR),
    (frames.reset(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    (frames.reset(2, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    (frames.reset(3, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(RST_STREAM, 0, 1, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(SETTINGS, ACK, 0, b"\0\0\0\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(SETTINGS, 0, 0, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    (frames.settings([(Setting.ENABLE_PUSH, 2)]), ErrorCode.PROTOCOL_ERROR),
    (frames.settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]), ErrorCode.FLOW_CONTROL_ERROR),
    (frames.settings([(Setting.MAX_FRAME_SIZE, 16_383)]), ErrorCode.PROTOCOL_ERROR),
    (frames.settings([(Setting.MAX_FRAME_SIZE, 1 << 24)]), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(GOAWAY, 0, 1, b"\0" * 8), ErrorCode.PROTOCOL_ERROR),
    (frames.frame(GOAWAY, 0, 0, b"\0" * 7), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    (frames.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    (frames.window_update(0, LARGEST_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    (frames.window_update(2, 1), ErrorCode.PROTOCOL_ERROR),
    (frames.window_update(3, 1), ErrorCode.PROTOCOL_ERROR),
    (frames.data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    (frames.data(2, b"x"), ErrorCode.PROTOCOL_ERROR),
    (frames.data(3, b"x"), ErrorCode.PROTOCOL_ERROR),
    (frames.pack_header(16_385 << 8 | frames.DATA, 0, 1), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(0xBA, 0, 0, b"x" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(("bad", "code"), FATAL)
def test_a_mistake_on_the_connection_ends_it_and_all_streams(bad: bytes, code: ErrorCode) -> None:
    client = Conversation()
    client.open(1)
    assert client.say(bad) == [Aborted(1)]
    assert client.gave_up() is code
    assert len(client.server.streams.open) == 0
    assert client.say(frames.ping(b"12345678")) == []
    assert client.answer() == []


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frames.frame(PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (frames.frame(PRIORITY, 0, 1, b"\0\0\0\1"), ErrorCode.FRAME_SIZE_ERROR),
        (frames.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (frames.window_update(1, LARGEST_WINDOW), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_a_mistake_on_a_stream_resets_it_and_others_go_on(bad: bytes, code: ErrorCode) -> None:
    client = Conversation()
    client.open(1)
    assert client.say(bad) == [Aborted(1)]
    assert client.reset_with() == [(1, code)]
    assert client.is_alive()


@pytest.mark.parametrize(
    "frame",
    [
        frames.frame(PRIORITY, 0, 1, b"\0\0\0\0\xff"),
        frames.frame(PRIORITY, 0, 99, b"\x80\0\0\1\0"),
        frames.ping(b"12345678", ack=True),
        frames.SETTINGS_ACK,
        frames.frame(0xBA, 0xFF, 1, b"anything"),
        frames.frame(0xBA, 0, 0, b""),
        frames.window_update(1, 5),
        frames.window_update(0, 5),
    ],
)
def test_what_needs_no_answer_gets_none(frame: bytes) -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frame) == []
    assert client.answer() == []
    assert client.is_alive()


def test_a_ping_is_answered_with_its_bytes() -> None:
    client = Conversation()
    client.say(frames.ping(b"abcdefgh"), frames.ping(b"ijklmnop"))
    assert client.answer() == [Frame(PING, ACK, 0, b"abcdefgh"), Frame(PING, ACK, 0, b"ijklmnop")]


def test_settings_are_acknowledged_known_or_not() -> None:
    client = Conversation()
    client.say(frames.settings([(Setting.MAX_CONCURRENT_STREAMS, 0), (0x99, 7), (Setting.MAX_HEADER_LIST_SIZE, 1)]))
    assert client.answer() == [Frame(SETTINGS, ACK, 0, b"")]


def test_a_reset_stream_is_gone() -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frames.reset(1, ErrorCode.CANCEL)) == [Aborted(1)]
    assert client.say(frames.reset(1, ErrorCode.CANCEL), frames.window_update(1, 1)) == []
    client.server.streams.respond(1, OK, b"too late")
    client.server.streams.send_headers(1, OK, end=False)
    client.server.streams.send_data(1, b"too late", end=True)
    client.server.streams.abort(1, ErrorCode.CANCEL)
    client.server.streams.withhold(1)
    client.server.streams.acknowledge(1, 5)
    assert client.answer() == []


def test_a_client_that_leaves_gets_its_answers_first() -> None:
    client = Conversation()
    client.open(1, end=True)
    assert client.say(frames.goaway(0, ErrorCode.NO_ERROR, b"bye")) == []
    assert not client.server.is_over
    client.server.streams.respond(1, OK, b"")
    assert client.server.is_over
    assert client.server.fault == ""


def test_a_smaller_table_is_confirmed_before_the_next_block() -> None:
    """RFC 7541 section 4.2: some clients insist. We need no table at all."""
    client = Conversation()
    client.open(1, end=True)
    client.open(3, end=True)
    client.say(frames.settings([(Setting.HEADER_TABLE_SIZE, 100)]))
    client.server.streams.respond(1, OK, b"")
    client.server.streams.respond(3, OK, b"")
    assert [frame.payload for frame in client.answer()[1:]] == [b"\x20" + OK, OK]


def test_wider_initial_windows_let_waiting_data_through() -> None:
    client = Conversation(greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    client.open(1)
    client.server.streams.send_data(1, b"abc", end=False)
    assert client.answer() == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 2)])) == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 3)])) == [Writable(1)]
    assert [frame.payload for frame in client.answer() if frame.kind == frames.DATA] == [b"ab", b"c"]


def test_a_window_may_become_negative() -> None:
    """Section 6.9.2: what was sent stays sent."""
    client = Conversation()
    client.open(1)
    client.server.streams.send_data(1, b"x" * 60_000, end=False)
    client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 10_000)]))
    client.server.streams.send_data(1, b"y", end=False)
    client.answer()
    assert client.say(frames.window_update(1, 50_000)) == []
    assert client.answer() == []
    assert client.say(frames.window_update(1, 1)) == [Writable(1)]
    assert client.answer() == [Frame(frames.DATA, 0, 1, b"y")]


def test_settings_that_widen_a_stream_too_far_end_the_connection() -> None:
    client = Conversation()
    client.open(1)
    client.say(frames.window_update(1, LARGEST_WINDOW - 65_535))
    client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 65_536)]))
    assert client.gave_up() is ErrorCode.FLOW_CONTROL_ERROR
