"""How a gateway changes, fails and ends: reloads under load, outages, and draining."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from headgate.web.apikey import digest
from tests.gateway.gateways import PATIENT, SECONDS, Gateway, Upstream, gateway, minimal, upstream
from tests.server.process.certificates import Authority
from tests.servers import RedisServer, free_port, until

RULES = {
    "rules": [
        {"id": "all", "dimension": "ip", "limit": 1_000_000, "window": "1m", "endpoint": "/local/**"},
        {
            "id": "careful",
            "dimension": "ip",
            "limit": 1_000_000,
            "window": "1m",
            "endpoint": "/careful/**",
            "on_store_failure": "deny",
        },
    ]
}


@pytest.fixture(scope="module")
def orders() -> Iterator[Upstream]:
    with upstream("orders") as server:
        yield server


@pytest.fixture(scope="module")
def running(redis: RedisServer, orders: Upstream) -> Iterator[Gateway]:
    address = redis.address.partition("?")[0]
    file = minimal(orders.port, rules=RULES, store=address, drain_delay="600s", drain="60s", access_log="off")
    with gateway(file) as found:
        yield found.started()


class Client(threading.Thread):
    """Sends requests on one connection, and connects again when a response closes it.

    A gateway that cannot be connected to is the end of it, and not a failure. Nor is one that closes its port just
    then: the kernel has answered in its name, and resets what it has not taken.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self._end = port, threading.Event()
        self.answers: list[int] = []
        self.failures: list[BaseException] = []

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        while not self._end.is_set():
            try:
                if connection.sock is None:
                    connection.connect()
                    is_new = True
            except OSError:
                break
            try:
                connection.request("GET", "/local/7")
                response = connection.getresponse()
                response.read()
                self.answers.append(response.status)
                is_new = False
            except (OSError, HTTPException) as error:
                connection.close()
                was_reset = isinstance(error, ConnectionError) and not isinstance(error, HTTPException)
                if is_new and was_reset and refuses(self._port):
                    break
                self.failures.append(error)
        connection.close()

    def __enter__(self) -> Self:
        self.start()
        until(lambda: self.answers, "the client is answered", SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        seen = len(self.answers)
        until(lambda: len(self.answers) > seen + 20 or not self.is_alive(), "it is answered afterwards", SECONDS)
        self._end.set()
        self.join(SECONDS)


def test_routes_and_services_change_under_load_and_nothing_is_dropped(running: Gateway, orders: Upstream) -> None:
    """Counted by h2load over HTTP/2: every request is answered with 200, and no connection is lost."""
    services, routes = running.data["services"], running.data["routes"]
    program = shutil.which("h2load")
    assert program
    command = [program, "-n", "3000", "-c", "4", "-m", "4", f"http://127.0.0.1:{running.port}/local/7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loading:
        for turn in range(4):
            name = f"orders-{turn}"
            running.changed(
                services={name: {"endpoints": [orders.endpoint]}}, routes=[{"path": "/", "service": name, "cost": 2}]
            )
        output, _ = loading.communicate(timeout=SECONDS)
    assert "3000 succeeded, 0 failed, 0 errored, 0 timeout" in output, output
    assert "status codes: 3000 2xx" in output, output
    running.changed(services=services, routes=routes)
    assert running.get("/local/7").status == 200


def test_listeners_change_under_load_and_nothing_is_dropped(running: Gateway) -> None:
    """Filters of all requests change, so connections are drained; clients that reconnect lose nothing."""
    with Client(running.port) as one, Client(running.port) as other:
        for kb in (20, 24, 16):
            running.changed(limits={"header_kb": kb})
            until(partial(accepts, running, kb), f"{kb} KB are the limit", SECONDS)
    for client in (one, other):
        assert client.failures == []
        assert set(client.answers) == {200}


def accepts(running: Gateway, kb: int) -> bool:
    """Whether headers of this size are accepted, and no larger ones."""
    less, more = (running.get("/local/7", x_long="a" * size) for size in ((kb - 1) * 1024, (kb + 1) * 1024))
    return (less.status, more.status) == (200, 431)


def test_rules_and_keys_change_without_a_new_listener(running: Gateway) -> None:
    def changes() -> float:
        return running.metric("envoy_listener_manager_listener_in_place_updated")

    before = changes()
    rules = {"rules": [{"id": "tight", "dimension": "ip", "limit": 1, "window": "1h", "endpoint": "/tight"}]}
    running.changed(rules={**RULES, "rules": [*RULES["rules"], *rules["rules"]]})
    until(lambda: running.get("/tight").status == 429, "the new rule refuses", SECONDS)
    running.changed(rules=RULES)
    until(lambda: running.get("/tight").status == 200, "it is gone", SECONDS)
    assert changes() == before
    running.changed(limits={"header_kb": 17})
    until(lambda: changes() > before, "this is what changes it", SECONDS)
    running.changed(limits={"header_kb": 16})
    until(partial(accepts, running, 16), "it is as before", SECONDS)


def test_websockets_outlive_their_listener() -> None:
    """A change of the file ends no connection, whatever the drain time."""

    def echo(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with serve(echo, "127.0.0.1", 0) as server, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
        threads.submit(server.serve_forever)
        stack.callback(server.shutdown)
        file = minimal(server.socket.getsockname()[1], drain="1s", access_log="off")
        file["routes"][0]["websocket"] = True
        with gateway(file) as found, connect(f"ws://127.0.0.1:{found.started().port}/") as client:
            found.changed(limits={"header_kb": 20})
            until(lambda: found.metric("envoy_listener_manager_total_filter_chains_draining") > 0, "it is old", SECONDS)
            uptime = found.metric("envoy_server_uptime")
            until(lambda: found.metric("envoy_server_uptime") > uptime + 2, "Envoy has run for longer", SECONDS)
            client.send("still here")
            assert client.recv(SECONDS) == "still here"


def test_a_removed_key_is_refused_and_others_are_not(running: Gateway) -> None:
    """On existing connections, too; other keys are not affected."""

    def keys(*names: str) -> dict[str, Any]:
        return {"api_keys": {"keys": [{"sha256": digest(f"ak_{name}"), "name": name} for name in names]}}

    running.changed(identity=keys("kept", "removed"))
    until(lambda: running.get("/local/7", x_api_key="ak_removed").status == 200, "both are known", SECONDS)
    connection = HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)
    with closing(connection):
        connection.connect()
        client = connection.sock

        def status(name: str) -> int:
            connection.request("GET", "/local/7", headers={"X-Api-Key": f"ak_{name}"})
            response = connection.getresponse()
            response.read()
            return response.status

        assert status("removed") == 200
        loads = running.loads()
        running.write({**running.data, "identity": keys("kept")})
        until(lambda: (status("kept"), status("removed")) == (200, 401), "it is refused", SECONDS)
        assert connection.sock is client
    until(lambda: running.loads() > loads, "it is counted, which may come after", SECONDS)
    running.changed(identity={})


def test_an_invalid_file_changes_nothing(running: Gateway) -> None:
    good = running.data
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({"routes": [{"path": "/", "service": "nobody"}]}, "service 'nobody' does not exist"),
        ({"rules": {"rules": [{"id": "a"}]}}, "rules.rules[0]"),
        ({"store": "memory"}, "store: read only at startup"),
        ({"threads": 2}, "threads: read only at startup"),
    )

    def has_refused(number: int) -> bool:
        return running.loads("refused") >= number

    for number, (change, message) in enumerate(bad, running.loads("refused") + 1):
        running.write({**good, **change})
        until(partial(has_refused, number), "the file is refused", SECONDS)
        assert message in running.err.read_text()
        assert running.get("/local/7").status == 200
    running.write(good)


def test_a_port_that_is_taken_later_changes_nothing(running: Gateway) -> None:
    good, refused = running.data["listeners"], running.loads("refused")
    more = free_port()
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            running.write({**running.data, "listeners": [*good, {"port": other.getsockname()[1]}]})
            until(lambda: running.loads("refused") > refused, "the file is refused", SECONDS)
        assert "another program listens there" in running.err.read_text()
        assert running.get("/local/7", port=good[0]["port"]).status == 200
        running.changed(listeners=[*good, {"port": more}])
        until(lambda: not refuses(more), "the new port is served", SECONDS)
    finally:
        running.changed(listeners=good)
    until(lambda: refuses(more), "it is closed", SECONDS)


def test_a_named_file_of_rules_is_watched(orders: Upstream) -> None:
    rules = "{version: 1, rules: [{id: a, dimension: ip, limit: %d, window: 1h}]}"
    file = minimal(orders.port, rules="rules.yaml", access_log="off")
    with gateway(file, files={"rules.yaml": rules % 1000}) as found:
        found.started()
        assert found.get("/").status == 200
        (found.folder / "rules.yaml").write_text(rules % 1)
        until(lambda: found.get("/").status == 429, "the new rules are in force", SECONDS)
        (found.folder / "rules.yaml").write_text("rules: none")
        until(lambda: found.loads("refused"), "bad rules are refused", SECONDS)
        assert found.get("/").status == 429
        found.process.send_signal(signal.SIGKILL)  # no process is left
        until(lambda: refuses(found.port), "Envoy ends with its supervisor", SECONDS)


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_without_redis_the_mode_of_each_rule_applies(running: Gateway, redis: RedisServer, way: str) -> None:
    if way == "stopped":
        redis.send(signal.SIGSTOP)
    else:
        redis.stop()
    try:
        until(lambda: running.get("/careful/7").status == 503, "the careful rule refuses", SECONDS)
        refused = running.get("/careful/7")
        assert refused.json["type"].endswith("#temporary-reduced-capacity")
        assert refused.headers["content-type"] == "application/problem+json"
        passed = running.get("/local/7")
        assert (passed.status, passed.headers["x-ratelimit-degraded"]) == (200, "true")
    finally:
        if way == "stopped":
            redis.send(signal.SIGCONT)
        else:
            redis.start()
    until(lambda: running.get("/careful/7").status == 200, "Redis decides again", SECONDS)


def test_without_headgate_requests_pass_or_not_as_configured(running: Gateway) -> None:
    (worker,) = running.children("headgate.server.worker")
    running.changed(decisions={"timeout": "500ms"})
    os.kill(worker, signal.SIGSTOP)
    try:
        refused = running.get("/local/7")
        assert (refused.status, refused.headers["content-type"]) == (503, "application/problem+json")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: running.get("/local/7").status == 200, "it decides again", SECONDS)
    routes = running.data["routes"]
    private = {"path": "/private", "service": "orders", "require": "any"}
    running.changed(on_headgate_failure="allow", routes=[*routes, private])
    until(lambda: running.get("/private/7").status == 401, "Envoy has the routes, which it is given last", SECONDS)
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: running.get("/local/7").status == 200, "all requests pass", SECONDS)
        assert running.get("/local/7").json["headers"]["x-envoy-auth-failure-mode-allowed"] == "true"
        refused = running.get("/private/7")
        assert (refused.status, refused.json["status"]) == (503, 503), "but not where an identity is required"
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: running.get("/private/7").status == 401, "it decides again", SECONDS)

    def received() -> Any:
        return running.get("/local/7", x_envoy_auth_failure_mode_allowed="true").json["headers"]

    # The first decisions may take longer than allowed, and Envoy marks them.
    until(lambda: "x-envoy-auth-failure-mode-allowed" not in received(), "clients cannot claim it", SECONDS)
    running.changed(on_headgate_failure="deny", decisions=PATIENT, routes=routes)


def test_killed_processes_never_let_more_than_the_limit_pass(redis: RedisServer) -> None:
    """Workers and Envoy are killed under load, in turn: what was used stays used, and no request passes undecided."""
    limit, ended = 300, threading.Event()
    with upstream("counted") as counted, ThreadPoolExecutor(4) as threads:
        rules = {"rules": [{"id": "all", "dimension": "ip", "limit": limit, "window": "365d"}]}
        file = minimal(counted.port, rules=rules, store=redis.address, access_log="off", on_store_failure="deny")
        with gateway(file) as found:
            found.started()

            def ask() -> None:
                while not ended.is_set():
                    with suppress(OSError, HTTPException):  # Envoy is killed, too
                        found.get("/counted")

            asking = [threads.submit(ask) for _ in range(4)]
            try:
                for served in (50, 100, 150, 200):
                    until(partial(has_more, counted.served, served), "requests pass", SECONDS)
                    for name in ("headgate.server.worker", "envoy"):
                        until(partial(found.children, name), f"{name} runs", SECONDS)
                        os.kill(found.children(name)[0], signal.SIGKILL)
                until(lambda: answers(found, 429), "the limit is reached", SECONDS)
            finally:
                ended.set()
            for each in asking:
                each.result()
            assert len(counted.served) <= limit
            assert found.metric("headgate_gateway_envoy_starts_total") == 5
            assert "Envoy (process" in found.err.read_text()


def has_more(served: list[str], number: int) -> bool:
    return len(served) > number


def answers(running: Gateway, status: int) -> bool:
    """Whether it responds with this status."""
    try:
        return running.get("/counted").status == status
    except (OSError, HTTPException):
        return False


def test_requests_avoid_an_unavailable_server(running: Gateway, orders: Upstream) -> None:
    services = running.data["services"]
    running.changed(services={"orders": {"endpoints": [f"127.0.0.1:{free_port()}", orders.endpoint]}})
    until(lambda: running.metric('envoy_cluster_membership_total{envoy_cluster_name="orders"}') == 2, "two", SECONDS)
    assert {running.get("/local/7").status for _ in range(20)} == {200}
    gone = {"endpoints": [f"127.0.0.1:{free_port()}"], "health_check": {"path": "/healthz", "interval": "200ms"}}
    running.changed(services={"orders": gone})
    until(lambda: running.get("/local/7").status == 503, "no server is left", SECONDS)
    running.changed(services=services)
    until(lambda: running.get("/local/7").status == 200, "it is back", SECONDS)


def test_sighup_reads_the_file_immediately(running: Gateway) -> None:
    loads = running.loads()
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.loads() > loads, "the file is read", SECONDS)


def test_a_taken_port_is_reported(running: Gateway, orders: Upstream) -> None:
    file = minimal(orders.port, listeners=running.data["listeners"])
    with gateway(file) as second:
        assert second.ended() == 2
        assert "another program listens there" in second.err.read_text()


def test_a_server_that_hangs_gets_no_requests_for_a_while(orders: Upstream) -> None:
    """Requests are sequential, and the server accepts every connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as hung:
        endpoints = [f"127.0.0.1:{port}" for port in (orders.port, hung.getsockname()[1])]
        services = {"orders": {"endpoints": endpoints, "timeout": "500ms"}}
        with gateway(minimal(orders.port, services=services)) as found:
            found.started()
            ejected = 'envoy_cluster_outlier_detection_ejections_active{envoy_cluster_name="orders"}'
            until(lambda: found.get().status in {200, 504} and found.metric(ejected) == 1, "it is ejected", SECONDS)
            assert found.metric('envoy_cluster_upstream_rq_timeout{envoy_cluster_name="orders"}') < 20


def test_a_stop_is_announced_and_requests_in_progress_are_completed(running: Gateway, orders: Upstream) -> None:
    """The last test of this gateway: it ends here."""
    orders.held.clear()
    before = orders.served.count("/local/7")
    connection = HTTPConnection("127.0.0.1", running.port, timeout=SECONDS)
    with closing(connection), Client(running.port) as one, Client(running.port) as other:
        connection.request("GET", "/local/held")
        until(lambda: "/local/held" in orders.served, "the service has the request", SECONDS)
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.get("/readyz", port=running.admin).status == 503, "its health check fails", SECONDS)
        assert [running.get("/local/7").status for _ in range(4)] == [200] * 4
        running.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(running.port), "the port is closed", SECONDS)
        assert running.get("/readyz", port=running.admin).status == 503
        for client in (one, other):  # requests in progress keep the gateway running
            client.join(SECONDS)
        orders.held.set()
        response = connection.getresponse()
        assert (response.status, response.getheader("connection")) == (200, "close")
        response.read()
    assert one.failures + other.failures == []
    assert len(one.answers + other.answers) + 4 == orders.served.count("/local/7") - before
    assert running.ended() == 0
    assert not re.search(r"Traceback|ERROR.*asyncio", running.err.read_text())


def refuses(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.connect()
    except OSError:
        return True
    connection.close()
    return False


def test_certificates_are_reloaded_and_plain_http_is_redirected(tmp_path: Path, orders: Upstream) -> None:
    authority = Authority(tmp_path, "authority")
    (first, key), (second, other) = authority.signed("first"), authority.signed("second")
    secure, plain = free_port(), free_port()
    tls = {"certificate": "cert.pem", "key": "cert.key"}
    file = minimal(orders.port, access_log="off")
    file["listeners"] = [{"port": secure, "tls": tls}, {"port": plain, "redirect_to": secure}]
    names = {"cert.pem": first.read_text(), "cert.key": key.read_text()}
    context = ssl.create_default_context(cafile=str(authority.path))
    with gateway(file, files=names) as found:
        found.started()
        led = found.get("/orders?a=b", port=plain, Host="localhost")
        assert (led.status, led.headers["location"]) == (308, f"https://localhost:{secure}/orders?a=b")
        assert shown(secure, context) == "first"
        (found.folder / "cert.key").write_text(other.read_text())  # not yet its certificate: nothing changes
        until(lambda: found.loads("refused"), "half of a change is refused", SECONDS)
        assert shown(secure, context) == "first"
        (found.folder / "cert.pem").write_text(second.read_text())
        until(lambda: shown(secure, context) == "second", "the new certificate is shown", SECONDS)


def shown(port: int, context: ssl.SSLContext) -> str:
    """The name in the certificate that clients are shown, after a request."""
    connection = HTTPSConnection("localhost", port, timeout=SECONDS, context=context)
    with closing(connection):
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        certificate: Any = connection.sock.getpeercert()
    return str(dict(part for parts in certificate["subject"] for part in parts)["commonName"])
