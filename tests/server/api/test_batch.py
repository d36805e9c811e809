"""Many checks in one request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.api.checks import MOST
from headgate.server.api.routes import BATCH
from tests.server.serving import LASTING, Service, problem, serving
from tests.servers import RedisServer, redis_server

ORDER = {"principal": {"user": "u1"}, "endpoint": "/orders/7", "method": "POST"}


def batch(service: Service, *requests: object, **headers: str) -> list[dict[str, Any]]:
    response = service.post({"requests": requests}, BATCH.decode(), **headers)
    assert response.status == 200
    results: list[dict[str, Any]] = json.loads(response.body)["results"]
    assert len(results) == len(requests)
    return results


def test_each_has_its_own_answer_in_order(service: Service) -> None:
    by_rule = {"key_type": "user", "key_value": "u1", "rule_id": "rule_001"}
    by_name = {"identifier": "u1", "dimension": "USER", "endpoint": "/orders", "method": "POST"}
    results = batch(service, ORDER, by_rule, ORDER, by_name, ORDER, {"principal": {"user": "u2"}})
    seen = [(result["allowed"], result["rule_id"], result["remaining"]) for result in results]
    assert seen == [
        (True, "orders-user", 2),
        (True, "rule_001", 999),
        (True, "orders-user", 1),
        (True, "orders-user", 0),
        (False, "orders-user", 0),
        (True, "", None),
    ]
    assert results[0].keys() == service.check(ORDER).keys()


def test_one_that_is_wrong_does_not_disturb_the_others(service: Service) -> None:
    wrong: list[object] = [
        {"principal": 1},
        [],
        None,
        "text",
        {"coast": 1},
        ORDER | {"cost": 9},
        ORDER | {"timestamp": 1},
    ]
    results = batch(service, ORDER, *wrong, ORDER)
    assert (results[0]["remaining"], results[-1]["remaining"]) == (2, 1)
    for result in results[1:-1]:
        assert result["error"]["status"] == 400
        assert result["error"]["detail"]


def test_each_that_is_sent_again_is_counted_once(service: Service) -> None:
    once = ORDER | {"idempotency_key": "a"}
    assert [result["remaining"] for result in batch(service, once, once, ORDER)] == [2, 2, 1]


def test_a_key_in_the_header_is_for_the_batch_as_a_whole(service: Service) -> None:
    """Each question has it, with its place: two that are the same in one batch are two."""
    for _ in range(3):
        results = batch(service, ORDER, ORDER, ORDER | {"idempotency_key": "own"}, Idempotency_Key="batch-1")
        assert [result["remaining"] for result in results] == [2, 1, 0]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is empty"),
        (b"[]", "not as expected"),
        (b"{}", "not as expected"),
        (b'{"requests": []}', "too small or too large"),
        (b'{"requests": {}}', "not as expected"),
        (b'{"requests": [{]}', "not JSON"),
        (b'{"request": []}', "unknown member"),
        (b'{"requests": [{}], "x": 1}', "unknown member"),
        (b'{"requests": [{"principal": {}}], "requests": [{}]}', "twice"),
        (b'{"requests": [' + b"[" * 100_000, ""),
        (b'{"requests": [' + b"{}," * MOST + b"{}]}", "too small or too large"),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(service: Service, body: bytes, told: str) -> None:
    assert told in problem(service.post(body, BATCH.decode()))["detail"]


def test_as_many_as_are_accepted_are_answered(service: Service) -> None:
    results = batch(service, *[{"principal": {"user": f"u{n}"}} for n in range(MOST)])
    assert all(result["allowed"] for result in results)


def scripts(server: RedisServer) -> int:
    """Return how many scripts a server has run."""
    told = server.facts("INFO", "commandstats")
    return sum(
        int(told[name].split(",")[0].removeprefix("calls=")) for name in told if "eval" in name or "fcall" in name
    )


def test_a_batch_on_redis_leaves_in_few_batches() -> None:
    """What is asked at the same time is sent together."""
    with redis_server() as server, serving(LASTING, store=server.address) as service:
        batch(service, *[ORDER | {"principal": {"user": "first"}}] * 2)
        before = scripts(server)
        results = batch(service, *[ORDER | {"principal": {"user": f"u{n}"}} for n in range(200)])
        after = scripts(server)
    assert [result["remaining"] for result in results] == [2] * 200
    assert 0 < after - before <= 10


@given(st.binary() | st.lists(st.binary()).map(lambda parts: b'{"requests":[' + b",".join(parts) + b"]}"))
def test_any_body_is_answered_or_refused(body: bytes) -> None:
    with serving() as service:
        assert service.post(body, BATCH.decode()).status in {200, 400}


def test_a_batch_counts_for_all_that_it_asks() -> None:
    """The node's own ceiling is told of those that the request itself does not stand for."""
    charged: list[int] = []
    with serving(admit_more=lambda requests, _: charged.append(requests)) as service:
        batch(service, ORDER, ORDER, {"principal": 1})
        service.post(b'{"requests": []}', BATCH.decode())
        batch(service, ORDER)
    assert charged == [2, 0]
