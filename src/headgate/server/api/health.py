"""Health: ``/healthz`` says that the process lives, ``/readyz`` (and ``/healthcheck``) that it should be asked."""

from __future__ import annotations

import msgspec

from headgate.server.readiness import Readiness
from headgate.server.wire.messages import HttpRequest, HttpResponse

_FIELDS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
_encode = msgspec.json.Encoder().encode


class HealthPages:
    """Answers those who watch over the process."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def alive(self, _: HttpRequest) -> HttpResponse:
        """Answer, which is all there is to say."""
        return HttpResponse(200, b'{"status":"alive"}', _FIELDS)

    async def ready(self, _: HttpRequest) -> HttpResponse:
        """Answer 200 while requests are welcome; the status is "ready", or "degraded" while the store is away."""
        if self._readiness.is_draining:
            return HttpResponse(503, b'{"status":"draining"}', (*_FIELDS, (b"retry-after", b"1")))
        degraded = await self._readiness.degraded()
        told = {"status": "degraded", "reason": degraded} if degraded else {"status": "ready"}
        if not self._readiness.enforcing():
            told["enforcement"] = "off"
        return HttpResponse(200, _encode(told), _FIELDS)
