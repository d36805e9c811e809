"""Whether services should be called."""

from __future__ import annotations

from headgate.protos import message_class
from headgate.server import rpc
from headgate.server.wire.grpc.calls import UnaryCall, answer_of
from tests.server.serving import Service, serving
from tests.servers import free_port

SERVING, NOT_SERVING = 1, 2
NAMED = dict.fromkeys(
    (
        "",
        "headgate.v1.RateLimiter",
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.auth.v3.Authorization",
    ),
    SERVING,
)
_HealthListResponse = message_class("grpc.health.v1.HealthListResponse")


def listed(service: Service) -> dict[str, int]:
    """Return how all services are."""
    listing = rpc.methods(service.decisions, service.readiness).unary[b"/grpc.health.v1.Health/List"]
    answer = _HealthListResponse.FromString(service.run(lambda: answer_of(listing, UnaryCall(b""))))
    return {name: each.status for name, each in answer.statuses.items()}


def test_all_serve_while_all_is_well() -> None:
    with serving() as service:
        assert listed(service) == {**NAMED, "headgate.store": SERVING}


def test_a_store_that_is_away_has_a_health_of_its_own() -> None:
    """The node answers by the modes of the rules: a fleet that took itself out of service would limit nobody."""
    with serving(store=f"redis://127.0.0.1:{free_port()}/0?timeout=0.1") as service:
        assert listed(service) == {**NAMED, "headgate.store": NOT_SERVING}


def test_nothing_serves_while_the_node_drains() -> None:
    with serving() as service:
        service.readiness.drain()
        assert set(listed(service).values()) == {NOT_SERVING}
