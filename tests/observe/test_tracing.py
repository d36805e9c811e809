"""Spans on their way out, by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headgate.core.errors import UsageError
from headgate.observe import tracing
from headgate.observe.tracing import Tracing


class Collector:
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        received: list[bytes] = []
        self.received = received

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Answering)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_spans_are_sent_where_the_environment_says(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server.server_port}")
    tracing = Tracing()
    with tracing.call("POST /check", [], {"http.request.method": "POST"}) as span:
        span.note("http.response.status_code", 200)
    tracing.close()
    (body,) = collector.received
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert sent.scope_spans[0].spans[0].name == "POST /check"
    names = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert names["service.name"] == "headgate"


def test_without_opentelemetry_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("No module named 'opentelemetry'")

    monkeypatch.setattr(tracing, "_exporting", missing)
    with pytest.raises(UsageError, match=r"headgate\[otel\]"):
        Tracing()
