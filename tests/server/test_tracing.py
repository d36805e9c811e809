"""Tracing: a span for every call, in the caller's trace."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.trace import StatusCode as SpanStatus

from headgate.observe.tracing import Tracing
from headgate.server.tracing import traced_handler, traced_methods
from headgate.server.wire.grpc.calls import MessageStream, Methods, RpcError, StatusCode, UnaryCall, answer_of
from headgate.server.wire.messages import HttpRequest, HttpResponse, answered

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TRACEPARENT = (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


class Traces:
    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracing = Tracing(provider)

    def only(self) -> ReadableSpan:
        (span,) = self._kept.get_finished_spans()
        self._kept.clear()
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    made.tracing.close()


async def handle(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    status = int(request.query or b"200")
    if not status:
        raise ValueError("a secret of ours")
    return HttpResponse(status, b"", ((b"x-ratelimit-remaining", b"7"), (b"set-cookie", b"secret")))


def traced(traces: Traces, *headers: tuple[bytes, bytes], status: int = 200) -> ReadableSpan:
    """Return the span of a request that is answered with a status, or with an error if that is 0."""
    request = HttpRequest(b"POST", b"/api/v1/rate-limit/check", b"%d" % status, list(headers))
    asyncio.run(answered(traced_handler(handle, traces.tracing), request))
    return traces.only()


def test_a_call_has_a_span_of_its_own(traces: Traces) -> None:
    span = traced(traces)
    assert (span.name, span.kind, span.parent) == ("POST /api/v1/rate-limit/check", SpanKind.SERVER, None)
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/api/v1/rate-limit/check",
        "http.response.status_code": 200,
        "headgate.remaining": "7",
    }


def test_a_call_that_is_part_of_a_trace_stays_in_it_and_a_malformed_one_begins_another(traces: Traces) -> None:
    span = traced(traces, TRACEPARENT, (b"tracestate", b"vendor=1"))
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (TRACE, PARENT)
    assert span.context.trace_state.get("vendor") == "1"
    zs = b"00-" + b"z" * 32 + b"-00f067aa0ba902b7-01"
    for malformed in (b"", b"\xff" * 20, b"00-0-0-0", zs, b"x" * 100_000):
        assert traced(traces, (b"traceparent", malformed)).parent is None


def test_unknown_paths_do_not_name_spans_and_failures_of_the_server_are_errors(traces: Traces) -> None:
    missing = traced(traces, status=404)
    assert (missing.name, missing.status.status_code) == ("POST", SpanStatus.UNSET)
    overloaded = traced(traces, status=503)
    assert (overloaded.status.status_code, overloaded.status.description) == (SpanStatus.ERROR, "503")
    with pytest.raises(ValueError, match="secret"):
        traced(traces, status=0)
    broken = traces.only()
    assert (broken.status.status_code, broken.status.description) == (SpanStatus.ERROR, "ValueError")


async def answer(_: UnaryCall) -> bytes:
    return b"answer"


async def refuse(_: UnaryCall) -> bytes:
    raise RpcError(StatusCode.INVALID_ARGUMENT, "no")


async def fail(_: UnaryCall) -> bytes:
    raise RpcError(StatusCode.INTERNAL, "oops")


async def crash(_: UnaryCall) -> bytes:
    raise ValueError("oops")


async def watch(_: MessageStream) -> None:
    """End at once."""


METHODS = Methods(
    {b"/a.B/Answer": answer, b"/a.B/Refuse": refuse, b"/a.B/Fail": fail, b"/a.B/Crash": crash}, {b"/a.B/Watch": watch}
)


async def test_a_call_of_a_method_has_a_span(traces: Traces) -> None:
    for name, code, status in (
        *(("Answer", 0, SpanStatus.UNSET), ("Refuse", StatusCode.INVALID_ARGUMENT, SpanStatus.UNSET)),
        *(("Fail", StatusCode.INTERNAL, SpanStatus.ERROR), ("Crash", None, SpanStatus.ERROR)),
    ):
        method = traced_methods(METHODS, traces.tracing).unary[f"/a.B/{name}".encode()]
        try:
            assert await answer_of(method, UnaryCall(b"", [TRACEPARENT])) == b"answer"
        except (RpcError, ValueError):
            assert name != "Answer"
        span = traces.only()
        assert span.context is not None
        assert (span.name, span.context.trace_id, span.status.status_code) == (f"a.B/{name}", TRACE, status)
        assert (span.attributes or {}).get("rpc.grpc.status_code") == code
        assert (span.attributes or {})["rpc.service"] == "a.B"


def test_a_stream_has_a_span(traces: Traces) -> None:
    method = traced_methods(METHODS, traces.tracing).streaming[b"/a.B/Watch"]
    asyncio.run(method(cast("MessageStream", UnaryCall(b"", [TRACEPARENT]))))  # only its metadata is looked at
    assert traces.only().name == "a.B/Watch"


def test_without_tracing_nothing_is_in_the_way() -> None:
    assert traced_handler(handle, None) is handle
    assert traced_methods(METHODS, None) is METHODS
