"""An OpenTelemetry collector of spans: OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class Collector:
    """Keeps the spans that it receives."""

    def __init__(self) -> None:
        received: list[bytes] = []
        self._received = received

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Answering)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def sent(self) -> list[ResourceSpans]:
        """Return the received spans with their resources."""
        messages = [ExportTraceServiceRequest.FromString(body) for body in self._received]
        return [each for message in messages for each in message.resource_spans]

    def spans(self) -> list[Span]:
        """All spans."""
        return [span for sent in self.sent() for scope in sent.scope_spans for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the length of a with block."""
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
