"""All that can be asked of a node, over HTTP and over gRPC, as its settings have it."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.server import rls, rpc
from headgate.server.api.forward_auth import ForwardAuth, Identifies
from headgate.server.api.routes import BATCH, CHECK, FORWARD_AUTH, REFUND, RESET, application, statuses_of
from headgate.server.api.timestamps import Timestamps
from headgate.server.decisions import Decisions
from headgate.server.guard import Guard
from headgate.server.readiness import Readiness
from headgate.server.rls.json_form import JsonForm
from headgate.server.rpc.ratelimiter import SERVICE
from headgate.server.settings import Settings
from headgate.server.wire.grpc.calls import Methods
from headgate.server.wire.messages import Handler
from headgate.web.headers import ResponseHeaders

APIS: Mapping[bytes, str] = {
    CHECK: "check",
    REFUND: "refund",
    RESET: "reset",
    BATCH: "batch",
    FORWARD_AUTH: "forward_auth",
    b"/json": "json",
    rls.SHOULD_RATE_LIMIT: "rls",
    f"/{SERVICE}/CheckRateLimit".encode(): "grpc_check",
    f"/{SERVICE}/CheckRateLimitBatch".encode(): "grpc_batch",
    f"/{SERVICE}/GetRemainingQuota".encode(): "grpc_quota",
    f"/{SERVICE}/ResetLimit".encode(): "grpc_reset",
    f"/{SERVICE}/RefundCharge".encode(): "grpc_refund",
}
"""The names of APIs in metrics, by path."""


def http(
    settings: Settings,
    decisions: Decisions,
    readiness: Readiness,
    envoy: rls.RateLimitService,
    guard: Guard,
    *,
    identifier: Identifies,
) -> Handler:
    """Return what answers on the HTTP port; `identifier` finds out who the clients of proxies are."""
    as_json = JsonForm(envoy)
    return application(
        decisions,
        readiness,
        forward_auth=ForwardAuth(
            deny_status=settings.deny_status,
            kind=settings.proxy_headers,
            identifier=identifier,
            headers=ResponseHeaders(reset_format=settings.reset_format),
        ),
        headers=ResponseHeaders(ietf="off", reset_format=settings.reset_format),
        timestamps=_timestamps(settings),
        charge=guard.charge,
        others={b"/json": as_json, b"/rlconfig": as_json.configuration},
    )


def statuses(settings: Settings) -> Mapping[bytes, int]:
    """Return the statuses of what cannot be read on the HTTP port, by path, where they are not those of HTTP."""
    return statuses_of(ForwardAuth(deny_status=settings.deny_status))


def grpc(
    settings: Settings, decisions: Decisions, readiness: Readiness, envoy: rls.RateLimitService, guard: Guard
) -> Methods:
    """Return what answers on the gRPC port."""
    ours = rpc.methods(
        decisions,
        readiness,
        timestamps=_timestamps(settings),
        reflection=settings.grpc_reflection,
        charge=guard.charge,
    )
    return ours | rls.methods(envoy)


def _timestamps(settings: Settings) -> Timestamps:
    return Timestamps(ignored=settings.client_timestamps == "ignore")
