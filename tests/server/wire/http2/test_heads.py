"""What a request must say of itself (RFC 9113 section 8), and the cache of header blocks: it changes no meaning."""

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


def test_a_head_says_all_that_its_headers_say() -> None:
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


ACCEPTED: list[Headers] = [
    ALL,
    [PATH, METHOD, SCHEME],
    [*ALL, (b"te", b"trailers")],
    [*ALL, (b"content-length", b"0"), (b"content-length", b"0")],
    [(b":method", b"OPTIONS"), SCHEME, (b":path", b"*")],
    [(b":method", b"CONNECT"), (b":authority", b"x:1")],
    [(b":method", b"M-SEARCH"), SCHEME, PATH],
    [METHOD, (b":scheme", b"coap+tcp"), PATH],
]


@pytest.mark.parametrize("headers", ACCEPTED)
def test_an_unusual_request_is_accepted(headers: Headers) -> None:
    assert read_head(headers).headers == headers


REFUSED: list[Headers] = [
    [],
    [SCHEME, PATH],
    [METHOD, PATH],
    [METHOD, SCHEME],
    [(b":method", b""), SCHEME, PATH],
    [(b":method", b"GE T"), SCHEME, PATH],
    [METHOD, (b":scheme", b""), PATH],
    [METHOD, (b":scheme", b"ht tp"), PATH],
    [METHOD, SCHEME, (b":path", b"")],
    [METHOD, SCHEME, (b":path", b"a")],
    [METHOD, SCHEME, (b":path", b"*")],
    [METHOD, SCHEME, (b":path", b"/a b")],
    [METHOD, SCHEME, (b":path", b"/\xc3\xa9")],
    [*ALL, METHOD],
    [*ALL, PATH],
    [METHOD, SCHEME, (b"a", b"1"), PATH],
    [METHOD, SCHEME, (b"host", b"x"), PATH],
    [METHOD, SCHEME, PATH, (b":authority", b"")],
    [METHOD, SCHEME, PATH, (b":authority", b"user@x")],
    [METHOD, SCHEME, PATH, (b":authority", b"a b")],
    [METHOD, SCHEME, PATH, (b"host", b"")],
    [*ALL, (b"host", b"y")],
    [METHOD, SCHEME, PATH, (b"host", b"x"), (b"host", b"y")],
    [*ALL, (b"connection", b"close")],
    [*ALL, (b"keep-alive", b"1")],
    [*ALL, (b"proxy-connection", b"close")],
    [*ALL, (b"transfer-encoding", b"chunked")],
    [*ALL, (b"upgrade", b"h2c")],
    [*ALL, (b"te", b"gzip")],
    [*ALL, (b"content-length", b"1"), (b"content-length", b"2")],
    [*ALL, (b"content-length", b"-1")],
    [*ALL, (b"content-length", b"+1")],
    [*ALL, (b"content-length", b"")],
    [*ALL, (b"content-length", b"1" * 19)],
    [*ALL, (b"content-type", b"a"), (b"content-type", b"b")],
    [(b":method", b"CONNECT"), PATH, (b":authority", b"x")],
    [(b":method", b"CONNECT")],
]


@pytest.mark.parametrize("headers", REFUSED)
def test_a_malformed_request_is_refused(headers: Headers) -> None:
    with pytest.raises(Malformed):
        read_head(headers)


def test_trailers_are_checked_like_headers() -> None:
    check_trailers([(b"grpc-status", b"0")])
    for field in ((b":path", b"/"), (b"connection", b"close")):
        with pytest.raises(Malformed):
            check_trailers([field])


def read(heads: Http2Heads, block: bytes) -> Http2Head:
    """Read as a connection does."""
    head = heads.known.get(block)
    if head is None:
        head = heads.read(block)
        assert head is not None
        heads.remember(block, head)
    return head


def test_the_same_block_is_read_once() -> None:
    heads = Http2Heads(DEFAULT)
    assert read(heads, BLOCK) is read(heads, BLOCK)


def test_a_block_that_changes_the_table_is_read_each_time() -> None:
    heads = Http2Heads(DEFAULT)
    block = BLOCK + indexed([(b"x", b"1")])
    assert read(heads, block) is not read(heads, block)
    assert not heads.known


def test_what_indices_mean_is_forgotten_when_the_table_changes() -> None:
    heads = Http2Heads(DEFAULT)
    read(heads, BLOCK + indexed([(b"x", b"1")]))
    newest = BLOCK + index(62)
    assert read(heads, newest).fields == [(b"x", b"1")]
    read(heads, BLOCK + indexed([(b"x", b"2")]))
    assert read(heads, newest).fields == [(b"x", b"2")]


def test_trailers_change_the_table_too() -> None:
    heads = Http2Heads(DEFAULT)
    read(heads, BLOCK + indexed([(b"x", b"1")]))
    newest = BLOCK + index(62)
    read(heads, newest)
    heads.fields(indexed([(b"x", b"2")]))
    assert read(heads, newest).fields == [(b"x", b"2")]


def test_few_blocks_are_kept_and_no_large_ones() -> None:
    heads = Http2Heads(DEFAULT)
    for number in range(1000):
        read(heads, BLOCK + unchecked([(b"x", str(number).encode())]))
        assert len(heads.known) <= 32
    before = len(heads.known)
    read(heads, BLOCK + unchecked([(b"x", b"y" * 5000)]))
    assert len(heads.known) == before


def test_a_head_says_whether_it_is_cached() -> None:
    heads = Http2Heads(DEFAULT)
    assert read(heads, BLOCK).is_cached
    assert not read(heads, BLOCK + indexed([(b"x", b"1")])).is_cached, "it changes what blocks mean"
    assert read(heads, BLOCK + index(62)).is_cached
    assert not read(heads, BLOCK + unchecked([(b"x", b"y" * 5000)])).is_cached, "it is large"


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
