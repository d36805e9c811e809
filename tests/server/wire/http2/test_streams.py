"""Streams: bodies under our windows, responses under the client's (RFC 9113 sections 4.2, 5.2, 6.1, 6.9, 8.1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
)
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.streams import CONNECTION_WINDOW, HELD, STREAM_WINDOW, Aborted, Received, Writable
from tests.server.wire.http2.conversation import BLOCK, OK, Conversation, Frame

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
    before = client.server.streams.credit
    padded = frames.frame(DATA, PADDED | END_STREAM, 1, b"\x04body\0\0\0\0")
    assert client.say(padded) == [Received(1, b"body", True)]
    assert before - client.server.streams.credit == 9


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
    client.server.streams.respond(1, OK, b"")
    client.say(frames.data(1, b"x"))
    assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_an_answer_before_the_end_of_the_request_asks_to_stop_and_overlooks_the_rest() -> None:
    """RFC 9113 section 8.1: without an error."""
    client = Conversation()
    client.open(1)
    client.server.streams.respond(1, OK, b"")
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
    client.server.streams.withhold(1)
    for _ in range(STREAM_WINDOW // len(FULL)):
        assert client.say(frames.data(1, FULL)) == [Received(1, FULL, False)]
    assert granted(client, 1) == 0
    assert client.say(frames.data(1, b"x")) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_what_is_acknowledged_may_be_sent_again() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    client.say(*[frames.data(1, FULL)] * (STREAM_WINDOW // len(FULL)))
    client.answer()
    client.server.streams.acknowledge(1, 100)
    assert granted(client, 1) == 0  # not for so little
    client.server.streams.acknowledge(1, STREAM_WINDOW // 2)
    assert granted(client, 1) == STREAM_WINDOW // 2 + 100
    client.server.streams.acknowledge(1, 1 << 40)  # more than there was
    assert client.server.streams.held == 0
    assert granted(client, 1) <= STREAM_WINDOW


def test_a_whole_body_is_held_too_if_it_is_withheld() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    client.say(frames.data(1, FULL, end=True))
    assert client.server.streams.held == len(FULL)


def test_no_window_is_given_back_after_the_end() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    client.say(*[frames.data(1, FULL)] * 10, frames.data(1, b"", end=True))
    client.server.streams.acknowledge(1, 10 * len(FULL))
    assert client.server.streams.held == 0
    assert granted(client, 1) == 0


def test_a_stream_that_ends_before_all_is_acknowledged_gives_it_back() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    client.say(frames.data(1, FULL), frames.data(1, FULL, end=True))
    assert client.server.streams.held == 2 * len(FULL)
    client.server.streams.acknowledge(1, 100)
    client.server.streams.respond(1, OK, b"")
    assert client.server.streams.held == 0
    assert not client.server.streams.open


def test_a_stream_that_is_withheld_does_not_stop_others() -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    client.say(*[frames.data(1, FULL)] * (STREAM_WINDOW // len(FULL)))
    client.open(3)
    for _ in range(100):
        assert client.say(frames.data(3, FULL)) == [Received(3, FULL, False)]


def test_a_client_that_overruns_the_window_of_the_connection_is_cut_off() -> None:
    """Frames that come at once, before any window can be given back, are within it; so the credit is set low here."""
    client = Conversation()
    client.open(1)
    client.server.streams.credit = 10
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
        assert client.server.streams.held == len(FULL)
        match ending:
            case "reset":
                client.say(frames.reset(stream, ErrorCode.CANCEL))
            case "end":
                client.say(frames.data(stream, b"", end=True))
            case "trailers":
                client.say(frames.headers(stream, b"", end=True))
            case _:
                client.server.streams.respond(stream, OK, b"")
        assert client.server.streams.held == 0


@given(st.lists(st.tuples(st.integers(0, 16_384), st.integers(0, 40_000)), max_size=120))
def test_a_client_that_keeps_to_the_windows_is_never_stopped_and_held_data_is_bounded(
    steps: list[tuple[int, int]],
) -> None:
    client = Conversation()
    client.open(1)
    client.server.streams.withhold(1)
    window, held = STREAM_WINDOW, 0
    for size, acknowledged in steps:
        size = min(size, window)  # noqa: PLW2901  what the window lets through
        if size:
            assert client.say(frames.data(1, b"x" * size)) == [Received(1, b"x" * size, False)]
        held += size
        client.server.streams.acknowledge(1, acknowledged)
        held -= min(held, acknowledged)
        window += granted(client, 1) - size
        assert held == client.server.streams.held
        assert window + held <= STREAM_WINDOW
    assert not client.server.is_over


TRAILERS = encode([(b"grpc-status", b"0")])
LAST = END_STREAM | END_HEADERS


def greeting(window: int, frame: int = frames.FRAME_SIZE) -> bytes:
    return frames.PREFACE + frames.settings([(Setting.INITIAL_WINDOW_SIZE, window), (Setting.MAX_FRAME_SIZE, frame)])


def data_of(answer: list[Frame], stream: int = 1) -> bytes:
    return b"".join(frame.payload for frame in answer if frame.kind == DATA and frame.stream == stream)


@pytest.mark.parametrize(
    ("body", "trailers", "expected"),
    [
        (b"", b"", [Frame(HEADERS, LAST, 1, OK)]),
        (b"abc", b"", [Frame(HEADERS, END_HEADERS, 1, OK), Frame(DATA, END_STREAM, 1, b"abc")]),
        (b"", TRAILERS, [Frame(HEADERS, END_HEADERS, 1, OK), Frame(HEADERS, LAST, 1, TRAILERS)]),
        (
            b"abc",
            TRAILERS,
            [Frame(HEADERS, END_HEADERS, 1, OK), Frame(DATA, 0, 1, b"abc"), Frame(HEADERS, LAST, 1, TRAILERS)],
        ),
    ],
)
@pytest.mark.parametrize("window", [DEFAULT_WINDOW, 0])
def test_a_response_is_as_few_frames_as_it_needs(
    window: int, body: bytes, trailers: bytes, expected: list[Frame]
) -> None:
    client = Conversation(greeting=greeting(window))
    client.open(1, end=True)
    client.server.streams.respond(1, OK, body, trailers)
    answer = client.answer()
    if window == 0 and body:
        assert client.server.streams.waiting == len(body)
        assert client.say(frames.window_update(1, 1000)) == []
        answer += client.answer()
    assert answer == expected
    assert not client.server.streams.open
    assert client.server.streams.waiting == 0


def test_a_response_in_parts_is_the_same() -> None:
    client = Conversation()
    client.open(1, end=True)
    client.server.streams.send_headers(1, OK, end=False)
    client.server.streams.send_data(1, b"ab", end=False)
    client.server.streams.send_data(1, b"", end=False)
    client.server.streams.send_data(1, b"", end=True)
    client.server.streams.send_data(1, b"after the end", end=True)
    client.server.streams.send_headers(1, TRAILERS, end=True)
    assert client.answer() == [
        Frame(HEADERS, END_HEADERS, 1, OK),
        Frame(DATA, 0, 1, b"ab"),
        Frame(DATA, END_STREAM, 1, b""),
    ]


@pytest.mark.parametrize("end", ["data", "empty data", "trailers"])
def test_the_end_waits_for_the_data_before_it(end: str) -> None:
    client = Conversation(greeting=greeting(2))
    client.open(1, end=True)
    client.server.streams.send_headers(1, OK, end=False)
    client.server.streams.send_data(1, b"abc", end=end == "data")
    if end == "empty data":
        client.server.streams.send_data(1, b"", end=True)
    if end == "trailers":
        client.server.streams.send_headers(1, TRAILERS, end=True)
    assert client.answer()[1:] == [Frame(DATA, 0, 1, b"ab")]
    assert len(client.server.streams.open) == 1
    assert client.say(frames.window_update(1, 1)) == []
    assert client.answer() == (
        [Frame(DATA, 0, 1, b"c"), Frame(HEADERS, LAST, 1, TRAILERS)]
        if end == "trailers"
        else [Frame(DATA, END_STREAM, 1, b"c")]
    )
    assert not client.server.streams.open


def test_frames_are_no_larger_than_the_client_takes() -> None:
    client = Conversation(greeting=greeting(1 << 20, 20_000) + frames.window_update(0, 1 << 20))
    client.open(1, end=True)
    block = OK + encode([(b"x", b"y" * 30_000)])
    client.server.streams.respond(1, block, b"z" * 50_000)
    answer = client.answer()
    assert [(frame.kind, len(frame.payload)) for frame in answer] == [
        (HEADERS, 20_000),
        (CONTINUATION, len(block) - 20_000),
        (DATA, 20_000),
        (DATA, 20_000),
        (DATA, 10_000),
    ]


def test_the_window_of_the_connection_is_shared_in_turns() -> None:
    client = Conversation(greeting=greeting(1 << 20))
    for stream in (1, 3, 5):
        client.open(stream, end=True)
        client.server.streams.respond(stream, OK, b"x" * 60_000)
    assert sum(len(frame.payload) for frame in client.answer() if frame.kind == DATA) == DEFAULT_WINDOW
    assert client.server.streams.waiting == 3 * 60_000 - DEFAULT_WINDOW
    served = []
    while client.server.streams.waiting:
        client.say(frames.window_update(0, 1000))
        served += [frame.stream for frame in client.answer() if frame.kind == DATA]
    assert served[:4] == [3, 5, 3, 5]


def test_whole_responses_use_up_the_window_of_the_connection() -> None:
    client = Conversation(greeting=greeting(1 << 20))
    for stream in (1, 3, 5, 7, 9):
        client.open(stream, end=True)
        client.server.streams.respond(stream, OK, b"x" * 16_000)
    assert client.server.streams.waiting == 5 * 16_000 - DEFAULT_WINDOW
    assert len(client.server.streams.open) == 1


@pytest.mark.parametrize("body", [b"", b"lost"])
def test_headers_amid_data_are_trailers(body: bytes) -> None:
    """Nothing else could be said after data; a response that comes too late does not break the frames."""
    client = Conversation(greeting=greeting(1))
    client.open(1, end=True)
    client.server.streams.send_headers(1, OK, end=False)
    client.server.streams.send_data(1, b"ab", end=False)
    client.server.streams.respond(1, TRAILERS, body)
    client.say(frames.window_update(1, 100))
    assert client.answer()[1:] == [Frame(DATA, 0, 1, b"a"), Frame(DATA, 0, 1, b"b"), Frame(HEADERS, LAST, 1, TRAILERS)]
    assert not client.server.streams.open


def test_a_stream_that_waits_for_its_own_window_lets_others_pass() -> None:
    client = Conversation(greeting=greeting(0))
    client.open(1, end=True)
    client.open(3, end=True)
    client.server.streams.respond(1, OK, b"first")
    client.server.streams.respond(3, OK, b"second")
    client.answer()
    client.say(frames.window_update(3, 100))
    assert client.answer() == [Frame(DATA, END_STREAM, 3, b"second")]


def test_those_who_wait_are_told_when_all_is_sent() -> None:
    client = Conversation(greeting=greeting(0))
    client.open(1)
    client.server.streams.send_data(1, b"ab", end=False)
    client.server.streams.send_data(1, b"cd", end=False)
    assert client.say(frames.window_update(1, 3)) == []
    assert client.say(frames.window_update(1, 3)) == [Writable(1)]


@pytest.mark.parametrize("by", ["client", "server", "connection"])
@pytest.mark.parametrize("window", [0, 1000])
def test_what_waits_is_dropped_with_its_stream(window: int, by: str) -> None:
    """Whether it waits for the window of the stream or of the connection."""
    client = Conversation(greeting=greeting(window))
    client.server.streams.window = 0
    client.open(1, end=True)
    client.server.streams.respond(1, OK, b"x" * 1000, TRAILERS)
    match by:
        case "client":
            assert client.say(frames.reset(1, ErrorCode.CANCEL)) == [Aborted(1)]
        case "server":
            client.server.streams.abort(1, ErrorCode.CANCEL)
        case _:
            assert client.say(frames.ping(b"short")) == [Aborted(1)]
    assert client.server.streams.waiting == 0
    assert not client.server.streams.open
    client.say(frames.window_update(0, 1000))
    assert data_of(client.answer()) == b""


@given(
    st.binary(max_size=3000),
    st.integers(0, 500),
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 700)), max_size=30),
    st.lists(st.integers(1, 1000), max_size=5),
)
def test_all_data_comes_in_order_and_never_more_than_the_windows(
    body: bytes, initial: int, updates: list[tuple[int, int]], cuts: list[int]
) -> None:
    client = Conversation(greeting=greeting(initial))
    client.server.streams.window = 300
    windows = [300, initial]
    client.open(1, end=True)
    client.server.streams.send_headers(1, OK, end=False)
    rest, pieces = body, []
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    for piece in (*pieces, rest):
        client.server.streams.send_data(1, piece, end=False)
    client.server.streams.send_headers(1, TRAILERS, end=True)
    received = data_of(client.answer())
    for stream, more in [*updates, (0, 10_000), (1, 10_000)]:
        assert len(received) <= min(windows)
        assert client.server.streams.waiting == len(body) - len(received)
        windows[stream] += more
        client.say(frames.window_update(stream, more))
        received += data_of(client.answer())
    assert received == body
    assert not client.server.streams.open


STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([1, 3, 5]), st.integers(1, 400)),
    st.tuples(st.just("widen"), st.sampled_from([0, 0, 1, 3, 5]), st.integers(1, 300)),
    st.tuples(st.just("initial"), st.just(0), st.integers(0, 300)),
)


@given(st.lists(STEPS, max_size=40))
def test_several_streams_share_the_windows_whatever_the_client_does_to_them(steps: list[tuple[str, int, int]]) -> None:
    """None is overrun; and nothing waits that both windows would let through."""
    client = Conversation(greeting=greeting(100))
    client.server.streams.window = 150
    windows, initial, waiting = {0: 150, 1: 100, 3: 100, 5: 100}, 100, {1: 0, 3: 0, 5: 0}
    for stream in waiting:
        client.open(stream)
    for step, stream, number in steps:
        if step == "send":
            client.server.streams.send_data(stream, b"x" * number, end=False)
            waiting[stream] += number
        elif step == "widen":
            windows[stream] += number
            client.say(frames.window_update(stream, number))
        else:
            windows = {each: window + (number - initial) * (each > 0) for each, window in windows.items()}
            initial = number
            client.say(frames.settings([(Setting.INITIAL_WINDOW_SIZE, number)]))
        for frame in client.answer():
            if frame.kind == DATA:
                for each in (0, frame.stream):
                    windows[each] -= len(frame.payload)
                    assert windows[each] >= 0
                waiting[frame.stream] -= len(frame.payload)
        assert client.server.streams.waiting == sum(waiting.values())
        assert all(not left or min(windows[0], windows[each]) <= 0 for each, left in waiting.items())
