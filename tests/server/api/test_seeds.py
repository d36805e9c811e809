"""The documented examples, verbatim, against a service on real ports, at the time of the examples.

The files in `seeds` are the examples of the documents that this service implements: 000 (gRPC, by name), 002
(``isPassed``) and 004 (REST, by rule).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing import ManualClock
from tests.server.listening import Listening, listening
from tests.server.rpc.client import Client
from tests.servers import Reply, fetched

SEEDS = Path(__file__).parent / "seeds"
RESET = 1638360000
RULES = """
version: 1
rules:
  - {id: rule_001, dimension: user, endpoint: /none, limit: 1000, window: 1m, algorithm: fixed_window}
  - {id: orders, dimension: user, endpoint: /api/v1/orders, limit: 1000, window: 1m, algorithm: fixed_window}
"""


def seed(name: str) -> Any:
    return json.loads((SEEDS / f"{name}.json").read_text())


@pytest.fixture
def served() -> Iterator[Listening]:
    with listening(RULES, clock=ManualClock((RESET - 60) * 1_000_000)) as served:
        yield served


def post(served: Listening, body: object) -> Reply:
    return fetched(served.http, "/api/v1/rate-limit/check", "POST", body=body)


def test_a_check_by_rule_and_its_answers(served: Listening) -> None:
    """Seed 004."""
    request = (SEEDS / "004-request.json").read_bytes()
    response = post(served, request)
    assert response.json.items() >= seed("004-allowed").items()
    for line in (SEEDS / "004-headers.txt").read_text().splitlines():
        name, _, value = line.partition(": ")
        assert response.headers[name.lower()] == value
    post(served, seed("004-request") | {"request_count": 999})
    assert post(served, request).json.items() >= seed("004-denied").items()


def test_is_passed(served: Listening) -> None:
    """Seed 002: isPassed(clientId, ruleId), the reset time, X-RateLimit-limit and X-RateLimit-remaining."""
    response = post(served, {"key_type": "user", "key_value": "client", "rule_id": "rule_001"})
    assert (response.json["allowed"], response.json["reset_at"]) == (True, RESET)
    assert {"x-ratelimit-limit", "x-ratelimit-remaining"} <= response.headers.keys()


def test_a_check_by_name_over_http(served: Listening) -> None:
    """Seed 000, as JSON."""
    response = post(served, (SEEDS / "000-request.json").read_bytes())
    assert response.json.items() >= seed("000-response").items()


def test_the_three_methods_over_grpc(served: Listening) -> None:
    """Seed 000: CheckRateLimit, GetRemainingQuota, ResetLimit."""
    fields = seed("000-request")
    with Client(served.grpc) as client:
        answer = client.call("headgate.v1.RateLimiter", "CheckRateLimit", **fields)
        expected = seed("000-response")
        assert {name: getattr(answer, name) for name in expected} == expected
        assert client.call("headgate.v1.RateLimiter", "GetRemainingQuota", **fields).remaining == 999
        del fields["cost"], fields["timestamp"]
        assert client.call("headgate.v1.RateLimiter", "ResetLimit", **fields).success
        assert client.call("headgate.v1.RateLimiter", "GetRemainingQuota", **fields).remaining == 1000
