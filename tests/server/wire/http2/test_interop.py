"""Conversations with a client that others wrote: the h2 package."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from h2.errors import ErrorCodes
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2.connection import Http2Connection
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.streams import Aborted, Event, Opened, Received, Writable
from headgate.server.wire.limits import DEFAULT, WireLimits

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/check"), (":authority", "api"), ("x-key", "user:42")]
OURS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
HEAD = encode(OURS)
TRAILERS = encode([(b"grpc-status", b"0")])


class Pair:
    """A client of h2, and a server of ours, that exchange all they have to say at once."""

    def __init__(self, limits: WireLimits = DEFAULT) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.server = Http2Connection(limits)
        self.client.initiate_connection()
        self.exchange()

    def exchange(self) -> tuple[list[Event], list[h2.events.Event]]:
        """Pass bytes to and fro until there are none; return what came of them on either side."""
        ours: list[Event] = []
        theirs: list[h2.events.Event] = []
        while True:
            said, answered = self.client.data_to_send(), self.server.streams.outgoing()
            if not said and not answered:
                return ours, theirs
            ours += self.server.receive(said, 0.0)
            theirs += self.client.receive_data(answered)


def upload(pair: Pair, stream: int, body: bytes) -> list[Event]:
    """Send a request, as windows permit; return what came of it."""
    pair.client.send_headers(stream, REQUEST)
    events = pair.exchange()[0]
    while body:
        size = min(pair.client.local_flow_control_window(stream), 16_384)
        pair.client.send_data(stream, body[:size])
        body = body[size:]
        events += pair.exchange()[0]
    pair.client.end_stream(stream)
    return events + pair.exchange()[0]


def download(pair: Pair, stream: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Read a response to its end; return its body, and all headers and trailers."""
    body, headers = b"", []
    while True:
        for event in pair.exchange()[1]:
            match event:
                case h2.events.DataReceived(data=data, flow_controlled_length=size):
                    body += data or b""
                    pair.client.acknowledge_received_data(size or 0, stream)
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    headers += list(event.headers or ())
                case h2.events.StreamEnded():
                    return body, headers


@pytest.mark.parametrize("trailers", [b"", TRAILERS])
@pytest.mark.parametrize("size", [0, 5, 16_384, 70_000, 300_000])
def test_requests_and_responses_of_any_size_pass(size: int, trailers: bytes) -> None:
    pair = Pair()
    for stream in (1, 3, 5):
        first, *received = upload(pair, stream, b"x" * size)
        assert isinstance(first, Opened)
        assert first.head.fields == [(b"x-key", b"user:42")]
        assert b"".join(event.data for event in received if isinstance(event, Received)) == b"x" * size
        assert received[-1] == Received(stream, b"", True)
        pair.server.streams.respond(stream, HEAD, b"y" * size, trailers)
        body, headers = download(pair, stream)
        assert body == b"y" * size
        assert dict(headers) == dict([*OURS, (b"grpc-status", b"0")] if trailers else OURS)
    assert not pair.server.streams.open
    assert not pair.server.is_over


def test_a_call_that_is_cancelled_and_one_that_goes_on() -> None:
    pair = Pair()
    for stream in (1, 3):
        pair.client.send_headers(stream, REQUEST, end_stream=True)
    pair.exchange()
    pair.client.reset_stream(1, ErrorCodes.CANCEL)
    assert pair.exchange()[0] == [Aborted(1)]
    pair.server.streams.respond(3, HEAD, b"answer", TRAILERS)
    assert any(isinstance(event, h2.events.StreamEnded) and event.stream_id == 3 for event in pair.exchange()[1])


def test_streaming_both_ways() -> None:
    pair = Pair()
    pair.client.send_headers(1, REQUEST)
    pair.exchange()
    pair.server.streams.withhold(1)
    pair.server.streams.send_headers(1, HEAD, end=False)
    for _ in range(50):
        pair.client.send_data(1, b"x" * 10_000)
        ((received,), _) = pair.exchange()
        assert isinstance(received, Received)
        pair.server.streams.acknowledge(1, len(received.data))
        pair.server.streams.send_data(1, received.data, end=False)
        theirs = pair.exchange()[1]
        assert sum(len(event.data or b"") for event in theirs if isinstance(event, h2.events.DataReceived)) == 10_000
        pair.client.acknowledge_received_data(10_000, 1)
    pair.client.end_stream(1)
    assert pair.exchange()[0] == [Received(1, b"", True)]
    pair.server.streams.send_headers(1, TRAILERS, end=True)
    assert any(isinstance(event, h2.events.StreamEnded) for event in pair.exchange()[1])


def test_data_that_waits_is_sent_when_the_client_has_read() -> None:
    pair = Pair()
    pair.client.send_headers(1, REQUEST)
    pair.exchange()
    pair.server.streams.send_headers(1, HEAD, end=False)
    pair.server.streams.send_data(1, b"x" * 100_000, end=False)
    pair.exchange()
    assert pair.server.streams.waiting == 100_000 - 65_535
    pair.client.acknowledge_received_data(65_535, 1)
    assert pair.exchange()[0] == [Writable(1)]


def test_settings_and_pings_pass() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    pair.client.update_settings(
        {
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10,
            h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0,
            h2.settings.SettingCodes.MAX_FRAME_SIZE: 20_000,
        }
    )
    theirs = pair.exchange()[1]
    assert any(isinstance(event, h2.events.PingAckReceived) for event in theirs)
    assert any(isinstance(event, h2.events.SettingsAcknowledged) for event in theirs)
    pair.client.send_headers(1, REQUEST, end_stream=True)
    pair.exchange()
    pair.server.streams.respond(1, HEAD, b"")
    assert any(isinstance(event, h2.events.StreamEnded) for event in pair.exchange()[1])


def test_a_client_learns_that_we_leave() -> None:
    pair = Pair()
    pair.server.drain()
    pair.server.finish_draining()
    assert pair.server.is_over
    assert any(isinstance(event, h2.events.ConnectionTerminated) for event in pair.exchange()[1])


def test_a_client_learns_why_a_stream_was_reset() -> None:
    pair = Pair()
    pair.client.send_headers(1, REQUEST)
    pair.exchange()
    pair.server.streams.abort(1, ErrorCode.INTERNAL_ERROR)
    (reset,) = (event for event in pair.exchange()[1] if isinstance(event, h2.events.StreamReset))
    assert (reset.stream_id, reset.error_code) == (1, ErrorCodes.INTERNAL_ERROR)


VALUES = st.text("abcdefghij", max_size=60)
NAMES = st.sampled_from(["x-request-id", "grpc-timeout", "authorization", "user-agent", "x-a", "x-b"])


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=6), max_size=30))
def test_headers_arrive_as_they_were_sent_whatever_the_clients_table_does(calls: list[list[tuple[str, str]]]) -> None:
    pair = Pair()
    for fields in calls:
        stream = pair.client.get_next_available_stream_id()
        pair.client.send_headers(stream, REQUEST[:4] + fields, end_stream=True)
        (event,) = pair.exchange()[0]
        assert isinstance(event, Opened)
        assert event.head.fields == [(name.encode(), value.encode()) for name, value in fields]
        pair.server.streams.respond(stream, HEAD, b"", TRAILERS)
        pair.exchange()
