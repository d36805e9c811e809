"""Header blocks: other decoders read ours, and ours reads those of the hpack package."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2.hpack import (
    TABLE_SIZE,
    TOKEN,
    Decoder,
    ImproperField,
    Undecodable,
    encode,
    integer,
    is_proper,
)
from headgate.server.wire.messages import Headers
from tests.server.wire.http2.conversation import index, indexed

SENT_NAMES = st.binary(min_size=1, max_size=300).map(lambda raw: bytes(TOKEN[byte % len(TOKEN)] for byte in raw))
SENT_VALUES = st.binary(max_size=300).filter(lambda value: is_proper(b"x", value))


@given(st.lists(st.tuples(SENT_NAMES, SENT_VALUES), max_size=20))
def test_any_decoder_reads_our_blocks_and_its_table_stays_empty(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    assert [tuple(field) for field in decoder.decode(encode(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


def test_names_and_fields_of_the_static_table_are_indices() -> None:
    """Secrets are never indexed."""
    for field, block in (
        ((b":status", b"200"), b"\x88"),
        ((b":status", b"429"), b"\x08\x03429"),
        ((b"content-type", b"application/grpc"), b"\x0f\x10\x10application/grpc"),
        ((b"grpc-status", b"0"), b"\x00\x0bgrpc-status\x010"),
        ((b"set-cookie", b"a=b"), b"\x1f\x28\x03a=b"),
    ):
        assert encode([field]) == block


IMPROPER_NAMES = b"", b"A", b"a b", b"a:", b":status", b":protocol", b":", b"\xe9", b"a\0", b"a\n"
IMPROPER_VALUES = b" a", b"a ", b"\ta", b"a\t", b"a\r", b"a\nb", b"a\0b", b"a\r\nset-cookie: b", b"\x1f", b"a\x7f"


def test_invalid_fields_are_improper_and_not_encoded() -> None:
    for name, value in [(name, b"x") for name in IMPROPER_NAMES] + [(b"x", value) for value in IMPROPER_VALUES]:
        assert not is_proper(name, value), (name, value)
        if not name[1:].isalpha() or name[:1] != b":":  # pseudo-headers are written, and never taken from others
            with pytest.raises(ValueError, match=r"header's name must be|has a control character"):
                encode([(name, value)])
    for value in (b"a b", b"", b"\xff\x80", b"a\tb"):
        assert is_proper(b"x-y.z_1", value)


def test_numbers_are_written_as_in_rfc_7541_appendix_c() -> None:
    examples = (
        (10, 5, b"\x0a"),
        (1337, 5, b"\x1f\x9a\x0a"),
        (42, 8, b"\x2a"),
        (31, 5, b"\x1f\x00"),
        (127, 7, b"\x7f\x00"),
    )
    for number, bits, written in examples:
        assert integer(number, bits, 0) == written


NAMES = st.sampled_from([b":path", b"x-request-id", b"user-agent", b"grpc-timeout", b"a"]) | st.binary(max_size=40)
FIELDS = st.tuples(NAMES, st.binary(max_size=60) | st.sampled_from([b"", b"/", b"1S", b"x" * 4000]))


def decoder(size: int = 1 << 20, count: int = 1 << 20) -> Decoder:
    return Decoder(size, count)


@given(
    st.lists(st.tuples(st.lists(FIELDS, max_size=12), st.booleans(), st.sampled_from([0, 60, 500, 4096])), max_size=12)
)
def test_blocks_of_other_encoders_are_decoded(blocks: list[tuple[Headers, bool, int]]) -> None:
    """Through any growth, eviction and resizing of the table, with and without Huffman's code."""
    ours, theirs = decoder(), hpack.Encoder()
    for fields, compressed, size in blocks:
        theirs.header_table_size = size
        assert ours.decode(theirs.encode(fields, huffman=compressed)) == fields
        assert list(ours._entries) == list(theirs.header_table.dynamic_entries)
        assert ours._table_size <= TABLE_SIZE


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes_are_read_or_refused_as_others_do(blocks: list[bytes]) -> None:
    ours, theirs = decoder(), hpack.Decoder(max_header_list_size=1 << 24)
    for block in blocks:
        try:
            expected: Headers | None = [(name, value) for name, value in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            expected = None
        try:
            found = ours.decode(block)
        except Undecodable:
            found = None
        if found is None:  # we refuse longer numbers than they do
            break
        assert found == expected


def test_a_broken_block_is_refused() -> None:
    for block, why in (
        (b"\x80", "index 0"),
        (index(62), "beyond the table"),
        (b"\x7f\xff\xff\xff\xff\xff\xff\x7f", "a number without end"),
        (b"\xff", "a number that is cut off"),
        (b"\x40", "a name that is cut off"),
        (b"\x00\x05ab", "a string that is cut off"),
        (b"\x00\x81\x00\x01a", "Huffman's code that is none"),
        (b"\x00\x84\xff\xff\xff\xff\x01a", "with its end symbol"),
        (b"\x00\x82\x1f\xff\x01a", "filled up with more than 7 bits"),
        (b"\x82\x20", "a size amid fields"),
        (integer(TABLE_SIZE + 1, 5, 0x20), "a table that is too large"),
    ):
        with pytest.raises(Undecodable):
            raise AssertionError(why, decoder().decode(block))


def test_a_list_that_is_too_large_leaves_the_table_right() -> None:
    ours = decoder(size=100)
    assert ours.decode(indexed([(b"a", b"x" * 90), (b"b", b"2")])) is None
    assert ours.decode(index(62)) == [(b"b", b"2")]


def test_too_many_fields_are_too_large_and_one_that_is_referred_to_often_takes_no_memory() -> None:
    """One field of 4 KB, and then its index 60,000 times, would be 240 MB."""
    assert decoder(count=3).decode(b"\x82\x84\x86") is not None
    assert decoder(count=3).decode(b"\x82\x84\x86\x82") is None
    assert decoder(size=16_384).decode(indexed([(b"a", b"x" * 4000)]) + index(62) * 60_000) is None


def test_an_improper_field_is_improper_from_the_table_too() -> None:
    ours = decoder()
    for block in (indexed([(b"A", b"1")]), index(62)):
        fields = ours.decode(block)
        assert fields == [(b"A", b"1")]
        assert type(fields[0]) is ImproperField


def test_the_size_of_the_table_does_not_change_for_ever() -> None:
    assert decoder().decode(b"\x20" * 100 + b"\x82") == [(b":method", b"GET")]
    with pytest.raises(Undecodable, match="too often"):
        decoder().decode(b"\x20" * 1000 + b"\x82")
