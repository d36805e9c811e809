"""gRPC servers: interceptors, for servers with threads and for those in an event loop.

::

    server = grpc.server(pool, interceptors=[RateLimitInterceptor(limits="100/minute")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limits="100/minute")])

A refusal is RESOURCE_EXHAUSTED, with HTTP's header fields as trailing metadata, `grpc-retry-pushback-ms` for clients
with a retry policy, and a `google.rpc.RetryInfo` in the status. Other responses have the fields as well. A stream
counts once, when it begins. Functions such as `key` get a `ServerCall`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack
from urllib.parse import unquote

import grpc
import grpc.aio
import msgspec

from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget, Quotas
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import (
    AsyncRequestLimiter,
    LimiterBase,
    LimiterSettings,
    RequestLimiter,
    nothing_limited,
)
from headgate.web.errors import InvalidSettings

__all__ = ["AsyncRateLimitInterceptor", "Outcome", "RateLimitInterceptor", "ServerCall"]
_CODES = {429: grpc.StatusCode.RESOURCE_EXHAUSTED, 403: grpc.StatusCode.PERMISSION_DENIED}
_CODES |= {503: grpc.StatusCode.UNAVAILABLE, 400: grpc.StatusCode.INVALID_ARGUMENT}
_FAILURES = frozenset({"UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"})
"""Codes of server errors, like a status of 500 and above."""
_METHOD = re.compile(r"/[\w.]+/(\w+|\*)")
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


class ServerCall(msgspec.Struct, frozen=True):
    """A call, as functions such as `key` get it."""

    method: str
    """Such as ``/shop.Orders/Create``."""
    metadata: Mapping[str, Any]
    """From the client; of several values of one name, the last."""
    peer: str
    """In gRPC's form, such as ``ipv4:203.0.113.9:4711``."""
    message: Any
    """The request; None where the client sends a stream."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a call ended, for `count_when`: ``lambda outcome: outcome.code is grpc.StatusCode.UNAUTHENTICATED``."""

    code: grpc.StatusCode


Methods = Mapping[str, Quotas | Budget | Sequence[Budget]]


class _Methods:
    """The limits of single methods, and of all methods of a service."""

    def __init__(self, methods: Methods | None, gate: LimiterBase) -> None:
        self._gate = gate
        self._budgets: dict[str, tuple[Budget, ...]] = {}
        if gate.enabled and not gate.budgets and not methods:
            raise nothing_limited("the interceptor")
        for method, given in (methods or {}).items():
            if not isinstance(method, str) or not _METHOD.fullmatch(method):
                raise InvalidSettings(
                    f"a method must be '/package.Service/Method' or '/package.Service/*', got {short(method)}"
                )
            found: Any = [given] if isinstance(given, Budget) else given
            is_budgets = isinstance(found, list | tuple) and all(isinstance(each, Budget) for each in found)
            self._budgets[method] = gate.validate(*(found if is_budgets else (Budget(limits=found),)))

    def of(self, method: str) -> tuple[Budget, ...]:
        own = self._budgets.get(method, ()) + self._budgets.get(f"{method.rpartition('/')[0]}/*", ())
        return self._gate.with_own(own)


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Limits the calls of a server with threads; the other settings are those of `LimiterSettings`.

    Args:
        methods: additional limits of single methods, such as ``{"/shop.Orders/Create": "5/minute"}``.
    """

    def __init__(self, *, methods: Methods | None = None, **settings: Unpack[LimiterSettings]) -> None:
        self.gate = RequestLimiter(settings, _metadata)
        self._methods = _Methods(methods, self.gate)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler, details = continuation(handler_call_details), handler_call_details
        if handler is None:
            return None
        behaviour = _behaviour(handler)

        def one(message: Any, context: Any) -> Any:
            with self._limited(_exchange(self.gate, handler, details, message, context), context):
                return behaviour(message, context)

        def many(message: Any, context: Any) -> Iterator[Any]:
            with self._limited(_exchange(self.gate, handler, details, message, context), context):
                yield from behaviour(message, context)

        return _replaced(handler, many if handler.response_streaming else one)

    @contextmanager
    def _limited(self, exchange: Exchange, context: Any) -> Iterator[None]:
        """Check a call, and abort it if it is refused; refund what does not count when it has ended."""
        refusal = self.gate.check(exchange, self._methods.of(exchange.path), exchange.path)
        if refusal is not None:
            context.set_trailing_metadata(_refusal_metadata(refusal))
            context.abort(_refusal_code(refusal), refusal.detail)
        context.set_trailing_metadata(tuple(exchange.fields()))
        code = grpc.StatusCode.CANCELLED
        try:
            yield
            code = _code(context) or grpc.StatusCode.OK
        except Exception:
            code = _code(context) or grpc.StatusCode.UNKNOWN
            raise
        finally:
            if exchange.is_open:
                self.gate.run(exchange.respond(Outcome(code), _status(code)))
            _set_final_fields(exchange, context)


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):
    """Limits the calls of a server in an event loop, whose methods are coroutines; see `RateLimitInterceptor`."""

    def __init__(self, *, methods: Methods | None = None, **settings: Unpack[LimiterSettings]) -> None:
        self.gate = AsyncRequestLimiter(settings, _metadata)
        self._methods = _Methods(methods, self.gate)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler, details = await continuation(handler_call_details), handler_call_details
        if handler is None:
            return None
        behaviour = _coroutine(handler, details.method)

        async def one(message: Any, context: Any) -> Any:
            async with self._limited(_exchange(self.gate, handler, details, message, context), context):
                return await behaviour(message, context)

        async def many(message: Any, context: Any) -> AsyncIterator[Any]:
            async with self._limited(_exchange(self.gate, handler, details, message, context), context):
                async for each in behaviour(message, context):
                    yield each

        return _replaced(handler, many if inspect.isasyncgenfunction(behaviour) else one)

    @asynccontextmanager
    async def _limited(self, exchange: Exchange, context: Any) -> AsyncIterator[None]:
        refusal = await self.gate.check(exchange, self._methods.of(exchange.path), exchange.path)
        if refusal is not None:
            await context.abort(_refusal_code(refusal), refusal.detail, _refusal_metadata(refusal))
        context.set_trailing_metadata(tuple(exchange.fields()))
        code = grpc.StatusCode.CANCELLED
        try:
            yield
            code = _code(context) or grpc.StatusCode.OK
        except Exception:
            code = _code(context) or grpc.StatusCode.UNKNOWN
            raise
        finally:
            if exchange.is_open:
                await self.gate.run(exchange.respond(Outcome(code), _status(code)))
            _set_final_fields(exchange, context)


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    """Return the function of a handler, which has one of four kinds."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    found: Callable[[Any, Any], Any] = next(each for each in kinds if each is not None)
    return found


def _coroutine(handler: Any, method: str) -> Callable[[Any, Any], Any]:
    """Return the same for a server in an event loop, which a plain function would block."""
    behaviour = _behaviour(handler)
    if inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour):
        return behaviour
    raise UsageError(f"{method} is not a coroutine function: it would block the event loop")


def _replaced(handler: Any, behaviour: Callable[[Any, Any], Any]) -> Any:
    """Return a handler of the same kind with another function."""
    made: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming), bool(handler.response_streaming)]
    return made(behaviour, handler.request_deserializer, handler.response_serializer)


def _exchange(gate: LimiterBase, handler: Any, details: Any, message: Any, context: Any) -> Exchange:
    metadata, peer = tuple(details.invocation_metadata or ()), context.peer()
    lines = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in metadata]
    call = ServerCall(details.method, dict(metadata), peer, None if handler.request_streaming else message)
    return Exchange(gate, call, _address(peer), lines, details.method, "POST")


def _address(peer: str) -> str | None:
    """Return the address in ``ipv4:203.0.113.9:4711`` or ``ipv6:%5B::1%5D:4711``; None for others."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else None


def _metadata(name: str) -> Callable[[str], tuple[str, str]]:
    """Write fields as metadata; see `Spelling`."""
    lower = name.lower()
    return lambda value: (lower, value)


def _set_final_fields(exchange: Exchange, context: Any) -> None:
    """Update the fields in the trailing metadata, and keep what the method has put there."""
    fields = dict(exchange.fields())
    if fields:
        others = [each for each in context.trailing_metadata() or () if each[0] not in fields]
        context.set_trailing_metadata((*others, *fields.items()))


def _refusal_metadata(refusal: Refusal) -> tuple[tuple[str, str | bytes], ...]:
    metadata = list(refusal.fields)
    if refusal.decision is not None:
        wait_us = refusal.decision.retry_after_us
        metadata.append(("grpc-retry-pushback-ms", str(-(-wait_us // 1000) or 1)))
        metadata.append(("grpc-status-details-bin", _status_details(refusal, wait_us)))
    return tuple(metadata)


def _status_details(refusal: Refusal, wait_us: int) -> bytes:
    """Return a google.rpc.Status with a RetryInfo; the library does not require protobuf here."""
    delay = _number(1, wait_us // 1_000_000) + _number(2, wait_us % 1_000_000 * 1000)
    retry_info = _bytes(1, delay)
    details = _bytes(1, _RETRY_INFO) + _bytes(2, retry_info)
    code: int = _refusal_code(refusal).value[0]
    return _number(1, code) + _bytes(2, refusal.detail.encode()) + _bytes(3, details)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number) if number else b""


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _code(context: Any) -> Any:
    """Return the code that a method has set, if any; servers keep a status or a number."""
    code = context.code()
    if isinstance(code, int):
        return next((each for each in grpc.StatusCode if each.value[0] == code), None) if code else None
    return code


def _status(code: grpc.StatusCode) -> int:
    return 500 if code.name in _FAILURES else 200


def _refusal_code(refusal: Refusal) -> grpc.StatusCode:
    """Return the code of a refusal; a rule's own status counts as that of a limit."""
    return _CODES.get(refusal.status, grpc.StatusCode.RESOURCE_EXHAUSTED)
