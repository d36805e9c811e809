"""The methods as a real client calls them, over real ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.server.listening import Listening, listening
from tests.server.rpc.client import SECONDS, Client

OURS = "headgate.v1.RateLimiter"
HEALTH = "grpc.health.v1.Health"
ENVOYS = "envoy.service.ratelimit.v3.RateLimitService"
AUTHORIZATION = "envoy.service.auth.v3.Authorization"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
ORDER = {"identifier": "u1", "dimension": "USER", "endpoint": "/orders/7", "method": "POST"}


@pytest.fixture
def served() -> Iterator[Listening]:
    with listening() as served:
        yield served


@pytest.fixture
def client(served: Listening) -> Iterator[Client]:
    with Client(served.grpc) as client:
        yield client


def test_checks_are_answered_until_the_limit(client: Client) -> None:
    answers = [client.call(OURS, "CheckRateLimit", **ORDER) for _ in range(4)]
    assert [(answer.allowed, answer.current_count, answer.limit, answer.remaining) for answer in answers] == [
        (True, 1, 3, 2),
        (True, 2, 3, 1),
        (True, 3, 3, 0),
        (False, 3, 3, 0),
    ]
    assert 1 <= answers[-1].retry_after <= 60
    assert client.call(OURS, "GetRemainingQuota", **ORDER).allowed is False
    assert client.call(OURS, "ResetLimit", **ORDER).success
    assert client.call(OURS, "GetRemainingQuota", **ORDER).remaining == 3


def test_a_batch_has_a_result_for_each(client: Client) -> None:
    answer = client.call(OURS, "CheckRateLimitBatch", requests=[ORDER, {**ORDER, "cost": 9}, ORDER])
    assert [result.WhichOneof("result") for result in answer.results] == ["response", "error", "response"]
    assert answer.results[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert answer.results[2].response.remaining == 1


def test_misuse_is_an_invalid_argument_that_says_what_would_be_right(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.call(OURS, "CheckRateLimit", identifier="u1")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "dimension" in str(caught.value.details())


def test_a_key_in_the_metadata_counts_a_request_once(client: Client) -> None:
    for _ in range(3):
        answer = client.call(OURS, "CheckRateLimit", [("idempotency-key", "k1")], **ORDER)
        assert answer.remaining == 2


@pytest.mark.parametrize("version", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_a_client_learns_from_the_server_what_it_offers(served: Listening, version: str) -> None:
    with Client(served.grpc, version) as client:
        assert {OURS, HEALTH, ENVOYS, AUTHORIZATION, f"{version}.ServerReflection"} <= {*client.services()}
        for service in client.services():
            assert client.learn(service).methods


def test_reflection_answers_each_question_in_order(client: Client) -> None:
    answers = client.reflect(
        {"host": "h", "file_by_filename": "headgate/v1/ratelimiter.proto"},
        {"file_containing_symbol": f"{OURS}.CheckRateLimit"},
        {"file_containing_symbol": "headgate.v1.CheckRequest.cost"},
        {"file_containing_symbol": "grpc.health.v1.HealthCheckResponse.SERVING"},
        {"file_containing_symbol": "nowhere.Nothing"},
        {"file_by_filename": "nothing.proto"},
        {"all_extension_numbers_of_type": "headgate.v1.CheckRequest"},
        {"all_extension_numbers_of_type": "nothing"},
        {"file_containing_extension": {"containing_type": "headgate.v1.CheckRequest", "extension_number": 1}},
        {},
    )
    kinds = [answer.WhichOneof("message_response") for answer in answers]
    assert kinds == [
        *["file_descriptor_response"] * 4,
        *["error_response"] * 2,
        "all_extension_numbers_response",
        *["error_response"] * 3,
    ]
    assert [answer.error_response.error_code for answer in answers[4:]] == [5, 5, 0, 5, 5, 3]
    assert (answers[0].valid_host, answers[0].original_request.host) == ("h", "h")


@pytest.mark.parametrize("service", ["", OURS, ENVOYS, AUTHORIZATION, "headgate.store"])
def test_health_is_known_for_each_service(client: Client, service: str) -> None:
    assert client.call(HEALTH, "Check", service=service).status == SERVING


def test_the_health_of_what_is_not_there_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.call(HEALTH, "Check", service="nowhere")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_all_services_are_listed(client: Client) -> None:
    statuses = client.call(HEALTH, "List").statuses
    assert {name: status.status for name, status in statuses.items()} == dict.fromkeys(
        ("", OURS, ENVOYS, AUTHORIZATION, "headgate.store"), SERVING
    )


def test_who_watches_hears_that_a_node_drains(served: Listening, client: Client) -> None:
    watched = client.watch(OURS)
    assert next(watched).status == SERVING
    unknown = client.watch("nowhere")
    assert next(unknown).status == SERVICE_UNKNOWN
    served.call(served.readiness.drain)
    assert [answer.status for answer in watched] == [NOT_SERVING]
    assert client.call(HEALTH, "Check", service="").status == NOT_SERVING


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("/grpc.health.v1.Health/Check", [b"\xff"]),
        ("/grpc.health.v1.Health/Watch", [b"\xff"]),
        ("/grpc.health.v1.Health/Watch", []),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", [b"\xff"]),
        ("/headgate.v1.RateLimiter/CheckRateLimit", [b"\xff"]),
    ],
)
def test_messages_that_are_none_are_invalid_arguments(client: Client, path: str, messages: list[bytes]) -> None:
    ask: Any = client.channel.stream_stream(path)
    with pytest.raises(grpc.RpcError) as caught:
        list(ask(iter(messages), timeout=SECONDS))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
