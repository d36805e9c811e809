"""The native gRPC service, called without a wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.protos import message_class
from headgate.server import node, rpc
from headgate.server.wire.grpc.calls import Methods, RpcError, StatusCode, UnaryCall, answer_of
from headgate.testing import ManualClock
from tests.proxy import proxy
from tests.server.serving import LASTING, RULES, Service, serving
from tests.servers import free_port, redis_server

START = ManualClock.START // 1_000_000
ORDER = {"identifier": "u1", "dimension": "USER", "endpoint": "/orders/7", "method": "POST"}
BY_RULE = {"identifier": "u1", "rule_id": "rule_001"}
KINDS = {
    "CheckRateLimit": ("CheckRequest", "CheckResponse"),
    "GetRemainingQuota": ("QuotaRequest", "QuotaResponse"),
    "ResetLimit": ("ResetRequest", "ResetResponse"),
    "RefundCharge": ("RefundRequest", "QuotaResponse"),
    "CheckRateLimitBatch": ("CheckBatchRequest", "CheckBatchResponse"),
}


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as service:
        yield service


@lru_cache(maxsize=1)
def methods_of(service: Service) -> Methods:
    """One and the same for all calls of a test, since it remembers questions."""
    return rpc.methods(service.decisions, service.readiness)


def raw(
    service: Service,
    method: str,
    message: bytes,
    metadata: list[tuple[bytes, bytes]] | None = None,
    timeout: float | None = None,
) -> bytes:
    unary = methods_of(service).unary[f"/headgate.v1.RateLimiter/{method}".encode()]
    return service.run(lambda: answer_of(unary, UnaryCall(message, metadata or [], timeout=timeout)))


def call(service: Service, method: str = "CheckRateLimit", /, **fields: Any) -> Any:
    return call_within(None, service, method, **fields)


def call_within(seconds: float | None, service: Service, method: str = "CheckRateLimit", /, **fields: Any) -> Any:
    request, answered = (message_class(f"headgate.v1.{kind}") for kind in KINDS[method])
    return answered.FromString(raw(service, method, request(**fields).SerializeToString(), timeout=seconds))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (ORDER, {"remaining": 2}),
        (ORDER | {"cost": 0}, {"remaining": 2}),
        ({"principal": {"user": "u1"}, "endpoint": "/orders", "method": "POST"}, {"remaining": 2}),
        (ORDER | {"principal": {"ip": "203.0.113.9"}}, {"rule_id": "orders-user", "remaining": 2}),
        (ORDER | {"principal": {"user": "u1"}}, {"remaining": 2}),
        ({"principal": {"user": "u9"}, "rule_id": "rule_001"}, {"rule_id": "rule_001", "remaining": 999}),
        ({"identifier": "203.0.113.9", "dimension": "IP"}, {"rule_id": "all-ip", "remaining": 4}),
        ({"identifier": "192.0.2.7", "dimension": "IP"}, {"allowed": False, "retry_after": 0, "state": 2}),
        ({"identifier": "ak", "dimension": "API_KEY", "endpoint": "/search", "cost": 9}, {"state": 1}),
        ({"endpoint": "/"}, {"allowed": True, "matched": False, "limit": 0}),
        ({"identifier": "root", "dimension": "USER"}, {"reason": "user root is on the allow list: root"}),
        (BY_RULE, {"remaining": 999}),
        (BY_RULE | {"dimension": "USER", "cost": 9}, {"remaining": 991}),
        ({"identifier": "u1", "rule_id": "nowhere"}, {"allowed": True, "matched": False}),
        (ORDER | {"timestamp": START * 1000, "tier": "gold", "attributes": {"a": "b"}}, {"remaining": 2}),
    ],
)
def test_checks_in_all_forms_are_decided(service: Service, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = call(service, **fields)
    assert {name: getattr(answer, name) for name in expected} == expected


def test_misuse_is_refused_with_a_correction(service: Service) -> None:
    mistakes: list[tuple[str, dict[str, Any], str]] = [
        *[(method, {}, "names no client") for method in ("CheckRateLimit", "ResetLimit")],
        *[
            (method, {"identifier": "u1"}, "dimension is missing")
            for method in ("CheckRateLimit", "GetRemainingQuota", "ResetLimit")
        ],
        *[(method, ORDER | {"timestamp": 5}, "timestamp") for method in ("CheckRateLimit", "GetRemainingQuota")],
        *[("CheckRateLimitBatch", {"requests": [{}] * count}, "1 to 1000") for count in (0, 1001)],
        *[
            ("RefundCharge", ORDER | {"charge": charge}, complaint)
            for charge, complaint in (("", "charge is missing"), ("x", "a charge must be the text"))
        ],
        ("CheckRateLimit", {"dimension": "IP"}, "identifier is missing"),
        ("CheckRateLimit", {"identifier": "u1", "dimension": 9}, "not 9"),
        ("CheckRateLimit", {"rule_id": "rule_001"}, "counts by user: the request must have that"),
        ("CheckRateLimit", BY_RULE | {"principal": {"user": "u2"}}, "dimension is missing"),
        ("CheckRateLimit", BY_RULE | {"dimension": "IP"}, "counts by user"),
        ("CheckRateLimit", ORDER | {"principal": {"user": "u2"}}, "different"),
        ("CheckRateLimit", ORDER | {"cost": 4}, "could never pass"),
        ("CheckRateLimit", ORDER | {"cost": -1}, "cost"),
        ("CheckRateLimit", ORDER | {"endpoint": "/a/../b"}, "path"),
        ("CheckRateLimit", ORDER | {"idempotency_key": "x" * 513}, "idempotency key"),
    ]
    for method, fields, complaint in mistakes:
        with pytest.raises(RpcError, match=complaint) as caught:
            call(service, method, **fields)
        assert caught.value.code is StatusCode.INVALID_ARGUMENT, (method, fields)


def test_unknown_rules_are_not_reset_and_can_be_an_error(service: Service) -> None:
    with pytest.raises(RpcError, match="rule 'nowhere' does not exist") as caught:
        call(service, "ResetLimit", identifier="u1", rule_id="nowhere")
    assert caught.value.code is StatusCode.NOT_FOUND
    assert not call(service, "ResetLimit", **ORDER | {"endpoint": "/elsewhere"}).success
    with serving(RULES.replace("version: 1", "version: 1\nunknown_rule: error")) as strict:
        for method in ("CheckRateLimit", "GetRemainingQuota", "ResetLimit"):
            with pytest.raises(RpcError, match="nowhere") as caught:
                call(strict, method, identifier="u", rule_id="nowhere")
            assert caught.value.code is StatusCode.NOT_FOUND


@pytest.mark.parametrize(("fields", "limit"), [(ORDER, 3), (BY_RULE, 1000)])
def test_quota_takes_nothing_and_reset_forgets(service: Service, fields: dict[str, Any], limit: int) -> None:
    call(service, **fields)
    quota = [call(service, "GetRemainingQuota", **fields) for _ in range(2)]
    assert [(answer.allowed, answer.remaining, answer.limit) for answer in quota] == [(True, limit - 1, limit)] * 2
    assert call(service, "ResetLimit", **fields).success
    assert call(service, "GetRemainingQuota", **fields).remaining == limit


def test_the_reset_of_one_user_leaves_the_limits_that_all_share(service: Service) -> None:
    answer = call(service, "ResetLimit", identifier="u1", dimension="USER", endpoint="/global")
    assert (answer.success, answer.rules, answer.shared) == (False, [], ["everybody"])
    answer = call(service, "ResetLimit", identifier="u1", rule_id="everybody")
    assert (answer.success, answer.rules, answer.shared) == (True, ["everybody"], [])


def test_a_request_that_is_sent_again_is_counted_once(service: Service) -> None:
    assert [call(service, idempotency_key="k", **ORDER).remaining for _ in range(3)] == [2, 2, 2]
    assert [call(service, idempotency_key="k", **BY_RULE).remaining for _ in range(3)] == [999] * 3


def test_a_batch_has_a_result_for_each_in_order_and_counts_for_all_of_them(service: Service) -> None:
    requests = [ORDER, {"identifier": "u1"}, BY_RULE, ORDER, ORDER, ORDER]
    results = call(service, "CheckRateLimitBatch", requests=requests).results
    assert [result.WhichOneof("result") for result in results] == ["response", "error", *["response"] * 4]
    assert [result.response.remaining for result in results] == [2, 0, 999, 1, 0, 0]
    assert (results[1].error.code, results[5].response.allowed) == (StatusCode.INVALID_ARGUMENT, False)
    charged: list[int] = []
    methods = rpc.methods(service.decisions, service.readiness, admit_more=lambda requests, _: charged.append(requests))
    message = message_class("headgate.v1.CheckBatchRequest")(requests=[ORDER] * 5).SerializeToString()
    method = methods.unary[b"/headgate.v1.RateLimiter/CheckRateLimitBatch"]
    assert service.run(lambda: answer_of(method, UnaryCall(message)))
    assert charged == [4]


def test_a_key_in_the_metadata_is_for_a_batch_as_a_whole(service: Service) -> None:
    message = message_class("headgate.v1.CheckBatchRequest")(requests=[ORDER, ORDER]).SerializeToString()
    answered = message_class("headgate.v1.CheckBatchResponse")
    for _ in range(2):
        results = answered.FromString(
            raw(service, "CheckRateLimitBatch", message, [(b"idempotency-key", b"k")])
        ).results
        assert [result.response.remaining for result in results] == [2, 1]


def test_while_the_store_is_down_checks_are_degraded_and_resets_unavailable() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}/0") as service:
        answer = call(service, **ORDER)
        assert (answer.allowed, answer.degraded, answer.reason) == (True, True, "storage_unavailable")
        with pytest.raises(RpcError) as caught:
            call(service, "ResetLimit", **ORDER)
        assert caught.value.code is StatusCode.UNAVAILABLE


def test_a_decision_waits_for_the_store_as_long_as_its_deadline_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.engine.base.LONGEST_MS", 60_000)
    with (
        redis_server() as redis,
        proxy(redis.port) as between,
        # nothing but these calls is on its connection, no heartbeat either
        serving(LASTING, store=between.address("timeout=60&connect_timeout=60&connections=1"), nodes=1) as service,
    ):
        assert not call(service, **ORDER).degraded
        between.open.clear()
        hurried = call_within(0.4, service, **ORDER)
        assert (hurried.allowed, hurried.degraded, hurried.reason) == (True, True, "outcome_unknown")
        threading.Timer(0.3, between.open.set).start()
        assert not call_within(60, service, **ORDER).degraded
        assert (hurried.remaining, call(service, **ORDER).allowed) == (1, False), "all three were counted"


def test_a_caller_without_time_does_not_make_the_store_look_down() -> None:
    with redis_server() as redis, serving(LASTING, store=f"redis://127.0.0.1:{redis.port}/0?timeout=60") as service:
        call(service, **ORDER)
        decisions = service.decisions
        hurried = decisions.in_time(0.0001)
        assert hurried is decisions.in_time(0.015), "it has as long as Envoy"
        assert hurried is not decisions.in_time(None)


@pytest.mark.parametrize(
    ("method", "api", "fields"),
    [
        ("CheckRateLimit", "grpc_check", ORDER),
        ("GetRemainingQuota", "grpc_quota", BY_RULE),
        ("ResetLimit", "grpc_reset", BY_RULE),
        ("CheckRateLimitBatch", "grpc_batch", {"requests": [ORDER]}),
    ],
)
def test_every_call_is_counted_by_its_name(service: Service, method: str, api: str, fields: dict[str, Any]) -> None:
    assert node.APIS[f"/headgate.v1.RateLimiter/{method}".encode()] == api
    call(service, method, **fields)
    with pytest.raises(RpcError):
        raw(service, method, b"\xff")
    metrics = service.decisions.recorder.metrics()[1].decode()
    for outcome in ("allowed", "error"):
        assert f'headgate_checks_total{{api="{api}",outcome="{outcome}"}} 1\n' in metrics


def test_reflection_can_be_off(service: Service) -> None:
    found = rpc.methods(service.decisions, service.readiness, reflection=False)
    assert not [path for path in found.streaming if b"reflection" in path]


@given(message=st.binary(), method=st.sampled_from(sorted(KINDS)))
def test_any_bytes_are_answered_or_an_invalid_argument(message: bytes, method: str) -> None:
    with serving() as service:
        try:
            raw(service, method, message)
        except RpcError as error:
            code = error.code
        else:
            code = StatusCode.OK
        assert code in {StatusCode.OK, StatusCode.INVALID_ARGUMENT}


@pytest.mark.parametrize("fields", [ORDER, BY_RULE])
def test_a_charge_is_refunded(service: Service, fields: dict[str, Any]) -> None:
    before = call(service, "GetRemainingQuota", **fields).remaining
    assert call(service, **fields).charge == ""
    charge = call(service, **fields, refundable=True).charge
    assert call(service, "RefundCharge", **fields, charge=charge).remaining == before - 1
    batch = call(service, "CheckRateLimitBatch", requests=[fields | {"refundable": True}])
    assert batch.results[0].response.charge
