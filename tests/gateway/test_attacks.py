"""What hostile clients send to a gateway: nothing of it passes a limit, or for what somebody else has sent."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded, TrailersReceived

from headgate.web.apikey import digest
from tests.gateway.gateways import SECONDS, Gateway, gateway, minimal
from tests.server.hostile import Upstream, hostile, hostile_over_http2, post, sent, sent_over_http2, serving, upstream
from tests.server.wire.http2.conversation import unchecked
from tests.servers import until

RULES = {"rules": [{"id": "per-address", "dimension": "ip", "limit": 2, "window": "1h"}]}
KEY = "ak_reporting-0123456789"
POST = {b":method": b"POST", b":scheme": b"http", b":authority": b"api", b":path": b"/calls/7"}


def test_nothing_beyond_the_limit_reaches_a_service() -> None:
    identity = {"api_keys": {"query": "key", "keys": [{"sha256": digest(KEY)}]}}
    with upstream() as behind, gateway(minimal(behind.port, rules=RULES, identity=identity)) as running:
        running.started()
        assert [running.get("/orders/7").status for _ in range(3)] == [200, 200, 429]
        let_through: list[str] = []
        for name, data in hostile():
            assert sent(running.port, data)[:10] in {b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.1 1"}, name
            if len(behind.served) > 2 + len(let_through):
                let_through.append(name)
        for name, fields in hostile_over_http2():
            assert sent_over_http2(running.port, fields)[:1] in {b"", b"4"}, name
            if len(behind.served) > 2 + len(let_through):
                let_through.append(name)
        assert let_through == []
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
def services() -> Iterator[tuple[Upstream, Calls]]:
    with upstream() as behind, serving(Calls()) as called:
        yield behind, called


@pytest.fixture(scope="module")
def running(services: tuple[Upstream, Calls]) -> Iterator[Gateway]:
    behind, called = services
    orders, sends = {"endpoints": [f"127.0.0.1:{behind.port}"]}, {"endpoints": [f"127.0.0.1:{called.port}"]}
    file = minimal(
        behind.port,
        services={"orders": orders, "calls": sends | {"protocol": "http2"}},
        routes=[
            {"path": "/", "service": "orders"},
            {"path": "/live", "service": "orders", "websocket": True},
            {"path": "/calls", "service": "calls"},
            {"path": "/ask", "service": "orders", "rewrite": "/v1", "cost": 0, "cost_from_response": "x-tokens"},
            {"path": "/shop", "service": "calls", "methods": ["GET"], "cors": {"origins": ["https://a.example"]}},
            {"path": "/mine", "service": "orders", "credentials": "remove", "require": "any"},
            {"path": "/written", "service": "orders", "methods": ["POST"], "require": "any"},
        ],
        identity={"api_keys": {"query": "key", "keys": [{"sha256": digest(KEY), "user": "ada"}]}},
        rules={"rules": [{"id": "asked", "dimension": "ip", "endpoint": "/ask/**", "limit": 100, "window": "1h"}]},
    )
    with gateway(file) as found:
        yield found.started()


def reached(behind: Upstream, path: bytes) -> list[tuple[bytes, bytes]]:
    """The header of the request for a path."""
    (found,) = [header for line, header in zip(behind.served, behind.headers, strict=True) if path in line]
    return found


def test_a_client_cannot_make_the_service_forget_who_it_is(running: Gateway, services: tuple[Upstream, Calls]) -> None:
    """What Connection names is not for the next but one; with an upgrade it goes on to the service."""
    lines = ["GET /live/7 HTTP/1.1", "Host: api", "Upgrade: websocket", "Connection: Upgrade, X-Headgate-User"]
    sent(running.port, "\r\n".join([*lines, f"X-Api-Key: {KEY}", "", ""]).encode())
    header = reached(services[0], b"/live/7")
    assert [value.lower() for name, value in header if name == b"connection"] == [b"upgrade"]
    assert (b"x-headgate-user", b"ada") in header


FORBIDDEN = [
    *("x.headgate.user", "X_Headgate_User", "X-Headgate-Any", "X--Headgate-User", "x-headgate", "X|Headgate~User"),
    *("X-Envoy-Original-Path", "X-Envoy-Upstream-Rq-Timeout-Ms", "x.envoy.retry-on", "Proxy"),
    *("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url", "X-Host"),
    *("X-Forwarded", "X-Forwarded-Host", "x.forwarded.for", "Forwarded", "X-Real-IP", "X-Client-IP", "Client-IP"),
    *("X-Cluster-Client-IP", "Fastly-Client-IP", "True-Client-IP", "CF-Connecting-IP", "X-Azure-ClientIP"),
]
"""Names by which services are told what is not the client's to say."""


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_spelling_of_what_is_not_the_clients_comes_from_it(
    running: Gateway, services: tuple[Upstream, Calls], name: str
) -> None:
    path = f"/{name.replace('|', '-')}/7"
    answer = sent(running.port, post(path.encode(), [f"{name}: forged".encode()], method=b"GET"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"forged" not in dict(reached(services[0], path.encode())).values()


@pytest.mark.parametrize("host", [b"api, internal", b"user@api", b"api/free", b"[::1", b"api\r\nHost: internal"])
def test_a_request_has_one_host(running: Gateway, services: tuple[Upstream, Calls], host: bytes) -> None:
    """Envoy joins two lines by a comma, and what a service makes of that is its own affair."""
    path = b"/hosts/%d" % len(host)
    answer = sent(running.port, post(path, method=b"GET").replace(b"Host: api", b"Host: " + host))
    assert answer.startswith(b"HTTP/1.1 400")
    assert not any(path in line for line in services[0].served)


@pytest.mark.parametrize("host", [b"api:8000", b"a_b.example.com.", b"[::1]:80", b"127.0.0.1"])
def test_any_host_is_one(running: Gateway, host: bytes) -> None:
    assert sent(running.port, post(b"/any", method=b"GET").replace(b"Host: api", b"Host: " + host))[9:12] == b"200"


def test_nor_do_trailers_have_them(running: Gateway, services: tuple[Upstream, Calls]) -> None:
    trailers = [(b"x-headgate-user", b"forged"), (b"x-forwarded-for", b"192.0.2.1"), (b"x-sum", b"7")]
    sent_over_http2(running.port, [*POST.items()], unchecked(trailers))
    assert services[1].fields.count(b"x-forwarded-for") == 1  # Envoy's own, with the address of the client
    assert b"x-sum" in services[1].fields
    assert b"x-headgate-user" not in services[1].fields


def test_what_a_response_has_cost_counts_for_the_path_that_was_asked_for(running: Gateway) -> None:
    """Also where the service gets another one. Long queries change nothing."""
    assert running.get("/ask/7?" + "q" * 9000).status == 200
    until(lambda: running.get("/ask/7").status == 429, "what is spent is refused", SECONDS)


def test_all_addresses_are_those_of_both_families() -> None:
    """A listener for all addresses takes IPv4 as well, and knows such a client by its address of IPv4."""
    with upstream() as behind:
        file = minimal(behind.port, rules={**RULES, "deny": [{"ip": "127.0.0.0/8"}]})
        file["listeners"][0]["address"] = "::"
        with gateway(file) as running:
            assert running.started().get("/orders/7").status == 403
            assert behind.served == []


def test_a_preflight_that_is_none_does_not_open_other_methods(
    running: Gateway, services: tuple[Upstream, Calls]
) -> None:
    """The route is for GET, and for what browsers ask before; all else is that of the route for the rest."""
    assert running.get("/shop/7", "OPTIONS", origin="", access_control_request_method="").status == 200
    assert reached(services[0], b"/shop/7")


def test_a_key_is_kept_from_the_service_however_its_parameter_is_spelt(
    running: Gateway, services: tuple[Upstream, Calls]
) -> None:
    assert running.get(f"/mine/7?k%65y={KEY}&a=b").status == 200
    assert b"GET /mine/7?a=b HTTP/1.1" in services[0].served


def test_a_method_in_small_letters_is_not_another_route(running: Gateway, services: tuple[Upstream, Calls]) -> None:
    """The route for POST needs a key, the one for the rest does not, and services may take post for POST."""
    fields = POST | {b":method": b"post", b":path": b"/written/7"}
    assert sent_over_http2(running.port, [*fields.items()]) == b"400"
    assert not any(b"/written" in line for line in services[0].served)
