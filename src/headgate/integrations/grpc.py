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
from headgate.integrations.exchange import Exchange, Flow
from headgate.integrations.limiter import (
    AsyncRequestLimiter,
    LimiterBase,
    LimiterSettings,
    RequestLimiter,
    nothing_limited,
)
from headgate.protobuf import framed, varint
from headgate.web.errors import InvalidSettings

__all__ = ["AsyncRateLimitInterceptor", "Outcome", "RateLimitInterceptor", "ServerCall"]
_CODES = {429: grpc.StatusCode.RESOURCE_EXHAUSTED, 403: grpc.StatusCode.PERMISSION_DENIED}
_CODES |= {503: grpc.StatusCode.UNAVAILABLE, 400: grpc.StatusCode.INVALID_ARGUMENT}
_FAILURES = frozenset({"UNKNOWN", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"})
"""Codes of server errors, like a status of 500 and above."""
_METHOD = re.compile(r"/[\w.]+/(\w+|\*)")
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


class ServerCall(msgspec.Struct, frozen=True):
    """A call: the argument of functions such as `key`."""

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


class _Calls:
    """The checks of both interceptors: `begin` runs before a method, and `end` after it."""

    def __init__(self, limiter: LimiterBase, methods: Methods | None) -> None:
        self._limiter = limiter
        self._budgets: dict[str, tuple[Budget, ...]] = {}
        if limiter.enabled and not limiter.budgets and not methods:
            raise nothing_limited("the interceptor")
        for method, given in (methods or {}).items():
            if not isinstance(method, str) or not _METHOD.fullmatch(method):
                raise InvalidSettings(
                    f"a method must be '/package.Service/Method' or '/package.Service/*', got {short(method)}"
                )
            found: Any = [given] if isinstance(given, Budget) else given
            is_budgets = isinstance(found, list | tuple) and all(isinstance(each, Budget) for each in found)
            self._budgets[method] = limiter.validate(*(found if is_budgets else (Budget(limits=found),)))

    def exchange(self, handler: Any, details: Any, message: Any, context: Any) -> Exchange:
        metadata, peer = tuple(details.invocation_metadata or ()), context.peer()
        lines = [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in metadata]
        call = ServerCall(details.method, dict(metadata), peer, None if handler.request_streaming else message)
        return Exchange(self._limiter, call, _address(peer), lines, details.method, "POST")

    def begin(self, exchange: Exchange, context: Any) -> Flow[None]:
        """Check a call, and abort it if it is refused."""
        method = exchange.path
        own = self._budgets.get(method, ()) + self._budgets.get(f"{method.rpartition('/')[0]}/*", ())
        refusal = yield from exchange.check(self._limiter.with_own(own), method)
        if refusal is not None:
            context.set_trailing_metadata(_refusal_metadata(refusal))
            yield context.abort(_refusal_code(refusal), refusal.detail)  # raises
        context.set_trailing_metadata(tuple(exchange.fields()))

    def end(self, exchange: Exchange, context: Any, error: BaseException | None = None) -> Flow[None]:
        """Refund a call that does not count, and update the fields in the trailing metadata."""
        code = grpc.StatusCode.CANCELLED
        if error is None or isinstance(error, Exception):
            code = _code(context) or (grpc.StatusCode.OK if error is None else grpc.StatusCode.UNKNOWN)
        if exchange.is_open:
            yield from exchange.respond(Outcome(code), 500 if code.name in _FAILURES else 200)
        fields = dict(exchange.fields())
        if fields:
            others = [each for each in context.trailing_metadata() or () if each[0] not in fields]
            context.set_trailing_metadata((*others, *fields.items()))


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Limits the calls of a server with threads; the other settings are those of `LimiterSettings`.

    Args:
        methods: additional limits of single methods, such as ``{"/shop.Orders/Create": "5/minute"}``.
    """

    def __init__(self, *, methods: Methods | None = None, **settings: Unpack[LimiterSettings]) -> None:
        self.limiter = RequestLimiter(settings, _metadata)
        self._calls = _Calls(self.limiter, methods)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        behaviour = _behaviour(handler)

        @contextmanager
        def limited(message: Any, context: Any) -> Iterator[None]:
            exchange = self._calls.exchange(handler, handler_call_details, message, context)
            self.limiter.run(self._calls.begin(exchange, context))
            try:
                yield
            except BaseException as error:
                self.limiter.run(self._calls.end(exchange, context, error))
                raise
            self.limiter.run(self._calls.end(exchange, context))

        def one(message: Any, context: Any) -> Any:
            with limited(message, context):
                return behaviour(message, context)

        def many(message: Any, context: Any) -> Iterator[Any]:
            with limited(message, context):
                yield from behaviour(message, context)

        return _with_behaviour(handler, many if handler.response_streaming else one)


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):
    """Limits the calls of a server in an event loop, whose methods are coroutines; see `RateLimitInterceptor`."""

    def __init__(self, *, methods: Methods | None = None, **settings: Unpack[LimiterSettings]) -> None:
        self.limiter = AsyncRequestLimiter(settings, _metadata)
        self._calls = _Calls(self.limiter, methods)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        behaviour = _behaviour(handler)
        if not (inspect.iscoroutinefunction(behaviour) or inspect.isasyncgenfunction(behaviour)):
            method = handler_call_details.method
            raise UsageError(f"{method} is not a coroutine function: it would block the event loop")

        @asynccontextmanager
        async def limited(message: Any, context: Any) -> AsyncIterator[None]:
            exchange = self._calls.exchange(handler, handler_call_details, message, context)
            await self.limiter.run(self._calls.begin(exchange, context))
            try:
                yield
            except BaseException as error:
                await self.limiter.run(self._calls.end(exchange, context, error))
                raise
            await self.limiter.run(self._calls.end(exchange, context))

        async def one(message: Any, context: Any) -> Any:
            async with limited(message, context):
                return await behaviour(message, context)

        async def many(message: Any, context: Any) -> AsyncIterator[Any]:
            async with limited(message, context):
                async for each in behaviour(message, context):
                    yield each

        return _with_behaviour(handler, many if inspect.isasyncgenfunction(behaviour) else one)


def _behaviour(handler: Any) -> Callable[[Any, Any], Any]:
    """Return the function of a handler, which has one of four kinds."""
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(each for each in kinds if each is not None)  # type: ignore[no-any-return]


def _with_behaviour(handler: Any, behaviour: Callable[[Any, Any], Any]) -> Any:
    """Return a handler of the same kind with another function."""
    kinds = [("unary", "stream")[bool(each)] for each in (handler.request_streaming, handler.response_streaming)]
    made = getattr(grpc, f"{'_'.join(kinds)}_rpc_method_handler")
    return made(behaviour, handler.request_deserializer, handler.response_serializer)


def _address(peer: str) -> str | None:
    """Return the address in ``ipv4:203.0.113.9:4711`` or ``ipv6:%5B::1%5D:4711``; None for others."""
    kind, _, address = peer.partition(":")
    return unquote(address) if kind in {"ipv4", "ipv6"} else None


def _metadata(name: str) -> Callable[[str], tuple[str, str]]:
    """Write fields as metadata; see `Spelling`."""
    lower = name.lower()
    return lambda value: (lower, value)


def _refusal_metadata(refusal: Refusal) -> tuple[tuple[str, str | bytes], ...]:
    metadata = list(refusal.fields)
    if refusal.decision is not None:
        wait_us = refusal.decision.retry_after_us
        metadata.append(("grpc-retry-pushback-ms", str(-(-wait_us // 1000) or 1)))
        metadata.append(("grpc-status-details-bin", _status_details(refusal, wait_us)))
    return tuple(metadata)


def _status_details(refusal: Refusal, wait_us: int) -> bytes:
    seconds, nanoseconds = wait_us // 1_000_000, wait_us % 1_000_000 * 1000
    delay = b"\x08" + varint(seconds) if seconds else b""
    delay += b"\x10" + varint(nanoseconds) if nanoseconds else b""
    retry_info = framed(b"\x0a", _RETRY_INFO) + framed(b"\x12", framed(b"\x0a", delay))
    code: int = _refusal_code(refusal).value[0]
    return b"\x08" + varint(code) + framed(b"\x12", refusal.detail.encode()) + framed(b"\x1a", retry_info)


def _code(context: Any) -> Any:
    """Return the code that a method has set, if any; servers keep a status or a number."""
    code = context.code()
    if isinstance(code, int):
        return next((each for each in grpc.StatusCode if each.value[0] == code), None) if code else None
    return code


def _refusal_code(refusal: Refusal) -> grpc.StatusCode:
    """Return the code of a refusal; a rule's own status counts as that of a limit."""
    return _CODES.get(refusal.status, grpc.StatusCode.RESOURCE_EXHAUSTED)
