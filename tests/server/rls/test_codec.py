"""Envoy's questions as they are read from the wire, and the parts of answers as they go over it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.request import Descriptor, Override
from headgate.protos import entry, framed
from headgate.server.rls import codec
from headgate.server.rls.codec import MOST, MalformedMessage, RlsQuestion, decode
from tests.server.rls.messages import answered, asked, descriptor

TEXT = st.text(max_size=300)
NUMBER = st.integers(0, 2**32 - 1)
DESCRIPTORS = st.builds(
    Descriptor,
    st.lists(st.tuples(TEXT, TEXT), max_size=5).map(tuple),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.builds(Override, NUMBER, st.integers(0, 7)),
    st.booleans(),
)
METADATA: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(TEXT, st.lists(DESCRIPTORS, max_size=5).map(tuple), NUMBER)
def test_a_question_is_read_as_it_was_asked(domain: str, descriptors: tuple[Descriptor, ...], hits: int) -> None:
    written = [
        descriptor(*each.entries, hits=each.hits, limit=each.override, refund=each.refund) for each in descriptors
    ]
    assert decode(asked(domain, *written, hits_addend=hits)) == RlsQuestion(domain, descriptors, hits)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(MalformedMessage):
        assert isinstance(decode(raw), RlsQuestion)


@pytest.mark.parametrize(
    ("raw", "question"),
    [
        (b"\x0a\x01a\x0a\x01b", RlsQuestion("b", ())),  # the last one counts
        (b"\x12\x08\x12\x02\x08\x01\x12\x02\x10\x02", RlsQuestion("", (Descriptor((), override=Override(1, 2)),))),
        (b"\x12\x06\x1a\x00\x1a\x02\x08\x05", RlsQuestion("", (Descriptor((), 5),))),  # parts are put together
        (b"\x12\x02\x20\x02", RlsQuestion("", (Descriptor((), refund=True),))),  # a boolean that is 2
        (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", RlsQuestion("", (), 2**32 - 1)),  # more than 32 bits
    ],
)
def test_what_encoders_may_write_differently_is_read_as_protobuf_has_it(raw: bytes, question: RlsQuestion) -> None:
    assert decode(raw) == question


@pytest.mark.parametrize(
    ("unknown", "what"),
    [
        (b"\x28\x96\x01", "a number"),
        (b"\x29" + bytes(8), "8 bytes"),
        (b"\x2d" + bytes(4), "4 bytes"),
        (b"\x2a\x03abc", "text"),
        (b"\xfa\x3f\x00", "a high number"),
        (b"\x2b\x08\x01\x33\x34\x2c", "a group with another one in it"),
    ],
)
def test_unknown_fields_are_skipped(unknown: bytes, what: str) -> None:
    raw = unknown + b"\x0a\x01d" + unknown + b"\x12" + bytes([len(unknown)]) + unknown
    assert decode(raw) == RlsQuestion("d", (Descriptor(()),)), what


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x12\x04\x0a\x0a\x0a\x01aaaaaaaa",
        b"\x12\x04\x0a\x02\x0a\x09aaaaaaaaa",
        b"\x18\x80",
        b"\x29abc",
        b"\x18" + b"\x80" * 10 + b"\x01",
        b"\x0a\x01\xff",
        b"\x02\x00",
        b"\x0f",
        b"\x0c",
        b"\x2b\x34",
        b"\x2b" * 200,
        b"\x0a\xff\xff\xff\xff\xff\x01",
    ],
)
def test_what_is_malformed_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedMessage, match="not a RateLimitRequest, or a text of it is not UTF-8"):
        decode(raw)


def test_descriptors_and_entries_are_bounded() -> None:
    assert len(decode(asked("d", *[[]] * MOST)).descriptors) == MOST
    with pytest.raises(MalformedMessage, match="more than 256 descriptors"):
        decode(asked("d", *[[]] * (MOST + 1)))
    with pytest.raises(MalformedMessage, match="more than 256 entries"):
        decode(asked("d", [("k", "v")] * (MOST + 1)))


def entries(fields: dict[str, Any]) -> bytes:
    return b"".join([entry(key, value) for key, value in fields.items()])


@given(st.sampled_from(Code), st.tuples(NUMBER, st.integers(1, 7), TEXT), NUMBER, st.integers(0, 2**40))
def test_a_status_is_read_as_it_was_meant(
    code: Code, shown: tuple[int, int, str], remaining: int, seconds: int
) -> None:
    limit = codec.current_limit(*shown)
    (status,) = answered(codec.OK + codec.status(codec.status_content(code, limit), remaining, seconds)).statuses
    found = status.current_limit
    assert (found.requests_per_unit, found.unit, found.name) == shown
    assert (status.code, status.limit_remaining) == (code, remaining)
    assert (status.HasField("duration_until_reset"), status.duration_until_reset.seconds) == (True, seconds)


def test_a_status_without_a_limit_has_nothing_but_its_code() -> None:
    (status,) = answered(codec.status(codec.status_content(Code.OK))).statuses
    assert [field.name for field, _ in status.ListFields()] == ["code"]


@given(TEXT, TEXT, st.binary(max_size=300))
def test_headers_and_bodies_are_read_as_they_were_meant(name: str, value: str, body: bytes) -> None:
    written = codec.header(name)(value)
    answer = answered(codec.OVER_LIMIT + written * 2 + framed(codec.BODY, body))
    assert [(header.key, header.value) for header in answer.response_headers_to_add] == [(name, value)] * 2
    assert (answer.overall_code, answer.raw_body) == (2, body)


@given(st.dictionaries(TEXT, METADATA, max_size=4))
def test_metadata_are_read_as_they_were_meant(fields: dict[str, Any]) -> None:
    told = MessageToDict(answered(codec.metadata(entries(fields), entries({"metadata": fields}))).dynamic_metadata)
    assert told == {"headgate": fields, "metadata": fields}


def test_metadata_of_other_kinds_or_too_deep_are_shown_as_text() -> None:
    deep: Any = "bottom"
    for _ in range(40):
        deep = [deep]
    fields = MessageToDict(answered(codec.metadata(entries({"deep": deep, "kind": 1j}))).dynamic_metadata)["headgate"]
    assert fields["kind"] == "1j"
    assert "bottom" in str(fields["deep"])
