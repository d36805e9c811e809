"""``grpc.health.v1.Health``: whether services should be called.

The server as a whole has the empty name. All services serve until the node drains. ``headgate.store`` is for
monitoring: it does not serve while the store is unavailable.
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
"""Seconds between checks of a status that is watched."""
_HealthCheckRequest = message_class("grpc.health.v1.HealthCheckRequest")
_HealthListResponse = message_class("grpc.health.v1.HealthListResponse")


class Serving(IntEnum):
    """The status of a service."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """The methods of the service."""

    def __init__(self, readiness: Readiness, services: Iterable[str]) -> None:
        self._readiness = readiness
        self._services = ("", *services, STORE)

    async def check(self, call: UnaryCall) -> bytes:
        status = await self._status(_service(call.message))
        if status is Serving.SERVICE_UNKNOWN:
            raise RpcError(StatusCode.NOT_FOUND, "unknown service: List returns the names of all services")
        return _encoded(status)

    async def list(self, _: UnaryCall) -> bytes:
        statuses = {name: {"status": int(await self._status(name))} for name in self._services}
        encoded: bytes = _HealthListResponse(statuses=statuses).SerializeToString()
        return encoded

    async def watch(self, stream: MessageStream) -> None:
        """Send the status of a service, and again whenever it changes; the call ends when the node drains."""
        async for message in stream:
            service = _service(message)
            break
        else:
            raise RpcError(
                StatusCode.INVALID_ARGUMENT,
                "the call has no message: send a HealthCheckRequest",
            )
        sent: Serving | None = None
        while True:
            status = await self._status(service)
            if status is not sent:
                await stream.send(_encoded(status))
                sent = status
            if self._readiness.is_draining:
                return
            await self._readiness.drains(_EVERY)

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
    return bytes((8, status))  # the only field of a HealthCheckResponse
