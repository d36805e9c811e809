"""Attacks within the rules of the protocol: each ends, and none makes the server keep or send much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import CONTINUATION, HEADERS, PRIORITY, ErrorCode, Setting
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.limits import DEFAULT
from tests.server.wire.http2.conversation import BLOCK, OK, Conversation, index, indexed, unchecked

LIMITS = replace(DEFAULT, resets=20, control_frames=50, streams=10)


def kept(server: Http2Connection) -> int:
    """Return how much a connection keeps, roughly, in bytes and things."""
    streams, heads = server.streams, server._heads
    things = server._buffer, server._blocks._block, streams.open, streams._dropped, streams._skipped, streams.blocked
    return sum([*map(len, (*things, *heads.known)), streams.held, streams.waiting, heads._decoder._table_size])


def flood(client: Conversation, attack: Callable[[int], bytes], most: int) -> int:
    """Attack until the connection ends; return the number of attacks."""
    for count in range(1, most + 2):
        client.say(attack(count))
        assert len(client.server.streams._out) <= 3
        if client.server.is_over:
            assert client.gave_up() is ErrorCode.ENHANCE_YOUR_CALM
            return count
        client.answer()
    raise AssertionError(f"goes on after {most} times")


def stream(count: int) -> int:
    return 2 * count - 1


def opening(then: Callable[[int], bytes], *, end: bool = False) -> Callable[[int], bytes]:
    return lambda count: frames.headers(stream(count), BLOCK, end=end) + then(stream(count))


RAPID = {
    "reset by the client": opening(lambda number: frames.reset(number, ErrorCode.CANCEL)),
    "reset for a window of nothing": opening(lambda number: frames.window_update(number, 0)),
    "reset for too large a window": opening(lambda number: frames.window_update(number, (1 << 31) - 1)),
    "reset for data after the end": opening(lambda number: frames.data(number, b"x"), end=True),
    "reset for trailers without end": opening(lambda number: frames.headers(number, b"")),
    "reset for a priority of itself": opening(
        lambda number: frames.frame(PRIORITY, 0, number, number.to_bytes(4, "big") + b"\0")
    ),
    "malformed": lambda n: frames.headers(stream(n), unchecked([(b"A", b"1")])),
    "too little content": lambda n: (
        frames.headers(stream(n), BLOCK + encode([(b"content-length", b"5")])) + frames.data(stream(n), b"", end=True)
    ),
}


@pytest.mark.parametrize("attack", RAPID.values(), ids=RAPID)
def test_rapid_resets_end_the_connection(attack: Callable[[int], bytes]) -> None:
    """Whoever resets them: CVE-2023-44487, CVE-2025-8671."""
    client = Conversation(LIMITS)
    assert flood(client, attack, LIMITS.resets) == LIMITS.resets + 1
    assert kept(client.server) < 1000


def test_only_incomplete_calls_count_if_resets_are_free() -> None:
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
def test_floods_of_useless_frames_end_the_connection(attack: Callable[[int], bytes]) -> None:
    client = Conversation(LIMITS)
    for number in (1, 3, 5):
        client.open(number)
    client.say(frames.reset(3, ErrorCode.CANCEL))
    client.server.streams.abort(5, ErrorCode.CANCEL)
    assert flood(client, attack, LIMITS.control_frames) >= LIMITS.control_frames - 3
    assert kept(client.server) < 1000


def test_resets_are_allowed_again_after_a_while() -> None:
    client = Conversation(LIMITS)
    for number in range(1, 20 * LIMITS.resets, 2):
        client.say(frames.headers(number, BLOCK), frames.reset(number, ErrorCode.CANCEL), frames.ping(b"12345678"))
        client.answer()
        client.now += LIMITS.reset_time / LIMITS.resets
    assert client.is_alive()


def test_responses_offset_resets_and_frames() -> None:
    """A busy client cancels now and then, and updates windows all the time."""
    client = Conversation(LIMITS)
    for number in range(1, 4001, 4):
        client.open(number, end=True)
        client.server.streams.respond(number, OK, b"x")
        client.open(number + 2)
        client.say(frames.reset(number + 2, ErrorCode.CANCEL), frames.window_update(0, 1), frames.ping(b"12345678"))
        client.answer()
    assert client.is_alive()


def test_a_long_lived_client_may_cancel_all_its_calls_at_once() -> None:
    """For example if all of them time out. Their offset is used up then."""
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


def test_windows_of_a_byte_offset_nothing() -> None:
    """CVE-2019-9511, data dribble: windows of a byte make frames of a byte."""
    client = Conversation(LIMITS, greeting=frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))
    client.open(1, end=True)
    client.server.streams.respond(1, OK, b"x" * 100_000)
    assert flood(client, lambda _: frames.window_update(1, 1), 200) <= LIMITS.control_frames + 10


def test_streams_beyond_the_most_are_refused_and_then_the_connection_ends() -> None:
    client = Conversation(LIMITS)
    flood(client, lambda n: frames.headers(stream(n), BLOCK), LIMITS.streams + LIMITS.control_frames)


def test_a_block_of_many_or_large_continuations_ends_the_connection() -> None:
    for part, most in ((b"", 17), (b"x", 17), (b"x" * frames.FRAME_SIZE, 4)):
        client = Conversation(LIMITS)
        client.say(frames.frame(HEADERS, 0, 1, BLOCK))
        full = frames.frame(CONTINUATION, 0, 1, part)
        assert flood(client, lambda _: full, most) == most  # noqa: B023


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


def test_blocks_that_are_never_the_same_and_numbers_that_are_left_out_take_no_memory() -> None:
    for step, more, most in ((2, b"y" * 3000, 150_000), (6, b"", 1000)):
        client = Conversation()
        for number in range(1, 2000 * step, step):
            block = BLOCK + unchecked([(b"x", b"%d" % number + more)] if more else [])
            client.open(number, end=True, block=block)
            client.server.streams.respond(number, OK, b"")
            client.answer()
        assert kept(client.server) < most


def test_answers_before_the_end_of_requests_take_no_memory() -> None:
    client = Conversation(LIMITS)
    for number in range(1, 4000, 2):
        client.open(number)
        client.server.streams.respond(number, OK, b"")
        client.answer()
    assert len(client.server.streams._dropped) == LIMITS.streams


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
