"""``grpc.health.v1.Health``: whether services should be called.

The whole server has the empty name, each service its own; all of them serve until the node drains. ``headgate.store``
is for those who watch over it: it does not serve while the store is away and limits are decided without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from google.protobuf.message import DecodeError

from headgate.protos import message_class
from headgate.server.readiness import Readiness
from headgate.server.wire.grpc.calls import MessageStream, RpcError, StatusCode, UnaryCall

SERVICE = "grpc.health.v1.Health"
STORE = "headgate.store"
_EVERY = 5.0
"""Seconds between looks at the store, for those who watch it."""
_HealthCheckRequest = message_class("grpc.health.v1.HealthCheckRequest")
_HealthListResponse = message_class("grpc.health.v1.HealthListResponse")


class Serving(IntEnum):
    """The status of a service."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The methods of the service. For those who watch, the store is looked at every so many seconds."""

    def __init__(self, readiness: Readiness, services: Iterable[str], every: float = _EVERY) -> None:
        self._readiness, self._every = readiness, every
        self._services = ("", *services, STORE)

    async def check(self, call: UnaryCall) -> bytes:
        """Say how a service is."""
        status = await self._status(_service(call.message))
        if status is Serving.SERVICE_UNKNOWN:
            raise RpcError(StatusCode.NOT_FOUND, "no such service here: List names all of them")
        return _encoded(status)

    async def list(self, _: UnaryCall) -> bytes:
        """Say how all services are."""
        statuses = {name: {"status": int(await self._status(name))} for name in self._services}
        encoded: bytes = _HealthListResponse(statuses=statuses).SerializeToString()
        return encoded

    async def watch(self, stream: MessageStream) -> None:
        """Say how a service is now, and whenever that changes; the call ends when the node drains."""
        async for message in stream:
            service = _service(message)
            break
        else:
            raise RpcError(StatusCode.INVALID_ARGUMENT, "the call has no message: it names a service")
        told: Serving | None = None
        while True:
            status = await self._status(service)
            if status is not told:
                await stream.send(_encoded(status))
                told = status
            if self._readiness.is_draining:
                return
            await self._readiness.drains(self._every)

    async def _status(self, service: str) -> Serving:
        if service not in self._services:
            return Serving.SERVICE_UNKNOWN
        if self._readiness.is_draining or (service == STORE and await self._readiness.degraded()):
            return Serving.NOT_SERVING
        return Serving.SERVING


def _service(message: bytes) -> str:
    try:
        service: str = _HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise RpcError(StatusCode.INVALID_ARGUMENT, "the message is not a grpc.health.v1.HealthCheckRequest") from None
    return service


def _encoded(status: Serving) -> bytes:
    """Return a HealthCheckResponse, whose only field is the status."""
    return bytes((8, status))
