"""APIs with limits, for benchmarks and tests of clients: real HTTP servers, whose limits are Headgate's.

``python -m benchmarks.clients.api STYLE QUOTA`` serves on a free port, which it prints, until it is ended. ``/report``
says what it has seen; to ask that is free.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headgate import Decision, Limiter, ResponseHeaders, SystemClock
from headgate.core.quota import SECOND

Fields = list[tuple[str, str]]
Style = Callable[[Decision, int], Fields]
"""Makes header fields of a decision, at a time in microseconds since 1970."""


def seconds(us: int) -> int:
    """Return microseconds in seconds, rounded up."""
    return -(-us // SECOND)


def headgate(decision: Decision, now: int) -> Fields:
    """Write all that Headgate sends by default."""
    return ResponseHeaders().of(decision, ["api"], now=now)


def ietf(decision: Decision, now: int) -> Fields:
    """Write the fields of the IETF alone."""
    return ResponseHeaders(legacy=False).of(decision, ["api"], now=now)


def github(decision: Decision, now: int) -> Fields:
    """Write a reset since 1970, and which resource it is."""
    found = [("x-ratelimit-limit", str(decision.limit)), ("x-ratelimit-remaining", str(decision.remaining))]
    found += [("x-ratelimit-used", str(decision.used)), ("x-ratelimit-resource", "core")]
    return [*found, ("x-ratelimit-reset", str(seconds(now + decision.reset_after_us)))]


STYLES: dict[str, Style] = {each.__name__: each for each in (headgate, ietf, github)}


class Api(ThreadingHTTPServer):
    """Answers within a quota.

    Args:
        style: of its header fields.
        quota: as text.
    """

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, style: Style, quota: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.style, self.limiter, self.clock = style, Limiter(quota), SystemClock()
        self.seen: list[tuple[int, int]] = []
        """The time of each request, in microseconds since 1970, and the status of its response."""
        self.bodies: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def refused(self) -> int:
        return sum(status == 429 for _, status in self.seen)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may leave when they like."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Api
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/report":
            self._answer(200, [], json.dumps(self.server.seen).encode())
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        now = self.server.clock.now()
        decision = self.server.limiter.check(self.headers.get("Authorization", "anybody"))
        fields = dict(self.server.style(decision, now))
        if not decision:
            fields["Retry-After"] = str(seconds(decision.retry_after_us))
        status = 200 if decision else 429
        self.server.seen.append((now, status))
        self.server.bodies.append(body)
        self._answer(status, list(fields.items()), b"hello")

    do_POST = do_PUT = do_GET  # noqa: N815  names of the standard library

    def _answer(self, status: int, fields: Fields, body: bytes) -> None:
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(style: Style, quota: str) -> Iterator[Api]:
    """Serve in this process, for the length of a with block."""
    with Api(style, quota) as api:
        thread = threading.Thread(target=api.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()


if __name__ == "__main__":
    with Api(STYLES[sys.argv[1]], sys.argv[2]) as api:
        print(api.server_port, flush=True)
        api.serve_forever()
