"""Streams: bodies under our windows, responses under the client's (RFC 9113 sections 4.2, 5.2, 6.1, 6.9, 8.1.1)."""

from __future__ import annotations

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
from headgate.server.wire.http2.streams import (
    CONNECTION_WINDOW,
    HELD,
    STREAM_WINDOW,
    Aborted,
    Received,
    Streams,
    Writable,
)
from tests.server.wire.http2.conversation import BLOCK, OK, Conversation, Frame

FULL = b"x" * frames.FRAME_SIZE


def granted(client: Conversation, stream: int) -> int:
    return sum(
        frames.word(frame.payload)
        for frame in client.answer()
        if frame.kind == WINDOW_UPDATE and frame.stream == stream
    )


def begun(*, end: bool = False, withheld: bool = False) -> tuple[Conversation, Streams]:
    client = Conversation()
    client.open(1, end=end)
    if withheld:
        client.server.streams.withhold(1)
    return client, client.server.streams


def test_a_body_comes_at_once_or_in_parts() -> None:
    for parts in ([b""], [b"body"], [b"ab", b"c"]):
        client, _ = begun()
        for part in parts[:-1]:
            assert client.say(frames.data(1, part)) == [Received(1, part, False)]
        assert client.say(frames.data(1, parts[-1], end=True)) == [Received(1, parts[-1], True)]


def test_padding_is_taken_off_and_counts_for_the_window_and_there_is_no_more_of_it_than_frame() -> None:
    client, streams = begun()
    before = streams.credit
    padded = frames.frame(DATA, PADDED | END_STREAM, 1, b"\x04body\0\0\0\0")
    assert client.say(padded) == [Received(1, b"body", True)]
    assert before - streams.credit == 9
    for payload in (b"", b"\x01", b"\x05body", b"\xff" + b"x" * 254):
        client, _ = begun()
        client.say(frames.frame(DATA, PADDED, 1, payload))
        assert client.gave_up() is ErrorCode.PROTOCOL_ERROR, payload


def test_a_body_is_as_long_as_its_content_length() -> None:
    for length, parts, accepted in (
        *((3, [b"abc"], True), (3, [b"a", b"bc"], True), (3, [b"abc", b""], True), (0, [b""], True)),
        *((3, [b"ab"], False), (3, [b"abcd"], False), (3, [b"abcd", b""], False), (3, [b"a", b""], False)),
        (0, [b"a"], False),
    ):
        client = Conversation()
        for stream in (1, 3):  # the second by the shorter way
            client.open(stream, block=BLOCK + encode([(b"content-length", str(length).encode())]))
            *first, last = parts
            events = client.say(*(frames.data(stream, part) for part in first), frames.data(stream, last, end=True))
            assert (Aborted(stream) not in events) is accepted, parts
            assert client.reset_with() == ([] if accepted else [(stream, ErrorCode.PROTOCOL_ERROR)]), parts
    client.open(5, block=BLOCK + encode([(b"content-length", b"3")]))
    assert client.say(frames.headers(5, b"", end=True)) == [Aborted(5)], "trailers before the content is complete"


def test_data_after_the_end_resets_the_stream_and_after_the_answer_ends_the_connection() -> None:
    client, _ = begun(end=True)
    assert client.say(frames.data(1, b"x", end=True)) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.STREAM_CLOSED)]
    client, streams = begun(end=True)
    streams.respond(1, OK, b"")
    client.say(frames.data(1, b"x"))
    assert client.gave_up() is ErrorCode.STREAM_CLOSED


def test_an_early_response_stops_the_request_and_ignores_the_rest() -> None:
    """RFC 9113 section 8.1: without an error."""
    client, streams = begun()
    streams.respond(1, OK, b"")
    assert client.reset_with() == [(1, ErrorCode.NO_ERROR)]
    assert client.say(frames.data(1, b"x"), frames.data(1, b"y", end=True)) == []
    assert client.is_alive()


def test_both_windows_are_replenished_lazily() -> None:
    client, _ = begun()
    count = 4 * CONNECTION_WINDOW // len(FULL)
    grants = []
    for _ in range(count):
        client.say(frames.data(1, FULL))
        grants += client.answer()
    assert {frame.kind for frame in grants} == {WINDOW_UPDATE}
    assert sum(frame.stream == 1 for frame in grants) == count * len(FULL) // (STREAM_WINDOW // 2)
    assert sum(frame.stream == 0 for frame in grants) <= count * len(FULL) // (CONNECTION_WINDOW // 2)


def test_data_that_is_withheld_stops_at_the_window_of_the_stream_and_other_streams_go_on() -> None:
    client, _ = begun(withheld=True)
    for _ in range(STREAM_WINDOW // len(FULL)):
        assert client.say(frames.data(1, FULL)) == [Received(1, FULL, False)]
    assert granted(client, 1) == 0
    client.open(3)
    for _ in range(100):
        assert client.say(frames.data(3, FULL)) == [Received(3, FULL, False)]
    client.answer()
    assert client.say(frames.data(1, b"x")) == [Aborted(1)]
    assert client.reset_with() == [(1, ErrorCode.FLOW_CONTROL_ERROR)]


def test_acknowledged_data_replenishes_the_window() -> None:
    client, streams = begun(withheld=True)
    client.say(*[frames.data(1, FULL)] * (STREAM_WINDOW // len(FULL)))
    client.answer()
    streams.acknowledge(1, 100)
    assert granted(client, 1) == 0  # not for so little
    streams.acknowledge(1, STREAM_WINDOW // 2)
    assert granted(client, 1) == STREAM_WINDOW // 2 + 100
    streams.acknowledge(1, 1 << 40)  # more than there was
    assert streams.held == 0
    assert granted(client, 1) <= STREAM_WINDOW


def test_no_window_is_replenished_after_the_end_and_held_data_goes_with_the_stream() -> None:
    client, streams = begun(withheld=True)
    client.say(*[frames.data(1, FULL)] * 10, frames.data(1, b"", end=True))
    streams.acknowledge(1, 10 * len(FULL))
    assert (streams.held, granted(client, 1)) == (0, 0)
    client, streams = begun(withheld=True)
    client.say(frames.data(1, FULL), frames.data(1, FULL, end=True))
    assert streams.held == 2 * len(FULL)
    streams.acknowledge(1, 100)
    streams.respond(1, OK, b"")
    assert (streams.held, [*streams.open]) == (0, [])


def test_a_client_that_overruns_the_window_of_the_connection_is_cut_off() -> None:
    """The credit is set low, since frames that arrive at once cannot exceed the usual one."""
    client, streams = begun()
    streams.credit = 10
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


def test_a_closed_stream_releases_its_held_data() -> None:
    client = Conversation()
    for stream, last in (
        (1, frames.reset(1, ErrorCode.CANCEL)),
        (3, frames.data(3, b"", end=True)),
        (5, frames.headers(5, b"", end=True)),
        (7, b""),
    ):
        client.open(stream)
        client.say(frames.data(stream, FULL))
        assert client.server.streams.held == len(FULL)
        client.say(last)
        if not last:
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


def test_a_response_has_as_few_frames_as_possible() -> None:
    head, data, trailers = (
        Frame(HEADERS, END_HEADERS, 1, OK),
        Frame(DATA, 0, 1, b"abc"),
        Frame(HEADERS, LAST, 1, TRAILERS),
    )
    for body, block, expected in (
        (b"", b"", [Frame(HEADERS, LAST, 1, OK)]),
        (b"abc", b"", [head, Frame(DATA, END_STREAM, 1, b"abc")]),
        (b"", TRAILERS, [head, trailers]),
        (b"abc", TRAILERS, [head, data, trailers]),
    ):
        for window in (DEFAULT_WINDOW, 0):
            client = Conversation(greeting=greeting(window))
            client.open(1, end=True)
            streams = client.server.streams
            streams.respond(1, OK, body, block)
            answer = client.answer()
            if window == 0 and body:
                assert streams.waiting == len(body)
                assert client.say(frames.window_update(1, 1000)) == []
                answer += client.answer()
            assert answer == expected
            assert (streams.waiting, [*streams.open]) == (0, [])


def test_a_response_in_parts_is_the_same() -> None:
    client, streams = begun(end=True)
    streams.send_headers(1, OK, end=False)
    for part, end in ((b"ab", False), (b"", False), (b"", True), (b"after the end", True)):
        streams.send_data(1, part, end=end)
    streams.send_headers(1, TRAILERS, end=True)
    data = Frame(DATA, 0, 1, b"ab"), Frame(DATA, END_STREAM, 1, b"")
    assert client.answer() == [Frame(HEADERS, END_HEADERS, 1, OK), *data]


def test_the_end_waits_for_the_data_before_it() -> None:
    for end in ("data", "empty data", "trailers"):
        client = Conversation(greeting=greeting(2))
        client.open(1, end=True)
        streams = client.server.streams
        streams.send_headers(1, OK, end=False)
        streams.send_data(1, b"abc", end=end == "data")
        if end == "empty data":
            streams.send_data(1, b"", end=True)
        if end == "trailers":
            streams.send_headers(1, TRAILERS, end=True)
        assert (client.answer()[1:], len(streams.open)) == ([Frame(DATA, 0, 1, b"ab")], 1), end
        assert client.say(frames.window_update(1, 1)) == []
        rest = [Frame(DATA, 0, 1, b"c"), Frame(HEADERS, LAST, 1, TRAILERS)]
        assert client.answer() == (rest if end == "trailers" else [Frame(DATA, END_STREAM, 1, b"c")]), end
        assert not streams.open


def test_frames_are_no_larger_than_the_client_takes() -> None:
    client = Conversation(greeting=greeting(1 << 20, 20_000) + frames.window_update(0, 1 << 20))
    client.open(1, end=True)
    block = OK + encode([(b"x", b"y" * 30_000)])
    client.server.streams.respond(1, block, b"z" * 50_000)
    sizes = [(frame.kind, len(frame.payload)) for frame in client.answer()]
    assert sizes[:2] == [(HEADERS, 20_000), (CONTINUATION, len(block) - 20_000)]
    assert sizes[2:] == [(DATA, 20_000), (DATA, 20_000), (DATA, 10_000)]


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


def test_headers_amid_data_are_trailers() -> None:
    """A response that is too late does not break the frames."""
    for body in (b"", b"lost"):
        client = Conversation(greeting=greeting(1))
        client.open(1, end=True)
        client.server.streams.send_headers(1, OK, end=False)
        client.server.streams.send_data(1, b"ab", end=False)
        client.server.streams.respond(1, TRAILERS, body)
        client.say(frames.window_update(1, 100))
        data = [Frame(DATA, 0, 1, byte) for byte in (b"a", b"b")]
        assert client.answer()[1:] == [*data, Frame(HEADERS, LAST, 1, TRAILERS)]
        assert not client.server.streams.open


def test_an_event_reports_when_all_waiting_data_is_sent() -> None:
    client = Conversation(greeting=greeting(0))
    client.open(1)
    for part in (b"ab", b"cd"):
        client.server.streams.send_data(1, part, end=False)
    assert client.say(frames.window_update(1, 3)) == []
    assert client.say(frames.window_update(1, 3)) == [Writable(1)]


def test_waiting_data_is_dropped_with_its_stream() -> None:
    """Whether it waits for the window of the stream or of the connection."""
    for window in (0, 1000):
        for ending in (frames.reset(1, ErrorCode.CANCEL), frames.ping(b"short"), b""):
            client = Conversation(greeting=greeting(window))
            streams = client.server.streams
            streams.window = 0
            client.open(1, end=True)
            streams.respond(1, OK, b"x" * 1000, TRAILERS)
            if ending:
                assert client.say(ending) == [Aborted(1)]
            else:
                streams.abort(1, ErrorCode.CANCEL)
            assert (streams.waiting, [*streams.open]) == (0, []), ending
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
