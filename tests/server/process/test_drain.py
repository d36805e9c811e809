"""SIGTERM: health checks fail first, then the ports close, and every accepted request gets a response."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import msgspec
import pytest
import yaml

from headgate.protos import RateLimitRequest, message_class
from headgate.server.configuration import EXAMPLE
from headgate.server.rls import SHOULD_RATE_LIMIT
from tests.server.hostile import upstream
from tests.server.process.service import SECONDS, Clients, Service, altered, sent_check, service
from tests.server.rls.envoys import Envoy
from tests.servers import RedisServer, free_port, until

COUNTED = ("--log-access", "on", "--log-denials", "0")
"""A line for every request that was taken."""
GRACE = {"headgate.server.wire.listener._IN_TRANSIT": 2.0}
"""Longer than a busy machine keeps a client of these tests from asking again."""
_WORKER = """
from headgate.server import worker
from headgate.server.wire import listener
assert listener._IN_TRANSIT
listener._IN_TRANSIT = 2.0
raise SystemExit(worker.main())
"""
WORKERS_GRACE = {"headgate.server.supervisor._COMMAND": (sys.executable, "-P", "-c", _WORKER)}
"""The same for workers, which are programs of their own."""


def assert_drains(found: Service) -> None:
    """No request fails or is cut off, and all responses arrive, on kept and new connections."""
    users = [f"u{number}" for number in range(4)]
    with Clients(found.started().http_port, users) as keep, Clients(found.http_port, users, keeps=False) as connect:
        for clients in (keep, connect):
            clients.until_answered(20)
        found.signal(signal.SIGTERM)
        until(lambda: all(client.was_refused for client in (*keep.all, *connect.all)), "all have seen the end", SECONDS)
    assert found.ended() == 0
    assert keep.failures == connect.failures == []
    assert keep.answered + connect.answered == found.complained.count("headgate.access")
    for text in ("aborted", "Traceback"):
        assert text not in found.complained


@contextmanager
def unfinished(port: int) -> Iterator[None]:
    """A request that the service has begun to read, and of which no more comes."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as slow:
        lines = b"POST /api/v1/rate-limit/check HTTP/1.1", b"host: x", b"content-length: 10", b"expect: 100-continue"
        slow.sendall(b"\r\n".join([*lines, b"", b""]))
        assert slow.recv(1000).startswith(b"HTTP/1.1 100 ")
        slow.sendall(b"{")
        yield


@pytest.mark.parametrize("constants", [GRACE, {"headgate.server.ports._ATTACH_FILTER": 9999, **GRACE}])
def test_one_process_drains_without_a_failed_request_also_where_the_system_refuses_the_filter(
    constants: dict[str, object],
) -> None:
    """Some do, to users without privileges."""
    with service(*COUNTED, program=altered(constants)) as found:
        assert_drains(found)


def test_workers_drain_without_a_failed_request(redis: RedisServer) -> None:
    """A connection that the system took for a worker that stops is still served."""
    with service("--workers", "2", "--store", redis.address, *COUNTED, program=altered(WORKERS_GRACE)) as found:
        assert_drains(found)


def test_calls_of_grpc_and_streams_of_http2_are_answered_to_the_last_one(redis: RedisServer, tmp_path: Path) -> None:
    """h2load counts requests as failed that it has not sent yet, so accepted requests are compared."""
    question = tmp_path / "question.json"
    question.write_text('{"principal": {"user": "u1"}, "endpoint": "/api/v1/orders"}')
    with service("--workers", "2", "--store", redis.address, *COUNTED, program=altered(WORKERS_GRACE)) as found:
        callers = [Caller(f"127.0.0.1:{found.started().grpc_port}") for _ in range(4)]
        for caller in callers:
            caller.start()
        url = f"http://127.0.0.1:{found.http_port}/api/v1/rate-limit/check"
        command = ["h2load", "-c8", "-m10", "-n1000000", "-d", str(question), url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            until(lambda: all(caller.answered >= 20 for caller in callers), "all are answered", SECONDS)
            until(lambda: "api=check" in found.complained, "it gets requests", SECONDS)
            found.signal(signal.SIGTERM)
            report, _ = load.communicate(timeout=SECONDS)
        for caller in callers:
            caller.join(SECONDS)
            assert not caller.is_alive(), "a call hangs"
            assert "failed to connect" in caller.end, caller.end
        assert found.ended() == 0
        succeeded = re.search(r"(\d+) succeeded", report)
        assert succeeded
        lines = [line for line in found.complained.splitlines() if "headgate.access" in line]
        assert sum("api=check" in line for line in lines) == int(succeeded[1])
        assert sum("api=rls" in line for line in lines) == sum(caller.answered for caller in callers)


@pytest.mark.parametrize(("workers", "second"), [("1", signal.SIGINT), ("2", signal.SIGTERM)])
def test_a_second_signal_ends_it_at_once(redis: RedisServer, workers: str, second: signal.Signals) -> None:
    with service("--workers", workers, "--store", redis.address, "--drain-seconds", "600") as found:
        with unfinished(found.started().http_port):
            found.signal(signal.SIGTERM)
            until(lambda: "draining" in found.complained, "it drains", SECONDS)
            found.signal(second)
            assert found.ended() == 0
        assert "stopping immediately" in found.complained


def test_requests_that_outlast_the_time_for_draining_are_cut_off(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, "--drain-seconds", "0.5") as found:
        with unfinished(found.started().http_port):
            found.signal(signal.SIGTERM)
            assert found.ended() == 0
        assert "some requests did not end within 0.5 s and were aborted" in found.complained


def test_it_ends_when_its_terminal_is_closed(redis: RedisServer, tmp_path: Path) -> None:
    output = tmp_path / "said"
    options = ["--http-port", "0", "--grpc-port", "0", "--workers", "2", "--store", redis.address]
    options += ["--rules", str(EXAMPLE)]
    command = [sys.executable, "-m", "headgate.cli", "serve", *options]
    heed = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # also where these tests run under nohup
    script = f"import pty, signal, sys; {heed}; sys.exit(pty.spawn({command!r}))"
    with output.open("wb") as out:
        terminal = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=out)
    try:
        until(lambda: "curl" in output.read_text(), "it serves", SECONDS)
        children = Path(f"/proc/{terminal.pid}/task/{terminal.pid}/children")
        (served,) = map(int, children.read_text().split())
    finally:
        terminal.kill()
        terminal.wait()
    try:
        until(lambda: has_ended(served), "it ends", SECONDS)
    finally:
        if not has_ended(served):
            os.kill(served, signal.SIGTERM)


def has_ended(process: int) -> bool:
    """Whether a process, perhaps an orphan, is gone or a zombie."""
    try:
        return " Z " in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


class Caller(threading.Thread):
    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.answered, self.end = 0, ""

    def run(self) -> None:
        message = RateLimitRequest(domain="edge", descriptors=[{"entries": [{"key": "user", "value": "u1"}]}])
        raw = message.SerializeToString()
        with grpc.insecure_channel(self._address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SHOULD_RATE_LIMIT.decode())
            while True:
                try:
                    assert call(raw, timeout=SECONDS)
                except grpc.RpcError as error:
                    self.end = str(error)
                    return
                self.answered += 1


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
            until(lambda: health() == 2, "gRPC health fails", SECONDS)
            assert msgspec.json.decode(sent_check(kept, "kept"))["allowed"]
            assert all(found.check(f"new{number}")["allowed"] for number in range(8))
            assert found.get("/healthz")[0] == 200
            if workers == "2":  # no client notices a worker that dies during the delay
                os.kill(min(found.workers()), signal.SIGKILL)
                until(lambda: listening(port) == 1, "its socket listens no more", SECONDS)
                assert all(found.check(f"left{number}")["allowed"] for number in range(8))
            found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert found.complained.count("health checks fail from now on") == 1


def test_behind_a_balancer_that_checks_health_no_request_fails_when_nodes_are_restarted(redis: RedisServer) -> None:
    options = ("--store", redis.address, *LONG)
    users = ["u0", "u1"]
    with (
        fleet(*options) as (nodes, balancer),
        Clients(balancer.port, users) as keep,
        Clients(balancer.port, users, keeps=False) as connect,
    ):
        for index in range(len(nodes)):
            for clients in (keep, connect):
                clients.until_answered(20)
            leaving = nodes[index]
            leaving.signal(signal.SIGTERM)
            until(lambda: healthy(balancer) == 2, "the balancer has seen that its checks fail", SECONDS)
            leaving.signal(signal.SIGTERM)
            assert leaving.ended() == 0
            nodes[index] = Service(leaving.out.parent, *options, *ports_of(leaving)).started()
            until(lambda: healthy(balancer) == 4, "and that those of the next one succeed", SECONDS)
        for clients in (keep, connect):
            clients.until_answered(20)
            assert not any(client.was_refused for client in clients.all)
    assert keep.failures == connect.failures == []


def listening(port: int) -> int:
    return Path("/proc/net/tcp").read_text(encoding="ascii").count(f":{port:04X} 00000000:0000 0A")


@contextmanager
def fleet(*options: str) -> Iterator[tuple[list[Service], Envoy]]:
    """Two nodes behind an Envoy that checks their health, limits requests over gRPC, and sends them to HTTP."""
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
        balancer = Envoy(folder, configuration(nodes), stack.enter_context(upstream()))
        stack.callback(balancer.stop)
        balancer.start()
        until(lambda: healthy(balancer) == 4, "all are healthy", SECONDS)
        yield nodes, balancer


def ports_of(node: Service) -> tuple[str, ...]:
    return "--http-port", str(node.http_port), "--grpc-port", str(node.grpc_port)


def healthy(balancer: Envoy) -> int:
    stats = balancer.admin("/stats?filter=membership_healthy").decode().splitlines()
    return sum(int(line.rpartition(": ")[2]) for line in stats)


BALANCER = f"""
admin: {{address: &any {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
health: &health
  {{timeout: 60s, interval: 0.1s, no_traffic_interval: 0.1s, unhealthy_threshold: 1, healthy_threshold: 1}}
cluster: &cluster  # with the window, it might go on sending for a second
  {{type: STATIC, connect_timeout: 60s, common_lb_config: {{update_merge_window: 0s}}}}
static_resources:
  listeners:
    - name: edge
      address: *any
      filter_chains:
        - filters:
            - name: http
              typed_config:
                "@type": {TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{prefix: /}}
                          route:
                            cluster: http
                            timeout: 60s
                            rate_limits:
                              - actions: [{{generic_key: {{descriptor_key: user, descriptor_value: edge}}}}]
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": {TYPES}.filters.http.ratelimit.v3.RateLimit
                      domain: edge
                      timeout: 60s
                      failure_mode_deny: true
                      rate_limit_service:
                        {{transport_api_version: V3, grpc_service: {{envoy_grpc: {{cluster_name: grpc}}}}}}
                  - {{name: router, typed_config: {{"@type": {TYPES}.filters.http.router.v3.Router}}}}
  clusters:
    - <<: *cluster
      name: http
      health_checks: [{{<<: *health, http_health_check: {{path: /readyz}}}}]
    - <<: *cluster
      name: grpc
      health_checks: [{{<<: *health, grpc_health_check: {{}}}}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": {TYPES}.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{http2_protocol_options: {{}}}}
"""
"""An Envoy that limits requests by the nodes' gRPC ports, and sends them to their HTTP ports."""


def configuration(nodes: list[Service]) -> str:
    read: dict[str, Any] = yaml.safe_load(BALANCER)
    del read["health"], read["cluster"]
    for cluster in read["static_resources"]["clusters"]:
        ports = [node.http_port if cluster["name"] == "http" else node.grpc_port for node in nodes]
        places = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
        endpoints = [{"lb_endpoints": [{"endpoint": {"address": each}} for each in places]}]
        cluster["load_assignment"] = {"cluster_name": cluster["name"], "endpoints": endpoints}
    return msgspec.json.encode(read).decode()


def asks_ready(connection: HTTPConnection) -> int:
    connection.request("GET", "/readyz")
    response = connection.getresponse()
    response.read()
    return response.status


@contextmanager
def channel(found: Service) -> Iterator[Any]:
    """Yield a function that returns the health over gRPC, on one connection: 1 for serving, 2 for not serving."""
    with grpc.insecure_channel(f"127.0.0.1:{found.grpc_port}") as open_channel:
        call: Any = open_channel.unary_unary(HEALTH, response_deserializer=_HealthCheckResponse.FromString)
        yield lambda: call(b"", timeout=SECONDS).status
