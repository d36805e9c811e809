"""A connection from its preface to its end (RFC 9113 sections 3.4, 5.4, 6.8)."""

from __future__ import annotations

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Connection
from headgate.server.wire.http2.frames import GOAWAY, LARGEST_ID, SETTINGS, WINDOW_UPDATE, ErrorCode, Setting
from headgate.server.wire.limits import DEFAULT
from tests.server.wire.http2.conversation import BLOCK, GREETING, OK, Conversation, Frame, opened, split


def test_we_speak_first_and_say_what_we_take() -> None:
    settings, update = split(Connection().outgoing())
    assert (settings.kind, settings.flags, settings.stream) == (SETTINGS, 0, 0)
    assert dict(frames.read_settings(settings.payload)) == {
        Setting.MAX_CONCURRENT_STREAMS: DEFAULT.streams,
        Setting.INITIAL_WINDOW_SIZE: 262_144,
        Setting.MAX_HEADER_LIST_SIZE: DEFAULT.header_bytes,
    }
    assert update == Frame(WINDOW_UPDATE, 0, 0, (1_048_576 - 65_535).to_bytes(4, "big"))


def test_what_is_outgoing_is_taken_once() -> None:
    server = Connection()
    assert server.outgoing()
    assert server.outgoing() == b""


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
        client.server.respond(stream, OK, b"")
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
    client.server.reset(1, ErrorCode.CANCEL)
    client.server.reset(1, ErrorCode.CANCEL)
    assert client.reset_with() == [(1, ErrorCode.CANCEL)]
    assert client.server.is_idle
