"""What clients of a gateway see, with a real Envoy, a real Redis and services behind it."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from typing import Any

import grpc
import jwt
import pytest
import yaml
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from headgate.web.apikey import digest
from tests.gateway.gateways import PATIENT, SECONDS, Gateway, Upstream, gateway, upstream
from tests.server.hostile import sent_over_http2
from tests.servers import RedisServer, free_port, until

KEY, SECRET = "ak_reporting-0123456789", "a secret that the issuer shares with us"
ORIGIN = "https://app.example.com"


KEYS = ("reporting", "one", "two", "three", "four")
FILE = """
version: 1
services:
  orders: {endpoints: ["127.0.0.1:%(orders)d"]}
  users: {endpoints: ["localhost:%(users)d"]}  # which has an IPv6 address, too
  search: {endpoints: ["127.0.0.1:%(search)d"]}
  sockets: {endpoints: ["127.0.0.1:%(sockets)d"]}
  rpc: {endpoints: ["127.0.0.1:%(rpc)d"], protocol: http2}
  gone: {endpoints: ["127.0.0.1:%(gone)d"]}
routes:
  - {path: /orders, service: orders, methods: [GET, POST], cors: {origins: [https://app.example.com]}}
  - {path: /orders/export, service: orders, cost: 3, attributes: {kind: export}}
  - {path: /users, service: users, require: any, credentials: remove}
  - {path: /search, service: search, cost: 0, cost_from_response: x-cost}
  - {path: /v1/search, service: search, rewrite: /}
  - {path: /, hosts: [internal.example.com], service: users}
  - {path: /socket, service: sockets, websocket: true}
  - {path: /test.Echo, service: rpc, timeout: none}
  - {path: /gone, service: gone}
identity:
  api_keys: {query: api_key}
  tokens: [{issuer: https://id.example.com, audience: [api], secret_file: secret, claims: {tier: plan}}]
rules:
  rules:
    - {id: anonymous, dimension: ip, quota: 3/h, endpoint: /orders/anonymous}
    - {id: per-user, quota: 5/h, endpoint: /orders/limited}
    - {id: exports, quota: 7/h, when: {kind: export}}
    - {id: searches, quota: 100/h, when: {service: search}}
    - {id: calls, dimension: ip, quota: 1/h, endpoint: /test.Echo/Limited}
    - {id: guessed-x_api_key, dimension: ip, quota: 2/h, endpoint: /orders/guessed-x_api_key}
    - {id: guessed-authorization, dimension: ip, quota: 2/h, endpoint: /orders/guessed-authorization}
    - {id: unrouted, dimension: ip, quota: 2/h, endpoint: /nowhere/**}
  tiers: {pro: {per-user: {limit: 8}}}
threads: 1
drain_delay: 0
"""


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Upstream]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(upstream(name)) for name in ("orders", "users", "search")}


@pytest.fixture(scope="module")
def sockets() -> Iterator[int]:
    """The port of a server that speaks WebSocket, and repeats each message twice."""

    def echo(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(2 * message)

    with serve(echo, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.socket.getsockname()[1])
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def rpc() -> Iterator[int]:
    """The port of a gRPC server whose methods stream what they are sent, backwards."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
            del details
            return grpc.stream_stream_rpc_method_handler(lambda sent, _: (message[::-1] for message in sent))

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


@pytest.fixture(scope="module")
def running(redis: RedisServer, services: dict[str, Upstream], sockets: int, rpc: int) -> Iterator[Gateway]:
    ports = {name: each.port for name, each in services.items()} | {"sockets": sockets, "rpc": rpc, "gone": free_port()}
    file = yaml.safe_load(FILE % ports)
    keys = {name: {"sha256": digest(f"ak_{name}-0123456789"), "name": name, "user": name} for name in KEYS}
    keys["reporting"] |= {"user": "ada", "tenant": "acme", "tier": "pro"}
    file["identity"]["api_keys"]["keys"] = [*keys.values()]
    file |= {"listeners": [{"port": free_port()}], "admin": {"port": free_port()}, "store": redis.address}
    file["decisions"] = {**PATIENT, "workers": 2}
    with gateway(file, files={"secret": SECRET}) as found:
        yield found.started()


def token(user: str, **claims: Any) -> str:
    usual = {"iss": "https://id.example.com", "aud": "api", "sub": user, "exp": int(time.time()) + 600}
    return jwt.encode({**usual, **claims}, SECRET, "HS256")


def statuses(running: Gateway, path: str, times: int, **headers: Any) -> list[int]:
    return [running.get(path, **headers).status for _ in range(times)]


def test_requests_are_routed_by_path_method_and_host(running: Gateway) -> None:
    def reached(path: str, method: str = "GET", **headers: Any) -> tuple[Any, Any]:
        body = running.get(path, method, **headers).json
        return body.get("service"), body.get("path", body.get("status"))

    assert reached("/orders/7?a=b") == ("orders", "/orders/7?a=b")
    assert reached("/search") == ("search", "/search")
    assert reached("/v1/search/all?q=1") == ("search", "/all?q=1")
    assert reached("/v1/search") == ("search", "/")
    assert reached("/ordersx") == (None, 404)
    assert reached("/orders/7", "DELETE") == (None, 404)
    assert reached("/else") == (None, 404)
    assert reached("/orders/7", Host="internal.example.com:80") == ("users", "/orders/7")
    for host in ("api:8000", "a_b.example.com.", "[::1]:80", "127.0.0.1"):
        assert reached("/orders/7", Host=host) == ("orders", "/orders/7"), host


def test_an_anonymous_caller_is_limited_by_address(running: Gateway) -> None:
    assert statuses(running, "/orders/anonymous", 5) == [200, 200, 200, 429, 429]


def test_a_refusal_has_headers_and_a_problem_document(running: Gateway) -> None:
    mine: dict[str, Any] = {"x_api_key": "ak_one-0123456789"}
    allowed = running.get("/orders/limited", **mine)
    assert allowed.headers["x-ratelimit-remaining"] == "4"
    assert allowed.headers["ratelimit-policy"] == '"per-user";q=5;w=3600'
    while (refused := running.get("/orders/limited", **mine)).status == 200:
        pass
    assert refused.status == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["cache-control"] == "no-store"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert refused.headers["server"] == "headgate"
    assert refused.json["violated-policies"] == ["per-user"]
    assert "per-user allows 5/hour" in refused.json["detail"]
    line = running.logged(
        '"path":"/orders/limited","protocol":"HTTP/1.1","request_id":"' + refused.headers["x-request-id"]
    )
    assert (line["status"], line["outcome"], line["rule"], line["apikey"]) == (429, "denied", "per-user", "one")


def test_an_api_key_has_the_limits_of_its_holder_and_tier(running: Gateway) -> None:
    assert statuses(running, "/orders/limited", 9, x_api_key=KEY) == [200] * 8 + [429]


def test_a_key_may_come_in_the_query_and_is_not_logged(running: Gateway) -> None:
    received = running.get("/users/me?api_key=ak_two-0123456789").json
    assert received["headers"]["x-headgate-apikey"] == "two"
    assert "ak_two" not in json.dumps(received)
    line = running.logged('"path":"/users/me"')
    assert "ak_two" not in json.dumps(line)


def test_a_token_has_the_limits_of_its_user(running: Gateway) -> None:
    mine: dict[str, Any] = {"authorization": f"Bearer {token('grace')}"}
    assert statuses(running, "/orders/limited", 6, **mine) == [200] * 5 + [429]
    better: dict[str, Any] = {"authorization": f"Bearer {token('edsger', plan='pro')}"}
    assert statuses(running, "/orders/limited", 9, **better) == [200] * 8 + [429]


def test_services_get_the_verified_identity_only(running: Gateway) -> None:
    lies = {
        "x-headgate-user": "root",
        "x-headgate-tier": "pro",
        "X-Envoy-Internal": "true",
        "x-forwarded-for": "198.51.100.7",
        "x-real-ip": "198.51.100.7",
        "forwarded": "for=198.51.100.7",
        "x-request-id": "mine",
        "x_headgate_user": "root",
    }
    connection = HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)
    connection.request("GET", "/users/me", headers={**lies, "X-Api-Key": KEY})
    received = json.loads(connection.getresponse().read())["headers"]
    connection.close()
    ours = {name: value for name, value in received.items() if name.startswith("x-headgate-")}
    assert ours == {
        "x-headgate-user": "ada",
        "x-headgate-apikey": "reporting",
        "x-headgate-tenant": "acme",
        "x-headgate-tier": "pro",
    }
    assert "198.51.100.7" not in json.dumps(received)
    assert received["x-request-id"] != "mine"
    assert {name for name in received if name.startswith("x-envoy") or "_" in name} == {"x-envoy-external-address"}
    assert "x-api-key" not in received


def test_unverified_credentials_are_refused(running: Gateway, services: dict[str, Upstream]) -> None:
    before = len(services["users"].served)
    claims = {"sub": "ada", "aud": "api", "exp": 4e9}
    tokens = [token("ada", exp=1), token("ada", aud="other"), token("ada", iss="other"), "a.b.c"]
    tokens += [jwt.encode(claims, "k" * 32, "HS256"), jwt.encode(claims, "", "none")]
    credentials = [*(f"Bearer {each}" for each in tokens), f"bearer {tokens[0]}"]
    credentials.append(f"Basic {base64.b64encode(b'ada:secret').decode()}")
    named: list[dict[str, Any]] = [{}, {"x_api_key": "ak_guessed"}, *({"authorization": each} for each in credentials)]
    for headers in named:
        reply = running.get("/users/secret", **headers)
        assert (reply.status, reply.json["status"]) == (401, 401), headers
        assert reply.headers["content-type"] == "application/problem+json"
        assert "www-authenticate" in reply.headers
    assert len(services["users"].served) == before


def test_guesses_are_counted_by_address(running: Gateway) -> None:
    guesses = [f"Bearer {token('ada', aud='other')}", "Bearer a.b.c", f"Bearer {token('ada', exp=1)}", "Bearer x"]
    for name in ("x_api_key", "authorization"):
        tried: list[dict[str, Any]] = [{name: guess} for guess in guesses]
        path = f"/orders/guessed-{name}"
        assert [running.get(path, **guess).status for guess in tried] == [401, 401, 429, 429], name


def test_a_route_has_its_cost(running: Gateway) -> None:
    mine: dict[str, Any] = {"x_api_key": "ak_three-0123456789"}
    assert statuses(running, "/orders/export", 3, **mine) == [200, 200, 429]


def test_the_cost_of_a_response_is_counted_and_not_shown(running: Gateway) -> None:
    mine: dict[str, Any] = {"x_api_key": "ak_four-0123456789"}

    def remaining(path: str = "/search", **headers: Any) -> int:
        reply = running.get(path, **mine, **headers)
        assert "x-cost" not in reply.headers
        return int(reply.headers["x-ratelimit-remaining"])

    assert remaining() == 100, "the route itself costs nothing"
    assert remaining(x_tell_cost="50") == 100
    until(lambda: remaining() == 50, "what it has cost is counted", SECONDS)
    for nothing in ("", "0", "-7 apples", "-5", "nan", "NaN", "inf", "-inf", "infinity", ".5", "e5"):
        assert remaining(x_tell_cost=nothing) == 50
    assert remaining(x_tell_cost="7.9 apples") == 50
    until(lambda: remaining() == 43, "and nothing but the whole number that it begins with", SECONDS)
    assert remaining(x_tell_cost="9" * 400) == 43
    until(lambda: running.get("/search", **mine).status == 429, "what is spent is refused", SECONDS)


def test_preflights_are_answered_and_headers_exposed(running: Gateway, services: dict[str, Upstream]) -> None:
    before = len(services["orders"].served)
    asking: dict[str, Any] = {"origin": ORIGIN, "access_control_request_method": "POST"}
    preflight = running.get("/orders/7", "OPTIONS", **asking)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert preflight.headers["access-control-allow-methods"] == "GET, POST"
    assert "x-api-key" in preflight.headers["access-control-allow-headers"]
    other = running.get("/orders/7", "OPTIONS", **{**asking, "origin": "https://evil.example.com"})
    assert "access-control-allow-origin" not in other.headers
    assert len(services["orders"].served) == before
    passed = running.get("/orders/7", origin=ORIGIN)
    assert passed.headers["access-control-allow-origin"] == ORIGIN
    assert "X-RateLimit-Remaining" in passed.headers["access-control-expose-headers"]
    refused = running.get("/orders/7", origin=ORIGIN, authorization="Bearer a.b.c")
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, ORIGIN)


def test_websockets_pass(running: Gateway) -> None:
    with connect(f"ws://127.0.0.1:{running.port}/socket") as client:
        client.send("ab")
        assert client.recv() == "abab"
        client.send(b"\x00" * 100_000)
        assert len(client.recv()) == 200_000


def test_only_websocket_routes_upgrade(running: Gateway) -> None:
    upgrade: dict[str, Any] = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec_websocket_key": "YQ==",
        "sec_websocket_version": "13",
    }
    assert running.get("/orders/7", **upgrade).status == 403


def test_grpc_passes_in_both_directions(running: Gateway) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call: Any = channel.stream_stream("/test.Echo/Reverse")
        assert list(call(iter([b"abc", b"x" * 50_000]), timeout=SECONDS)) == [b"cba", b"x" * 50_000]


def test_a_refused_grpc_client_gets_a_status(running: Gateway) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call: Any = channel.unary_unary("/test.Echo/Reverse")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=[("x-api-key", "ak_guessed")], timeout=SECONDS)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "API key" in error.details()
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        limited: Any = channel.stream_stream("/test.Echo/Limited")
        assert list(limited(iter([b"ab"]), timeout=SECONDS)) == [b"ba"]
        with pytest.raises(grpc.RpcError) as caught:
            list(limited(iter([b"ab"]), timeout=SECONDS))
    error = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "calls allows 1/hour" in error.details()
    assert dict(error.initial_metadata() or error.trailing_metadata())["retry-after"]


def test_a_refusal_has_the_code_of_its_status(running: Gateway) -> None:
    for path, audience, code in (
        ("/test.Echo/Reverse", "others", grpc.StatusCode.UNAUTHENTICATED),
        ("/gone/Call", "api", grpc.StatusCode.UNAVAILABLE),
    ):
        with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            call: Any = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=[("authorization", f"Bearer {token('ada', aud=audience)}")], timeout=SECONDS)
        error: Any = caught.value
        assert error.code() is code
        assert '"status"' in error.details()


def test_a_repeated_credential_is_refused(running: Gateway, services: dict[str, Upstream]) -> None:
    before = len(services["orders"].served)
    for line in (f"X-Api-Key: {KEY}", f"Authorization: Bearer {token('ada')}"):
        raw = f"GET /orders/7 HTTP/1.1\r\nHost: api\r\nConnection: close\r\n{line}\r\n{line}\r\n\r\n".encode()
        status, kind = problem_of(running, raw)
        assert status in {400, 401}
        assert kind == "application/problem+json"
    assert len(services["orders"].served) == before


def test_streams_arrive_as_they_are_written(running: Gateway, services: dict[str, Upstream]) -> None:
    services["orders"].held.clear()
    connection = HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)
    connection.request("GET", "/orders/stream")
    response = connection.getresponse()
    assert response.read(5) == b"first"  # the service waits
    services["orders"].held.set()
    assert response.read() == b"last"
    connection.close()


def test_bodies_pass_up_to_their_limit(running: Gateway) -> None:
    """With and without Content-Length."""
    most = os.urandom(10 << 20)
    assert running.get("/orders/upload", "POST", body=most).json["size"] == len(most)
    assert running.get("/orders/upload", "POST", body=iter([most[:-1], b"x"])).json["size"] == len(most)
    chunk = b"100000\r\n%b\r\n" % (b"x" * (1 << 20))
    head = b"POST /orders/endless HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), SECONDS) as client, suppress(OSError):
        while True:  # until it is refused
            client.sendall(head or chunk)
            head = b""
    assert running.logged("/orders/endless")["status"] == 413


def test_unrouted_requests_are_limited_too(running: Gateway) -> None:
    assert statuses(running, "/nowhere/a", 3) == [404, 404, 429]


def problem_of(running: Gateway, raw: bytes) -> tuple[int, str]:
    """The status and the content type of the response to bytes."""
    with socket.create_connection(("127.0.0.1", running.port), SECONDS) as client:
        client.sendall(raw)
        answer = b""
        while part := client.recv(65_536):
            answer += part
    head = answer.decode("latin-1").partition("\r\n\r\n")[0].lower()
    return int(head.split(" ")[1]), "application/problem+json" if "application/problem+json" in head else ""


def test_envoys_own_answers_are_problem_documents(running: Gateway) -> None:
    for target, lines, status in (
        ("/nothing", "", 404),
        ("/gone", "", 503),
        ("/orders/..%2fusers", "", 400),
        ("/orders%5Cusers", "", 400),
        ("/orders/7", "X-Long: " + "a" * 17_000 + "\r\n", 431),
        ("/orders/7", "Content-Length: 10485761\r\n", 413),
        ("/orders/7", "X-Many: a\r\n" * 120, 431),
    ):
        raw = f"GET {target} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n{lines}\r\n".encode()
        assert problem_of(running, raw) == (status, "application/problem+json"), target


def test_paths_that_are_not_text_are_refused_over_http2(running: Gateway) -> None:
    """Envoy lets them pass there, and shows something else."""
    good = {b":method": b"GET", b":scheme": b"http", b":path": b"/orders/7", b":authority": b"api"}
    assert sent_over_http2(running.port, [*good.items()]) == b"200"
    for path in (b"/orders/\xff", b"/ord\xffers/7"):
        assert sent_over_http2(running.port, [*{**good, b":path": path}.items()]) == b"400"


def test_one_page_has_the_metrics_of_both(running: Gateway) -> None:
    running.get("/orders/7")
    metrics = running.metrics()
    assert "envoy_http_downstream_rq_total" in metrics
    assert 'envoy_cluster_name="orders"' in metrics
    assert "headgate_decisions_total" in metrics or "headgate_" in metrics
    assert running.metric("headgate_gateway_envoy_up") == 1
    assert running.get("/readyz", port=running.admin).json["status"] == "ready"
    assert running.get("/healthz", port=running.admin).status == 200
    assert running.get("/else", port=running.admin).status == 404
    assert running.get("/metrics", "POST", port=running.admin).status == 405
