"""Blocks that we send: any decoder understands them, and keeps nothing of them."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.http2.compression import is_proper
from headgate.server.wire.http2.headers import TOKEN, encode, integer

NAMES = st.binary(min_size=1, max_size=300).map(lambda raw: bytes(TOKEN[byte % len(TOKEN)] for byte in raw))
VALUES = st.binary(max_size=300).filter(lambda value: is_proper(b"x", value))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=20))
def test_any_decoder_reads_what_we_write_and_its_table_stays_empty(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    assert [tuple(field) for field in decoder.decode(encode(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize(
    ("field", "block"),
    [
        ((b":status", b"200"), b"\x88"),
        ((b":status", b"429"), b"\x08\x03429"),
        ((b"content-type", b"application/grpc"), b"\x0f\x10\x10application/grpc"),
        ((b"grpc-status", b"0"), b"\x00\x0bgrpc-status\x010"),
        ((b"set-cookie", b"a=b"), b"\x1f\x28\x03a=b"),
    ],
)
def test_names_and_fields_of_the_static_table_are_indices(field: tuple[bytes, bytes], block: bytes) -> None:
    """And what is secret is never to be indexed, by any intermediary either."""
    assert encode([field]) == block


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"", b"x"),
        (b":", b"x"),
        (b"Upper", b"x"),
        (b"a b", b"x"),
        (b"a\r\nb", b"x"),
        (b"\xc3\xa9", b"x"),
        (b"x", b"a\r\nset-cookie: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\0b"),
        (b"x", b"a\x7f"),
        (b"x", b" a"),
        (b"x", b"a\t"),
    ],
)
def test_what_no_header_may_be_is_not_written(name: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match=r"of a header is|has a control character"):
        encode([(name, value)])


@pytest.mark.parametrize(
    ("number", "bits", "written"),
    [(10, 5, b"\x0a"), (1337, 5, b"\x1f\x9a\x0a"), (42, 8, b"\x2a"), (31, 5, b"\x1f\x00"), (127, 7, b"\x7f\x00")],
)
def test_numbers_are_written_as_in_rfc_7541_appendix_c(number: int, bits: int, written: bytes) -> None:
    assert integer(number, bits, 0) == written
