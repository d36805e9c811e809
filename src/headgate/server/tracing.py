"""Handlers and methods with a span around each call; unchanged without tracing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from headgate.observe.tracing import Tracing
from headgate.server.wire.grpc.calls import (
    MessageStream,
    Methods,
    RpcError,
    StatusCode,
    StreamingMethod,
    UnaryCall,
    UnaryMethod,
    answer_of,
)
from headgate.server.wire.messages import Handler, Headers, HttpRequest, HttpResponse, answered

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_OWN_FAULT = 500
_NO_ROUTE = frozenset({404, 405, 501})
"""With these, the client may have invented the path: it stays out of the span's name, since names must be few."""
_OWN_CODES = frozenset(
    {StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.UNAVAILABLE, StatusCode.DATA_LOSS, StatusCode.UNIMPLEMENTED}
)
_SHOWN = {
    b"x-ratelimit-limit": "headgate.limit",
    b"x-ratelimit-remaining": "headgate.remaining",
    b"x-ratelimit-degraded": "headgate.degraded",
}
_LONGEST = 200


def traced_handler(handler: Handler, tracing: Tracing | None) -> Handler:
    if tracing is None:
        return handler

    async def traced(request: HttpRequest) -> HttpResponse:
        method, path = request.method.decode("latin-1"), request.path.decode("latin-1")[:_LONGEST]
        attributes = {"http.request.method": method, "url.path": path}
        with tracing.call(method, request.headers, attributes) as span:
            try:
                response = await answered(handler, request)
            except Exception as error:
                span.set_status(tracing.failed, type(error).__name__)
                raise
            if response.status not in _NO_ROUTE:
                span.update_name(f"{method} {path}")
            span.set_attribute("http.response.status_code", response.status)
            for name, value in response.headers:
                if name in _SHOWN:
                    span.set_attribute(_SHOWN[name], value.decode("latin-1"))
            if response.status >= _OWN_FAULT:
                span.set_status(tracing.failed, str(response.status))
            return response

    return traced


def traced_methods(methods: Methods, tracing: Tracing | None) -> Methods:
    if tracing is None:
        return methods
    unary = {path: _traced_unary(path, method, tracing) for path, method in methods.unary.items()}
    streaming = {path: _traced_stream(path, method, tracing) for path, method in methods.streaming.items()}
    return Methods(unary, streaming, methods.unreadable)


def _traced_unary(path: bytes, method: UnaryMethod, tracing: Tracing) -> UnaryMethod:
    async def traced(call: UnaryCall) -> bytes:
        with _span(path, call.metadata, tracing) as span:
            try:
                answer = await answer_of(method, call)
            except RpcError as error:
                span.set_attribute("rpc.grpc.status_code", int(error.code))
                if error.code in _OWN_CODES:
                    span.set_status(tracing.failed, error.code.name)
                raise
            except Exception as error:
                span.set_status(tracing.failed, type(error).__name__)
                raise
            span.set_attribute("rpc.grpc.status_code", 0)
            return answer

    return traced


def _traced_stream(path: bytes, method: StreamingMethod, tracing: Tracing) -> StreamingMethod:
    async def traced(stream: MessageStream) -> None:
        with _span(path, stream.metadata, tracing):
            await method(stream)

    return traced


def _span(path: bytes, metadata: Headers, tracing: Tracing) -> AbstractContextManager[Span]:
    name = path.decode("latin-1").removeprefix("/")
    service, _, method = name.rpartition("/")
    return tracing.call(name, metadata, {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})
