"""``POST /api/v1/rate-limit/reset``: what somebody used is forgotten, and the answer says of which limits."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.server.serving import Service, problem, serving
from tests.servers import free_port

RESET = "/api/v1/rate-limit/reset"
ORDER = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/orders", "method": "POST"}


def reset(service: Service, **body: Any) -> dict[str, Any]:
    response = service.send("POST", RESET, json.dumps(body).encode())
    assert response.status == 200
    answer: dict[str, Any] = json.loads(response.body)
    return answer


def left(service: Service, **body: Any) -> dict[str, int]:
    """What is left of each limit of a request, which is counted."""
    answer = json.loads(service.post(body or ORDER).body)
    return {limit["rule_id"]: limit["remaining"] for limit in answer["limits"]}


def test_without_an_endpoint_it_is_for_every_limit_counted_by_who_is_named(service: Service) -> None:
    assert left(service) == {"orders-user": 2, "all-ip": 4}
    answer = reset(service, principal={"user": "u1"})
    rules = ["orders-user", "rule_001", "queue", "trial"]
    assert answer == {"success": True, "rules": rules, "shared": [], "reason": ""}
    assert left(service) == {"orders-user": 2, "all-ip": 3}


def test_a_rule_that_counts_by_more_than_is_named_is_left_alone_and_told() -> None:
    with serving("{version: 1, rules: [{id: pairs, dimension: [user, tenant], limit: 2, window: 1h}]}") as service:
        asked = {"principal": {"user": "u1", "tenant": "acme"}, "endpoint": "/", "method": "GET"}
        assert left(service, **asked) == {"pairs": 1}
        why = "no rule that applies counts by that (pairs: no value for dimension tenant)"
        told = {"success": False, "rules": [], "shared": ["pairs"], "reason": why}
        assert reset(service, principal={"user_id": "u1"}) == told
        assert reset(service, principal={"user_id": "u1", "tenant": "acme"})["rules"] == ["pairs"]
        assert left(service, **asked) == {"pairs": 1}


def test_with_an_endpoint_it_is_for_what_applies_there(service: Service) -> None:
    left(service)
    asked = {"principal": {"user": "u1"}, "endpoint": "/global"}
    assert left(service, **asked) == {"everybody": 1}
    why = "no rule that applies counts by that"
    assert reset(service, **asked) == {"success": False, "rules": [], "shared": ["everybody"], "reason": why}
    assert left(service, **asked) == {"everybody": 0}
    assert left(service)["orders-user"] == 1


def test_a_shared_limit_is_reset_where_its_rule_is_named(service: Service) -> None:
    asked = {"principal": {"user": "u1"}, "endpoint": "/global"}
    left(service, **asked)
    assert reset(service, principal={}, rule_id="everybody")["rules"] == ["everybody"]
    assert left(service, **asked) == {"everybody": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"key_type": "user", "key_value": "u1", "rule_id": "orders-user"},
        {"identifier": "u1", "dimension": "USER", "endpoint": "/orders", "method": "POST"},
    ],
    ids=["by rule", "by name"],
)
def test_all_forms_of_a_check_are_understood(service: Service, body: dict[str, Any]) -> None:
    left(service)
    assert reset(service, **body)["rules"] == ["orders-user"]
    assert left(service)["orders-user"] == 2


def test_nobody_can_hide_that_an_endpoint_is_named(service: Service) -> None:
    assert reset(service, principal={"user": "endpoint"})["success"]


def test_nonsense_is_refused(service: Service) -> None:
    for body in (b"", b"[]", b'{"user": "u1"}', b'{"principal": {"user": ""}}'):
        assert problem(service.send("POST", RESET, body), 400)
    assert service.send("GET", RESET).status == 405


def test_a_store_that_is_away_is_told() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}?timeout=0.1&connect_timeout=0.1") as service:
        told = problem(service.send("POST", RESET, b'{"principal": {"user": "u1"}}'), 503)
        assert told["detail"] == "the store did not answer: not all is reset, perhaps nothing; send it again"


def test_who_was_reset_is_in_the_log_without_a_name(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.resets")
    reset(service, principal={"user": "u1"}, rule_id="orders-user")
    (record,) = caplog.records
    assert record.message == "reset"
    assert "u1" not in str(record.__dict__)
