"""Bodies that come in: data, padding, lengths, and windows (RFC 9113 sections 5.2, 6.1, 8.1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.events import Aborted, Received
from headgate.server.wire.http2.frames import DATA, END_STREAM, PADDED, WINDOW_UPDATE, ErrorCode
from headgate.server.wire.http2.headers import encode
from headgate.server.wire.http2.inflow import CONNECTION_WINDOW, HELD, STREAM_WINDOW
from tests.server.wire.http2.conversation import BLOCK, OK, Conversation

FULL = b"x" * frames.FRAME_SIZE


def granted(client: Conversation, stream: int) -> int:
    """Take the answer; return by how much it widens a window."""
    return sum(
        frames.word(frame.payload)
        for frame in client.answer()
        if frame.kind == WINDOW_UPDATE and frame.stream == stream
    )


def test_a_body_comes_in_parts() -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frames.data(1, b"ab")) == [Received(1, b"ab", False)]
    assert client.say(frames.data(1, b"c", end=True)) == [Received(1, b"c", True)]


@pytest.mark.parametrize("payload", [b"", b"body"])
def test_a_body_comes_at_once(payload: bytes) -> None:
    client = Conversation()
    client.open(1)
    assert client.say(frames.data(1, payload, end=True)) == [Received(1, payload, True)]


def test_padding_is_taken_off_and_counts_for_the_window() -> None:
    client = Conversation()
    client.open(1)
    before = client.server._inflow.credit
    padded = frames.frame(DATA, PADDED | END_STREAM, 1, b"\x04body\0\0\0\0")
    assert client.say(padded) == [Received(1, b"body", True)]
    assert before - client.server._inflow.credit == 9


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05body", b"\xff" + b"x" * 254])
def test_more_padding_than_frame_ends_the_connection(payload: bytes) -> None:
    client = Conversation()
    client.open(1)
    client.say(frames.frame(DATA, PADDED, 1, payload))
    assert client.gave_up() is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("length", "parts", "accepted"),
    [
        (3, [b"abc"], True),
        (3, [b"a", b"bc"], True),
        (3, [b"abc", b""], True),
        (0, [b""], True),
        (3, [b"ab"], False),
        (3, [b"abcd"], False),
        (3, [b"abcd", b""], False),
        (3, [b"a", b""], False),
        (0, [b"a"], False),
    ],
)
def test_a_body_is_as_long_as_its_content_length(length: int, parts: list[bytes], accepted: bool) -> None:  # noqa: FBT001
    client = Conversation()
    for stream in (1, 3):  # the second by the shorter way
        client.open(stream, block=BLOCK + encode([(b"content-length", str(length).encode())]))
        *first, last = parts
        events = client.say(*(frames.data(stream, part) for part in first), frames.data(stream, last, end=True))
        assert (Aborted(stream) not in events) is accepted
        assert client.reset_with() == ([] if accepted else [(stream, ErrorCode.PROTOCOL_ERROR)])


def test_trailers_before_the_content_is_complete_are_malformed() -> None:
    client = Conversation()
    client.open(1, block=BLOCK + encode([(b"content-length", b"3")]))
    assert client.say(frames.headers(1, b"", end=True)) == [Aborted(1)]


def test_data_after_the_end_resets_the_stream() -> None:
    client = Conversation()
    client.open(1, end=True)
    assert client.say(frames.data(1, b"x", end=True)) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.STREAM_CLOSED)]


def test_data_of_a_stream_that_was_answered_ends_the_connection() -> None:
    client = Conversation()
    client.open(1, end=True)
    client.server.respond(1, OK, b"")
    client.say(frames.data(1, b"x"))
    assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_an_answer_before_the_end_of_the_request_asks_to_stop_and_overlooks_the_rest() -> None:
    """RFC 9113 section 8.1: without an error."""
    client = Conversation()
    client.open(1)
    client.server.respond(1, OK, b"")
    assert client.reset_with() == [(1, ErrorCode.NO_ERROR)]
    assert client.say(frames.data(1, b"x"), frames.data(1, b"y", end=True)) == []
    assert client.is_alive()


def test_both_windows_are_given_back_lazily() -> None:
    client = Conversation()
    client.open(1)
    sent, stream_grants, connection_grants = 0, 0, 0
    while sent < 4 * CONNECTION_WINDOW:
        client.say(frames.data(1, FULL))
        sent += len(FULL)
        answer = client.answer()
        stream_grants += sum(frame.stream == 1 for frame in answer)
        connection_grants += sum(frame.stream == 0 for frame in answer)
        assert all(frame.kind == WINDOW_UPDATE for frame in answer)
    assert stream_grants == sent // (STREAM_WINDOW // 2)
    assert connection_grants <= sent // (CONNECTION_WINDOW // 2)


def test_data_that_is_withheld_stops_at_the_window_of_the_stream() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    for _ in range(STREAM_WINDOW // len(FULL)):
        assert client.say(frames.data(1, FULL)) == [Received(1, FULL, False)]
    assert granted(client, 1) == 0
    assert client.say(frames.data(1, b"x")) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_what_is_acknowledged_may_be_sent_again() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    client.say(*[frames.data(1, FULL)] * (STREAM_WINDOW // len(FULL)))
    client.answer()
    client.server.acknowledge(1, 100)
    assert granted(client, 1) == 0  # not for so little
    client.server.acknowledge(1, STREAM_WINDOW // 2)
    assert granted(client, 1) == STREAM_WINDOW // 2 + 100
    client.server.acknowledge(1, 1 << 40)  # more than there was
    assert client.server._streams.held == 0
    assert granted(client, 1) <= STREAM_WINDOW


def test_a_whole_body_is_held_too_if_it_is_withheld() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    client.say(frames.data(1, FULL, end=True))
    assert client.server._streams.held == len(FULL)


def test_no_window_is_given_back_after_the_end() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    client.say(*[frames.data(1, FULL)] * 10, frames.data(1, b"", end=True))
    client.server.acknowledge(1, 10 * len(FULL))
    assert client.server._streams.held == 0
    assert granted(client, 1) == 0


def test_a_stream_that_ends_before_all_is_acknowledged_gives_it_back() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    client.say(frames.data(1, FULL), frames.data(1, FULL, end=True))
    assert client.server._streams.held == 2 * len(FULL)
    client.server.acknowledge(1, 100)
    client.server.respond(1, OK, b"")
    assert client.server._streams.held == 0
    assert client.server.is_idle


def test_a_stream_that_is_withheld_does_not_stop_others() -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    client.say(*[frames.data(1, FULL)] * (STREAM_WINDOW // len(FULL)))
    client.open(3)
    for _ in range(100):
        assert client.say(frames.data(3, FULL)) == [Received(3, FULL, False)]


def test_a_client_that_overruns_the_window_of_the_connection_is_cut_off() -> None:
    """Frames that come at once, before any window can be given back, are within it; so the credit is set low here."""
    client = Conversation()
    client.open(1)
    client.server._inflow.credit = 10
    client.say(frames.data(1, b"x" * 11, end=True))
    assert client.gave_up() is ErrorCode.FLOW_CONTROL_ERROR


def test_unfinished_bodies_are_bounded_together() -> None:
    client = Conversation()
    stream, sent, aborted = 1, 0, 0
    client.open(stream)
    while not aborted:
        events = client.say(frames.data(stream, FULL))
        aborted += Aborted(stream) in events
        sent += len(FULL)
        if sent % (1 << 20) == 0:
            stream += 2
            client.open(stream)
    assert HELD < sent <= HELD + len(FULL)
    assert client.reset_with() == [(stream, ErrorCode.ENHANCE_YOUR_CALM)]
    assert client.is_alive()


def test_a_stream_that_goes_gives_back_what_it_held() -> None:
    client = Conversation()
    for stream, ending in ((1, "reset"), (3, "end"), (5, "trailers"), (7, "answer")):
        client.open(stream)
        client.say(frames.data(stream, FULL))
        assert client.server._streams.held == len(FULL)
        match ending:
            case "reset":
                client.say(frames.reset(stream, ErrorCode.CANCEL))
            case "end":
                client.say(frames.data(stream, b"", end=True))
            case "trailers":
                client.say(frames.headers(stream, b"", end=True))
            case _:
                client.server.respond(stream, OK, b"")
        assert client.server._streams.held == 0


@given(st.lists(st.tuples(st.integers(0, 16_384), st.integers(0, 40_000)), max_size=120))
def test_a_client_that_keeps_to_the_windows_is_never_stopped_and_held_data_is_bounded(
    steps: list[tuple[int, int]],
) -> None:
    client = Conversation()
    client.open(1)
    client.server.withhold(1)
    window, held = STREAM_WINDOW, 0
    for size, acknowledged in steps:
        size = min(size, window)  # noqa: PLW2901  what the window lets through
        if size:
            assert client.say(frames.data(1, b"x" * size)) == [Received(1, b"x" * size, False)]
        held += size
        client.server.acknowledge(1, acknowledged)
        held -= min(held, acknowledged)
        window += granted(client, 1) - size
        assert held == client.server._streams.held
        assert window + held <= STREAM_WINDOW
    assert not client.server.is_over
