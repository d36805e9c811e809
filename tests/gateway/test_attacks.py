"""Attacks on a gateway, in every spelling: none passes a limit, or deceives a service."""

from __future__ import annotations

import os
import re
import signal
import socketserver
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded, TrailersReceived

from headgate.gateway.filters import FORBIDDEN, OF_PROXIES
from headgate.web.apikey import digest
from tests.gateway.gateways import SECONDS, Gateway, gateway, minimal
from tests.server.hostile import Upstream, hostile, hostile_over_http2, post, sent, sent_over_http2, serving, upstream
from tests.server.wire.http2.conversation import unchecked
from tests.servers import until

RULES = {"rules": [{"id": "per-address", "dimension": "ip", "limit": 2, "window": "1h"}]}
KEY, SECRET = "ak_reporting-0123456789", "a secret that the issuer shares with us"
POST = {b":method": b"POST", b":scheme": b"http", b":authority": b"api", b":path": b"/calls/7"}
PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def test_nothing_beyond_the_limit_reaches_a_service() -> None:
    identity = {"api_keys": {"query": "key", "keys": [{"sha256": digest(KEY)}]}}
    with upstream() as behind, gateway(minimal(behind.port, rules=RULES, identity=identity)) as running:
        running.started()
        assert [running.get("/orders/7").status for _ in range(3)] == [200, 200, 429]
        with ThreadPoolExecutor(16) as threads:
            first = {name: threads.submit(sent, running.port, data) for name, data in hostile()}
            second = {name: threads.submit(sent_over_http2, running.port, each) for name, each in hostile_over_http2()}
        for name, response in first.items():
            assert response.result()[:10] in {b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.1 1"}, name
        for name, status in second.items():
            assert status.result()[:1] in {b"", b"4"}, name
        assert behind.served[2:] == []
        assert running.get("/orders/7").status == 429


class Calls(socketserver.ThreadingTCPServer):
    """A service that speaks HTTP/2, and keeps what it is sent: fields and trailers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Calls)
        self.port = int(self.server_address[1])
        self.fields: list[bytes] = []
        """The names of all that came."""


class _Calls(socketserver.BaseRequestHandler):
    server: Calls

    def handle(self) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        while True:
            self.request.sendall(connection.data_to_send())
            received = self.request.recv(65536)
            if not received:
                return
            for event in connection.receive_data(received):
                if isinstance(event, RequestReceived | TrailersReceived):
                    self.server.fields += [bytes(name) for name, _ in event.headers or ()]
                if isinstance(event, StreamEnded):
                    connection.send_headers(event.stream_id, [(":status", "200")], end_stream=True)


@pytest.fixture(scope="module")
def called() -> Iterator[Calls]:
    with serving(Calls()) as server:
        yield server


@pytest.fixture(scope="module")
def behind() -> Iterator[Upstream]:
    with upstream() as server:
        yield server


@pytest.fixture(scope="module")
def running(behind: Upstream, called: Calls) -> Iterator[Gateway]:
    """Routes that require a user, within one that does not, to a service that reads paths in its own way."""
    orders, sends = {"endpoints": [f"127.0.0.1:{behind.port}"]}, {"endpoints": [f"127.0.0.1:{called.port}"]}
    private: dict[str, Any] = {"service": "orders", "require": "user"}
    paths = ("/orders/private", "/%C3%A9t%C3%A9", "/@admin", "/a%20b%5B1%5D", "/x.y")
    file = minimal(
        behind.port,
        services={"orders": orders, "calls": sends | {"protocol": "http2"}},
        routes=[
            {"path": "/", "service": "orders"},
            *[{"path": path, **private} for path in paths],
            {"path": "/", "hosts": ["admin.example.com.", "*.private.example.com", "2001:db8:0::5"], **private},
            {"path": "/(new)", "service": "orders", "rewrite": "/v2"},
            {"path": "/", "hosts": ["moved.example.com"], "service": "orders", "rewrite": "/v3"},
            {"path": "/live", "service": "orders", "websocket": True},
            {"path": "/calls", "service": "calls"},
            {"path": "/ask", "service": "orders", "rewrite": "/v1", "cost": 0, "cost_from_response": "x-tokens"},
            {"path": "/shop", "service": "calls", "methods": ["GET"], "cors": {"origins": ["https://a.example"]}},
            {"path": "/mine", "service": "orders", "credentials": "remove", "require": "any"},
            {"path": "/written", "service": "orders", "methods": ["POST"], "require": "any"},
        ],
        identity={"api_keys": {"query": "key", "keys": [{"sha256": digest(KEY), "user": "ada"}]}},
        rules={
            "ignore_case": True,
            "rules": [
                {"id": "all", "dimension": "ip", "limit": 100_000, "window": "1h"},
                {"id": "two", "dimension": "ip", "limit": 2, "window": "1h", "endpoint": "/headers"},
                {"id": "asked", "dimension": "ip", "endpoint": "/ask/**", "limit": 100, "window": "1h"},
            ],
        },
    )
    with gateway(file) as found:
        yield found.started()


def status(running: Gateway, target: bytes, host: bytes = b"api", lines: Sequence[bytes] = ()) -> int:
    return int(sent(running.port, post(target, lines, method=b"GET").replace(b"Host: api", b"Host: " + host))[9:12])


def reached(behind: Upstream, path: bytes) -> list[tuple[bytes, bytes]]:
    """The header of the request for a path."""
    (found,) = [header for line, header in zip(behind.served, behind.headers, strict=True) if path in line]
    return found


def test_connection_headers_cannot_remove_the_identity(running: Gateway, behind: Upstream) -> None:
    """Headers named by Connection are removed; with an upgrade, Envoy passes it on to the service."""
    lines = ["GET /live/7 HTTP/1.1", "Host: api", "Upgrade: websocket", "Connection: Upgrade, X-Headgate-User"]
    sent(running.port, "\r\n".join([*lines, f"X-Api-Key: {KEY}", "", ""]).encode())
    header = reached(behind, b"/live/7")
    assert [value.lower() for name, value in header if name == b"connection"] == [b"upgrade"]
    assert (b"x-headgate-user", b"ada") in header


def test_trailers_have_no_headers_of_ours(running: Gateway, called: Calls) -> None:
    trailers = [(b"x-headgate-user", b"forged"), (b"x-forwarded-for", b"192.0.2.1"), (b"x-sum", b"7")]
    sent_over_http2(running.port, [*POST.items()], unchecked(trailers))
    assert called.fields.count(b"x-forwarded-for") == 1  # Envoy's own, with the address of the client
    assert b"x-sum" in called.fields
    assert b"x-headgate-user" not in called.fields


def test_the_cost_of_a_response_counts_for_the_path_of_the_request(running: Gateway) -> None:
    """Even if the path is rewritten for the service, or has a long query."""
    assert running.get("/ask/7?" + "q" * 9000).status == 200
    until(lambda: running.get("/ask/7").status == 429, "what is spent is refused", SECONDS)


def test_a_listener_for_all_addresses_accepts_both_families() -> None:
    """A listener for all addresses takes IPv4 as well, and knows such a client by its address of IPv4."""
    with upstream() as behind:
        file = minimal(behind.port, rules={**RULES, "deny": [{"ip": "127.0.0.0/8"}]})
        file["listeners"][0]["address"] = "::"
        with gateway(file) as running:
            assert running.started().get("/orders/7").status == 403
            assert behind.served == []


def test_a_false_preflight_does_not_reach_other_methods(running: Gateway, behind: Upstream) -> None:
    """The route is for GET and its preflights; other requests go to the general route."""
    assert running.get("/shop/7", "OPTIONS", origin="", access_control_request_method="").status == 200
    assert reached(behind, b"/shop/7")


def test_a_key_in_the_query_is_removed_in_every_spelling(running: Gateway, behind: Upstream) -> None:
    assert running.get(f"/mine/7?k%65y={KEY}&a=b").status == 200
    assert b"GET /mine/7?a=b HTTP/1.1" in behind.served


def test_a_method_in_lower_case_is_refused(running: Gateway, behind: Upstream) -> None:
    """The route for POST needs a key, the one for the rest does not, and services may take post for POST."""
    fields = POST | {b":method": b"post", b":path": b"/written/7"}
    assert sent_over_http2(running.port, [*fields.items()]) == b"400"
    assert not any(b"/written" in line for line in behind.served)


REFUSED = rb"""
/orders/private;x /orders/private; /orders;x/private /orders/;/private /orders/private%3bx /orders%2Fprivate
/orders%5cprivate /orders/%2570rivate /orders/private%00 /orders/private%0a /orders/private%7f /orders/%c0%afprivate
/orders/%e0%80%afprivate /orders/%ff /orders/%ed%a0%80 /orders/%f4%90%80%80 /orders/private% /orders/%u0070rivate
/orders#/private * orders/private
""".split()
PRIVATE = rb"""
/orders/private /orders/private/ /ORDERS/Private /orders//private //orders/private /orders/x/../private
/orders/..;/orders/private /orders/%2e/private /%6frders/priv%61te /orders\private http://api/orders/private
/orders/private?a;b=%2f%3b /%c3%a9t%C3%A9/7 /@admin /%40admin /a%20b[1]/ /a%20b%5b1%5d /X.y
""".split()


def test_ambiguous_targets_are_refused(running: Gateway, behind: Upstream) -> None:
    before = len(behind.served)
    targets = [*REFUSED, "/été".encode(), b"/orders/ private"]
    assert {target: status(running, target) for target in targets} == dict.fromkeys(targets, 400)
    assert len(behind.served) == before


def test_every_other_spelling_of_a_path_has_its_route(running: Gateway) -> None:
    key = [f"X-Api-Key: {KEY}".encode()]
    found = {target: (status(running, target), status(running, target, lines=key)) for target in PRIVATE}
    assert found == dict.fromkeys(PRIVATE, (401, 200))
    others = (b"/orders/privatex", b"/orders/private%3Fx", b"/orders/private%23", b"/xzy", b"/a%20b")
    assert {target: status(running, target) for target in others} == dict.fromkeys(others, 200)


GUARDED = rb"""admin.example.com admin.example.com. ADMIN.example.com.:80 a.private.example.com. [2001:db8::5]
[2001:db8::5]:8000""".split()
NO_HOSTS = rb"""admin.example.com.. .admin.example.com a@admin.example.com admin.example.com: admin.example.com:80:80
admin%2eexample.com [2001:DB8:0:0::5] [::ffff:1] admin.example.com/""".split()
HOSTS = {
    401: GUARDED,
    400: [*NO_HOSTS, b"", b"api/free", b"[::1", b"a, admin.example.com", b"api\r\nHost: admin.example.com"],
    200: [b"private.example.com"],
}


def test_a_host_has_its_routes_in_every_spelling(running: Gateway, behind: Upstream) -> None:
    before = len(behind.served)
    for expected, hosts in HOSTS.items():
        assert {host: status(running, b"/any", host) for host in hosts} == dict.fromkeys(hosts, expected)
    assert len(behind.served) == before + len(HOSTS[200])


def test_the_host_of_an_absolute_target_counts(running: Gateway, behind: Upstream) -> None:
    assert status(running, b"http://ADMIN.example.com./any") == 401
    assert status(running, b"http://api./absolute", b"admin.example.com") == 200
    (header,) = [head for line, head in zip(behind.served, behind.headers, strict=True) if b"/absolute" in line]
    assert [value for name, value in header if name == b"host"] == [b"api"]


def test_a_path_is_rewritten_in_every_spelling(running: Gateway, behind: Upstream) -> None:
    assert [status(running, target) for target in (b"/%28NEW%29/1", b"/(new)")] == [200, 200]
    assert [b"/v2/1" in behind.served[-2], b"GET /v2 " in behind.served[-1]] == [True, True]
    assert status(running, b"/2", b"moved.example.com") == 200
    assert b"GET /v3/2 " in behind.served[-1]


def test_requests_with_too_many_headers_are_refused_and_not_counted(running: Gateway) -> None:
    def answer(*lines: bytes) -> int:
        return status(running, b"/headers", lines=lines)

    for number in (89, 96, 120):
        assert answer(*(b"X-%d: a" % each for each in range(number))) == 431
    for size in (16_384, 30_000, 50_000):
        assert answer(b"X-Long: " + b"a" * size) == 431
    assert answer(*(b"X-%d: a" % each for each in range(85))) == 200
    assert answer(b"X-Long: " + b"a" * 16_000) == 200
    assert answer() == 429


def listed(after: str) -> list[str]:
    """The names in the paragraph after a sentence of the page."""
    return re.findall(r"`([^`]+)`", PAGE.read_text().partition(after)[2].split("\n\n")[1])


def test_the_headers_that_the_page_lists_are_removed_in_every_spelling(running: Gateway, behind: Upstream) -> None:
    always = listed("with any text for `*`:")
    of_proxies = listed("headers that they do not write:")
    assert (always, of_proxies) == (FORBIDDEN, OF_PROXIES)
    names = [name.replace("*", made) for name in (*always, *of_proxies) for made in ("User-Of-Mine", "1")]
    names += [name.removesuffix("-*") for name in (*always, *of_proxies)]
    names += [name.replace("-", sign) for name in names for sign in ("_", ".", "|", "--") if "-" in name]
    for some in (names[at : at + 80] for at in range(0, len(names), 80)):
        assert status(running, b"/open", lines=[f"{name}: forged".encode() for name in (*some, "X-Kept")]) == 200
        assert [name for name, value in behind.headers[-1] if value == b"forged"] == [b"x-kept"]


def test_credentials_are_removed_without_a_decision() -> None:
    keys = {"header": "X-Key", "query": "api_key", "keys": [{"sha256": digest(KEY), "user": "ada"}]}
    tokens = [{"audience": "any", "secret_file": "secret"}]
    with upstream() as behind:
        file = minimal(
            behind.port,
            routes=[
                {"path": "/kept", "service": "orders"},
                {"path": "/removed", "service": "orders", "credentials": "remove"},
            ],
            identity={"api_keys": keys, "tokens": tokens},
            on_headgate_failure="allow",
            decisions={"timeout": "1s"},
        )
        with gateway(file, files={"secret": SECRET}) as running:
            (worker,) = running.started().children("headgate.server.worker")
            until(lambda: status(running, b"/removed?api_key=ak_guessed") == 401, "it decides", SECONDS)
            os.kill(worker, signal.SIGSTOP)
            try:
                until(lambda: status(running, b"/removed") == 200, "it does not", SECONDS)
                token = jwt.encode({"sub": "ada", "exp": int(time.time()) + 600}, SECRET, "HS256")
                credentials = [f"X-Key: {KEY}".encode(), f"Authorization: Bearer {token}".encode()]
                for query in (b"", b"?a=%26b&api_keys=7&b=?api_key=7", b"?" + b"a" * 9000):
                    assert status(running, b"/removed" + query, lines=credentials) == 200
                    assert behind.served[-1] == b"GET /removed%b HTTP/1.1" % query
                    assert not {b"x-key", b"authorization"} & {name for name, _ in behind.headers[-1]}
                for query in (b"?api_key=7", b"?a=1&ap%69%5fkey=7&b", b"?api_key", b"?api_key&" + b"a" * 9000):
                    assert status(running, b"/removed" + query) == 503
                assert status(running, b"/kept?api_key=7", lines=credentials) == 200
                assert behind.served[-1] == b"GET /kept?api_key=7 HTTP/1.1"
                assert {b"x-key", b"authorization"} < {name for name, _ in behind.headers[-1]}
            finally:
                os.kill(worker, signal.SIGCONT)
