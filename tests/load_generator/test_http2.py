"""The client of gRPC: frames of all kinds, in any pieces, and from servers that mean no good."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.load_generator.blocks import literal_block
from headgate.load_generator.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    MOST_FRAME,
    PADDED,
    PREFACE,
    PRIORITY,
    Setting,
    Type,
    frame,
)
from headgate.load_generator.http2 import MOST_ANSWER, Http2
from headgate.load_generator.outcomes import ALLOWED, DENIED, NOT_UNDERSTOOD, SHED, BadAnswer, Outcome, failed
from headgate.load_generator.questions import Asked, Service, grpc_method
from headgate.load_generator.targets import Target

METHOD = grpc_method(Service.RLS, Asked())
TARGET = Target("127.0.0.1", 8081, grpc=True)
SETTINGS = frame(Type.SETTINGS, 0, 0)
HEAD = literal_block([(":status", "200"), ("content-type", "application/grpc")])
TAIL = literal_block([("grpc-status", "0")])
YES = b"\0\0\0\0\6\x08\1\x12\2\x12\0"
NO = b"\0\0\0\0\2\x08\2"


def setting(name: int, value: int) -> bytes:
    return frame(Type.SETTINGS, 0, 0, name.to_bytes(2, "big") + value.to_bytes(4, "big"))


def headers(block: bytes, stream: int = 1, flags: int = END_HEADERS) -> bytes:
    return frame(Type.HEADERS, flags, stream, block)


def trailers(status: str, stream: int = 1) -> bytes:
    block = literal_block([("grpc-status", status), ("grpc-message", "why")])
    return headers(block, stream, END_HEADERS | END_STREAM)


def answer(message: bytes = YES, stream: int = 1) -> bytes:
    return headers(HEAD, stream) + frame(Type.DATA, 0, stream, message) + headers(TAIL, stream, 5)


def client(streams: int = 4) -> Http2:
    found = Http2(TARGET, METHOD, streams, "secret")
    assert found.greeting().startswith(PREFACE)
    assert found.room() == 0
    return found


def asked(questions: int = 1) -> Http2:
    found = client()
    assert found.receive(SETTINGS) == []
    assert found.reply() == frame(Type.SETTINGS, ACK, 0)
    assert found.room() == 4
    for number in range(questions):
        assert found.ask(number)[0] == 2 * number + 1
    return found


@pytest.mark.parametrize(
    ("data", "outcome"),
    [
        (answer(), ALLOWED),
        (answer(NO), DENIED),
        (answer(b"\0\0\0\0\0"), NOT_UNDERSTOOD),
        (answer(b"\1\0\0\0\2\x08\1"), NOT_UNDERSTOOD),
        (answer(b"\0\0\0\0\3\x08\1"), NOT_UNDERSTOOD),
        (answer(b""), NOT_UNDERSTOOD),
        (answer(YES + YES), NOT_UNDERSTOOD),
        (trailers("8"), SHED),
        (headers(HEAD) + trailers("13"), failed("gRPC INTERNAL")),
        (trailers("14"), failed("gRPC UNAVAILABLE")),
        (trailers("99"), NOT_UNDERSTOOD),
        (headers(HEAD, flags=5), NOT_UNDERSTOOD),
        (headers(HEAD) + frame(Type.DATA, END_STREAM, 1, YES), NOT_UNDERSTOOD),
        (headers(literal_block([(":status", "503")]), flags=5), failed("HTTP 503")),
        (headers(literal_block([(":status", "404")])), failed("HTTP 404")),
        (frame(Type.RST_STREAM, 0, 1, (7).to_bytes(4, "big")), failed("stream reset: REFUSED_STREAM")),
        (frame(Type.RST_STREAM, 0, 1, (99).to_bytes(4, "big")), failed("stream reset: unknown")),
        (frame(Type.PING, 0, 1, b"?").replace(b"\6", b"\x63", 1) + answer(), ALLOWED),  # a type that nobody knows
        (
            frame(Type.HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\2" + b"\0" * 5 + HEAD + b"\0\0")
            + frame(Type.DATA, PADDED, 1, b"\3" + YES + b"\0\0\0")
            + frame(Type.HEADERS, END_STREAM, 1, TAIL[:5])
            + frame(Type.CONTINUATION, 0, 1, TAIL[5:9])
            + frame(Type.CONTINUATION, END_HEADERS, 1, TAIL[9:]),
            ALLOWED,
        ),
    ],
)
def test_one_answer_whole_and_byte_by_byte(data: bytes, outcome: Outcome) -> None:
    assert asked().receive(data) == [(1, outcome)]
    found = asked()
    assert [end for byte in data for end in found.receive(bytes([byte]))] == [(1, outcome)]
    assert found.room() == 4


def test_answers_come_in_any_order() -> None:
    found = asked(3)
    assert found.room() == 1
    data = answer(NO, 5) + answer(YES, 1) + answer(NO, 3)
    assert found.receive(data) == [(5, DENIED), (1, ALLOWED), (3, DENIED)]


def test_the_server_says_how_many_streams_it_takes() -> None:
    found = client()
    found.receive(setting(Setting.MAX_STREAMS, 2))
    assert found.room() == 2
    found.receive(SETTINGS)
    assert found.room() == 2
    found.receive(setting(Setting.MAX_STREAMS, 100))
    assert found.room() == 4


def test_no_more_is_sent_than_the_window_of_the_connection_takes() -> None:
    found = client(10_000)
    found.receive(SETTINGS)
    size = METHOD.message.size + 5
    assert found.room() == 65_535 // size
    while found.room():
        found.ask(0)
    found.receive(frame(Type.WINDOW_UPDATE, 0, 0, (3 * size).to_bytes(4, "big")))
    assert found.room() == 3


def test_a_ping_is_answered_and_what_was_read_is_told() -> None:
    found = asked()
    found.receive(frame(Type.PING, 0, 0, b"12345678") + frame(Type.PING, ACK, 0, b"12345678"))
    assert found.reply() == frame(Type.PING, ACK, 0, b"12345678")
    for _ in range(600):  # of a stream that has ended, whose data counts all the same
        found.receive(frame(Type.DATA, 0, 1, b"\0" * MOST_FRAME) if found.room() == 4 else trailers("0"))
    assert frame(Type.WINDOW_UPDATE, 0, 0)[3:9] == found.reply()[3:9]


def test_goodbye_gives_back_what_was_not_looked_at() -> None:
    found = asked(3)
    assert found.receive(frame(Type.GOAWAY, 0, 0, (1).to_bytes(4, "big") + b"\0" * 4)) == [(3, None), (5, None)]
    assert found.is_over
    assert found.room() == 0
    assert found.receive(answer()) == [(1, ALLOWED)]


def test_compression_with_a_dynamic_table_is_understood() -> None:
    """The server was asked not to, and some do before they have read that."""
    found, encoder = asked(4), hpack.Encoder()
    for stream in (1, 3, 5):
        block = encoder.encode([(":status", "200"), ("content-type", "application/grpc"), ("x-count", str(stream))])
        tail = encoder.encode([("grpc-status", "0"), ("x-tail", str(stream))])
        data = headers(block, stream) + frame(Type.DATA, 0, stream, YES) + headers(tail, stream, 5)
        assert found.receive(data) == [(stream, ALLOWED)]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(Type.DATA, 0, 3, b"?"),
        frame(Type.DATA, 0, 2, b"?"),
        frame(Type.DATA, PADDED, 1, b"\5abc"),
        frame(Type.DATA, PADDED, 1),
        headers(HEAD, 0),
        headers(HEAD, 3),
        headers(b"\xff\xff\xff\xff\xff\xff"),
        headers(literal_block([("grpc-status", "none")]), flags=5),
        headers(literal_block([(":status", "2000000")])),
        frame(Type.HEADERS, END_HEADERS | PRIORITY, 1, b"abc"),
        frame(Type.HEADERS, 0, 1, HEAD) + SETTINGS,
        frame(Type.HEADERS, 0, 1, HEAD) + frame(Type.CONTINUATION, END_HEADERS, 3, b""),
        frame(Type.HEADERS, 0, 1, HEAD) + frame(Type.CONTINUATION, 0, 1, b""),
        frame(Type.HEADERS, 0, 1, HEAD) + frame(Type.CONTINUATION, 0, 1, b"\0" * 16_000) * 5,
        frame(Type.CONTINUATION, END_HEADERS, 1, HEAD),
        frame(Type.RST_STREAM, 0, 1, b"abc"),
        frame(Type.RST_STREAM, 0, 7, b"\0\0\0\0"),
        frame(Type.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
        frame(Type.WINDOW_UPDATE, 0, 0, b"abc"),
        frame(Type.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
        frame(Type.SETTINGS, 0, 0, b"abc"),
        frame(Type.SETTINGS, 0, 1),
        frame(Type.SETTINGS, ACK, 0, b"\0" * 6),
        setting(Setting.INITIAL_WINDOW, 10),
        frame(Type.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2"),
        frame(Type.PING, 0, 0, b"short"),
        frame(Type.PING, 0, 0, b"12345678") * 70_000,
        frame(Type.GOAWAY, 0, 0, b"short"),
        b"\xff\xff\xff" + frame(Type.DATA, 0, 1)[3:],
        frame(Type.DATA, 0, 1, b"\0" * MOST_FRAME) * (MOST_ANSWER // MOST_FRAME + 1),
    ],
)
def test_what_is_not_the_protocol_ends_it(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        asked().receive(data)


FRAMES = st.builds(
    frame,
    st.sampled_from(Type),
    st.sampled_from([0, 1, 4, 5, 8, 0x2D]),
    st.integers(0, 9),
    st.one_of(st.binary(max_size=40), st.sampled_from([HEAD, TAIL, YES, NO])),
)


@given(st.lists(st.one_of(FRAMES, st.binary(max_size=30), st.sampled_from([SETTINGS, answer(), trailers("8")]))))
def test_any_bytes_are_answers_or_bad(parts: list[bytes]) -> None:
    found, ends = asked(3), []
    try:
        for part in parts:
            ends += found.receive(part)
    except BadAnswer:
        pass
    numbers = [number for number, _ in ends]
    assert sorted(numbers) == sorted(set(numbers))
    assert set(numbers) <= {1, 3, 5}


def server() -> h2.connection.H2Connection:
    return h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))


def test_another_implementation_understands_it() -> None:
    found, peer = client(), server()
    peer.initiate_connection()
    peer.receive_data(found.greeting())
    found.receive(peer.data_to_send())
    peer.receive_data(found.reply())
    _, question = found.ask(7)
    events = peer.receive_data(question)
    (opened,) = [event for event in events if isinstance(event, h2.events.RequestReceived)]
    assert dict(opened.headers)[b":path"] == METHOD.path.encode()
    assert dict(opened.headers)[b"authorization"] == b"Bearer secret"
    (data,) = [event.data for event in events if isinstance(event, h2.events.DataReceived)]
    assert data[5:] == METHOD.message.filled(7)
    peer.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
    peer.send_data(1, YES)
    peer.send_headers(1, [("grpc-status", "0")], end_stream=True)
    assert found.receive(peer.data_to_send()) == [(1, ALLOWED)]


@pytest.mark.parametrize("length", [0, 126, 127, 128, 300, 20_000])
def test_blocks_are_what_hpack_says(length: int) -> None:
    fields = [("name", "x" * length), ("y" * length or "z", "value")]
    decoder = hpack.Decoder(max_header_list_size=100_000)
    decoded = decoder.decode(literal_block(fields), raw=True)
    assert [(name, value) for name, value in decoded] == [(name.encode(), value.encode()) for name, value in fields]
