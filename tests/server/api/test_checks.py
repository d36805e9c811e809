"""One check: its three forms, what is answered, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.api.questions import Members, Timestamps
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from tests.server.serving import LASTING, RULES, Service, fields, problem, serving
from tests.servers import free_port, redis_server

START = ManualClock.START // 1_000_000
ORDER = {"principal": {"user": "u1"}, "endpoint": "/orders/7", "method": "POST"}


def test_an_answer_says_all_about_the_limit_that_decided(service: Service) -> None:
    assert service.check(ORDER) == {
        "allowed": True,
        "limit": 3,
        "remaining": 2,
        "reset_at": START + 20,
        "retry_after": 0,
        "current_count": 1,
        "rule_id": "orders-user",
        "state": "normal",
        "degraded": False,
        "matched": True,
        "reason": "",
        "delay": 0.0,
        "limits": [
            {
                "rule_id": "orders-user",
                "allowed": True,
                "limit": 3,
                "remaining": 2,
                "reset_at": START + 20,
                "retry_after": 0,
                "state": "normal",
            }
        ],
        "shadow": [],
        "unmatched_principals": [],
    }


def test_principals_have_other_names_and_those_that_no_rule_knows_are_told(service: Service) -> None:
    assert service.check(ORDER)["remaining"] == 2
    assert service.check(ORDER | {"principal": {"USER_ID": "u1"}})["remaining"] == 1
    for unknown in ("apikye", "%d%s"):
        answer = service.check(ORDER | {"principal": {"user": "u1", unknown: "x"}, "consume": False})
        assert (answer["remaining"], answer["unmatched_principals"]) == (1, [unknown])


def test_usual_answers_have_the_same_form_as_all_others(service: Service) -> None:
    usual, unusual = service.post(ORDER), service.post(ORDER | {"principal": {"user": "u2"}, "cost": 3})
    assert json.loads(usual.body).keys() == json.loads(unusual.body).keys()
    assert [*json.loads(usual.body)] == [*json.loads(unusual.body)]
    assert fields(usual) == {
        "content-type": "application/json",
        "x-ratelimit-limit": "3",
        "x-ratelimit-remaining": "2",
        "x-ratelimit-reset": str(START + 20),
    }
    assert fields(unusual) == {**fields(usual), "x-ratelimit-remaining": "0", "x-ratelimit-state": "throttled"}


def test_reset_may_be_told_in_seconds_from_now() -> None:
    with serving(reset_format="seconds") as service:
        assert fields(service.post(ORDER))["x-ratelimit-reset"] == "20"


def test_a_refusal_is_an_answer(service: Service) -> None:
    """The check succeeded, so the status is 200; waiting exactly `retry_after` helps."""
    answers = [service.check(ORDER) for _ in range(4)]
    seen = [(answer["allowed"], answer["remaining"]) for answer in answers]
    assert seen == [(True, 2), (True, 1), (True, 0), (False, 0)]
    refused = answers[-1]
    assert (refused["retry_after"], refused["state"], refused["current_count"]) == (20, "throttled", 3)
    response = service.post(ORDER)
    assert response.status == 200
    assert fields(response)["retry-after"] == "20"
    service.clock.advance(19.5)
    assert service.check(ORDER)["retry_after"] == 1
    service.clock.advance(0.5)
    assert service.check(ORDER)["allowed"]


def test_the_end_of_a_window_does_not_move(service: Service) -> None:
    seen = set()
    for _ in range(20):
        seen.add(service.check(ORDER)["reset_at"])
        service.clock.advance(0.987654)
    assert seen == {START + 20}


def test_several_limits_are_all_told_and_the_tightest_one_first(service: Service) -> None:
    answer = service.check(ORDER | {"principal": {"user": "u1", "ip": "203.0.113.9"}})
    assert answer["rule_id"] == "orders-user"
    assert [(limit["rule_id"], limit["remaining"]) for limit in answer["limits"]] == [("orders-user", 2), ("all-ip", 4)]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"principal": {}, "endpoint": "/x"}, {"allowed": True, "matched": False, "limit": None, "retry_after": 0}),
        ({"principal": {"ip": "192.0.2.7"}}, {"allowed": False, "retry_after": None, "state": "throttled"}),
        (ORDER | {"principal": {"user": "root"}}, {"allowed": True, "matched": False, "state": "normal"}),
        ({"principal": {"ip": "2001:db8::1"}}, {"allowed": True, "rule_id": "all-ip", "remaining": 4}),
        ({"principal": {"user": "u"}, "endpoint": "/trial"}, {"allowed": True, "matched": True, "rule_id": ""}),
        (ORDER | {"cost": 2}, {"remaining": 1, "current_count": 2}),
        (ORDER | {"cost": 0}, {"remaining": 3, "current_count": 0}),
        (ORDER | {"consume": False}, {"remaining": 3}),
        (ORDER | {"consume": True, "idempotency_key": None, "timestamp": None, "attributes": {}}, {"remaining": 2}),
        (ORDER | {"tier": "gold", "attributes": {"region": "eu"}}, {"remaining": 2}),
        ({"identifier": "u1", "dimension": "USER", "endpoint": "/orders/7", "method": "POST"}, {"remaining": 2}),
        ({"identifier": "ak_1", "dimension": "API_KEY", "endpoint": "/search", "cost": 4}, {"remaining": 6}),
        ({"identifier": "ak_1", "dimension": "apikey", "endpoint": "/search"}, {"remaining": 9}),
        ({"identifier": "203.0.113.9", "dimension": "Ip"}, {"rule_id": "all-ip", "remaining": 4}),
        ({"key_type": "user", "key_value": "u1", "rule_id": "rule_001"}, {"remaining": 999}),
        ({"key_type": "USER", "key_value": "u1", "rule_id": "rule_001", "request_count": 7}, {"remaining": 993}),
        ({"key_type": "user", "key_value": "u1", "rule_id": "rule_001", "request_count": 0}, {"remaining": 1000}),
        ({"key_type": "user", "key_value": "u1", "rule_id": "rule_001", "consume": False}, {"remaining": 1000}),
        ({"key_type": "api_key", "key_value": "ak", "rule_id": "keys"}, {"remaining": 9}),
        ({"key_type": "ip", "key_value": "192.0.2.1", "rule_id": "all-ip"}, {"allowed": False, "matched": False}),
        ({"key_type": "global", "key_value": "any", "rule_id": "everybody"}, {"remaining": 1}),
        ({"key_type": "user", "key_value": "u1", "rule_id": "nowhere"}, {"allowed": True, "matched": False}),
        ({"key_type": "user", "key_value": "u1", "rule_id": "off"}, {"allowed": True, "matched": False}),
    ],
)
def test_what_is_asked_in_any_form_is_answered(
    service: Service, question: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = service.check(question)
    assert {name: answer[name] for name in expected} == expected


def test_pressure_is_seen_in_the_answer_and_in_a_header(service: Service) -> None:
    asked = {"principal": {"apikey": "a"}, "endpoint": "/search", "cost": 9}
    response = service.post(asked)
    assert json.loads(response.body)["state"] == "warning"
    assert fields(response)["x-ratelimit-state"] == "warning"


def test_a_place_in_a_queue_is_told(service: Service) -> None:
    asked = {"principal": {"user": "u"}, "endpoint": "/queue"}
    assert [service.check(asked)["delay"] for _ in range(3)] == [0.0, 1.0, 2.0]


def test_what_shadow_rules_would_say_is_told(service: Service) -> None:
    asked = {"principal": {"user": "u"}, "endpoint": "/trial"}
    shadows = [service.check(asked)["shadow"] for _ in range(2)]
    assert [(shadow[0]["rule_id"], shadow[0]["allowed"]) for shadow in shadows] == [("trial", True), ("trial", False)]


@pytest.mark.parametrize(
    ("headers", "member"),
    [
        ({"Idempotency_Key": "abc"}, {}),
        ({"Idempotency_Key": '"abc"'}, {}),
        ({"X_Idempotency_Key": "abc"}, {}),
        ({"X_Idempotency_Key": "abc", "Idempotency_Key": '"abc"'}, {}),
        ({}, {"idempotency_key": "abc"}),
        ({"Idempotency_Key": "abc"}, {"idempotency_key": "abc"}),
    ],
)
def test_a_request_that_is_sent_again_is_counted_once(
    service: Service, headers: dict[str, str], member: dict[str, str]
) -> None:
    by_rule = {"key_type": "user", "key_value": "u1", "rule_id": "rule_001"}
    for question, most in ((ORDER, 2), (by_rule, 999)):
        assert [service.check(question | member, **headers)["remaining"] for _ in range(3)] == [most] * 3
        assert service.check(question)["remaining"] == most - 1


def test_times_of_an_answer_that_is_given_again_count_from_then_on(service: Service) -> None:
    first = service.check(ORDER, Idempotency_Key="abc")
    service.clock.advance(7)
    again = service.check(ORDER, Idempotency_Key="abc")
    assert again["reset_at"] == first["reset_at"] + 7
    assert again["remaining"] == first["remaining"]


def test_the_clients_time_may_differ_by_a_minute(service: Service) -> None:
    for timestamp in (START, START - 60, START + 60, START * 1000 + 59_999, START + 0.5, None):
        assert service.check(ORDER | {"timestamp": timestamp, "cost": 0})["allowed"]
    for timestamp in (START - 61, START + 61, START * 1000 + 61_000, 0, -5):
        detail = problem(service.post(ORDER | {"timestamp": timestamp, "cost": 0}))["detail"]
        assert detail.startswith("the timestamp is")
        assert "60 s are accepted" in detail
    for timestamp in (10**14, -(10**30), 10**400, 1e300):
        detail = problem(service.post(ORDER | {"timestamp": timestamp}))["detail"]
        assert detail == "the timestamp is not a Unix time in seconds or milliseconds"


def test_the_clients_time_may_be_ignored() -> None:
    with serving(timestamps=Timestamps(ignored=True)) as service:
        assert service.check(ORDER | {"timestamp": 1})["allowed"]
    with serving(timestamps=Timestamps(skew=5)) as service:
        assert problem(service.post(ORDER | {"timestamp": START + 6}))
    with pytest.raises(InvalidSettings, match="skew"):
        Timestamps(skew=0)


def test_one_rule_with_several_quotas_is_told_with_the_right_one() -> None:
    rules = """
version: 1
rules: [{id: one, dimension: user, limit: 10, window: 1m, algorithm: fixed_window}]
tiers: {gold: {one: {limit: 1000}}}
users: {"ada": {tier: gold}}
"""
    with serving(rules) as service:
        for _ in range(2):
            for user, limit in (("ada", 1000), ("bob", 10)):
                response = service.post({"principal": {"user": user}})
                assert json.loads(response.body)["limit"] == limit
                assert fields(response)["x-ratelimit-limit"] == str(limit)


def test_the_clients_time_never_counts(service: Service) -> None:
    assert [service.check(ORDER | {"timestamp": START + 60 * n})["remaining"] for n in (-1, 0, 1)] == [2, 1, 0]


def test_a_rule_by_user_and_endpoint_is_asked_for_in_every_form() -> None:
    with serving("{version: 1, rules: [{id: each, dimension: [user, endpoint], limit: 9, window: 1h}]}") as service:
        for form in (
            {"principal": {"user": "u1"}, "endpoint": "/a"},
            {"principal": {"user": "u1"}, "endpoint": "/a", "rule_id": "each"},
            {"identifier": "u1", "dimension": "USER", "endpoint": "/a"},
            {"identifier": "u1", "dimension": "USER", "endpoint": "/a", "rule_id": "each"},
            {"key_type": "user", "key_value": "u1", "rule_id": "each", "endpoint": "/a"},
        ):
            answer = service.check(form)
        assert (answer["rule_id"], answer["remaining"]) == ("each", 4)
        assert service.check({"principal": {"user": "u1"}, "endpoint": "/b"})["remaining"] == 8


def test_unknown_rules_can_be_an_error() -> None:
    with serving(RULES.replace("version: 1", "version: 1\nunknown_rule: error")) as service:
        for rule_id in ("nowhere", "off"):
            refused = problem(service.post({"key_type": "user", "key_value": "u", "rule_id": rule_id}))
            assert rule_id in refused["detail"]


BAD = [
    (b"", "", "the body is empty"),
    (b"nonsense", "", "not JSON"),
    (b"\xff\xfe", "", "not JSON"),
    (b'{"principal": {"user": "\xff"}}', "", "not JSON"),
    (b'{"principal": {"user": "\\ud800"}}', "", "not JSON"),
    (b'{"principal": {}', "", "not JSON"),
    (b'{"principal": {}} {}', "", "not JSON"),
    (b'{"principal": {}, "cost": NaN}', "", "not JSON"),
    (b"[]", "", "a list, not an object"),
    (b"null", "", "null, not an object"),
    (b'{"principal": {"user": "' + b"x" * 131_072 + b'"}}', "", "bytes"),
    (b'{"principal": {' + b",".join([b'"%d":""' % n for n in range(9999)]) + b', "9998": ""}}', "/9998", "twice"),
    (b'{"principal": {}, "' + b"x" * 100_000 + b'": 1}', None, "unknown member"),
    (b"{}", "", "who asks"),
    (b'{"endpoint": "/x"}', "", "who asks"),
    (b"[" * 100_000, "", ""),
    (b'{"principal":' + b'{"a":' * 20_000, "", ""),
    (b'{"x":' + b"[" * 100_000, "", "nested too deeply"),
    (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "bytes"),
    (b'{"principal": {"a": 1}}', "/principal/a", "not as expected"),
    (b'{"principal": {"b": "1", "a/~": null}}', "/principal/a~1~0", "not as expected"),
    (b'{"principal": {"a": 1}, "principal": 5}', "/principal", "twice"),
    (b'{"principal": {"a": 1}, ', "", "not JSON"),
    (b'{"principal": []}', "/principal", "not as expected"),
    (b'{"principal": {"user": ""}}', None, "at least one character"),
    (b'{"principal": {"ip": "nobody"}}', None, "ip is an address"),
    (b'{"principal": {}, "cost": 1.5}', "/cost", "not as expected"),
    (b'{"principal": {}, "cost": "1"}', "/cost", "not as expected"),
    (b'{"principal": {}, "cost": true}', "/cost", "not as expected"),
    (b'{"principal": {}, "cost": 1e999}', "/cost", "not as expected"),
    (b'{"principal": {}, "cost": -1}', "/cost", "cost must be"),
    (b'{"principal": {}, "cost": 100001}', "/cost", "cost must be"),
    (b'{"principal": {}, "cost": 99999999999999999999999999999}', "/cost", "cost must be"),
    (b'{"principal": {}, "cost": ' + b"9" * 10_000 + b"}", None, ""),
    (b'{"principal": {}, "timestamp": ' + b"9" * 10_000 + b"}", None, ""),
    (b'{"principal": {"a:b": "c"}, "timestamp": ' + b"9" * 5000 + b', "endpoint" : "a:b"}', None, ""),
    (b'{"principal": {"user": "u"}, "endpoint": "/orders", "method": "POST", "cost": 4}', "/cost", "could never pass"),
    (b'{"principal": {}, "consume": "yes"}', "/consume", "not as expected"),
    (b'{"principal": {}, "endpoint": "/a/../b"}', None, "path"),
    (b'{"principal": {}, "endpoint": "/a\\u0000b"}', None, "path"),
    (b'{"principal": {}, "method": "GET /"}', None, "method"),
    (b'{"principal": {}, "attributes": {"a": []}}', "/attributes/a", "not as expected"),
    (b'{"principal": {}, "timestamp": "now"}', "/timestamp", "not as expected"),
    (b'{"principal": {}, "idempotency_key": ""}', "/idempotency_key", "empty"),
    (b'{"principal": {}, "coast": 1}', "/coast", "unknown member"),
    (b'{"principal": {}, "<script>\\u0000": 1}', "/<script>\\x00", "unknown member"),
    (b'{"principal": {}, "cost": 1, "cost": 2}', "/cost", "twice"),
    (b'{"principal": {}, "cost": 1, "cost"  : 2}', "/cost", "twice"),
    (b'{"principal": {"user": "a:b", "user": "c"}}', "/user", "twice"),
    (b'{"principal": {"user": "a", "us\\u0065r": "c"}}', "/user", "twice"),
    (b'{"principal": {}, "identifier": "u", "dimension": "USER"}', "/principal", "two forms"),
    (b'{"principal": {}, "rule_id": ""}', "/rule_id", "empty"),
    (b'{"principal": {}, "rule_id": "rule_001"}', None, "counts by user: say by which"),
    (b'{"principal": {"user": "u"}, "rule_id": "rule_001", "cost": 1001}', "/cost", "never pass"),
    (b'{"principal": {}, "rule_id": "rule_001", "key_type": "user"}', "/principal", "two forms"),
    (b'{"key_type": "endpoint", "key_value": "/a", "rule_id": "r", "endpoint": "/b"}', "/endpoint", "twice"),
    (b'{"key_type": "global", "key_value": "all", "rule_id": "rule_001"}', None, "counts by user: say by which"),
    (b'{"key_type": "user", "key_value": "u", "rule_id": "rule_001", "cost": 2}', "/cost", "two forms"),
    (b'{"key_type": "user", "identifier": "u", "dimension": "USER"}', "/key_type", "two forms"),
    (b'{"key_type": "user", "key_value": "u"}', "/rule_id", "not say enough"),
    (b'{"rule_id": "rule_001"}', "/key_type", "not say enough"),
    (b'{"identifier": "u"}', "/dimension", "not say enough"),
    (b'{"dimension": "USER"}', "/identifier", "not say enough"),
    (b'{"identifier": "", "dimension": "USER"}', "/identifier", "empty"),
    (b'{"identifier": "u", "dimension": ""}', "/dimension", "empty"),
    (b'{"key_type": "user", "key_value": "", "rule_id": "r"}', "/key_value", "empty"),
    (b'{"key_type": "user", "key_value": "u", "rule_id": ""}', "/rule_id", "empty"),
    (b'{"key_type": "", "key_value": "u", "rule_id": "r"}', "/key_type", "empty"),
    (b'{"key_type": "ip", "key_value": "203.0.113.9", "rule_id": "rule_001"}', None, "counts by user, not by ip"),
    (
        b'{"key_type": "user", "key_value": "u", "rule_id": "rule_001", "request_count": 1001}',
        "/request_count",
        "never pass",
    ),
]


@pytest.mark.parametrize(("body", "pointer", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_body_is_refused_with_the_place_and_what_would_be_right(
    service: Service, body: bytes, pointer: str | None, told: str
) -> None:
    response = service.post(body)
    refused = problem(response)
    assert told in refused["detail"]
    if pointer is not None:
        assert pointer in [error["pointer"] for error in refused["errors"]]
    assert all(error["detail"] for error in refused.get("errors", ()))
    assert not set(response.body) & set(b"<>&")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"principal": {"user": 1}}', "is text, not a number"),
        (b'{"principal": []}', "not a list"),
        (b'{"principal": {}, "cost": "1"}', "is a whole number from 0 to 100000, not text"),
        (b'{"principal": {}, "cost": true}', "not true or false"),
        (b'{"principal": {}, "method": {}}', "not an object"),
        (b'{"principal": {}, "tier": null}', "not null"),
    ],
)
def test_what_was_found_is_named_as_json_names_it(service: Service, body: bytes, told: str) -> None:
    (error,) = problem(service.post(body))["errors"]
    assert error["detail"].endswith(told)


def test_an_empty_body_is_called_empty(service: Service) -> None:
    assert problem(service.post(b" "))["detail"] == "the body is empty"


def test_a_misspelt_member_is_recognised(service: Service) -> None:
    (error,) = problem(service.post(b'{"principal": {}, "endpont": "/x"}'))["errors"]
    assert "endpoint may be meant" in error["detail"]


@pytest.mark.parametrize(
    ("headers", "member"),
    [
        ({"Idempotency_Key": "abc"}, {"idempotency_key": "other"}),
        ({"Idempotency_Key": ""}, {}),
        ({"Idempotency_Key": "a", "X_Idempotency_Key": "b"}, {}),
        ({"Idempotency_Key": "\x80"}, {}),
        ({"Idempotency_Key": "x" * 513}, {}),
        ({}, {"idempotency_key": "x" * 513}),
    ],
)
def test_a_bad_idempotency_key_is_refused(service: Service, headers: dict[str, str], member: dict[str, str]) -> None:
    assert problem(service.post(ORDER | member, **headers))
    assert service.check(ORDER)["remaining"] == 2


def test_colons_and_escapes_in_texts_are_no_members(service: Service) -> None:
    for user in ("a:b", 'a":b', '": ":', "2001:db8::1", 'x\\":'):
        assert service.check(ORDER | {"principal": {"user": user}})["allowed"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
members = st.sampled_from(Members.__struct_fields__)
texts = st.dictionaries(st.sampled_from(["user", "ip", "x"]), st.text(), max_size=2)


@given(body=st.one_of(st.binary(), json_values, st.dictionaries(members, texts | json_values, max_size=6)))
def test_any_body_is_answered_or_refused_never_an_error_of_ours(body: object) -> None:
    with serving() as service:
        response = service.post(body)
        assert response.status in {200, 400}
        if response.status == 400:
            assert problem(response)
        else:
            assert "allowed" in json.loads(response.body)


def test_answers_without_the_store_say_so() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}/0", failure="deny") as service:
        response = service.post(ORDER)
    answer = json.loads(response.body)
    assert (answer["allowed"], answer["degraded"], answer["reason"]) == (False, True, "storage_unavailable")
    assert fields(response)["x-ratelimit-degraded-reason"] == "storage_unavailable"


def test_checks_on_redis_need_no_task() -> None:
    with redis_server() as server, serving(LASTING, store=server.address) as service:
        assert [service.check(ORDER)["remaining"] for _ in range(3)] == [2, 1, 0]
        assert service.check(ORDER, Idempotency_Key="k")["allowed"] is False
