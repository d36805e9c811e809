"""Envoy's questions, read from the wire."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.policy.envoy.request import Descriptor, Override
from headgate.protos import RateLimitRequest
from headgate.server.rls.decoding import MOST, MalformedMessage, RlsQuestion, decode
from tests.server.rls.messages import asked, descriptor

TEXT = st.text(max_size=200)
NUMBER = st.integers(0, 2**32 - 1)
DESCRIPTORS = st.builds(
    lambda pairs, hits, limit, refund: descriptor(*pairs, hits=hits, limit=limit, refund=refund),
    st.lists(st.tuples(TEXT, TEXT), max_size=5),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.tuples(NUMBER, st.integers(0, 7)),
    st.booleans(),
)
QUESTIONS = st.builds(
    lambda domain, descriptors, hits: asked(domain, *descriptors, hits_addend=hits),
    TEXT,
    st.lists(DESCRIPTORS, max_size=5),
    NUMBER,
)


def by_protobuf(raw: bytes) -> RlsQuestion:
    """Return what protobuf reads."""
    message: Any = RateLimitRequest.FromString(raw)
    descriptors = []
    for each in message.descriptors:
        entries = tuple([(entry.key, entry.value) for entry in each.entries])
        hits = each.hits_addend.value if each.HasField("hits_addend") else None
        limit = each.limit
        override = Override(limit.requests_per_unit, limit.unit % 2**32) if each.HasField("limit") else None
        descriptors.append(Descriptor(entries, hits, override, each.is_negative_hits))
    return RlsQuestion(message.domain, tuple(descriptors), message.hits_addend)


@given(QUESTIONS)
def test_what_protobuf_writes_is_read_as_protobuf_reads_it(raw: bytes) -> None:
    assert decode(raw) == by_protobuf(raw)


@given(QUESTIONS, st.data())
def test_what_is_damaged_is_read_as_protobuf_reads_it_or_refused(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    check_same(bytes(damaged))


@given(st.binary(max_size=60))
@example(b"\x0a\x01a\x0a\x01b")  # the last one counts
@example(b"\x12\x04\x12\x02\x08\x01\x12\x04\x12\x02\x10\x02")
@example(b"\x12\x08\x12\x02\x08\x01\x12\x02\x10\x02")  # parts of one message are put together
@example(b"\x12\x06\x1a\x00\x1a\x02\x08\x05")
@example(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # more than 32 bits
@example(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")  # more than 64 bits
@example(b"\x12\x02\x20\x02")  # a boolean that is 2
@example(b"\x08\x05\x15abcd\x11abcdefgh\x1d1234")  # known numbers, other kinds
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(raw: bytes) -> None:
    check_same(raw)


def check_same(raw: bytes) -> None:
    """We may refuse what protobuf does not, but never the other way round, and never read something else."""
    with suppress(MalformedMessage):
        question = decode(raw)
        try:
            assert question == by_protobuf(raw)
        except DecodeError:
            pytest.fail("protobuf refuses what we accept")


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
    assert decode(raw) == RlsQuestion("d", (Descriptor(()),)) == by_protobuf(raw), what


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\x0a", "ends in the middle"),
        (b"\x0a\x05abc", "ends in the middle"),
        (b"\x12\x04\x0a\x0a\x0a\x01aaaaaaaa", "ends in the middle"),
        (b"\x12\x04\x0a\x02\x0a\x09aaaaaaaaa", "ends in the middle"),
        (b"\x18\x80", "ends in the middle"),
        (b"\x29abc", "ends in the middle"),
        (b"\x18" + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x0a\x01\xff", "not UTF-8"),
        (b"\x02\x00", "number 0"),
        (b"\x0f", "unknown kind"),
        (b"\x0c", "unknown kind"),
        (b"\x2b\x34", "does not end as it began"),
        (b"\x2b" * 40, "unknown kind"),
        (b"\x8a\x00\x01a", "malformed"),
        (b"\x0a\x81\x00a", "malformed"),
        (b"\x0a\xff\xff\xff\xff\xff\x01", "malformed"),
    ],
)
def test_what_is_malformed_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage, match=complaint):
        decode(raw)


def test_descriptors_and_entries_are_bounded() -> None:
    assert len(decode(asked("d", *[[]] * MOST)).descriptors) == MOST
    with pytest.raises(MalformedMessage, match="more than 256 descriptors"):
        decode(asked("d", *[[]] * (MOST + 1)))
    with pytest.raises(MalformedMessage, match="more than 256 entries"):
        decode(asked("d", [("k", "v")] * (MOST + 1)))


@pytest.mark.parametrize(
    ("junk", "what"), [(b"\x28\x00", "unknown fields"), (b"\x0a\x01x", "domains"), (b"\x18\x07", "hits")]
)
def test_a_long_question_is_read_as_protobuf_reads_it(junk: bytes, what: str) -> None:
    raw = junk * 10_000 + asked("d", [("k", "v" * 1000)] * 20, [("k", "w")])
    assert decode(raw) == by_protobuf(raw), what
    with pytest.raises(MalformedMessage):
        decode(raw + b"\x0a")
