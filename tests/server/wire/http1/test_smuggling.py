"""Requests that two servers could interpret differently are refused, and end the connection.

Every case has a second request behind it, or inside it, which must never be served.
"""

from __future__ import annotations

from headgate.server.wire.limits import WireLimits

from .conversation import connection, exchange, request, statuses

SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: api\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = request("Transfer-Encoding: chunked")
LENGTHS = ("5, 5", "+5", "-1", "0x5", "1_0", "1 0", "", "9" * 23, "\xb2", "0" * 5000 + "5")
CODINGS = ("chunked, chunked", "chunked, gzip", "gzip, chunked", "xchunked", '"chunked"', "\x0bchunked", "chunked;q=1")
HEADERS = (
    "X-A: b\0c",
    "X-A\0: b",
    "X-A: b\x01c",
    "X-A: b\rTransfer-Encoding: chunked",
    "X-A: b\r",
    "X A: b",
    "X(A): b",
)
TARGETS = (
    "/a b",
    "check",
    "/check#part",
    "/\x01",
    "/\xff",
    "ftp://api/check",
    "http:///check",
    "http://a@b/check",
    "*",
)
LINES = ("GET  /check HTTP/1.1", "GET\t/check HTTP/1.1", "GET /a HTTP/1.1 ", "GET HTTP/1.1", "FROB / HTTP/1.1")
FRAMING = [
    request("Content-Length: 5", "Transfer-Encoding: chunked") + CHUNKS,
    request("Transfer-Encoding: chunked", "Content-Length: 5") + CHUNKS,
    request("Content-Length: 0", "Transfer-Encoding: chunked") + CHUNKS,
    request("Content-Length: 5", "Content-Length: 0") + b"hello",
    request("Content-Length: 5", "Content-Length: 5") + b"hello",
    *[request(f"Content-Length: {value}") + b"hello" for value in LENGTHS],
    request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + CHUNKS,
    request("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + CHUNKS,
    request("Transfer-Encoding: identity", "Transfer-Encoding: chunked") + CHUNKS,
    *[request(f"Transfer-Encoding: {value}") + CHUNKS for value in (*CODINGS, "identity", "")],
    request("Transfer-Encoding : chunked") + CHUNKS,
    request("Content-Length\t: 5") + b"hello",
    request("Transfer-Encoding:\r\n chunked") + CHUNKS,
    request("Content-Length:\r\n\t5") + b"hello",
    request("X-A: b", " c: d") + SMUGGLED,
    request(" X-A: b", host="") + SMUGGLED,
    *[request(line) for line in (*HEADERS, ": b", "X-A", "Host: other")],
    request("X-A: b\nContent-Length: 5") + b"hello",
    b"GET / HTTP/1.1\nHost: api\r\n\r\n",
    b"GET / HTTP/1.1\nHost: api\n\n",
    b"GET / HTTP/1.1\r\nHost: api\n\n",
    *[request(host=host) for host in ("", "Host: api/admin", "Host: a@b", "Host: a, b")],
    *[request(line=line) for line in (*LINES, "get / HTTP/1.1")],
    *[request(line=f"GET {target} HTTP/1.1") for target in TARGETS],
    *[request(line=f"GET / {version}") for version in ("HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "ICE/1.1", "http/1.1")],
    b"GET /check\r\n\r\n",
    request(line="CONNECT api:80 HTTP/1.1", host="Host: api:80"),
    request("Transfer-Encoding: chunked", line="POST / HTTP/1.0") + CHUNKS,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
]
BAD_SIZES = (b"", b"x", b"0x5", b"+5", b"-5", b"0_5", b"5 ", b"f" * 17, b"0" * 19 + b"5", b"4", b"6")
BAD_EXTENSIONS = (b"5;a\nhello", b"5;a\rb\r\nhello", b"5;a\0\r\nhello", b"5;" + b"a" * 2000 + b"\r\nhello")
BAD_CHUNKS = [
    *[size + b"\r\nhello\r\n0\r\n\r\n" for size in BAD_SIZES],
    *[b"5\r\nhello" + end + b"0\r\n\r\n" for end in (b"\n", b"\r", b"XX")],
    *[begun + b"\r\n0\r\n\r\n" for begun in (b"5\nhello", b"5\rhello", *BAD_EXTENSIONS)],
    b"5\r\nhello\r\n0\n\r\n",
    b"5\r\nhello\r\n0\r\nGET /admin HTTP/1.1\r\n\r\n",
    b"5\r\nhello\r\n0\r\na: b\r\n c\r\n\r\n",
]
GOOD_CHUNKS = [
    CHUNKS,
    b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    b"0005\r\nhello\r\n00\r\n\r\n",
    b'5;name=value;other="a b"\r\nhello\r\n0;last\r\n\r\n',
    b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\nContent-Length: 3\r\n\r\n",
]


def test_ambiguous_requests_are_refused_in_any_pieces_and_nothing_after_them_is_served() -> None:
    for sent in FRAMING:
        for step in (1, 10_000):
            machine, data = connection(), sent + SMUGGLED
            for place in range(0, len(data), step):
                assert exchange(machine, data[place : place + step]) == [], sent
            (status,) = statuses(machine.outgoing())
            assert status in {400, 501, 505}, sent
            assert machine.is_over, sent
            assert exchange(machine, SMUGGLED) == [], sent
            assert machine.outgoing() == b"", sent


def test_malformed_chunks_are_refused() -> None:
    for body in BAD_CHUNKS:
        for step in (1, 1000):
            machine, sent = connection(), CHUNKED + body + SMUGGLED
            for place in range(0, len(sent), step):
                assert exchange(machine, sent[place : place + step]) == [], body
            assert statuses(machine.outgoing()) == [400], body
            assert machine.is_over, body


def test_good_chunks_make_a_body_and_the_next_request_begins_behind_them() -> None:
    for body in GOOD_CHUNKS:
        for step in (1, 3, 1000):
            machine, sent = connection(), CHUNKED + body + SMUGGLED
            served = [each for at in range(0, len(sent), step) for each in exchange(machine, sent[at : at + step])]
            assert [(each.path, each.body) for each in served] == [(b"/check", b"hello"), (b"/admin", b"")], body
            assert all(name != b"x-checksum" for each in served for name, _ in each.headers), body


def test_a_body_that_a_method_does_not_need_is_read_and_not_taken_for_a_request() -> None:
    """CL.0: a server that ignores the body of a GET would serve the request in it."""
    sent = request(f"Content-Length: {len(SMUGGLED)}", line="GET /check HTTP/1.1") + SMUGGLED
    (only,) = exchange(connection(), sent)
    assert (only.path, only.body) == (b"/check", SMUGGLED)


def test_a_body_may_not_consist_of_small_chunks_or_large_extensions() -> None:
    for limits, chunks in (
        (WireLimits(header_bytes=300), (b"1;" + b"a" * 100 + b"\r\nx\r\n") * 10),
        (WireLimits(), b"1\r\nx\r\n" * 10_000),
    ):
        machine = connection(limits)
        assert exchange(machine, CHUNKED + chunks) == []
        assert statuses(machine.outgoing()) == [400]
    some = b"1\r\nx\r\n" * 1000 + (b"%x\r\n" % 100 + b"x" * 100 + b"\r\n") * 5000 + b"0\r\n\r\n"
    (only,) = exchange(connection(), CHUNKED + some)
    assert len(only.body) == 501_000


def test_names_with_an_underscore_are_not_rewritten() -> None:
    (only,) = exchange(connection(), request("X_Forwarded_For: 1", "X-Forwarded_For: 2"))
    assert (only.header(b"x-forwarded-for"), only.header(b"x_forwarded_for")) == (None, b"1")


def test_a_cached_head_is_the_parsed_one() -> None:
    head = request("Content-Length: 2")
    one, other = exchange(connection(), head + b"ab" + head + b"cd")
    assert (one.body, other.body) == (b"ab", b"cd")
    assert one.headers == other.headers
