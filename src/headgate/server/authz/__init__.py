"""Envoy's external authorization, envoy.service.auth.v3, over gRPC: it identifies clients, and checks their limits."""

from __future__ import annotations

from headgate.server.authz.service import AuthorizationService
from headgate.server.wire.grpc.calls import Methods

__all__ = ["CHECK", "AuthorizationService", "methods"]

CHECK = b"/envoy.service.auth.v3.Authorization/Check"


def methods(service: AuthorizationService) -> Methods:
    """Return the methods of the service, for the gRPC port."""
    unreadable = service.unreadable("its message is too long, or compressed in an unknown way")
    return Methods({CHECK: service.check}, unreadable={CHECK: unreadable})
