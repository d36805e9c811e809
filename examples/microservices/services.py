"""Three services of a shop, without limits, keys or tokens of their own: the gateway names the caller in headers.

The headers can be trusted because only the gateway reaches the services, which listen on the loopback address.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

GOODS = [f"{leaf} {kind}" for leaf in ("assam", "ceylon", "darjeeling", "nilgiri", "sencha") for kind in ("tea", "tin")]
"""What can be searched: five teas, and the tins for them."""


def orders(rest: str, _query: Mapping[str, str], caller: Mapping[str, str]) -> dict[str, Any]:
    """An order of the caller."""
    return {"order": rest, "customer": caller.get("user", "nobody"), "goods": GOODS[:2]}


def users(rest: str, _query: Mapping[str, str], _caller: Mapping[str, str]) -> dict[str, Any]:
    """A user, for any caller with a credential."""
    return {"name": rest, "since": 2021}


def search(_rest: str, query: Mapping[str, str], _caller: Mapping[str, str]) -> dict[str, Any]:
    """The goods with a word in their names; their number is known only from the response."""
    word = query.get("q")
    return {"found": [each for each in GOODS if word and word in each]}


SERVICES: Mapping[str, Callable[[str, Mapping[str, str], Mapping[str, str]], dict[str, Any]]] = {
    "orders": orders,
    "users": users,
    "search": search,
}


class Service(ThreadingHTTPServer):
    """Answers GET /NAME/... with the result of that service, and the caller that it sees.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body would wait for the acknowledgement of its head: 40 ms
    server: Service

    def do_GET(self) -> None:
        names = ("user", "apikey", "tier")
        caller = {name: found for name in names if (found := self.headers.get(f"x-headgate-{name}"))}
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        rest = url.path.removeprefix(f"/{self.server.name}").strip("/")
        answer = SERVICES[self.server.name](rest, query, caller)
        body = json.dumps({"service": self.server.name, "caller": caller or "anybody", **answer}).encode() + b"\n"
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if "found" in answer:
            self.send_header("x-cost", str(len(answer["found"])))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the standard library
        """The gateway has an access log."""


@contextmanager
def serving(name: str, port: int) -> Iterator[None]:
    """Run a service in a thread, for the length of a with block."""
    with Service(name, port) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield
        finally:
            service.shutdown()
            thread.join()
