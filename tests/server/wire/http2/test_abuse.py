"""Attacks by means that the protocol allows: each ends, and none makes us keep or say much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import CONTINUATION, HEADERS, PRIORITY, ErrorCode, Setting
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.streams import Aborted, Received
from headgate.server.wire.limits import DEFAULT
from tests.server.wire.http2.conversation import BLOCK, OK, Conversation, index, indexed, unchecked

LIMITS = replace(DEFAULT, resets=20, control_frames=50, streams=10)


def kept(server: Http2Connection) -> int:
    """Return how much a connection keeps, roughly, in bytes and things."""
    streams = server.streams
    return (
        len(server._buffer)
        + len(server._blocks._block)
        + len(streams.open)
        + len(streams._dropped)
        + len(streams._skipped)
        + len(streams.blocked)
        + streams.held
        + streams.waiting
        + server._heads._decoder._table_size
        + sum(len(block) for block in server._heads.known)
    )


def flood(client: Conversation, attack: Callable[[int], bytes], most: int) -> int:
    """Attack until the connection is given up; return after how many times."""
    for count in range(1, most + 2):
        client.say(attack(count))
        assert len(client.server.streams._out) <= 3
        if client.server.is_over:
            assert client.gave_up() is ErrorCode.ENHANCE_YOUR_CALM
            return count
        client.answer()
    raise AssertionError(f"goes on after {most} times")


def stream(count: int) -> int:
    """Return the number of a stream, from the first."""
    return 2 * count - 1


RAPID = {
    "reset by the client": lambda n: frames.headers(stream(n), BLOCK) + frames.reset(stream(n), ErrorCode.CANCEL),
    "reset for a window of nothing": lambda n: frames.headers(stream(n), BLOCK) + frames.window_update(stream(n), 0),
    "reset for too large a window": lambda n: (
        frames.headers(stream(n), BLOCK) + frames.window_update(stream(n), (1 << 31) - 1)
    ),
    "reset for data after the end": lambda n: frames.headers(stream(n), BLOCK, end=True) + frames.data(stream(n), b"x"),
    "reset for trailers without end": lambda n: frames.headers(stream(n), BLOCK) + frames.headers(stream(n), b""),
    "reset for a priority of itself": lambda n: (
        frames.headers(stream(n), BLOCK) + frames.frame(PRIORITY, 0, stream(n), stream(n).to_bytes(4, "big") + b"\0")
    ),
    "malformed": lambda n: frames.headers(stream(n), unchecked([(b"A", b"1")])),
    "too little content": lambda n: (
        frames.headers(stream(n), BLOCK + encode([(b"content-length", b"5")])) + frames.data(stream(n), b"", end=True)
    ),
}


@pytest.mark.parametrize("attack", RAPID.values(), ids=RAPID)
def test_streams_that_are_opened_to_be_reset_end_the_connection(attack: Callable[[int], bytes]) -> None:
    """Whoever resets them: CVE-2023-44487, CVE-2025-8671."""
    client = Conversation(LIMITS)
    assert flood(client, attack, LIMITS.resets) == LIMITS.resets + 1
    assert kept(client.server) < 1000


def test_where_calls_are_counted_by_others_only_incomplete_ones_are_counted_here() -> None:
    limits = replace(LIMITS, free_resets=True)
    client = Conversation(limits)
    for count in range(1, 10 * LIMITS.resets):
        client.say(frames.headers(stream(count), BLOCK, end=True), frames.reset(stream(count), ErrorCode.CANCEL))
        client.answer()
    assert client.is_alive()
    assert flood(Conversation(limits), RAPID["reset by the client"], LIMITS.resets) == LIMITS.resets + 1


FLOODS = {
    "ping": lambda _: frames.ping(b"12345678"),
    "ping acknowledged": lambda _: frames.ping(b"12345678", ack=True),
    "settings": lambda _: frames.settings([]),
    "settings of windows": lambda n: frames.settings([(Setting.INITIAL_WINDOW_SIZE, n)]),
    "settings acknowledged": lambda _: frames.SETTINGS_ACK,
    "priority": lambda _: frames.frame(PRIORITY, 0, 1, b"\0\0\0\0\0"),
    "window of the connection": lambda _: frames.window_update(0, 1),
    "window of a stream": lambda _: frames.window_update(1, 1),
    "window of a stream that is over": lambda _: frames.window_update(3, 1),
    "reset of a stream that is over": lambda _: frames.reset(3, ErrorCode.CANCEL),
    "data of a stream that we reset": lambda _: frames.data(5, b"x"),
    "headers of a stream that we reset": lambda _: frames.headers(5, b""),
    "empty data": lambda _: frames.data(1, b""),
    "nothing but padding": lambda _: frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\0\0\0"),
    "goaway": lambda _: frames.goaway(0, ErrorCode.NO_ERROR),
    "unknown frames": lambda _: frames.frame(0xFE, 0, 0, b"x" * 100),
}


@pytest.mark.parametrize("attack", FLOODS.values(), ids=FLOODS)
def test_frames_that_bring_nothing_end_the_connection(attack: Callable[[int], bytes]) -> None:
    client = Conversation(LIMITS)
    for number in (1, 3, 5):
        client.open(number)
    client.say(frames.reset(3, ErrorCode.CANCEL))
    client.server.streams.abort(5, ErrorCode.CANCEL)
    assert flood(client, attack, LIMITS.control_frames) >= LIMITS.control_frames - 3
    assert kept(client.server) < 1000


def test_time_forgives() -> None:
    client = Conversation(LIMITS)
    for number in range(1, 20 * LIMITS.resets, 2):
        client.say(frames.headers(number, BLOCK), frames.reset(number, ErrorCode.CANCEL), frames.ping(b"12345678"))
        client.answer()
        client.now += LIMITS.reset_time / LIMITS.resets
    assert client.is_alive()


def test_answers_that_a_client_takes_excuse_resets_and_frames() -> None:
    """A busy client cancels now and then, and updates windows all the time."""
    client = Conversation(LIMITS)
    for number in range(1, 4001, 4):
        client.open(number, end=True)
        client.server.streams.respond(number, OK, b"x")
        client.open(number + 2)
        client.say(frames.reset(number + 2, ErrorCode.CANCEL), frames.window_update(0, 1), frames.ping(b"12345678"))
        client.answer()
    assert client.is_alive()


def test_a_client_of_long_standing_may_give_up_all_its_calls_at_once() -> None:
    """As when the store is away, and all of them time out. What excuses them is used up then."""
    client = Conversation(LIMITS)
    for count in range(1, 201):
        client.open(stream(count), end=True)
        client.server.streams.respond(stream(count), OK, b"x")
    client.now += 1000.0
    resets = 0
    while not client.server.is_over:
        resets += 1
        number = stream(200 + resets)
        client.say(frames.headers(number, BLOCK), frames.reset(number, ErrorCode.CANCEL))
    assert resets == LIMITS.resets + 200 + 1


def test_a_byte_at_a_time_excuses_nothing() -> None:
    """CVE-2019-9511, data dribble: windows of a byte make frames of a byte."""
    client = Conversation(LIMITS, greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    client.open(1, end=True)
    client.server.streams.respond(1, OK, b"x" * 100_000)
    assert flood(client, lambda _: frames.window_update(1, 1), 200) <= LIMITS.control_frames + 10


def test_streams_beyond_the_most_are_refused_and_then_the_connection_ends() -> None:
    client = Conversation(LIMITS)
    flood(client, lambda n: frames.headers(stream(n), BLOCK), LIMITS.streams + LIMITS.control_frames)


@pytest.mark.parametrize("part", [b"", b"x"])
def test_a_block_of_many_continuations_ends_the_connection(part: bytes) -> None:
    client = Conversation(LIMITS)
    client.say(frames.frame(HEADERS, 0, 1, BLOCK))
    assert flood(client, lambda _: frames.frame(CONTINUATION, 0, 1, part), 17) == 17


def test_a_block_of_large_continuations_ends_the_connection() -> None:
    client = Conversation(LIMITS)
    client.say(frames.frame(HEADERS, 0, 1, BLOCK))
    full = frames.frame(CONTINUATION, 0, 1, b"x" * frames.FRAME_SIZE)
    assert flood(client, lambda _: full, 5) == 4


def test_a_header_bomb_is_answered_and_takes_no_memory() -> None:
    """4 KB that are referred to 16,000 times."""
    client = Conversation()
    client.open(1, block=BLOCK + indexed([(b"x", b"y" * 4000)]))
    assert client.open(3, block=BLOCK + index(62) * 16_000) == []
    assert client.fields(client.answer()[0])[0] == (b":status", b"431")
    assert kept(client.server) < 10_000


def test_header_bombs_again_and_again_end_the_connection() -> None:
    client = Conversation(LIMITS)
    client.say(frames.headers(1, indexed([(b"a", b"b" * 4000)]) + BLOCK, end=True))
    client.answer()
    count = flood(client, lambda n: frames.headers(stream(n) + 2, index(62) * 16_000, end=True), 200)
    assert count <= 2 * LIMITS.resets + 2


def test_blocks_that_are_never_the_same_take_no_memory() -> None:
    client = Conversation()
    for number in range(1, 4000, 2):
        client.open(number, end=True, block=BLOCK + unchecked([(b"x", b"%d" % number + b"y" * 3000)]))
        client.server.streams.respond(number, OK, b"")
        client.answer()
    assert kept(client.server) < 150_000


def test_numbers_that_are_left_out_take_no_memory() -> None:
    client = Conversation()
    for number in range(1, 40_000, 6):
        client.open(number, end=True)
        client.server.streams.respond(number, OK, b"")
        client.answer()
    assert kept(client.server) < 1000


def test_answers_before_the_end_of_requests_take_no_memory() -> None:
    client = Conversation(LIMITS)
    for number in range(1, 4000, 2):
        client.open(number)
        client.server.streams.respond(number, OK, b"")
        client.answer()
    assert len(client.server.streams._dropped) == LIMITS.streams


def test_five_mebibytes_against_the_windows_are_cut_off() -> None:
    """On a stream that nobody reads from, a client that heeds no window gets no further than the window."""
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    events = client.say(*[frames.data(1, b"x" * 16_384)] * 320)
    assert sum(len(event.data) for event in events if isinstance(event, Received)) == 262_144
    assert Aborted(1) in events
    assert kept(client.server) < 1000


def test_a_flood_in_one_read_is_cut_off_as_early() -> None:
    client = Conversation(LIMITS)
    client.say(frames.ping(b"12345678") * 100_000)
    assert len(client.server.streams.outgoing()) < 20 * LIMITS.control_frames


def test_settings_of_many_windows_are_applied_once() -> None:
    """2,700 changes of 1,000 streams' windows, in one frame."""
    client = Conversation()
    client.open(1)
    client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, n % 1000) for n in range(2701)]))
    assert client.server.streams.open[1].window == 700


def test_a_client_that_reads_nothing_has_its_answers_counted() -> None:
    """The transport closes a connection on which too much waits."""
    client = Conversation(greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    for number in range(1, 101, 2):
        client.open(number, end=True)
        client.server.streams.respond(number, OK, b"x" * 1000)
    assert client.server.streams.waiting == 50_000
    assert len(client.server.streams.open) == 50
