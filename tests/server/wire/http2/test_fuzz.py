"""Random bytes in random pieces: no errors, the same outcome for any pieces, and little memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.streams import Event, Opened, Received
from headgate.server.wire.limits import WireLimits
from tests.server.wire.http2.conversation import BLOCK, GREETING, OK, index, indexed, split, unchecked
from tests.server.wire.http2.test_abuse import kept

LIMITS = WireLimits(streams=4, resets=6, control_frames=12, header_bytes=500, headers=12)
STREAMS = st.sampled_from([0, 1, 1, 2, 3, 3, 5, 7, 9, 2**31 - 1])
BLOCKS = st.sampled_from(
    [
        BLOCK,
        BLOCK,
        BLOCK + unchecked([(b"content-length", b"4")]),
        BLOCK + indexed([(b"x", b"1")]),
        BLOCK + indexed([(b"y", b"z" * 300)]),
        BLOCK + index(62),
        BLOCK + index(63),
        BLOCK + unchecked([(b"large", b"z" * 600)]),
        BLOCK + unchecked([(b"Bad", b"")]),
        unchecked([(b"trailer", b"1")]),
        b"\x20" + BLOCK,
    ]
) | st.binary(max_size=20)
KNOWN = st.one_of(
    st.builds(frames.headers, STREAMS, BLOCKS, end=st.booleans()),
    st.builds(frames.headers, STREAMS, BLOCKS, end=st.booleans(), size=st.integers(5, 20)),
    st.builds(frames.data, STREAMS, st.sampled_from([b"", b"body", b"x" * 16_384]), end=st.booleans()),
    st.builds(frames.reset, STREAMS, st.sampled_from(ErrorCode)),
    st.builds(frames.window_update, STREAMS, st.sampled_from([0, 1, 10, 1 << 16, (1 << 31) - 1])),
    st.builds(
        frames.settings, st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0, 1, 5, 20_000, 1 << 31])), max_size=3)
    ),
    st.builds(frames.ping, st.just(b"12345678"), ack=st.booleans()),
    st.builds(frames.goaway, STREAMS, st.sampled_from(ErrorCode)),
)
ANY = st.builds(frames.frame, st.integers(0, 11), st.integers(0, 255), STREAMS, st.binary(max_size=40) | BLOCKS)
CONVERSATIONS = st.lists(KNOWN | ANY | st.binary(max_size=30), max_size=30).map(
    lambda parts: GREETING + b"".join(parts)
)
PROPER = st.lists(KNOWN, max_size=40).map(lambda parts: GREETING + b"".join(parts))


def served(data: bytes, cuts: list[int]) -> tuple[list[Event], bytes, Http2Connection]:
    """Let a connection read bytes in pieces; return its events and bytes."""
    server = Http2Connection(LIMITS)
    events: list[Event] = []
    answer = server.streams.outgoing()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        events += server.receive(data[start:stop], 0.0)
        answer += server.streams.outgoing()
        assert kept(server) < 700_000
        assert len(server._buffer) <= 16_393
    return apart(events), answer, server


def apart(events: list[Event]) -> list[Event]:
    """Return events as if each request had come in pieces: whether it came whole depends on how its bytes were cut."""
    found: list[Event] = []
    for event in events:
        if isinstance(event, Opened) and event.body is not None:
            found += [Opened(event.stream, event.head, None), Received(event.stream, event.body, True)]
        else:
            found.append(event)
    return found


@given(st.binary(max_size=200), st.lists(st.integers(0, 1000), max_size=5))
def test_any_bytes_are_accepted_without_an_error(data: bytes, cuts: list[int]) -> None:
    events, answer, _ = served(data, cuts)
    assert events == []
    split(answer)


@given(CONVERSATIONS | PROPER, st.lists(st.integers(0, 100_000), max_size=12))
def test_the_split_of_the_bytes_changes_nothing(data: bytes, cuts: list[int]) -> None:
    whole = served(data, [])
    pieces = served(data, cuts)
    assert pieces[0] == whole[0]
    assert pieces[1] == whole[1]
    assert pieces[2].fault == whole[2].fault
    assert kept(pieces[2]) == kept(whole[2])


@given(CONVERSATIONS | PROPER, st.data())
def test_events_of_a_stream_come_in_order_whatever_is_answered(data: bytes, choose: st.DataObject) -> None:
    """Opened first, then data, and nothing after the end; totals over all streams are right."""
    server = Http2Connection(LIMITS)
    server.streams.outgoing()
    alive: dict[int, bool] = {}
    cut = choose.draw(st.integers(1, 400))
    for start in range(0, len(data), cut):
        for event in server.receive(data[start : start + cut], 0.0):
            match event:
                case Opened():
                    assert event.stream not in alive
                    alive[event.stream] = event.body is not None
                case Received():
                    assert alive[event.stream] is False
                    alive[event.stream] = event.ended
                case _:
                    assert event.stream in alive
            if choose.draw(st.booleans()):
                server.streams.respond(event.stream, OK, b"x" * choose.draw(st.sampled_from([0, 5, 70_000])), OK)
                server.streams.withhold(event.stream)
                server.streams.acknowledge(event.stream, 10)
        split(server.streams.outgoing())
        assert len(server.streams.open) <= LIMITS.streams
        assert server.streams.waiting == sum(
            len(piece) for stream in server.streams.open.values() for piece in stream.queue or ()
        )
        assert server.streams.held == sum(stream.held for stream in server.streams.open.values())
        blocked = server.streams.blocked
        assert set(blocked) >= {
            number for number, stream in server.streams.open.items() if stream.queue is not None and stream.window > 0
        }
        assert not blocked or server.streams.window == 0
