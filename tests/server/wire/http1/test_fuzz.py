"""Random bytes in random pieces: the machine never fails, never grows, and always reads the same requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http1.connection import Http1Connection
from headgate.server.wire.http1.parsing import ChunkedBody
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import HttpRequest

from .conversation import connection, exchange, request

LIMITS = WireLimits(target_bytes=60, header_bytes=200, headers=8, body_bytes=100, pipelined=3)
BOUND = 3 * (60 + 200 + 100) + 200
"""More than a connection may ever keep."""
WORDS = [
    *(b"GET", b"POST", b"HEAD", b"CONNECT", b" ", b"/", b"*", b"/a?b", b"http://a/", b"HTTP/1.1", b"HTTP/1.0"),
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"\r",
        b"abc",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\x00",
        b"\xff",
        b"x" * 70,
        b":",
        b"1",
    ),
    *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Content-Length: 300\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n"),
    *(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"),
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
]
STREAMS = st.one_of(st.binary(max_size=400), st.lists(st.sampled_from(WORDS), max_size=30).map(b"".join))
CUTS = st.lists(st.integers(0, 1000), max_size=12)


def kept(machine: Http1Connection) -> int:
    body = machine._body
    of_body = len(body.rest) + sum(map(len, body._parts)) if isinstance(body, ChunkedBody) else sum(map(len, body))
    return len(machine._buffer) + of_body


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(STREAMS, CUTS)
def test_the_split_of_the_bytes_changes_nothing(data: bytes, cuts: list[int]) -> None:
    whole, cut = connection(LIMITS), connection(LIMITS)
    expected = exchange(whole, data)
    seen: list[HttpRequest] = []
    for piece in in_pieces(data, cuts):
        seen += exchange(cut, piece)
        assert kept(cut) <= BOUND
    assert seen == expected
    assert (cut.phase, cut.in_flight) == (whole.phase, 0)


@given(st.lists(STREAMS, max_size=8))
def test_a_client_without_answers_does_not_make_it_grow(pieces: list[bytes]) -> None:
    machine = connection(LIMITS)
    for piece in pieces:
        if not machine.is_full:
            machine.receive(piece)
        assert machine.in_flight <= LIMITS.pipelined + 1
        assert kept(machine) <= BOUND + len(piece)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6), CUTS)
def test_chunks_are_put_together_whatever_their_sizes_and_pieces(chunks: list[bytes], cuts: list[int]) -> None:
    machine = connection(DEFAULT)
    data = request("Transfer-Encoding: chunked")
    data += b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]) + b"0\r\n\r\n"
    seen = [each for piece in in_pieces(data, cuts) for each in exchange(machine, piece)]
    assert [each.body for each in seen] == [b"".join(chunks)]


def test_a_body_in_many_small_pieces_takes_no_extra_memory() -> None:
    machine = connection()
    machine.receive(request("Content-Length: 100000"))
    for _ in range(50_000):
        machine.receive(b"a")
    assert isinstance(machine._body, list)
    assert len(machine._body) <= 1025
