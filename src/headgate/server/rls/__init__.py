"""Envoy's rate limit service, envoy.service.ratelimit.v3, over gRPC and as JSON."""

from __future__ import annotations

from headgate.server.rls.service import RateLimitService
from headgate.server.wire.grpc.calls import Methods

__all__ = ["RateLimitService", "methods"]

SHOULD_RATE_LIMIT = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def methods(service: RateLimitService) -> Methods:
    """Return the methods of the service, for the gRPC port."""
    unreadable = service.unreadable("its message is too long, or compressed in an unknown way")
    return Methods({SHOULD_RATE_LIMIT: service.should_rate_limit}, unreadable={SHOULD_RATE_LIMIT: unreadable.raw})
