"""The transport over gRPC, with grpcio, on one connection.

It uses the futures of the blocking API, which do not block: they have one thread for all event loops of a process,
whereas the asynchronous API belongs to a single loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
from google.protobuf.message import DecodeError

from headgate.core.errors import (
    InvalidCost,
    InvalidKey,
    OutcomeUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from headgate.engine.ruling import Reset
from headgate.engine.ruling_json import RulingMessage, error_of
from headgate.policy.request import Request
from headgate.protobuf import framed
from headgate.protos import message_class
from headgate.sdk.settings import ClientSettings, NodeAddress
from headgate.sdk.transport import BatchTooLarge, CallerRefused, Check, FetchedRules, Outcome, decode, validate
from headgate.stores.deadlines import BUSY_SHARE

_SERVICE = "headgate.v1.RateLimiter"
_METHODS = ("CheckRateLimitBatch", "RefundCharge", "ResetLimit", "GetRules")
_OPTIONS = (
    ("grpc.enable_retries", 0),  # the session retries
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),  # for many rules
)
_CheckRequest = message_class("headgate.v1.CheckRequest")
_CheckBatchResponse = message_class("headgate.v1.CheckBatchResponse")
_RefundRequest = message_class("headgate.v1.RefundRequest")
_QuotaResponse = message_class("headgate.v1.QuotaResponse")
_ResetRequest = message_class("headgate.v1.ResetRequest")
_ResetResponse = message_class("headgate.v1.ResetResponse")
_RulesRequest = message_class("headgate.v1.RulesRequest")
_RulesResponse = message_class("headgate.v1.RulesResponse")
_HealthResponse = message_class("grpc.health.v1.HealthCheckResponse")
_REQUESTS = b"\x0a"
"""The tag of `requests` in a batch."""
_PUSHBACK = "grpc-retry-pushback-ms"
_INVALID = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
_UNAUTHENTICATED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_BUSY = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}


def _encode(kind: Any, **fields: Any) -> bytes:
    """Encode a message with `exact`. Raises InvalidKey, InvalidCost."""
    try:
        encoded: bytes = kind(exact=True, **fields).SerializeToString()
    except UnicodeEncodeError as error:
        raise InvalidKey(f"a request must be Unicode text: {error}") from None
    except ValueError as error:  # the cost is the only number
        raise InvalidCost(f"cost must be a whole number up to 100000, not {fields['cost']}: {error}") from None
    return encoded


def _fields(request: Request) -> dict[str, Any]:
    """Return the fields of a message about a request. Raises InvalidRequest, InvalidCost."""
    validate(request)
    return {
        "principal": dict(request.principal),
        "endpoint": request.endpoint,
        "method": request.method,
        "attributes": dict(request.attributes),
        "tier": request.tier,
        "address": request.address,
        "rule_id": request.rule_id,
    }


class GrpcTransport:
    """Calls a node over gRPC; connecting takes at most half of the timeout, as over HTTP."""

    def __init__(self, endpoint: NodeAddress, settings: ClientSettings) -> None:
        self._endpoint, identity = endpoint, settings.identity
        connecting = ("grpc.min_reconnect_backoff_ms", max(100, int(settings.timeout * 500)))
        options = (*_OPTIONS, connecting)
        self._metadata = tuple(identity.headers.items())
        if endpoint.is_tls:
            identity.context()  # reports unusable files
            files = identity.ca, identity.key or identity.cert, identity.cert
            contents = [Path(file).read_bytes() if file else None for file in files]
            credentials = grpc.ssl_channel_credentials(*contents)
            self._channel = grpc.secure_channel(endpoint.place, credentials, options=options)
        else:
            self._channel = grpc.insecure_channel(endpoint.place, options=options)
        paths = {name: f"/{_SERVICE}/{name}" for name in _METHODS} | {"Check": "/grpc.health.v1.Health/Check"}
        self._methods: dict[str, Any] = {name: self._channel.unary_unary(path) for name, path in paths.items()}

    @staticmethod
    def encode(check: Check) -> bytes:
        request = check.request
        fields = _fields(request)
        if check.client_id:
            fields = {"identifier": check.client_id, "rule_id": request.rule_id}
        peek = not check.consume or request.cost == 0
        return _encode(_CheckRequest, cost=request.cost, idempotency_key=check.idempotency_key, peek=peek, **fields)

    @staticmethod
    def with_key(check: bytes, key: str) -> bytes:
        return check + bytes(_CheckRequest(idempotency_key=key).SerializeToString())  # fields of both merge

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        batch = b"".join([framed(_REQUESTS, each) for each in checks])
        results = self._read(await self._call("CheckRateLimitBatch", batch, seconds), _CheckBatchResponse).results
        if len(results) != len(checks):
            raise OutcomeUnknown(f"{self._endpoint} answered {len(results)} of {len(checks)} checks")
        return [
            error_of(each.error.reason, each.error.message)
            if each.HasField("error")
            else self._ruling(each.response.exact)
            for each in results
        ]

    async def refund(self, request: Request, charge: str, seconds: float) -> RulingMessage:
        message = _encode(_RefundRequest, charge=charge, **_fields(request))
        answer = await self._call("RefundCharge", message, seconds)
        return self._ruling(self._read(answer, _QuotaResponse).exact)

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        fields = _fields(request) | {"endpoint": "" if is_whole else request.endpoint or "/"}
        message = _encode(_ResetRequest, **fields)
        answer = self._read(await self._call("ResetLimit", message, seconds), _ResetResponse)
        return Reset(tuple(answer.rules), tuple(answer.shared), answer.reason)

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        message = _RulesRequest(etag=etag)
        answer = self._read(await self._call("GetRules", message.SerializeToString(), seconds), _RulesResponse)
        if not answer.document:
            return None
        found = decode(self._endpoint, answer.document, FetchedRules)
        return msgspec.structs.replace(found, etag=answer.etag)

    async def ready(self, seconds: float) -> None:
        answer = self._read(await self._call("Check", b"", seconds), _HealthResponse)
        if answer.status != 1:
            raise StoreBusy(f"{self._endpoint} is not ready: it is starting or draining")

    async def close(self) -> None:
        self._channel.close()

    async def _call(self, method: str, message: bytes, seconds: float) -> bytes:
        """Call a method. The session bounds the service's time; this timeout allows for delays of this process too."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        call = self._methods[method].future(message, timeout=seconds / BUSY_SHARE, metadata=self._metadata)
        call.add_done_callback(lambda _: _wake(loop, ended))
        try:
            await ended
        except asyncio.CancelledError:
            call.cancel()
            raise
        try:
            answer: bytes = call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            raise self._error(call) from None
        return answer

    def _error(self, call: Any) -> StoreError | UsageError:
        status, details = call.code(), call.details() or ""
        trailers = {name: value for name, value in call.trailing_metadata() or () if isinstance(value, str)}
        message = f"{self._endpoint} answered {status.name}: {details}"
        if status in _INVALID:
            return error_of(trailers.get("headgate-error", ""), details)
        if status in _UNAUTHENTICATED:
            return CallerRefused(message)
        if status in _BUSY and _PUSHBACK in trailers:
            return StoreBusy(message)
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BatchTooLarge(message)
        surely_not = status is grpc.StatusCode.UNIMPLEMENTED or "failed to connect" in details.lower()
        return StoreUnavailable(message) if surely_not else OutcomeUnknown(message)

    def _ruling(self, exact: str) -> RulingMessage:
        if not exact:
            raise OutcomeUnknown(f"{self._endpoint} sent no `exact`: it is an older version, or not Headgate")
        return decode(self._endpoint, exact, RulingMessage)

    def _read(self, answer: bytes, kind: Any) -> Any:
        try:
            return kind.FromString(answer)
        except DecodeError as error:
            raise OutcomeUnknown(f"{self._endpoint} responded, but is not a Headgate service: {error}") from None


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_end, ended)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
