"""Control frames, kind by kind (RFC 9113 section 6)."""

from __future__ import annotations

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.events import Aborted, Writable
from headgate.server.wire.http2.frames import (
    ACK,
    GOAWAY,
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
from tests.server.wire.http2.conversation import OK, Conversation, Frame

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
    (frames.header(frames.DATA, 0, 1, 16_385), ErrorCode.FRAME_SIZE_ERROR),
    (frames.frame(0xBA, 0, 0, b"x" * 16_385), ErrorCode.FRAME_SIZE_ERROR),
]


@pytest.mark.parametrize(("bad", "code"), FATAL)
def test_a_mistake_on_the_connection_ends_it_and_all_streams(bad: bytes, code: ErrorCode) -> None:
    client = Conversation()
    client.open(1)
    assert client.say(bad) == [Aborted(1)]
    assert client.gave_up() is code
    assert client.server.open_streams == 0
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
    client.server.respond(1, OK, b"too late")
    client.server.send_headers(1, OK, end=False)
    client.server.send_data(1, b"too late", end=True)
    client.server.reset(1, ErrorCode.CANCEL)
    client.server.withhold(1)
    client.server.acknowledge(1, 5)
    assert client.answer() == []


def test_a_client_that_leaves_gets_its_answers_first() -> None:
    client = Conversation()
    client.open(1, end=True)
    assert client.say(frames.goaway(0, ErrorCode.NO_ERROR, b"bye")) == []
    assert not client.server.is_over
    client.server.respond(1, OK, b"")
    assert client.server.is_over
    assert client.server.fault == ""


def test_a_smaller_table_is_confirmed_before_the_next_block() -> None:
    """RFC 7541 section 4.2: some clients insist. We need no table at all."""
    client = Conversation()
    client.open(1, end=True)
    client.open(3, end=True)
    client.say(frames.settings([(Setting.HEADER_TABLE_SIZE, 100)]))
    client.server.respond(1, OK, b"")
    client.server.respond(3, OK, b"")
    assert [frame.payload for frame in client.answer()[1:]] == [b"\x20" + OK, OK]


def test_wider_initial_windows_let_waiting_data_through() -> None:
    client = Conversation(greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    client.open(1)
    client.server.send_data(1, b"abc", end=False)
    assert client.answer() == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 2)])) == []
    assert client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 3)])) == [Writable(1)]
    assert [frame.payload for frame in client.answer() if frame.kind == frames.DATA] == [b"ab", b"c"]


def test_a_window_may_become_negative() -> None:
    """Section 6.9.2: what was sent stays sent."""
    client = Conversation()
    client.open(1)
    client.server.send_data(1, b"x" * 60_000, end=False)
    client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, 10_000)]))
    client.server.send_data(1, b"y", end=False)
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
