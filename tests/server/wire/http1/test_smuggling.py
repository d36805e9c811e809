"""Requests that two servers in a row could understand differently: each is refused, and ends the connection.

Every case carries a second request behind it, or inside it. It must never be served.
"""

from __future__ import annotations

import pytest

from headgate.server.wire.limits import WireLimits

from .conversation import asked, connection, request, statuses

SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: api\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"

FRAMING = {
    "length and chunks": request("Content-Length: 5", "Transfer-Encoding: chunked") + CHUNKS,
    "chunks and length": request("Transfer-Encoding: chunked", "Content-Length: 5") + CHUNKS,
    "a length of nothing, and chunks": request("Content-Length: 0", "Transfer-Encoding: chunked") + CHUNKS,
    "two lengths": request("Content-Length: 5", "Content-Length: 0") + b"hello",
    "two lengths that agree": request("Content-Length: 5", "Content-Length: 5") + b"hello",
    "a list of lengths": request("Content-Length: 5, 5") + b"hello",
    "a length with a sign": request("Content-Length: +5") + b"hello",
    "a negative length": request("Content-Length: -1") + b"hello",
    "a length in hexadecimal": request("Content-Length: 0x5") + b"hello",
    "a length with an underscore": request("Content-Length: 1_0") + b"hello",
    "a length with a space inside": request("Content-Length: 1 0") + b"hello",
    "an empty length": request("Content-Length: ") + b"hello",
    "a length beyond all integers": request("Content-Length: 99999999999999999999999") + b"hello",
    "a length in Arabic digits": request("Content-Length: \xb2") + b"hello",
    "chunks twice": request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKS,
    "chunks, then identity": request("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + CHUNKS,
    "identity, then chunks": request("Transfer-Encoding: identity", "Transfer-Encoding: chunked") + CHUNKS,
    "chunks in chunks": request("Transfer-Encoding: chunked, chunked") + CHUNKS,
    "chunks before something else": request("Transfer-Encoding: chunked, gzip") + CHUNKS,
    "another coding under chunks": request("Transfer-Encoding: gzip, chunked") + CHUNKS,
    "nearly chunked": request("Transfer-Encoding: xchunked") + CHUNKS,
    "chunked in quotes": request('Transfer-Encoding: "chunked"') + CHUNKS,
    "chunked behind a vertical tab": request("Transfer-Encoding: \x0bchunked") + CHUNKS,
    "chunked with a parameter": request("Transfer-Encoding: chunked;q=1") + CHUNKS,
    "identity": request("Transfer-Encoding: identity") + CHUNKS,
    "an empty coding": request("Transfer-Encoding: ") + CHUNKS,
    "a space before the colon": request("Transfer-Encoding : chunked") + CHUNKS,
    "a tab before the colon": request("Content-Length\t: 5") + b"hello",
    "a coding on a folded line": request("Transfer-Encoding:\r\n chunked") + CHUNKS,
    "a length on a folded line": request("Content-Length:\r\n\t5") + b"hello",
    "a folded header": request("X-A: b", " c: d") + SMUGGLED,
    "a space before the first header": request(" X-A: b", host="") + SMUGGLED,
    "a NUL in a value": request("X-A: b\0c"),
    "a NUL in a name": request("X-A\0: b"),
    "a control character in a value": request("X-A: b\x01c"),
    "a bare CR in a value": request("X-A: b\rTransfer-Encoding: chunked"),
    "a bare CR before a line end": request("X-A: b\r"),
    "a bare LF in the headers": request("X-A: b\nContent-Length: 5") + b"hello",
    "a bare LF after the first line": b"GET / HTTP/1.1\nHost: api\r\n\r\n",
    "bare LFs alone": b"GET / HTTP/1.1\nHost: api\n\n",
    "an end of bare LFs": b"GET / HTTP/1.1\r\nHost: api\n\n",
    "a name with a space": request("X A: b"),
    "a name with a bracket": request("X(A): b"),
    "a header without a name": request(": b"),
    "a header without a colon": request("X-A"),
    "two hosts": request("Host: other"),
    "no host": request(host=""),
    "a host with a path": request(host="Host: api/admin"),
    "a host with a user": request(host="Host: a@b"),
    "two hosts in one": request(host="Host: a, b"),
    "two spaces in the first line": request(line="GET  /check HTTP/1.1"),
    "a tab in the first line": request(line="GET\t/check HTTP/1.1"),
    "a space in the target": request(line="GET /a b HTTP/1.1"),
    "a space after the version": request(line="GET /a HTTP/1.1 "),
    "no version": b"GET /check\r\n\r\n",
    "no target": request(line="GET HTTP/1.1"),
    "a target without a slash": request(line="GET check HTTP/1.1"),
    "a fragment": request(line="GET /check#part HTTP/1.1"),
    "a control character in the target": request(line="GET /\x01 HTTP/1.1"),
    "bytes beyond ASCII in the target": request(line="GET /\xff HTTP/1.1"),
    "another scheme": request(line="GET ftp://api/check HTTP/1.1"),
    "an address without a host": request(line="GET http:///check HTTP/1.1"),
    "an address with a user": request(line="GET http://a@b/check HTTP/1.1"),
    "an asterisk to get": request(line="GET * HTTP/1.1"),
    "version 0.9": request(line="GET / HTTP/0.9"),
    "version 1.2": request(line="GET / HTTP/1.2"),
    "version 2.0": request(line="GET / HTTP/2.0"),
    "version 1.1 of something else": request(line="GET / ICE/1.1"),
    "a version in lower case": request(line="GET / http/1.1"),
    "CONNECT": request(line="CONNECT api:80 HTTP/1.1", host="Host: api:80"),
    "a method of our own": request(line="FROB / HTTP/1.1"),
    "a method in lower case": request(line="get / HTTP/1.1"),
    "chunks in HTTP/1.0": request("Transfer-Encoding: chunked", line="POST / HTTP/1.0") + CHUNKS,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("sent", FRAMING.values(), ids=FRAMING)
def test_what_could_be_misunderstood_is_refused_and_nothing_behind_it_is_served(sent: bytes) -> None:
    machine = connection()
    assert asked(machine, sent + SMUGGLED) == []
    (status,) = statuses(machine.outgoing())
    assert status in {400, 501, 505}
    assert machine.is_over
    assert asked(machine, SMUGGLED) == []
    assert machine.outgoing() == b""


@pytest.mark.parametrize("sent", FRAMING.values(), ids=FRAMING)
def test_it_is_refused_byte_by_byte_too(sent: bytes) -> None:
    machine = connection()
    for place in range(len(sent)):
        assert asked(machine, sent[place : place + 1]) == []
    assert asked(machine, SMUGGLED) == []
    assert len(statuses(machine.outgoing())) == 1


CHUNKED = request("Transfer-Encoding: chunked")
BAD_CHUNKS = {
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "a size that is not a number": b"x\r\nhello\r\n0\r\n\r\n",
    "a size with a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
    "a size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "a size with a space": b"5 \r\nhello\r\n0\r\n\r\n",
    "a size beyond all integers": b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "a size with zeros without end": b"00000000000000000005\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer": b"4\r\nhello\r\n0\r\n\r\n",
    "a chunk that is shorter": b"6\r\nhello\r\n0\r\n\r\n",
    "a chunk that ends with LF": b"5\r\nhello\n0\r\n\r\n",
    "a chunk that ends with CR": b"5\r\nhello\r0\r\n\r\n",
    "a chunk that ends with other bytes": b"5\r\nhelloXX0\r\n\r\n",
    "a size that ends with LF": b"5\nhello\r\n0\r\n\r\n",
    "a size that ends with CR": b"5\rhello\r\n0\r\n\r\n",
    "a last size that ends with LF": b"5\r\nhello\r\n0\n\r\n",
    "an extension with a line feed": b"5;a\nhello\r\n0\r\n\r\n",
    "an extension with a bare CR": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "an extension with a NUL": b"5;a\0\r\nhello\r\n0\r\n\r\n",
    "an extension without end": b"5;" + b"a" * 2000 + b"\r\nhello\r\n0\r\n\r\n",
    "trailers that are no headers": b"5\r\nhello\r\n0\r\nGET /admin HTTP/1.1\r\n\r\n",
    "trailers on a folded line": b"5\r\nhello\r\n0\r\na: b\r\n c\r\n\r\n",
}


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
@pytest.mark.parametrize("step", [1, 1000])
def test_chunks_are_as_long_as_they_say_and_end_as_they_should(body: bytes, step: int) -> None:
    machine = connection()
    sent = CHUNKED + body + SMUGGLED
    for place in range(0, len(sent), step):
        assert asked(machine, sent[place : place + step]) == []
    assert statuses(machine.outgoing()) == [400]
    assert machine.is_over


GOOD_CHUNKS = {
    "one": CHUNKS,
    "several": b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "capital digits": b"0005\r\nhello\r\n00\r\n\r\n",
    "extensions": b'5;name=value;other="a b"\r\nhello\r\n0;last\r\n\r\n',
    "trailers": b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\nContent-Length: 3\r\n\r\n",
}


@pytest.mark.parametrize("body", GOOD_CHUNKS.values(), ids=GOOD_CHUNKS)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_good_chunks_make_a_body_and_the_next_request_begins_behind_them(body: bytes, step: int) -> None:
    machine = connection()
    sent = CHUNKED + body + SMUGGLED
    served = [each for place in range(0, len(sent), step) for each in asked(machine, sent[place : place + step])]
    assert [(each.path, each.body) for each in served] == [(b"/check", b"hello"), (b"/admin", b"")]
    assert all(name != b"x-checksum" for each in served for name, _ in each.headers)


def test_a_body_that_a_method_does_not_need_is_read_and_not_taken_for_a_request() -> None:
    """CL.0: a server that ignores the body of a GET would serve what is in it."""
    machine = connection()
    sent = request(f"Content-Length: {len(SMUGGLED)}", line="GET /check HTTP/1.1") + SMUGGLED
    (only,) = asked(machine, sent)
    assert (only.path, only.body) == (b"/check", SMUGGLED)


def test_chunk_extensions_are_bounded_over_all_chunks() -> None:
    machine = connection(WireLimits(header_bytes=300))
    assert asked(machine, CHUNKED + (b"1;" + b"a" * 100 + b"\r\nx\r\n") * 10) == []
    assert statuses(machine.outgoing()) == [400]


def test_a_body_may_not_consist_of_nothing_but_small_chunks() -> None:
    """Each takes as long to read as a large one."""
    machine = connection()
    assert asked(machine, CHUNKED + b"1\r\nx\r\n" * 10_000) == []
    assert statuses(machine.outgoing()) == [400]
    some = b"1\r\nx\r\n" * 1000 + (b"%x\r\n" % 100 + b"x" * 100 + b"\r\n") * 5000 + b"0\r\n\r\n"
    (only,) = asked(connection(), CHUNKED + some)
    assert len(only.body) == 501_000


def test_a_length_of_many_zeros_is_refused() -> None:
    machine = connection()
    assert asked(machine, request("Content-Length: " + "0" * 5000 + "5") + b"12345") == []
    assert statuses(machine.outgoing()) == [400]


def test_names_with_an_underscore_stay_what_they_are() -> None:
    machine = connection()
    (only,) = asked(machine, request("X_Forwarded_For: 1", "X-Forwarded_For: 2"))
    assert only.header(b"x-forwarded-for") is None
    assert only.header(b"x_forwarded_for") == b"1"


def test_what_is_remembered_of_a_head_is_what_was_read() -> None:
    machine = connection()
    one, other = asked(machine, (request("Content-Length: 2") + b"ab") + (request("Content-Length: 2") + b"cd"))
    assert (one.body, other.body) == (b"ab", b"cd")
    assert one.headers == other.headers
