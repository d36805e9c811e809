"""The gRPC services, called by grpcio on real ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headgate.protos import message_class
from headgate.server import rpc
from headgate.server.wire.grpc.calls import UnaryCall, answer_of
from tests.server.listening import Listening, listening
from tests.server.rpc.client import SECONDS, Client
from tests.server.serving import Service, serving
from tests.servers import free_port

OURS = "headgate.v1.RateLimiter"
HEALTH = "grpc.health.v1.Health"
ENVOYS = "envoy.service.ratelimit.v3.RateLimitService"
AUTHORIZATION = "envoy.service.auth.v3.Authorization"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def served() -> Iterator[Listening]:
    with listening() as served:
        yield served


@pytest.fixture
def client(served: Listening) -> Iterator[Client]:
    with Client(served.grpc) as client:
        yield client


@pytest.mark.parametrize("version", ["grpc.reflection.v1", "grpc.reflection.v1alpha"])
def test_reflection_lists_all_services(served: Listening, version: str) -> None:
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


def test_health_is_known_for_each_service_and_of_others_not_found(client: Client) -> None:
    for service in ("", OURS, ENVOYS, AUTHORIZATION, "headgate.store"):
        assert client.call(HEALTH, "Check", service=service).status == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        client.call(HEALTH, "Check", service="nowhere")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_watchers_of_health_learn_that_a_node_drains(served: Listening, client: Client) -> None:
    watched = client.watch(OURS)
    assert next(watched).status == SERVING
    unknown = client.watch("nowhere")
    assert next(unknown).status == SERVICE_UNKNOWN
    served.call(served.readiness.drain)
    assert [answer.status for answer in watched] == [NOT_SERVING]
    assert client.call(HEALTH, "Check", service="").status == NOT_SERVING


def test_malformed_messages_are_invalid_arguments(client: Client) -> None:
    for path, messages in (
        *[(f"/grpc.health.v1.Health/{method}", [b"\xff"]) for method in ("Check", "Watch")],
        ("/grpc.health.v1.Health/Watch", []),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", [b"\xff"]),
        ("/headgate.v1.RateLimiter/CheckRateLimit", [b"\xff"]),
    ):
        ask: Any = client.channel.stream_stream(path)
        with pytest.raises(grpc.RpcError) as caught:
            list(ask(iter(messages), timeout=SECONDS))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, path


HEALTHY = dict.fromkeys(("", OURS, ENVOYS, AUTHORIZATION), SERVING)
_HealthListResponse = message_class("grpc.health.v1.HealthListResponse")


def listed(service: Service) -> dict[str, int]:
    listing = rpc.methods(service.decisions, service.readiness).unary[b"/grpc.health.v1.Health/List"]
    answer = _HealthListResponse.FromString(service.run(lambda: answer_of(listing, UnaryCall(b""))))
    return {name: each.status for name, each in answer.statuses.items()}


def test_the_store_has_its_own_health() -> None:
    """The node decides by the modes of the rules: a fleet out of service would limit nothing."""
    with serving(store=f"redis://127.0.0.1:{free_port()}/0?timeout=0.1") as service:
        assert listed(service) == {**HEALTHY, "headgate.store": NOT_SERVING}


def test_all_services_serve_until_the_node_drains() -> None:
    with serving() as service:
        assert listed(service) == {**HEALTHY, "headgate.store": SERVING}
        service.readiness.drain()
        assert set(listed(service).values()) == {NOT_SERVING}
