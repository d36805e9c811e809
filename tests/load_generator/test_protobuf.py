"""Our few messages are those that the official library reads and writes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from google.protobuf.struct_pb2 import Value
from google.protobuf.wrappers_pb2 import BytesValue, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from headgate.load_generator import protobuf


@given(st.integers(0, 2**64 - 1))
def test_numbers(value: int) -> None:
    official = UInt64Value(value=value).SerializeToString()
    assert protobuf.read(official).get(1, 0) == value
    assert UInt64Value.FromString(protobuf.number(1, value)).value == value


@given(st.binary(max_size=300))
def test_texts(value: bytes) -> None:
    assert BytesValue.FromString(protobuf.text(1, value)).value == value
    assert protobuf.read(BytesValue(value=value).SerializeToString()).get(1, b"") == value


def test_other_fields_are_passed_over() -> None:
    message = Value(number_value=1.5).SerializeToString() + b"\x1d1234" + protobuf.number(1, 2)
    assert protobuf.read(message)[1] == 2


@pytest.mark.parametrize("message", [b"\x08", b"\x08\x80", b"\x08" + b"\xff" * 11, b"\x0a\x05abc", b"\x0b", b"\x09abc"])
def test_what_is_cut_off_is_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|wire type"):
        protobuf.read(message)


@given(st.binary())
def test_any_bytes_are_a_message_or_a_value_error(message: bytes) -> None:
    with suppress(ValueError):
        assert len(protobuf.read(message)) <= len(message)
