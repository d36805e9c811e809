"""The headers of requests (RFC 9113 section 8), and the cache of header blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2.heads import Http2Head, Http2Heads, Malformed, check_trailers, read_head
from headgate.server.wire.http2.hpack import Decoder, Undecodable
from headgate.server.wire.limits import DEFAULT
from headgate.server.wire.messages import Headers
from tests.server.wire.http2.conversation import BLOCK, index, indexed, unchecked

METHOD, SCHEME, PATH, AUTHORITY = (
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/a?b"),
    (b":authority", b"x:1"),
)
ALL = [METHOD, SCHEME, PATH, AUTHORITY]


def test_a_head_has_all_its_headers() -> None:
    fields = [(b"content-type", b"application/grpc+proto"), (b"content-length", b"12"), (b"a", b"1"), (b"a", b"2")]
    head = read_head([*ALL, *fields])
    assert (head.method, head.scheme, head.path, head.authority) == (b"GET", b"https", b"/a?b", b"x:1")
    assert head.headers == [*ALL, *fields]
    assert head.fields == fields
    assert head.content_length == 12


def test_the_host_stands_in_for_the_authority() -> None:
    assert read_head([METHOD, SCHEME, PATH, (b"host", b"x")]).authority == b"x"
    assert read_head([METHOD, SCHEME, PATH]).authority == b""
    assert read_head([*ALL, (b"host", b"X:1")]).authority == b"x:1"


def test_crumbs_of_a_cookie_are_joined() -> None:
    """Section 8.2.3."""
    head = read_head([*ALL, (b"cookie", b"a=1"), (b"b", b"2"), (b"cookie", b"c=3")])
    assert head.fields == [(b"b", b"2"), (b"cookie", b"a=1; c=3")]
    assert head.headers == [*ALL, *head.fields]


def test_an_unusual_request_is_accepted() -> None:
    accepted: list[Headers] = [
        *(ALL, [PATH, METHOD, SCHEME], [*ALL, (b"te", b"trailers")]),
        [*ALL, (b"content-length", b"0"), (b"content-length", b"0")],
        [(b":method", b"OPTIONS"), SCHEME, (b":path", b"*")],
        [(b":method", b"CONNECT"), (b":authority", b"x:1")],
        [(b":method", b"M-SEARCH"), SCHEME, PATH],
        [METHOD, (b":scheme", b"coap+tcp"), PATH],
    ]
    for headers in accepted:
        assert read_head(headers).headers == headers


CONNECTION_FIELDS = (
    (b"connection", b"close"),
    (b"keep-alive", b"1"),
    (b"proxy-connection", b"close"),
    (b"upgrade", b"h2c"),
)
HOST = b"host", b"x"
REFUSED: list[Headers] = [
    *([], [SCHEME, PATH], [METHOD, PATH], [METHOD, SCHEME], [*ALL, METHOD], [*ALL, PATH]),
    *[[(b":method", value), SCHEME, PATH] for value in (b"", b"GE T")],
    *[[METHOD, (b":scheme", value), PATH] for value in (b"", b"ht tp")],
    *[[METHOD, SCHEME, (b":path", value)] for value in (b"", b"a", b"*", b"/a b", b"/\xc3\xa9")],
    *[[METHOD, SCHEME, field, PATH] for field in ((b"a", b"1"), HOST)],
    *[[METHOD, SCHEME, PATH, (b":authority", value)] for value in (b"", b"user@x", b"a b")],
    *([METHOD, SCHEME, PATH, (b"host", b"")], [METHOD, SCHEME, PATH, HOST, (b"host", b"y")]),
    *[
        [*ALL, field]
        for field in (*CONNECTION_FIELDS, (b"transfer-encoding", b"chunked"), (b"te", b"gzip"), (b"host", b"y"))
    ],
    *[[*ALL, (b"content-length", value)] for value in (b"-1", b"+1", b"", b"1" * 19)],
    [*ALL, (b"content-length", b"1"), (b"content-length", b"2")],
    [*ALL, (b"content-type", b"a"), (b"content-type", b"b")],
    *([(b":method", b"CONNECT"), PATH, (b":authority", b"x")], [(b":method", b"CONNECT")]),
]


def test_a_malformed_request_is_refused_and_trailers_are_checked_like_headers() -> None:
    for headers in REFUSED:
        with pytest.raises(Malformed):
            raise AssertionError(read_head(headers))
    check_trailers([(b"grpc-status", b"0")])
    for field in ((b":path", b"/"), (b"connection", b"close")):
        with pytest.raises(Malformed):
            check_trailers([field])


def read(heads: Http2Heads, block: bytes) -> Http2Head:
    head = heads.known.get(block)
    if head is None:
        head = heads.read(block)
        assert head is not None
        heads.remember(block, head)
    return head


def test_cached_blocks_are_dropped_when_the_table_changes_even_by_trailers() -> None:
    heads = Http2Heads(DEFAULT)
    newest = BLOCK + index(62)
    read(heads, BLOCK + indexed([(b"x", b"1")]))
    assert read(heads, newest).fields == [(b"x", b"1")]
    read(heads, BLOCK + indexed([(b"x", b"2")]))
    assert read(heads, newest).fields == [(b"x", b"2")]
    heads.fields(indexed([(b"x", b"3")]))
    assert read(heads, newest).fields == [(b"x", b"3")]


def test_few_blocks_are_kept() -> None:
    heads = Http2Heads(DEFAULT)
    for number in range(1000):
        read(heads, BLOCK + unchecked([(b"x", str(number).encode())]))
        assert len(heads.known) <= 32


PARTS = st.sampled_from([indexed([(b"x", b"1")]), indexed([(b"y", b"2" * 3000)]), index(62), index(63), b""])


@given(st.lists(st.lists(PARTS, max_size=4).map(lambda parts: BLOCK + b"".join(parts)), max_size=30))
def test_the_cache_changes_nothing(blocks: list[bytes]) -> None:
    """Whatever blocks come in whatever order."""
    heads, plain = Http2Heads(DEFAULT), Decoder(DEFAULT.header_bytes, DEFAULT.headers)
    read(heads, BLOCK + indexed([(b"a", b"1"), (b"b", b"2")]))
    plain.decode(BLOCK + indexed([(b"a", b"1"), (b"b", b"2")]))
    for block in blocks:
        try:
            expected = plain.decode(block)
        except Undecodable:  # it refers to what is evicted, and the connection is over
            with pytest.raises(Undecodable):
                read(heads, block)
            return
        assert read(heads, block).headers == expected
