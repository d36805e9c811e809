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
from headgate.engine.written import WrittenRuling, error_of
from headgate.policy.request import Request
from headgate.protos import framed, message_class
from headgate.sdk.settings import Credentials, NodeAddress
from headgate.sdk.transport import BatchTooLarge, CallerRefused, Check, FetchedRules, Outcome, checked
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
_HealthRequest = message_class("grpc.health.v1.HealthCheckRequest")
_HealthResponse = message_class("grpc.health.v1.HealthCheckResponse")
_REQUESTS = b"\x0a"
"""The tag of `requests` in a batch."""
_PUSHBACK = "grpc-retry-pushback-ms"
_INVALID = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
_UNAUTHENTICATED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_BUSY = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}


def encode(check: Check) -> bytes:
    """Encode a check. Raises InvalidRequest, InvalidKey, InvalidCost."""
    request = checked(check.request)
    fields = _fields(request) if not check.client_id else {"identifier": check.client_id, "rule_id": request.rule_id}
    if type(request.cost) is not int:
        raise InvalidCost(f"cost must be a whole number, not {request.cost!r:.100}")
    peek = not check.consume or request.cost == 0
    return _written(_CheckRequest, cost=request.cost, idempotency_key=check.idempotency_key, peek=peek, **fields)


def with_key(check: bytes, key: str) -> bytes:
    """Add an idempotency key to an encoded check: fields of concatenated messages merge."""
    return check + bytes(_CheckRequest(idempotency_key=key).SerializeToString())


def _written(kind: Any, **fields: Any) -> bytes:
    """Encode a message with `exact`. Raises InvalidKey, InvalidCost."""
    try:
        written: bytes = kind(exact=True, **fields).SerializeToString()
    except UnicodeEncodeError as error:
        raise InvalidKey(f"a request must be Unicode text: {error}") from None
    except ValueError as error:  # the cost is the only number
        raise InvalidCost(f"cost must be a whole number up to 100000, not {fields['cost']}: {error}") from None
    return written


def _fields(request: Request) -> dict[str, Any]:
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
    """Calls a node over gRPC; connecting takes at most half of `timeout`, in seconds, as over HTTP."""

    def __init__(self, endpoint: NodeAddress, identity: Credentials, *, timeout: float) -> None:
        self._endpoint = endpoint
        connecting = ("grpc.min_reconnect_backoff_ms", max(100, int(timeout * 500)))
        options = (*_OPTIONS, connecting)
        self._metadata = tuple(identity.headers.items())
        if endpoint.is_tls:
            identity.context()  # reports unusable files
            ca, key, cert = (_content(name) for name in (identity.ca, identity.key or identity.cert, identity.cert))
            credentials = grpc.ssl_channel_credentials(ca, key, cert)
            self._channel = grpc.secure_channel(endpoint.place, credentials, options=options)
        else:
            self._channel = grpc.insecure_channel(endpoint.place, options=options)
        paths = {name: f"/{_SERVICE}/{name}" for name in _METHODS} | {"Check": "/grpc.health.v1.Health/Check"}
        self._methods: dict[str, Any] = {name: self._channel.unary_unary(path) for name, path in paths.items()}

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        batch = b"".join([framed(_REQUESTS, each) for each in checks])
        results = self._read(await self._call("CheckRateLimitBatch", batch, seconds), _CheckBatchResponse).results
        if len(results) != len(checks):
            raise OutcomeUnknown(f"{self._endpoint} answers {len(results)} of {len(checks)} checks")
        return [
            error_of(each.error.reason, each.error.message)
            if each.HasField("error")
            else self._ruling(each.response.exact)
            for each in results
        ]

    async def refund(self, request: Request, charge: str, seconds: float) -> WrittenRuling:
        message = _written(_RefundRequest, charge=charge, **_fields(checked(request)))
        answer = await self._call("RefundCharge", message, seconds)
        return self._ruling(self._read(answer, _QuotaResponse).exact)

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        fields = _fields(checked(request)) | {"endpoint": "" if is_whole else request.endpoint or "/"}
        message = _written(_ResetRequest, **fields)
        answer = self._read(await self._call("ResetLimit", message, seconds), _ResetResponse)
        return Reset(tuple(answer.rules), tuple(answer.shared), answer.reason)

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        message = _RulesRequest(etag=etag)
        answer = self._read(await self._call("GetRules", message.SerializeToString(), seconds), _RulesResponse)
        if not answer.document:
            return None
        try:
            found = msgspec.json.decode(answer.document, type=FetchedRules)
        except (ValueError, RecursionError) as error:
            raise OutcomeUnknown(f"{self._endpoint} answers, but not like Headgate: {error}") from None
        return msgspec.structs.replace(found, etag=answer.etag)

    async def ready(self, seconds: float) -> None:
        answer = self._read(await self._call("Check", _HealthRequest().SerializeToString(), seconds), _HealthResponse)
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
        said = f"{self._endpoint} answers {status.name}: {details}"
        if status in _INVALID:
            return error_of(trailers.get("headgate-error", ""), details)
        if status in _UNAUTHENTICATED:
            return CallerRefused(said)
        if status in _BUSY and _PUSHBACK in trailers:
            return StoreBusy(said)
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BatchTooLarge(said)
        surely_not = status is grpc.StatusCode.UNIMPLEMENTED or "failed to connect" in details.lower()
        return StoreUnavailable(said) if surely_not else OutcomeUnknown(said)

    def _ruling(self, exact: str) -> WrittenRuling:
        if not exact:
            raise OutcomeUnknown(f"{self._endpoint} answers without `exact`: an older version, or not Headgate")
        try:
            return msgspec.json.decode(exact, type=WrittenRuling)
        except (ValueError, RecursionError) as error:
            raise OutcomeUnknown(f"{self._endpoint} answers, but not like Headgate: {error}") from None

    def _read(self, answer: bytes, kind: Any) -> Any:
        try:
            return kind.FromString(answer)
        except DecodeError as error:
            raise OutcomeUnknown(f"{self._endpoint} answers, but not like Headgate: {error}") from None


def _content(name: str) -> bytes | None:
    return Path(name).read_bytes() if name else None


def _wake(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_end, ended)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
