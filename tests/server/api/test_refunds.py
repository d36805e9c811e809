"""Refunds over HTTP: an answer names its charge, and the charge is given back as far as it still counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.server.api.routes import REFUND
from tests.server.serving import LASTING, Service, problem, serving
from tests.servers import redis_server

ORDER = {"principal": {"user": "u1"}, "endpoint": "/orders/7", "method": "POST"}
FORMS = [
    ORDER,
    {"identifier": "u1", "dimension": "USER", "endpoint": "/orders/7", "method": "POST"},
    {"key_type": "user", "key_value": "u1", "rule_id": "rule_001"},
]


def refund(service: Service, asked: dict[str, Any], charge: str) -> dict[str, Any]:
    response = service.post(asked | {"charge": charge}, REFUND.decode())
    assert response.status == 200, response.body
    answer: dict[str, Any] = json.loads(response.body)
    return answer


@pytest.mark.parametrize("asked", FORMS)
def test_what_a_check_took_is_given_back(service: Service, asked: dict[str, Any]) -> None:
    before = service.check(asked | {"consume": False})["remaining"]
    first = service.check(asked | {"refundable": True})
    service.check(asked)
    answer = refund(service, asked, first["charge"])
    assert answer["remaining"] == before - 1
    assert "charge" not in answer


def test_an_answer_names_its_charge_only_if_asked(service: Service) -> None:
    assert "charge" not in service.check(ORDER)
    assert "charge" not in service.check(ORDER | {"refundable": False})
    assert len(service.check(ORDER | {"refundable": True})["charge"]) == 76
    refused = service.check(ORDER | {"refundable": True})
    assert (refused["allowed"], refused["charge"]) == (False, "")


def test_the_answers_of_a_batch_name_theirs(service: Service) -> None:
    body = {"requests": [ORDER | {"refundable": True}, ORDER]}
    first, second = json.loads(service.post(body, "/api/v1/rate-limit/batch").body)["results"]
    assert "charge" not in second
    assert refund(service, ORDER, first["charge"])["remaining"] == 2


def test_a_window_that_is_over_gets_nothing_back(service: Service) -> None:
    charge = service.check(ORDER | {"refundable": True})["charge"]
    service.clock.advance(120)
    service.check(ORDER)
    assert refund(service, ORDER, charge)["remaining"] == 2


def test_a_charge_that_is_sent_again_is_answered_alike_and_nothing_is_given_back(service: Service) -> None:
    whole = service.check(ORDER | {"consume": False})["remaining"]
    charge = service.check(ORDER | {"refundable": True})["charge"]
    service.check(ORDER)
    assert [refund(service, ORDER, charge)["remaining"] for _ in range(3)] == [whole - 1] * 3


@pytest.mark.parametrize("charge", ["", "x", "A" * 28, "ä", 5, None])
def test_what_is_not_a_charge_is_refused(service: Service, charge: object) -> None:
    told = problem(service.post(ORDER | {"charge": charge}, REFUND.decode()))
    assert [each["pointer"] for each in told["errors"]] == ["/charge"]


def test_a_refund_without_a_charge_and_a_check_with_one_are_refused(service: Service) -> None:
    missing = problem(service.post(ORDER, REFUND.decode()))
    assert missing["errors"][0]["detail"].startswith("is missing: the charge that the answer to a check named")
    misplaced = problem(service.post(ORDER | {"charge": "x"}))
    assert misplaced["errors"] == [{"pointer": "/charge", "detail": "is sent to /api/v1/rate-limit/refund"}]


def test_another_process_gives_it_back_on_one_redis() -> None:
    with redis_server() as server, serving(LASTING, store=server.address) as here:
        charge = here.check(ORDER | {"refundable": True})["charge"]
        with serving(LASTING, store=server.address) as there:
            assert refund(there, ORDER, charge)["remaining"] == 3


def test_refunds_are_counted(service: Service) -> None:
    refund(service, ORDER, service.check(ORDER | {"refundable": True})["charge"])
    metrics = service.send("GET", "/metrics").body.decode()
    assert "headgate_refunds_total 1" in metrics
    assert 'api="refund",outcome="allowed"' in metrics
