"""Batches of checks."""

from __future__ import annotations

import json
from typing import Any

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
    wrong: list[Any] = [{"principal": 1}, [], None, "text", {"coast": 1}, ORDER | {"cost": 9}, ORDER | {"timestamp": 1}]
    results = batch(service, ORDER, *wrong, ORDER)
    assert (results[0]["remaining"], results[-1]["remaining"]) == (2, 1)
    for result in results[1:-1]:
        assert result["error"]["status"] == 400
        assert result["error"]["detail"]


def test_each_that_is_sent_again_is_counted_once(service: Service) -> None:
    """A key in the header is for each question with its place: two that are the same in one batch are two."""
    once = ORDER | {"idempotency_key": "a"}
    assert [result["remaining"] for result in batch(service, once, once)] == [2, 2]
    service.clock.advance(3600)
    for _ in range(3):
        results = batch(service, ORDER, ORDER, ORDER | {"idempotency_key": "own"}, Idempotency_Key="batch-1")
        assert [result["remaining"] for result in results] == [2, 1, 0]


def test_a_bad_batch_is_refused_as_a_whole_and_as_many_as_are_accepted_are_answered(service: Service) -> None:
    for body, message in (
        *((b"", "the body is empty"), (b"[]", "is invalid"), (b"{}", "is invalid")),
        *((b'{"requests": []}', "too small or too large"), (b'{"requests": {}}', "is invalid")),
        *((b'{"requests": [{]}', "not JSON"), (b'{"request": []}', "unknown member")),
        (b'{"requests": [{}], "x": 1}', "unknown member"),
        (b'{"requests": [{"principal": {}}], "requests": [{}]}', "twice"),
        (b'{"requests": [' + b"[" * 100_000, ""),
        (b'{"requests": [' + b"{}," * MOST + b"{}]}", "too small or too large"),
    ):
        assert message in problem(service.post(body, BATCH.decode()))["detail"], body[:50]
    results = batch(service, *[{"principal": {"user": f"u{n}"}} for n in range(MOST)])
    assert all(result["allowed"] for result in results)


def scripts(server: RedisServer) -> int:
    message = server.facts("INFO", "commandstats")
    return sum(
        int(message[name].split(",")[0].removeprefix("calls=")) for name in message if "eval" in name or "fcall" in name
    )


def test_a_batch_on_redis_leaves_in_few_batches() -> None:
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


def test_a_batch_counts_all_its_checks() -> None:
    """Checks beyond the first are admitted separately."""
    charged: list[int] = []
    with serving(admit_more=lambda requests, _: charged.append(requests)) as service:
        batch(service, ORDER, ORDER, {"principal": 1})
        service.post(b'{"requests": []}', BATCH.decode())
        batch(service, ORDER)
    assert charged == [2, 0]
