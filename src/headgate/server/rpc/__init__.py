"""The gRPC services: our own, health and reflection."""

from __future__ import annotations

from headgate.server.api.bodies import Timestamps
from headgate.server.decisions import Decisions
from headgate.server.readiness import Readiness
from headgate.server.rpc import health, ratelimiter
from headgate.server.rpc.health import Health
from headgate.server.rpc.ratelimiter import RateLimiter
from headgate.server.rpc.reflection import SERVICES, VERSIONS, Reflection
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.grpc.calls import Methods, StreamingMethod

__all__ = ["methods"]


def methods(
    decisions: Decisions,
    readiness: Readiness,
    *,
    timestamps: Timestamps | None = None,
    reflection: bool = True,
    admit_more: AdmitMore = admit_any,
) -> Methods:
    """Return the methods of the native service, of health and, unless it is off, of reflection."""
    limiter = RateLimiter(decisions, timestamps or Timestamps(), admit_more)
    watched = Health(readiness, [name for name in SERVICES if not name.startswith("grpc.")])
    healths = f"/{health.SERVICE}/".encode()
    unary = {f"/{ratelimiter.SERVICE}/{name}".encode(): method for name, method in limiter.methods().items()}
    streaming: dict[bytes, StreamingMethod] = {healths + b"Watch": watched.watch}
    for version in VERSIONS if reflection else ():
        streaming[f"/{version}.ServerReflection/ServerReflectionInfo".encode()] = Reflection(version).info
    return Methods(unary | {healths + b"Check": watched.check, healths + b"List": watched.list}, streaming)
