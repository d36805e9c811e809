"""Refunds and resets over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from headgate.server.api.routes import REFUND
from tests.server.serving import Service, problem, serving
from tests.servers import free_port

ORDER = {"principal": {"user": "u1"}, "endpoint": "/orders/7", "method": "POST"}
FORMS: list[dict[str, Any]] = [
    ORDER,
    {"identifier": "u1", "dimension": "USER", "endpoint": "/orders/7", "method": "POST"},
    {"key_type": "user", "key_value": "u1", "rule_id": "rule_001"},
]


def refund(service: Service, sent: dict[str, Any], charge: str) -> dict[str, Any]:
    response = service.post(sent | {"charge": charge}, REFUND.decode())
    assert response.status == 200, response.body
    answer: dict[str, Any] = json.loads(response.body)
    return answer


def test_a_charge_is_refunded_once_in_every_form(service: Service) -> None:
    for sent in FORMS:
        before = service.check(sent | {"consume": False})["remaining"]
        charge = service.check(sent | {"refundable": True})["charge"]
        service.check(sent)
        answers = [refund(service, sent, charge) for _ in range(3)]
        assert [answer["remaining"] for answer in answers] == [before - 1] * 3, "the same answer, and nothing more"
        assert "charge" not in answers[0]
        service.clock.advance(3600)


def test_a_response_has_its_charge_only_on_request_even_in_a_batch(service: Service) -> None:
    assert "charge" not in service.check(ORDER | {"consume": False})
    assert "charge" not in service.check(ORDER | {"refundable": False, "consume": False})
    body = {"requests": [ORDER | {"refundable": True}, ORDER]}
    first, second = json.loads(service.post(body, "/api/v1/rate-limit/batch").body)["results"]
    assert (len(first["charge"]), "charge" in second) == (76, False)
    assert refund(service, ORDER, first["charge"])["remaining"] == 2
    for _ in range(3):
        refused = service.check(ORDER | {"refundable": True})
    assert (refused["allowed"], refused["charge"]) == (False, "")


def test_an_invalid_or_misplaced_charge_is_refused(service: Service) -> None:
    for charge in ("", "x", "A" * 28, "ä", 5, None):
        rejected = problem(service.post(ORDER | {"charge": charge}, REFUND.decode()))
        assert [each["pointer"] for each in rejected["errors"]] == ["/charge"], charge
    missing = problem(service.post(ORDER, REFUND.decode()))
    assert missing["errors"][0]["detail"].startswith("is missing: the charge in the response to a check")
    misplaced = problem(service.post(ORDER | {"charge": "x"}))
    assert misplaced["errors"] == [{"pointer": "/charge", "detail": "is accepted only by /api/v1/rate-limit/refund"}]


def test_refunds_are_counted(service: Service) -> None:
    refund(service, ORDER, service.check(ORDER | {"refundable": True})["charge"])
    metrics = service.send("GET", "/metrics").body.decode()
    assert "headgate_refunds_total 1" in metrics
    assert 'api="refund",outcome="allowed"' in metrics


RESET = "/api/v1/rate-limit/reset"
BY_BOTH = {"principal": {"user": "u1", "ip": "203.0.113.9"}, "endpoint": "/orders", "method": "POST"}


def reset(service: Service, **body: Any) -> dict[str, Any]:
    response = service.send("POST", RESET, json.dumps(body).encode())
    assert response.status == 200
    answer: dict[str, Any] = json.loads(response.body)
    return answer


def left(service: Service, **body: Any) -> dict[str, int]:
    answer = json.loads(service.post(body or BY_BOTH).body)
    return {limit["rule_id"]: limit["remaining"] for limit in answer["limits"]}


def test_a_reset_without_an_endpoint_is_for_all_limits_of_the_principal(service: Service) -> None:
    assert left(service) == {"orders-user": 2, "all-ip": 4}
    answer = reset(service, principal={"user": "u1"})
    rules = ["orders-user", "rule_001", "queue", "trial"]
    assert answer == {"success": True, "rules": rules, "shared": [], "reason": ""}
    assert left(service) == {"orders-user": 2, "all-ip": 3}


def test_all_forms_of_a_check_are_understood_and_no_value_is_taken_for_a_member(service: Service) -> None:
    for body in (
        {"key_type": "user", "key_value": "u1", "rule_id": "orders-user"},
        {"identifier": "u1", "dimension": "USER", "endpoint": "/orders", "method": "POST"},
    ):
        left(service)
        assert reset(service, **body)["rules"] == ["orders-user"]
        assert left(service)["orders-user"] == 2
    assert reset(service, principal={"user": "endpoint"})["success"]


def test_malformed_resets_are_refused(service: Service) -> None:
    for body in (b"", b"[]", b'{"user": "u1"}', b'{"principal": {"user": ""}}'):
        assert problem(service.send("POST", RESET, body), 400)
    assert service.send("GET", RESET).status == 405


def test_a_store_that_is_down_is_reported() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}?timeout=0.1&connect_timeout=0.1") as service:
        rejected = problem(service.send("POST", RESET, b'{"principal": {"user": "u1"}}'), 503)
        assert (
            rejected["detail"]
            == "the store did not respond, so some or all usage was not reset: send the request again"
        )


def test_resets_are_logged_without_names(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.resets")
    reset(service, principal={"user": "u1"}, rule_id="orders-user")
    (record,) = caplog.records
    assert record.message == "reset"
    assert "u1" not in str(record.__dict__)
