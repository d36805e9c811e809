"""An API that admits five requests a second, to test clients: standard library, and a limiter.

>>> with serving("5/s") as url:
...     print(url)  # doctest: +ELLIPSIS
http://127.0.0.1:...
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time_ns

from headgate import Limiter, ResponseHeaders


@contextmanager
def serving(quotas: str = "5/s") -> Iterator[str]:
    """Serve on a free port within a with block; return the URL."""
    limiter, headers = Limiter(quotas), ResponseHeaders()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            now = time_ns() // 1000
            decision = limiter.check(self.client_address[0])
            self.send_response(200 if decision else 429)
            for name, value in headers.of(decision, ["api"], now=now):
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
