"""The cache of header blocks: it never answers what decoding would not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2.compression import Decoder, Undecodable
from headgate.server.wire.http2.decoding import Heads
from headgate.server.wire.http2.events import Head
from headgate.server.wire.limits import DEFAULT
from tests.server.wire.http2.conversation import BLOCK, index, indexed, unchecked


def read(heads: Heads, block: bytes) -> Head:
    """Read as a connection does."""
    head = heads.known.get(block)
    if head is None:
        head = heads.read(block)
        assert head is not None
        heads.keep(block, head)
    return head


def test_the_same_block_is_read_once() -> None:
    heads = Heads(DEFAULT)
    assert read(heads, BLOCK) is read(heads, BLOCK)


def test_a_block_that_changes_the_table_is_read_each_time() -> None:
    heads = Heads(DEFAULT)
    block = BLOCK + indexed([(b"x", b"1")])
    assert read(heads, block) is not read(heads, block)
    assert not heads.known


def test_what_indices_mean_is_forgotten_when_the_table_changes() -> None:
    heads = Heads(DEFAULT)
    read(heads, BLOCK + indexed([(b"x", b"1")]))
    newest = BLOCK + index(62)
    assert read(heads, newest).fields == [(b"x", b"1")]
    read(heads, BLOCK + indexed([(b"x", b"2")]))
    assert read(heads, newest).fields == [(b"x", b"2")]


def test_trailers_change_the_table_too() -> None:
    heads = Heads(DEFAULT)
    read(heads, BLOCK + indexed([(b"x", b"1")]))
    newest = BLOCK + index(62)
    read(heads, newest)
    heads.fields(indexed([(b"x", b"2")]))
    assert read(heads, newest).fields == [(b"x", b"2")]


def test_few_blocks_are_kept_and_no_large_ones() -> None:
    heads = Heads(DEFAULT)
    for number in range(1000):
        read(heads, BLOCK + unchecked([(b"x", str(number).encode())]))
        assert len(heads.known) <= 32
    before = len(heads.known)
    read(heads, BLOCK + unchecked([(b"x", b"y" * 5000)]))
    assert len(heads.known) == before


def test_a_head_says_whether_it_is_kept() -> None:
    heads = Heads(DEFAULT)
    assert read(heads, BLOCK).is_kept
    assert not read(heads, BLOCK + indexed([(b"x", b"1")])).is_kept, "it changes what blocks mean"
    assert read(heads, BLOCK + index(62)).is_kept
    assert not read(heads, BLOCK + unchecked([(b"x", b"y" * 5000)])).is_kept, "it is large"


PARTS = st.sampled_from([indexed([(b"x", b"1")]), indexed([(b"y", b"2" * 3000)]), index(62), index(63), b""])


@given(st.lists(st.lists(PARTS, max_size=4).map(lambda parts: BLOCK + b"".join(parts)), max_size=30))
def test_the_cache_changes_nothing(blocks: list[bytes]) -> None:
    """Whatever blocks come in whatever order."""
    heads, plain = Heads(DEFAULT), Decoder(DEFAULT.header_bytes, DEFAULT.headers)
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
