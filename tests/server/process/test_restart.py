"""SIGTERM announces the end: health checks fail first, everything is still served, and then the ports close."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import grpc
import msgspec
import pytest

from headgate.protos import message_class
from tests.server.hostile import upstream
from tests.server.process.service import CHECK, SECONDS, Service, asked, service
from tests.server.rls.envoys import Envoy
from tests.servers import RedisServer, free_port, until

LONG = ("--drain-delay", "600")
"""Until the next signal."""
TYPES = "type.googleapis.com/envoy.extensions"
HEALTH = "/grpc.health.v1.Health/Check"
_HealthCheckResponse = message_class("grpc.health.v1.HealthCheckResponse")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_fails_health_checks_and_everything_is_served_until_the_delay_is_over(
    redis: RedisServer, workers: str
) -> None:
    with service("--workers", workers, "--store", redis.address, *LONG) as found:
        port = found.started().http_port
        with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as kept, channel(found) as health:
            assert (asks_ready(kept), health()) == (200, 1)
            found.signal(signal.SIGTERM)
            until(lambda: asks_ready(kept) == 503, "an open connection fails", SECONDS)
            until(lambda: all(found.get("/readyz")[0] == 503 for _ in range(8)), "and so do new ones", SECONDS)
            until(lambda: health() == 2, "gRPC says that it does not serve", SECONDS)
            assert msgspec.json.decode(asked(kept, "kept"))["allowed"]
            assert all(found.check(f"new{number}")["allowed"] for number in range(8))
            assert found.get("/healthz")[0] == 200
            found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert found.complained.count("announcing the end: health checks fail") == 1


def test_a_worker_that_dies_during_the_delay_is_missed_by_nobody(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, *LONG) as found:
        found.started().signal(signal.SIGTERM)
        until(lambda: "announcing the end" in found.complained, "the end is announced", SECONDS)
        one, *_ = found.workers()
        os.kill(one, signal.SIGKILL)
        until(lambda: len(found.workers()) == 1, "it is gone", SECONDS)
        assert all(found.check(f"left{number}")["allowed"] for number in range(8))
        found.signal(signal.SIGINT)
        assert found.ended() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_behind_a_balancer_that_checks_health_no_request_fails_when_nodes_are_restarted(
    redis: RedisServer, workers: str
) -> None:
    options = ("--workers", workers, "--store", redis.address, *LONG)
    with fleet(*options) as (nodes, balancer), Load(balancer.port) as load:
        for index in range(len(nodes)):
            load.until_answered(20)
            leaving = nodes[index]
            leaving.signal(signal.SIGTERM)
            until(lambda: healthy(balancer) == 2, "the balancer has seen that its checks fail", SECONDS)
            leaving.signal(signal.SIGTERM)
            assert leaving.ended() == 0
            nodes[index] = Service(leaving.out.parent, *options, *ports_of(leaving)).started()
            until(lambda: healthy(balancer) == 4, "and that those of the next one succeed", SECONDS)
        load.until_answered(20)
    assert load.failures == []


@contextmanager
def fleet(*options: str) -> Iterator[tuple[list[Service], Envoy]]:
    """Two nodes, and an Envoy that checks their health, and asks them over HTTP, for which it asks them over gRPC."""
    with ExitStack() as stack:
        nodes: list[Service] = []

        def stop() -> None:
            for node in nodes:  # those that run then
                node.stop()

        stack.callback(stop)
        for _ in range(2):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="headgate-restart-")))
            fixed = ("--http-port", str(free_port()), "--grpc-port", str(free_port()))
            nodes.append(Service(folder, *options, *fixed).started())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="headgate-balancer-")))
        text = msgspec.json.encode(configuration(nodes)).decode()
        balancer = Envoy(folder, text, stack.enter_context(upstream()))
        stack.callback(balancer.stop)
        balancer.start()
        until(lambda: healthy(balancer) == 4, "all are healthy", SECONDS)
        yield nodes, balancer


def ports_of(node: Service) -> tuple[str, ...]:
    return "--http-port", str(node.http_port), "--grpc-port", str(node.grpc_port)


def healthy(balancer: Envoy) -> int:
    """How many ports of the nodes the balancer takes for healthy."""
    stats = balancer.admin("/stats?filter=membership_healthy").decode().splitlines()
    return sum(int(line.rpartition(": ")[2]) for line in stats)


def configuration(nodes: list[Service]) -> dict[str, Any]:
    """Of an Envoy that asks the nodes over gRPC whether a request may pass, and sends it to their HTTP port."""
    http2 = {
        "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    limit = {
        "@type": f"{TYPES}.filters.http.ratelimit.v3.RateLimit",
        "domain": "edge",
        "timeout": "60s",
        "failure_mode_deny": True,
        "rate_limit_service": {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "grpc"}}},
    }
    entry = {"generic_key": {"descriptor_key": "user", "descriptor_value": "edge"}}
    route = {"cluster": "http", "timeout": "60s", "rate_limits": [{"actions": [entry]}]}
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "edge",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {"name": "envoy.filters.http.ratelimit", "typed_config": limit},
            {"name": "router", "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"}},
        ],
    }
    return {
        "admin": {"address": place(0)},
        "static_resources": {
            "listeners": [
                {
                    "name": "edge",
                    "address": place(0),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                cluster("http", [node.http_port for node in nodes], {"http_health_check": {"path": "/readyz"}}),
                {
                    **cluster("grpc", [node.grpc_port for node in nodes], {"grpc_health_check": {}}),
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2
                    },
                },
            ],
        },
    }


def cluster(name: str, ports: list[int], health: dict[str, Any]) -> dict[str, Any]:
    usual = {"timeout": "60s", "interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1}
    endpoints = [{"endpoint": {"address": place(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "60s",
        "common_lb_config": {"update_merge_window": "0s"},  # else it may go on sending for a second
        "health_checks": [{**usual, "no_traffic_interval": "0.1s", **health}],
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def place(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def asks_ready(connection: HTTPConnection) -> int:
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    response.read()
    return response.status


@contextmanager
def channel(found: Service) -> Iterator[Any]:
    """What asks for the health over gRPC on one connection: 1 if it serves, 2 if it does not."""
    with grpc.insecure_channel(f"127.0.0.1:{found.grpc_port}") as open_channel:
        call: Any = open_channel.unary_unary(HEALTH, response_deserializer=_HealthCheckResponse.FromString)
        yield lambda: call(b"", timeout=SECONDS).status


class Load:
    """Clients that ask through the balancer, on connections that last and on new ones."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.failures: list[str] = []
        self._port, self._ended, self.answered = port, threading.Event(), [0] * clients
        self._threads = [threading.Thread(target=self._ask, args=(index,), daemon=True) for index in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(SECONDS)

    def until_answered(self, more: int) -> None:
        wanted = [count + more for count in self.answered]
        until(lambda: all(map(int.__ge__, self.answered, wanted)), f"{more} answers for each client", SECONDS)

    def _ask(self, index: int) -> None:
        body = msgspec.json.encode({"principal": {"user": f"u{index}"}, "endpoint": "/", "method": "GET"})
        fields = {"content-type": "application/json"} | ({"connection": "close"} if index % 2 else {})
        connection = HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        while not self._ended.is_set():
            try:
                connection.request("POST", CHECK, body, fields)
                response = connection.getresponse()
                said = response.read()
            except (OSError, HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
            else:
                if response.status not in {200, 429}:
                    self.failures.append(f"{response.status} {said[:200]!r}")
                self.answered[index] += 1
        connection.close()
