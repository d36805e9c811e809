"""A span for every call, for those who trace: OpenTelemetry, as an extra (``otel``).

A call that comes with a ``traceparent`` becomes a part of that trace. Where spans go, and which of them, is set as
everywhere by OpenTelemetry's own variables: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``,
``OTEL_SERVICE_NAME`` and so on. Without tracing nothing of this is on the way of a call.

A span is never made the current one: calls are run without a task (see `headgate.server.wire.eager`), and so without a
context of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from headgate.core.errors import UsageError, not_installed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, StatusCode, Tracer

Pairs: TypeAlias = Iterable[tuple[bytes, bytes]]
"""Headers, or metadata; names in lower case."""
_CARRIED = frozenset({b"traceparent", b"tracestate"})
_LONGEST = 512


class Tracing:
    """Makes spans.

    Args:
        provider: what makes and keeps spans. None: one that sends them by OTLP over HTTP, as the environment says.

    Raises:
        UsageError: OpenTelemetry is not installed.
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
        self._kind, self._status = trace.SpanKind.SERVER, trace.StatusCode.ERROR

    def call(self, name: str, headers: Pairs, attributes: Mapping[str, str]) -> Traced:
        """Begin the span of a call, as a part of the trace that it came from, if it came from one."""
        carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers if key in _CARRIED}
        parent = self._extract({key: value for key, value in carrier.items() if len(value) <= _LONGEST})
        return Traced(self._tracer.start_span(name, parent, self._kind, attributes), self._status)

    def close(self) -> None:
        """Send what is left. It may block for some seconds."""
        self._provider.shutdown()


class Traced:
    """A call while it is answered; a context manager that ends with it."""

    __slots__ = ("_failed", "_span")

    def __init__(self, span: Span, failed: StatusCode) -> None:
        self._span, self._failed = span, failed

    def note(self, name: str, value: str | int) -> None:
        """Add to the span."""
        self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        """Give the span a name that says more."""
        self._span.update_name(name)

    def failed(self, reason: str) -> None:
        """Mark the span as failed, by our own fault."""
        self._span.set_status(self._failed, reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.end()


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
