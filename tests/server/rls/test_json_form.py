"""Envoy's question as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.server.rls.json_form import JsonForm
from headgate.server.wire.messages import HttpRequest, HttpResponse
from tests.server.rls.conftest import Asking
from tests.server.rls.test_service_trees import TREE

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


@pytest.mark.parametrize("name", ["hitsAddend", "hits_addend"])
def test_over_the_limit_is_429_and_names_may_be_in_either_case(service: Asking, name: str) -> None:
    service.serve(RULES)
    question = {"domain": "edge", "descriptors": [ENTRY | {name: "3"}]}
    assert [post(service, question).status for _ in range(2)] == [200, 429]
    assert json.loads(post(service, question).body)["overallCode"] == "OVER_LIMIT"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b"null",
        {"domain": 5},
        {"unknown": 1},
        {"domain": "edge"},
        {"descriptors": [ENTRY]},
        {"domain": "edge", "descriptors": [{"hitsAddend": -1}]},
        {"domain": "edge", "descriptors": [{"hitsAddend": {"a": {"b": {"c": 1}}}}]},
        {"domain": "\ud800", "descriptors": [ENTRY]},
    ],
)
def test_what_is_malformed_is_400(in_memory: Asking, body: Any) -> None:
    in_memory.serve(RULES)
    response = post(in_memory, body)
    assert (response.status, dict(response.headers)[b"content-type"]) == (400, b"application/problem+json")
    assert json.loads(response.body)["detail"]


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


def test_a_store_that_is_away_is_no_fault_of_the_question(in_memory: Asking) -> None:
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": "deny"}
    in_memory.serve(RULES, engine=away)
    assert post(in_memory, {"domain": "edge", "descriptors": [ENTRY]}).status == 429


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


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"domain": "d", "descriptors": [' + b", ".join([b"{}"] * 2048) + b"]}", "more than 2048 objects"),
        (b'{"domain": "' + b"d" * 131_072 + b'"}', "at most 131072"),
    ],
)
def test_what_would_take_long_to_read_is_refused_before_it_is_read(
    service: Asking, body: bytes, complaint: str
) -> None:
    service.serve(RULES)
    response = post(service, body)
    assert response.status == 400
    assert complaint in json.loads(response.body)["detail"]
