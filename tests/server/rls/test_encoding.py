"""The parts of Envoy's answers, as they go over the wire."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from headgate.policy.envoy.answering import Code
from headgate.protos import entry, framed
from headgate.server.rls import encoding
from tests.server.rls.messages import answered

UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(max_size=300)
METADATA: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


def entries(fields: dict[str, Any]) -> bytes:
    return b"".join([entry(key, value) for key, value in fields.items()])


@given(st.sampled_from(Code), st.tuples(UINT32, st.integers(1, 7), TEXT), UINT32, st.integers(0, 2**40))
def test_a_status_is_read_as_it_was_meant(
    code: Code, shown: tuple[int, int, str], remaining: int, seconds: int
) -> None:
    limit = encoding.current_limit(*shown)
    (status,) = answered(
        encoding.OK + encoding.status(encoding.status_content(code, limit), remaining, seconds)
    ).statuses
    found = status.current_limit
    assert (found.requests_per_unit, found.unit, found.name) == shown
    assert (status.code, status.limit_remaining) == (code, remaining)
    assert (status.HasField("duration_until_reset"), status.duration_until_reset.seconds) == (True, seconds)


def test_a_status_without_a_limit_has_nothing_but_its_code() -> None:
    (status,) = answered(encoding.status(encoding.status_content(Code.OK))).statuses
    assert [field.name for field, _ in status.ListFields()] == ["code"]


@given(TEXT, TEXT, st.binary(max_size=300))
def test_headers_and_bodies_are_read_as_they_were_meant(name: str, value: str, body: bytes) -> None:
    written = encoding.header(name)(value)
    answer = answered(encoding.OVER_LIMIT + written * 2 + framed(encoding.BODY, body))
    assert [(header.key, header.value) for header in answer.response_headers_to_add] == [(name, value)] * 2
    assert (answer.overall_code, answer.raw_body) == (2, body)


@given(st.dictionaries(TEXT, METADATA, max_size=4))
def test_metadata_are_read_as_they_were_meant(fields: dict[str, Any]) -> None:
    assert MessageToDict(answered(encoding.metadata(entries(fields))).dynamic_metadata) == fields


def test_metadata_of_other_kinds_or_too_deep_are_shown_as_text() -> None:
    deep: Any = "bottom"
    for _ in range(40):
        deep = [deep]
    fields = MessageToDict(answered(encoding.metadata(entries({"deep": deep, "kind": 1j}))).dynamic_metadata)
    assert fields["kind"] == "1j"
    assert "bottom" in str(fields["deep"])
