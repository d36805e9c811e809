"""Single checks: their three forms, their responses, and the bodies that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.api.bodies import Members, Timestamps
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from tests.server.serving import RULES, Service, fields, problem, serving
from tests.servers import free_port

START = ManualClock.START // 1_000_000
ORDER = {"principal": {"user": "u1"}, "endpoint": "/orders/7", "method": "POST"}


def test_a_response_describes_the_limit_that_decided(service: Service) -> None:
    limit = {"rule_id": "orders-user", "allowed": True, "limit": 3, "remaining": 2, "reset_at": START + 20}
    limit |= {"retry_after": 0, "state": "normal"}
    more = {"current_count": 1, "degraded": False, "matched": True, "reason": "", "delay": 0.0}
    lists = {"limits": [limit], "shadow": [], "unmatched_principals": []}
    assert service.check(ORDER) == limit | more | lists


def test_principals_have_aliases_and_unmatched_ones_are_reported(service: Service) -> None:
    assert service.check(ORDER)["remaining"] == 2
    assert service.check(ORDER | {"principal": {"USER_ID": "u1"}})["remaining"] == 1
    for unknown in ("apikye", "%d%s"):
        answer = service.check(ORDER | {"principal": {"user": "u1", unknown: "x"}, "consume": False})
        assert (answer["remaining"], answer["unmatched_principals"]) == (1, [unknown])


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
def test_checks_in_any_form_are_decided(service: Service, question: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = service.check(question)
    assert {name: answer[name] for name in expected} == expected


def test_a_request_that_is_sent_again_is_counted_once(service: Service) -> None:
    by_rule = {"key_type": "user", "key_value": "u1", "rule_id": "rule_001"}
    for number, (headers, member) in enumerate(
        (
            *(({"Idempotency_Key": "abc"}, {}), ({"Idempotency_Key": '"abc"'}, {}), ({"X_Idempotency_Key": "abc"}, {})),
            ({"X_Idempotency_Key": "abc", "Idempotency_Key": '"abc"'}, {}),
            ({}, {"idempotency_key": "abc"}),
            ({"Idempotency_Key": "abc"}, {"idempotency_key": "abc"}),
        )
    ):
        for question, most in (
            (ORDER | {"principal": {"user": f"u{number}"}}, 2),
            (by_rule | {"key_value": f"v{number}"}, 999),
        ):
            assert [service.check(question | member, **headers)["remaining"] for _ in range(3)] == [most] * 3, headers
            assert service.check(question)["remaining"] == most - 1, headers


def test_times_of_a_repeated_response_count_from_its_request(service: Service) -> None:
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


def test_the_clients_time_never_counts_and_may_be_ignored(service: Service) -> None:
    assert [service.check(ORDER | {"timestamp": START + 60 * n})["remaining"] for n in (-1, 0, 1)] == [2, 1, 0]
    with serving(timestamps=Timestamps(ignored=True)) as other:
        assert other.check(ORDER | {"timestamp": 1})["allowed"]
    with serving(timestamps=Timestamps(skew=5)) as other:
        assert problem(other.post(ORDER | {"timestamp": START + 6}))
    with pytest.raises(InvalidSettings, match="skew"):
        Timestamps(skew=0)


def test_a_rule_by_user_and_endpoint_works_in_every_form() -> None:
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


BY_RULE = b'{"key_type": "user", "key_value": "u", "rule_id": '
DEEP = b"[" * 100_000
BAD: list[tuple[bytes, str | None, str]] = [
    *[(body, "", "the body is empty") for body in (b"", b" ")],
    *[(body, "", "not JSON") for body in (b"nonsense", b"\xff\xfe", b'{"principal": {}', b'{"principal": {}} {}')],
    *[(b'{"principal": {' + rest, "", "not JSON") for rest in (b'"user": "\xff"}}', b'"user": "\\ud800"}}')],
    *[(b'{"principal": {' + rest, "", "not JSON") for rest in (b'}, "cost": NaN}', b'"a": 1}, ')],
    *[(body, "", message) for body, message in ((b"[]", "a list, not an object"), (b"null", "null, not an object"))],
    *[(body, "", "names no client") for body in (b"{}", b'{"endpoint": "/x"}')],
    *[(body, "", "bytes") for body in (b'{"principal": {"user": "' + b"x" * 131_072 + b'"}}', b'{"x":' + DEEP * 2)],
    *[(body, "", "") for body in (DEEP, b'{"principal":' + b'{"a":' * 20_000)],
    (b'{"x":' + DEEP, "", "nested too deeply"),
    (b'{"principal": {' + b",".join([b'"%d":""' % n for n in range(9999)]) + b', "9998": ""}}', "/9998", "twice"),
    (b'{"principal": {}, "' + b"x" * 100_000 + b'": 1}', None, "unknown member"),
    *[
        (b'{"principal": ' + rest, pointer, "is invalid")
        for rest, pointer in (
            *(
                (b'{"a": 1}}', "/principal/a"),
                (b'{"b": "1", "a/~": null}}', "/principal/a~1~0"),
                (b"[]}", "/principal"),
            ),
            *[(b'{}, "cost": ' + cost + b"}", "/cost") for cost in (b"1.5", b'"1"', b"true", b"1e999")],
            *((b'{}, "consume": "yes"}', "/consume"), (b'{}, "attributes": {"a": []}}', "/attributes/a")),
            (b'{}, "timestamp": "now"}', "/timestamp"),
        )
    ],
    *[(b'{"principal": {}, "cost": ' + cost + b"}", "/cost", "cost must be") for cost in (b"-1", b"100001", b"9" * 29)],
    *[(b'{"principal": {}, "%b": ' % name + b"9" * 10_000 + b"}", None, "") for name in (b"cost", b"timestamp")],
    (b'{"principal": {"a:b": "c"}, "timestamp": ' + b"9" * 5000 + b', "endpoint" : "a:b"}', None, ""),
    (b'{"principal": {"user": ""}}', None, "must not be empty"),
    (b'{"principal": {"ip": "nobody"}}', None, "ip must be an address"),
    (b'{"principal": {"user": "u"}, "endpoint": "/orders", "method": "POST", "cost": 4}', "/cost", "could never pass"),
    *[(b'{"principal": {}, "endpoint": "%b"}' % path, None, "path") for path in (b"/a/../b", b"/a\\u0000b")],
    (b'{"principal": {}, "method": "GET /"}', None, "method"),
    *[
        (b'{"principal": {}, "%b": ""}' % name, f"/{name.decode()}", "empty")
        for name in (b"idempotency_key", b"rule_id")
    ],
    (b'{"principal": {}, "coast": 1}', "/coast", "unknown member"),
    (b'{"principal": {}, "<script>\\u0000": 1}', "/<script>\\x00", "unknown member"),
    (b'{"principal": {"a": 1}, "principal": 5}', "/principal", "twice"),
    *[(b'{"principal": {}, "cost": 1, "cost"' + rest, "/cost", "twice") for rest in (b": 2}", b"  : 2}")],
    *[(b'{"principal": {"user": "a:b", "' + name + b'": "c"}}', "/user", "twice") for name in (b"user", b"us\\u0065r")],
    (b'{"key_type": "endpoint", "key_value": "/a", "rule_id": "r", "endpoint": "/b"}', "/endpoint", "two endpoints"),
    (b'{"principal": {}, "identifier": "u", "dimension": "USER"}', "/principal", "two forms"),
    (b'{"principal": {}, "rule_id": "rule_001", "key_type": "user"}', "/principal", "two forms"),
    (BY_RULE + b'"rule_001", "cost": 2}', "/cost", "two forms"),
    (b'{"key_type": "user", "identifier": "u", "dimension": "USER"}', "/key_type", "two forms"),
    (b'{"principal": {}, "rule_id": "rule_001"}', None, "counts by user: the request must have that"),
    (
        b'{"key_type": "global", "key_value": "all", "rule_id": "rule_001"}',
        None,
        "counts by user: the request must have that",
    ),
    (b'{"key_type": "ip", "key_value": "203.0.113.9", "rule_id": "rule_001"}', None, "counts by user, not by ip"),
    (b'{"principal": {"user": "u"}, "rule_id": "rule_001", "cost": 1001}', "/cost", "never pass"),
    (BY_RULE + b'"rule_001", "request_count": 1001}', "/request_count", "never pass"),
    (b'{"key_type": "user", "key_value": "u"}', "/rule_id", "incomplete"),
    (b'{"rule_id": "rule_001"}', "/key_type", "incomplete"),
    (b'{"identifier": "u"}', "/dimension", "incomplete"),
    (b'{"dimension": "USER"}', "/identifier", "incomplete"),
    (b'{"identifier": "", "dimension": "USER"}', "/identifier", "empty"),
    (b'{"identifier": "u", "dimension": ""}', "/dimension", "empty"),
    (b'{"key_type": "user", "key_value": "", "rule_id": "r"}', "/key_value", "empty"),
    (BY_RULE + b'""}', "/rule_id", "empty"),
    (b'{"key_type": "", "key_value": "u", "rule_id": "r"}', "/key_type", "empty"),
]


def test_a_bad_body_is_refused_with_its_place_and_a_correction(service: Service) -> None:
    for body, pointer, message in BAD:
        response = service.post(body)
        refused = problem(response)
        assert message in refused["detail"], body[:100]
        if pointer is not None:
            assert pointer in [error["pointer"] for error in refused["errors"]], body[:100]
        assert all(error["detail"] for error in refused.get("errors", ())), body[:100]
        assert not set(response.body) & set(b"<>&"), body[:100]
    assert b"headgate_decision_duration_seconds_count" not in service.recorder.metrics()[1], "they are no decisions"
    for body, message in (
        (b'{"principal": {"user": 1}}', "must be text, not a number"),
        (b'{"principal": []}', "not a list"),
        (b'{"principal": {}, "cost": "1"}', "must be a whole number from 0 to 100000, not text"),
        (b'{"principal": {}, "cost": true}', "not true or false"),
        (b'{"principal": {}, "method": {}}', "not an object"),
        (b'{"principal": {}, "tier": null}', "not null"),
    ):
        (error,) = problem(service.post(body))["errors"]
        assert error["detail"].endswith(message), body
    assert problem(service.post(b" "))["detail"] == "the body is empty"
    (error,) = problem(service.post(b'{"principal": {}, "endpont": "/x"}'))["errors"]
    assert "did you mean endpoint?" in error["detail"]


def test_a_bad_idempotency_key_is_refused(service: Service) -> None:
    for headers, member in (
        ({"Idempotency_Key": "abc"}, {"idempotency_key": "other"}),
        *[({"Idempotency_Key": key}, {}) for key in ("", "\x80", "x" * 513)],
        ({"Idempotency_Key": "a", "X_Idempotency_Key": "b"}, {}),
        ({}, {"idempotency_key": "x" * 513}),
    ):
        assert problem(service.post(ORDER | member, **headers)), headers
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


def test_responses_without_the_store_are_marked() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}/0", failure="deny") as service:
        response = service.post(ORDER)
    answer = json.loads(response.body)
    assert (answer["allowed"], answer["degraded"], answer["reason"]) == (False, True, "storage_unavailable")
    assert fields(response)["x-ratelimit-degraded-reason"] == "storage_unavailable"
