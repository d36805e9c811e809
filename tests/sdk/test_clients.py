"""Clients of a real service: batches, keys and certificates, threads, forks, and settings that cannot work."""

from __future__ import annotations

import asyncio
import gc
import gzip
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from httpx import Headers

from headgate import Request, StoreError, UsageError
from headgate.engine import Ruling
from headgate.sdk import AsyncClient, CallerRefused, Client, over_http, session
from headgate.sdk.session import LARGEST_BATCH
from headgate.server.admission import AdmissionController
from tests.observe.readings import samples
from tests.server.listening import listening
from tests.server.process.certificates import Authority
from tests.server.process.service import SECONDS, Service, service
from tests.servers import until

RULES = """
version: 1
rules: [{id: orders, dimension: user, endpoint: /orders, limit: 100000, window: 365d, algorithm: fixed_window}]
"""
ORDER = Request({"user": "ada"}, "/orders")
TRANSPORTS = pytest.mark.parametrize("scheme", ["http", "grpc"])
KEY = "hg-shop-7f3a91"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(RULES)
    with service("--rules", str(path)) as each:
        yield each.started()


def address(found: Service, scheme: str) -> str:
    return f"{scheme}://127.0.0.1:{found.http_port if scheme.startswith('http') else found.grpc_port}"


def batches(found: Service, scheme: str) -> float:
    """How many batches the service has answered."""
    read = samples(found.get("/metrics")[1])
    api = "batch" if scheme == "http" else "grpc_batch"
    return read.get(("headgate_checks_total", frozenset({("api", api), ("outcome", "allowed")})), 0)


@TRANSPORTS
def test_concurrent_checks_share_batches(found: Service, scheme: str) -> None:
    async def ask() -> list[Ruling]:
        async with AsyncClient(address(found, scheme), timeout=30) as client:
            return await asyncio.gather(*[client.check(ORDER) for _ in range(500)])

    before = batches(found, scheme)
    rulings = asyncio.run(ask())
    assert {ruling.degraded for ruling in rulings} == {""}
    left = {ruling.decision.remaining for ruling in rulings if ruling.decision}
    assert len(left) == 500, "each was counted"
    until(lambda: batches(found, scheme) > before, "the service has counted")
    assert batches(found, scheme) - before <= -(-500 // LARGEST_BATCH) + 1


@TRANSPORTS
def test_checks_of_threads_share_batches_and_a_single_one_is_sent_at_once(found: Service, scheme: str) -> None:
    with Client(address(found, scheme), timeout=30) as client:
        client.check(ORDER)
        before = batches(found, scheme)
        for _ in range(5):
            client.check(ORDER)
        until(lambda: batches(found, scheme) - before == 5, "each alone")
        before = batches(found, scheme)
        with ThreadPoolExecutor(16) as threads:
            rulings = list(threads.map(client.check, [ORDER] * 400))
        assert {ruling.degraded for ruling in rulings} == {""}
        until(lambda: batches(found, scheme) > before, "the service has counted")
        assert batches(found, scheme) - before < 400


@TRANSPORTS
async def test_a_burst_that_keeps_its_process_busy_is_decided_by_the_service(found: Service, scheme: str) -> None:
    async with AsyncClient(address(found, scheme), timeout=0.7) as client:

        async def work() -> str:
            ruling = await client.check(ORDER)
            time.sleep(0.0015)  # noqa: ASYNC251  what a caller does with its answer
            return ruling.degraded

        assert await asyncio.gather(*[work() for _ in range(1000)]) == [""] * 1000
        assert client.statistics()[address(found, scheme)].openings == 0


async def test_a_full_queue_is_overload_and_not_a_failure(found: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_QUEUE", 10)
    async with AsyncClient(address(found, "http"), timeout=30) as client:
        rulings = await asyncio.gather(*[client.check(ORDER) for _ in range(100)])
        assert Counter(ruling.degraded for ruling in rulings) == {"": 10, "overloaded": 90}
        assert client.statistics()[address(found, "http")].failures == 0


@TRANSPORTS
def test_batches_shrink_for_a_node_that_accepts_only_small_ones(scheme: str) -> None:
    async def ask(port: int) -> list[Ruling]:
        async with AsyncClient(f"{scheme}://127.0.0.1:{port}", timeout=30) as client:
            return await asyncio.gather(*[client.check(ORDER) for _ in range(40)])

    controller = AdmissionController(per_second=1000)
    with listening(RULES, controller=controller) as small:
        rulings = asyncio.run(ask(small.http if scheme == "http" else small.grpc))
    assert all(ruling.allowed or ruling.degraded for ruling in rulings)
    assert any(not ruling.degraded for ruling in rulings)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    """A service that requires a certificate and a key, and the options of its clients."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder, "authority")
    cert, key = authority.signed("server")
    own, own_key = authority.signed("client")
    keys, rules = folder / "callers", folder / "rules.yaml"
    keys.write_text(f"shop {sha256(KEY.encode()).hexdigest()}\n")
    rules.write_text(RULES)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(authority.path))
    with service("--rules", str(rules), "--caller-keys", str(keys), *options) as each:
        identity = {"ca": str(authority.path), "cert": str(own), "key": str(own_key), "caller_key": KEY}
        yield each.started(), identity


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_caller_keys_and_client_certificates(secured: tuple[Service, Any], scheme: str) -> None:
    found, identity = secured
    with Client(address(found, scheme), timeout=30, **identity) as client:
        assert client.check(ORDER).degraded == ""
        assert client.explain(ORDER).ruling.allowed, "the rules are for callers, too"
        client.ready()
    for key in ("", "another key"):
        with Client(address(found, scheme), timeout=30, **{**identity, "caller_key": key}) as client:
            with pytest.raises(CallerRefused, match=r"the caller is unknown: send Authorization: Bearer KEY"):
                client.check(ORDER)
            with pytest.raises(CallerRefused):
                client.explain(ORDER)
    with Client(address(found, scheme), timeout=30, caller_key=KEY) as client:
        assert client.check(ORDER).degraded
        with pytest.raises(StoreError):
            client.ready()


FORK = """
import os, sys
from headgate import Request
from headgate.sdk import Client

client = Client(sys.argv[1], timeout=30)
before = client.check(Request({"user": "parent"}, "/orders"))
child = os.fork()
if not child:
    ruling = client.check(Request({"user": "child"}, "/orders"))
    client.close()
    os._exit(0 if before.allowed and ruling.allowed and not ruling.degraded else 1)
_, status = os.waitpid(child, 0)
after = client.check(Request({"user": "parent"}, "/orders"))
client.close()
sys.exit(status or not after.allowed or bool(after.degraded))
"""


def test_a_forked_child_has_its_own_connections(found: Service) -> None:
    code = ["-W", "ignore::DeprecationWarning", "-c", FORK]
    command = [sys.executable, *code, address(found, "http")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr


@TRANSPORTS
def test_a_client_that_is_closed_while_threads_use_it_returns_rulings_to_them(found: Service, scheme: str) -> None:
    client = Client(address(found, scheme), timeout=30)
    ending, checked = threading.Event(), threading.Semaphore(0)

    def ask() -> None:
        while not ending.is_set():
            assert isinstance(client.check(ORDER), Ruling)
            checked.release()

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        for _ in range(5):
            assert checked.acquire(timeout=SECONDS)
            client.close()  # the next check opens it again
        ending.set()
        for each in asking:
            each.result(SECONDS)
    client.close()


def test_a_client_that_was_not_closed_leaves_no_thread(found: Service) -> None:
    before = set(threading.enumerate())  # other tests may have left one that is about to end
    client = Client(address(found, "http"), timeout=30)
    client.check(ORDER)
    (own,) = [each for each in threading.enumerate() if each.name == "headgate-sdk" and each not in before]
    del client
    gc.collect()
    until(lambda: not own.is_alive(), "its thread ends")


@TRANSPORTS
def test_a_client_is_used_from_one_loop_after_the_other_and_after_it_was_closed(found: Service, scheme: str) -> None:
    client = AsyncClient(address(found, scheme), timeout=30)
    for _ in range(2):
        assert asyncio.run(closed_after(client)).degraded == ""


async def closed_after(client: AsyncClient) -> Ruling:
    ruling = await client.check(ORDER)
    await client.close()
    return ruling


def test_the_rules_are_fetched_again_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    with (
        service("--rules", str(path)) as changing,
        Client(address(changing.started(), "http"), timeout=30, rules_every=0.05) as client,
    ):
        until(lambda: known(client) == 100_000, "it has the rules")
        path.write_text(RULES.replace("100000", "7"))
        until(lambda: known(client) == 7, "it has the new ones", SECONDS)


def known(client: Client) -> int:
    client.check(ORDER)
    try:
        return client.policy.ruleset.rules[0].quotas[0].limit
    except StoreError:
        return 0


def test_the_rules_have_an_etag(found: Service) -> None:
    connection = HTTPConnection("127.0.0.1", found.http_port, timeout=SECONDS)
    connection.request("GET", "/api/v1/rate-limit/rules")
    first = connection.getresponse()
    body, headers = msgspec.json.decode(first.read()), Headers(first.getheaders())
    assert [rule["id"] for rule in body["rules"]["rules"]] == ["orders"]
    assert headers["cache-control"] == "private, no-cache"
    connection.request("GET", "/api/v1/rate-limit/rules", headers={"if-none-match": headers["etag"]})
    second = connection.getresponse()
    assert (second.status, second.read()) == (304, b"")
    connection.close()


MISTAKES: list[tuple[Any, Any, str]] = [
    ([], {}, "needs the address of a service"),
    (["localhost:8080"], {}, "is not an address of a service"),
    (["redis://localhost"], {}, "http, https, grpc, grpcs"),
    (["http://localhost:99999"], {}, "is not an address of a service"),
    (["http://localhost/path"], {}, "must have only a scheme, a host and a port"),
    (["http://user@localhost"], {}, "must have only a scheme, a host and a port"),
    ([8080], {}, "must be text"),
    (["http://a", "grpc://b"], {}, "same scheme"),
    (["http://a", "http://a"], {}, "duplicate"),
    (["http://a"], {"timeout": 0}, "timeout must be a number of seconds"),
    (["http://a"], {"timeout": True}, "timeout must be a number of seconds"),
    (["http://a"], {"nodes": 0}, "nodes"),
    (["http://a"], {"on_service_failure": "raise"}, "on_service_failure must be one of local, allow, deny"),
    (["http://a"], {"without_rules": "local"}, "without_rules must be deny or allow"),
    (["http://a"], {"caller_key": "two\nlines"}, "printable ASCII"),
    (["http://a"], {"caller_key": 7}, "must be text"),
    (["http://a"], {"ca": "ca.pem"}, "must be https://"),
    (["https://a"], {"ca": "nowhere.pem"}, "cannot be used for TLS"),
    (["grpcs://a"], {"key": "key.pem"}, "requires a certificate"),
    (["http://a"], {"timout": 1}, "unknown option 'timout'; the options are timeout"),
]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_settings_that_cannot_work_are_errors_at_once(kind: Callable[..., Any]) -> None:
    for addresses, options, match in MISTAKES:
        with pytest.raises(UsageError, match=match):
            kind(*addresses, **options)


class Bomb(BaseHTTPRequestHandler):
    """Answers everything with many bytes, compressed or not."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        if self.server.server_name == "compressed":  # type: ignore[attr-defined]
            content = gzip.compress(b"0" * 10_000_000)
            self.send_header("content-encoding", "gzip")
        else:
            content = b" " * 3_000_000
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # the client may have closed the connection
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["something else", "compressed", "endless"])
def test_another_server_is_not_taken_for_headgate(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http, "LARGEST_ANSWER", 1_000_000)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler if kind == "something else" else Bomb)
    server.server_name = kind
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}", timeout=30) as client:
            ruling = client.check(ORDER)
            assert (ruling.allowed, ruling.degraded) == (False, "outcome_unknown")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Garbage(grpc.GenericRpcHandler):
    """Answers every call with invalid bytes."""

    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002  as grpcio calls it
        return grpc.unary_unary_rpc_method_handler(lambda *_: b"\xff\xff\xff\xff")


def test_garbage_over_grpc_is_not_taken_for_headgate_either() -> None:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Garbage()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"grpc://127.0.0.1:{port}", timeout=30) as client:
            ruling = client.check(ORDER)
            assert (ruling.allowed, ruling.degraded) == (False, "outcome_unknown")
            with pytest.raises(StoreError, match="is not a Headgate service"):
                client.ready()
            with pytest.raises(StoreError, match="is not a Headgate service"):
                client.reset(ORDER)
    finally:
        server.stop(None).wait()
