"""Envoy's requests, decoded from protobuf and JSON, and mapped to requests of rules."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.request import Descriptor, Override
from headgate.policy.request import Request
from headgate.protobuf import entry
from headgate.server.rls import codec
from headgate.server.rls.codec import MOST, MalformedMessage, RlsRequest, decode
from headgate.server.rls.json_form import JsonForm
from headgate.server.rls.mapping import NAMES, Mapper
from headgate.server.wire.messages import HttpRequest, HttpResponse
from tests.server.rls.conftest import Asking
from tests.server.rls.messages import answered, descriptor, encoded
from tests.server.rls.test_service import TREE

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
def test_requests_are_decoded_as_encoded(domain: str, descriptors: tuple[Descriptor, ...], hits: int) -> None:
    written = [
        descriptor(*each.entries, hits=each.hits, limit=each.override, refund=each.refund) for each in descriptors
    ]
    assert decode(encoded(domain, *written, hits_addend=hits)) == RlsRequest(domain, descriptors, hits)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with suppress(MalformedMessage):
        assert isinstance(decode(raw), RlsRequest)


def test_unusual_encodings_are_decoded_like_protobuf() -> None:
    for raw, question in (
        (b"\x0a\x01a\x0a\x01b", RlsRequest("b", ())),  # the last one counts
        (b"\x12\x08\x12\x02\x08\x01\x12\x02\x10\x02", RlsRequest("", (Descriptor((), override=Override(1, 2)),))),
        (b"\x12\x06\x1a\x00\x1a\x02\x08\x05", RlsRequest("", (Descriptor((), 5),))),  # parts are put together
        (b"\x12\x02\x20\x02", RlsRequest("", (Descriptor((), refund=True),))),  # a boolean that is 2
        (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", RlsRequest("", (), 2**32 - 1)),  # more than 32 bits
    ):
        assert decode(raw) == question


def test_unknown_fields_are_skipped() -> None:
    for unknown, what in (
        *((b"\x28\x96\x01", "a number"), (b"\x29" + bytes(8), "8 bytes"), (b"\x2d" + bytes(4), "4 bytes")),
        *((b"\x2a\x03abc", "text"), (b"\xfa\x3f\x00", "a high number")),
        (b"\x2b\x08\x01\x33\x34\x2c", "a group with another one in it"),
    ):
        raw = unknown + b"\x0a\x01d" + unknown + b"\x12" + bytes([len(unknown)]) + unknown
        assert decode(raw) == RlsRequest("d", (Descriptor(()),)), what


def test_malformed_input_is_refused() -> None:
    for raw in (
        *(b"\x0a", b"\x0a\x05abc", b"\x12\x04\x0a\x0a\x0a\x01aaaaaaaa", b"\x12\x04\x0a\x02\x0a\x09aaaaaaaaa"),
        *(b"\x18\x80", b"\x29abc", b"\x18" + b"\x80" * 10 + b"\x01", b"\x0a\x01\xff", b"\x02\x00", b"\x0f", b"\x0c"),
        *(b"\x2b\x34", b"\x2b" * 200, b"\x0a\xff\xff\xff\xff\xff\x01"),
    ):
        with pytest.raises(MalformedMessage, match="not a RateLimitRequest, or a text of it is not UTF-8"):
            raise AssertionError(raw, decode(raw))


def test_descriptors_and_entries_are_bounded() -> None:
    assert len(decode(encoded("d", *[[]] * MOST)).descriptors) == MOST
    with pytest.raises(MalformedMessage, match="more than 256 descriptors"):
        decode(encoded("d", *[[]] * (MOST + 1)))
    with pytest.raises(MalformedMessage, match="more than 256 entries"):
        decode(encoded("d", [("k", "v")] * (MOST + 1)))


def entries(fields: dict[str, Any]) -> bytes:
    return b"".join([entry(key, value) for key, value in fields.items()])


@given(st.sampled_from(Code), st.tuples(NUMBER, st.integers(1, 7), TEXT), NUMBER, st.integers(0, 2**40))
def test_a_status_is_decoded_as_encoded(code: Code, shown: tuple[int, int, str], remaining: int, seconds: int) -> None:
    limit = codec.current_limit(*shown)
    (status,) = answered(codec.OK + codec.status(codec.status_content(code, limit), remaining, seconds)).statuses
    found = status.current_limit
    assert (found.requests_per_unit, found.unit, found.name) == shown
    assert (status.code, status.limit_remaining) == (code, remaining)
    assert (status.HasField("duration_until_reset"), status.duration_until_reset.seconds) == (True, seconds)


@given(st.dictionaries(TEXT, METADATA, max_size=4))
def test_metadata_are_decoded_as_encoded(fields: dict[str, Any]) -> None:
    decoded = MessageToDict(answered(codec.metadata(entries(fields), entries({"metadata": fields}))).dynamic_metadata)
    assert decoded == {"headgate": fields, "metadata": fields}


def test_metadata_of_other_kinds_or_too_deep_are_shown_as_text() -> None:
    deep: Any = "bottom"
    for _ in range(40):
        deep = [deep]
    fields = MessageToDict(answered(codec.metadata(entries({"deep": deep, "kind": 1j}))).dynamic_metadata)["headgate"]
    assert fields["kind"] == "1j"
    assert "bottom" in str(fields["deep"])


def mapped(*pairs: tuple[str, str], hits: int = 1, **options: Any) -> Request:
    return Mapper(**options).request("edge", Descriptor(pairs), hits)


def test_entries_become_requests_of_rules() -> None:
    edge = {"domain": "edge"}
    table: list[tuple[dict[str, Any], list[list[tuple[str, str]]]]] = [
        (
            {"principal": {"user": "ada"}},
            [[("user", "ada")], [("user_id", "ada")], [("user", "ada"), ("user_id", "bob")]],
        ),
        ({"principal": {"ip": "203.0.113.9"}}, [[("remote_address", "203.0.113.9")], [("ip", "203.0.113.9")]]),
        ({"principal": {"apikey": "ak"}}, [[("apikey", "ak")], [("api_key", "ak")], [("x-api-key", "ak")]]),
        ({"principal": {"apikey": "ak", "ip": "192.0.2.1"}}, [[("API-KEY", "ak"), ("client_ip", "192.0.2.1")]]),
        ({"endpoint": "/a?b=c"}, [[("path", "/a?b=c")]]),
        ({"endpoint": "/a"}, [[(":path", "/a")], [("endpoint", "/a")]]),
        ({"method": "GET"}, [[("method", "GET")], [(":method", "GET")]]),
        ({"attributes": edge | {"k": "1"}}, [[("k", "1"), ("k", "2")]]),
        ({}, [[("domain", "other")], [("user", "")]]),
        (
            {"principal": {"user": "ada", "ip": "203.0.113.9"}, "endpoint": "/a", "method": "PUT"},
            [[("user", "ada"), ("remote_address", "203.0.113.9"), ("path", "/a"), ("method", "PUT")]],
        ),
    ]
    for key, value in (("generic_key", "slow"), ("destination_cluster", "api"), ("tier", "gold")):
        table.append(({"attributes": edge | {key: value}}, [[(key, value)]]))
    for expected, descriptors in table:
        for pairs in descriptors:
            assert mapped(*pairs) == Request(**{"attributes": edge, **expected}), pairs


def test_a_masked_address_is_the_network_that_is_counted_while_lists_see_the_address() -> None:
    masked, whole = ("masked_remote_address", "203.0.113.0/24"), ("remote_address", "203.0.113.9")
    attributes = {"domain": "edge", "masked_remote_address": "203.0.113.0/24"}
    assert mapped(masked) == Request({"ip": "203.0.113.0/24"}, attributes=attributes)
    for pairs in ((masked, whole), (whole, masked)):
        assert mapped(*pairs) == Request({"ip": "203.0.113.0/24"}, attributes=attributes, address="203.0.113.9")


def test_a_tier_is_trusted_only_on_request_and_hits_are_the_cost() -> None:
    assert mapped(("tier", "gold"), trust_tier=True) == Request(attributes={"domain": "edge"}, tier="gold")
    assert mapped(("user", "ada"), hits=7).cost == 7


def test_the_table_of_the_documentation_names_all_keys() -> None:
    from headgate.server.rls import mapping  # noqa: PLC0415  the module itself, for its text

    assert mapping.__doc__ is not None
    assert all(f"``{key}``" in mapping.__doc__ for key in NAMES)


RULES = "rules: [{id: per-ip, dimension: ip, limit: 3, window: 365d, algorithm: fixed_window}]"
ENTRY = {"entries": [{"key": "remote_address", "value": "203.0.113.9"}]}


def post(asking: Asking, question: object, method: bytes = b"POST") -> HttpResponse:
    assert asking.service is not None
    body = question if isinstance(question, bytes) else json.dumps(question).encode()
    return asking.loop.run_until_complete(JsonForm(asking.service)(HttpRequest(method, b"/json", body=body)))


def test_the_answer_is_protobufs_json(service: Asking) -> None:
    service.serve(RULES)
    response = post(service, {"domain": "edge", "descriptors": [ENTRY]})
    answer = json.loads(response.body)
    assert (response.status, dict(response.headers)[b"content-type"]) == (200, b"application/json")
    assert answer["overallCode"] == "OK"
    (status,) = answer["statuses"]
    assert status["currentLimit"] == {"requestsPerUnit": 3, "unit": "YEAR", "name": "per-ip"}
    assert (status["code"], status["limitRemaining"]) == ("OK", 2)
    assert status["durationUntilReset"].endswith("s")


def test_over_the_limit_is_429_and_names_may_be_in_either_case(in_memory: Asking) -> None:
    for name in ("hitsAddend", "hits_addend"):
        in_memory.serve(RULES)
        question = {"domain": "edge", "descriptors": [ENTRY | {name: "3"}]}
        assert [post(in_memory, question).status for _ in range(2)] == [200, 429]
        assert json.loads(post(in_memory, question).body)["overallCode"] == "OVER_LIMIT"


def test_malformed_and_expensive_bodies_are_400(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    bodies: tuple[Any, ...] = (
        *(b"", b"{", b"\xff", b"[]", b"[" * 100_000, b"null", {"domain": 5}, {"unknown": 1}, {"domain": "edge"}),
        *({"descriptors": [ENTRY]}, {"domain": "edge", "descriptors": [{"hitsAddend": -1}]}),
        {"domain": "edge", "descriptors": [{"hitsAddend": {"a": {"b": {"c": 1}}}}]},
        {"domain": "\ud800", "descriptors": [ENTRY]},
    )
    large = (
        b'{"domain": "d", "descriptors": [' + b", ".join([b"{}"] * 2048) + b"]}",
        b'{"domain": "' + b"d" * 131_072 + b'"}',
    )
    complaints = *[""] * len(bodies), "more than 2048 objects", "at most 131072"
    for body, complaint in zip((*bodies, *large), complaints, strict=True):
        response = post(in_memory, body)
        assert (response.status, dict(response.headers)[b"content-type"]) == (400, b"application/problem+json"), body
        detail = json.loads(response.body)["detail"]
        assert detail
        assert complaint in detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["domain", "descriptors", "entries", "key", "value", "limit", "unit", "hitsAddend"]), inner
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON | st.dictionaries(st.sampled_from(["domain", "descriptors"]), JSON))
def test_any_json_is_answered(in_memory: Asking, question: Any) -> None:
    if in_memory.service is None:
        in_memory.serve(RULES)
    assert post(in_memory, question).status in {200, 400, 429}


def test_other_methods_are_refused(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    response = post(in_memory, b"", b"GET")
    assert (response.status, dict(response.headers)[b"allow"]) == (405, b"POST")


def test_the_configuration_in_force_can_be_read(in_memory: Asking) -> None:
    in_memory.serve(tree=TREE)
    assert in_memory.service is not None
    form = JsonForm(in_memory.service)

    def get(method: bytes) -> HttpResponse:
        return in_memory.loop.run_until_complete(form.configuration(HttpRequest(method, b"/rlconfig")))

    lines = get(b"GET").body.decode().splitlines()
    assert lines[0] == "edge.remote_address: 2 per YEAR (per-ip)"
    assert "edge.trial: 1 per YEAR (trial), shadow" in lines
    assert "edge.odd: 4 per 45 SECOND (n\u00e4me)" in lines
    assert "edge.free: unlimited" in lines
    assert get(b"POST").status == 405
    in_memory.serve(RULES)
    form = JsonForm(in_memory.service)
    assert get(b"GET").body == b""
