"""OpenTelemetry spans for calls, as an extra (``otel``).

A call with a ``traceparent`` joins that trace. OpenTelemetry's own variables configure exporting and sampling:
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME`` and so on.

A span never becomes the current one: calls run without a task (see `headgate.eager`), and so without a
separate context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from headgate.core.errors import UsageError
from headgate.messages import not_installed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Pairs: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Headers or metadata with lower-case names."""
_CARRIED = frozenset({b"traceparent", b"tracestate"})
_LONGEST = 512


class Tracing:
    """Creates spans, by default with a provider that exports by OTLP over HTTP, configured by the environment.

    Raises UsageError if OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415  an extra
            from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415

            self._provider = _exporting() if provider is None else provider
        except ImportError as error:
            raise UsageError(not_installed(error.name, "otel")) from None
        self._tracer: Tracer = self._provider.get_tracer("headgate")
        self._extract = tracecontext.TraceContextTextMapPropagator().extract
        self._kind = trace.SpanKind.SERVER
        self.failed = trace.StatusCode.ERROR
        """The status of a span that a server error ended."""

    @contextmanager
    def call(self, name: str, headers: Pairs, attributes: Mapping[str, str]) -> Iterator[Span]:
        """Record the span of a call, in the trace of its headers if there is one."""
        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers if key in _CARRIED}
        parent = self._extract({key: value for key, value in carrier.items() if len(value) <= _LONGEST})
        span = self._tracer.start_span(name, parent, self._kind, attributes)
        try:
            yield span
        finally:
            span.end()

    def close(self) -> None:
        """Export remaining spans. It may block for some seconds."""
        self._provider.shutdown()


def _exporting() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "headgate"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
