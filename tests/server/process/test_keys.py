"""Keys of the admin plane, for callers and for consumers, on all workers of all nodes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGTERM
from typing import Any

import grpc
import pytest

from headgate.cli.__main__ import main
from headgate.server.rls import SHOULD_RATE_LIMIT
from headgate.web.apikey import digest
from tests.gateway.gateways import gateway, minimal, upstream
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Service, service
from tests.server.process.test_shedding import called
from tests.servers import RedisServer, fetched, until

ADMIN = "hg_an-operators-own-key-of-some-length"
RPC = b"/headgate.v1.RateLimiter/GetRemainingQuota"


class Keys:
    def __init__(self, running: Service) -> None:
        self.service = running

    def admin(self, method: str, path: str, body: object = None, key: str = ADMIN) -> tuple[int, Any]:
        return self.service.admin(key, method, path, body)

    def made(self, **body: object) -> dict[str, str]:
        status, answer = self.admin("POST", "/keys", {"name": "edge", "role": "check", **body})
        assert status == 201, answer
        found: dict[str, str] = answer
        return found

    def accepts(self, key: str) -> bool:
        return "allowed" in self.service.check("u1", authorization=f"Bearer {key}")

    def until_accepted(self, key: str, *, accepted: bool) -> None:
        until(lambda: {self.accepts(key) for _ in range(20)} == {accepted}, f"accepted: {accepted}", SECONDS)


@pytest.fixture(scope="module")
def keys(postgres: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    """A service of two workers on PostgreSQL, with a file of callers as well."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "callers").write_text(f"of-the-file {digest('k' * 40)}\n")
    options = ("--database", postgres.database(), "--data-dir", str(folder), "--store", redis.address)
    more = ("--workers", "2", "--caller-keys", str(folder / "callers"))
    with service(*options, *more, environment={"HEADGATE_ADMIN_KEY": ADMIN}) as found:
        yield Keys(found.started())


def test_a_key_is_accepted_everywhere_until_it_is_revoked_even_while_the_database_is_down(
    keys: Keys, postgres: PostgresServer
) -> None:
    assert keys.service.check("u1")["status"] == 401
    made, stays = keys.made(), keys.made()
    keys.until_accepted(made["key"], accepted=True)
    with grpc.insecure_channel(f"127.0.0.1:{keys.service.grpc_port}") as channel:
        for method in (SHOULD_RATE_LIMIT, RPC):
            refused = called(channel, method)
            assert refused is not None
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            answer = called(channel, method, ("authorization", f"Bearer {made['key']}"))
            assert answer is None or answer.code() is not grpc.StatusCode.UNAUTHENTICATED
    assert keys.admin("DELETE", f"/keys/{made['id']}")[0] == 204
    keys.until_accepted(made["key"], accepted=False)
    assert keys.accepts("k" * 40)  # that of the file is still good
    postgres.stop()
    try:
        keys.until_accepted(stays["key"], accepted=True)
        assert not keys.accepts(made["key"])
    finally:
        postgres.start()


def test_an_expired_key_is_refused_also_on_a_connection_that_it_opened(keys: Keys) -> None:
    made = keys.made()
    keys.until_accepted(made["key"], accepted=True)
    connection = HTTPConnection("127.0.0.1", keys.service.http_port, timeout=SECONDS)

    def status() -> int:
        connection.request("GET", "/api/v1/rate-limit/rules", headers={"x-api-key": made["key"]})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert status() == 200
    replaced, another = keys.admin("POST", f"/keys/{made['id']}/rotate", {"overlap": 2})
    assert replaced == 201
    keys.until_accepted(another["key"], accepted=True)
    until(lambda: status() == 401, "it expires", SECONDS)
    connection.close()
    keys.until_accepted(made["key"], accepted=False)


def test_only_keys_of_callers_are_accepted_and_nowhere_else(keys: Keys) -> None:
    made = keys.made()
    keys.until_accepted(made["key"], accepted=True)
    status, problem = keys.admin("GET", "/rules", key=made["key"])
    assert (status, problem["detail"]) == (403, "this key is for the decision plane; it is not accepted here")
    assert keys.admin("GET", "/rules", key="k" * 40)[0] == 401  # a caller's, of the file
    for role in ("viewer", "editor", "admin"):
        other = keys.made(role=role)
        assert keys.admin("GET", "/rules", key=other["key"])[0] == 200
        assert not keys.accepts(other["key"])
    assert not keys.accepts(ADMIN)


def test_without_a_file_only_keys_of_the_database_are_accepted_and_their_last_use_is_noted(tmp_path: Path) -> None:
    """It is written at the latest when the service ends."""
    environment = {"HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": ADMIN}
    with service("--caller-keys", "database", environment=environment, cwd=tmp_path) as found:
        keys = Keys(found.started())
        assert found.check("u1")["status"] == 401
        used, unused = keys.made(), keys.made()
        keys.until_accepted(used["key"], accepted=True)
        named = f'headgate_caller_last_request_timestamp_seconds{{caller="{used["id"]}"}}'
        until(lambda: named in found.get("/metrics")[1].decode(), "it is shown", SECONDS)
        revoked = keys.made()
        keys.until_accepted(revoked["key"], accepted=True)
        assert keys.admin("DELETE", f"/keys/{revoked['id']}")[0] == 204
        keys.until_accepted(revoked["key"], accepted=False)
        found.signal(SIGTERM)
        assert found.ended() == 0
    with closing(sqlite3.connect(tmp_path / "headgate.db")) as database:
        rows = database.execute("SELECT id, last_used_at, created_at FROM api_keys")
        noted = {name: (used_at, created_at) for name, used_at, created_at in rows}
    assert noted[used["id"]][0] > noted[used["id"]][1]
    assert noted[unused["id"]][0] is None


def test_without_a_database_there_are_no_keys_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--check", "--rules", os.devnull, "--caller-keys", "database"]) == 2
    assert "--caller-keys: no database with keys" in capsys.readouterr().err


RULES = {
    "version": 1,
    "rules": [
        {"id": "per-user", "dimension": "user", "limit": 2, "window": "1h"},
        {"id": "per-key", "dimension": "apikey", "limit": 1000, "window": "1h"},
        {"id": "per-tenant", "dimension": "tenant", "limit": 2000, "window": "1h"},
        {"id": "guests", "dimension": "ip", "limit": 100_000, "window": "1h"},
    ],
    "tiers": {"premium": {"per-user": {"limit": 1000}}},
}


def admin(node: Service, method: str, path: str, body: object = None, key: str = ADMIN) -> tuple[int, Any]:
    return node.admin(key, method, path, body)


def rules_of(node: Service, key: str) -> set[str]:
    """The rules that count a request with a key, by forward authentication, as `X-RateLimit-Policy` has them."""
    proxied = {"x-original-uri": "/api/v1/orders", "x-original-method": "GET", "x-forwarded-for": "203.0.113.9"}
    reply = fetched(node.http_port, "/api/v1/forward-auth", **proxied, x_api_key=key)
    return {part.strip() for part in reply.headers.get("ratelimit-policy", "").split(",") if part}


def knows(node: Service, key: str) -> bool:
    return any(rule.startswith('"per-user"') for rule in rules_of(node, key))


def until_known(nodes: list[Service], key: str, *, known: bool) -> None:
    until(lambda: {knows(node, key) for node in nodes for _ in range(12)} == {known}, f"{known}", SECONDS)


def cli(node: Service, *words: str) -> str:
    environment = {"HEADGATE_ADMIN_KEY": ADMIN, "HEADGATE_ADMIN_URL": f"http://127.0.0.1:{node.admin_port}"}
    command = [sys.executable, "-m", "headgate.cli", "consumers", *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def nodes(
    postgres: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Service]]:
    """Two services, one of them with two workers, on one PostgreSQL and one Redis; no identity file."""
    folder = tmp_path_factory.mktemp("consumers")
    common = ("--database", postgres.database(), "--store", redis.address, "--data-dir")
    environment = {"HEADGATE_ADMIN_KEY": ADMIN}
    with service(*common, str(folder / "one"), "--workers", "2", environment=environment) as first:
        assert admin(first.started(), "POST", "/apply", RULES)[0] == 200
        with service(*common, str(folder / "other"), environment=environment) as second:
            yield [first, second.started()]


def test_a_consumer_is_counted_as_a_user_with_its_tier_until_its_key_is_revoked(nodes: list[Service]) -> None:
    one, other = nodes
    key = cli(one, "create", "acme", "--tier", "premium", "--tenant", "big").splitlines()[-1]
    assert key.startswith("hgc_")
    until_known(nodes, key, known=True)
    wanted = {'"per-user";q=1000;w=3600', '"per-key";q=1000;w=3600', '"per-tenant";q=2000;w=3600'}
    until(lambda: wanted <= rules_of(other, key), "its tier is in force", SECONDS)
    used = admin(one, "GET", "/users/acme/limits")[1]
    assert (used["tier"], used["rules"][0]["limits"][0]["remaining"] < 1000) == ("premium", True)
    assert admin(one, "POST", "/users/acme/override", {"rule_id": "per-user", "limit": 7})[0] == 200
    until(lambda: '"per-user";q=7;w=3600' in rules_of(other, key), "its override is in force", SECONDS)
    assert "acme  premium  big     active" in cli(other, "list")
    assert cli(other, "revoke", "acme") == "all keys of acme are revoked\n"
    until_known(nodes, key, known=False)
    assert cli(one, "show", "acme").startswith("acme: ended, tier premium, tenant big\n")
    assert cli(one, "delete", "acme") == "consumer acme is deleted\n"
    assert admin(one, "GET", "/consumers/acme")[0] == 404
    assert admin(one, "GET", "/users/acme/limits")[1]["overrides"] == {}


def test_a_key_is_rotated_with_an_overlap(nodes: list[Service]) -> None:
    one, other = nodes
    old = admin(one, "POST", "/consumers", {"name": "rotated"})[1]["key"]
    until_known(nodes, old, known=True)
    status, problem = admin(one, "POST", "/consumers", {"name": "rotated"})
    assert (status, problem["detail"]) == (400, "consumer 'rotated' already has a key: rotate it, or revoke it first")
    new = cli(other, "rotate", "rotated", "--overlap", "3600").splitlines()[-1]
    until_known(nodes, new, known=True)
    assert knows(one, old)
    newest = cli(other, "rotate", "rotated").splitlines()[-1]
    until_known(nodes, newest, known=True)
    for ended in (old, new):
        until_known(nodes, ended, known=False)


def test_envoy_s_descriptors_name_a_consumer_by_its_key(nodes: list[Service]) -> None:
    key = admin(nodes[0], "POST", "/consumers", {"name": "limited"})[1]["key"]
    until_known(nodes[:1], key, known=True)  # one of the two of its tier
    payload = {"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": key}]}]}
    while nodes[0].post("/json", payload)[0] == 200:
        pass
    assert admin(nodes[0], "GET", "/users/limited/limits")[1]["rules"][0]["limits"][0]["remaining"] == 0
    assert admin(nodes[0], "DELETE", "/consumers/limited")[0] == 204
    until(lambda: {nodes[0].post("/json", payload)[0] for _ in range(12)} == {200}, "the key is unknown", SECONDS)


def test_the_key_of_a_consumer_is_not_accepted_by_the_admin_plane_and_not_shown_again(nodes: list[Service]) -> None:
    key = admin(nodes[0], "POST", "/consumers", {"name": "once"})[1]["key"]
    assert admin(nodes[0], "GET", "/rules", key=key)[0] == 401
    pages = [admin(nodes[0], "GET", path) for path in ("/consumers/once", "/consumers", "/audit?kind=consumer")]
    assert [status for status, _ in pages] == [200] * 3
    assert key.split("_", 2)[2] not in repr(pages)
    for wrong in ({"name": "a\n"}, {"name": "x", "tier": "nosuch"}, {"name": ""}):
        assert admin(nodes[0], "POST", "/consumers", wrong)[0] == 400


def test_a_gateway_refuses_revoked_keys_and_ignores_foreign_ones(nodes: list[Service]) -> None:
    with upstream("orders") as orders:
        file = minimal(orders.port)
        del file["rules"]
        file["decisions"] = {"address": f"127.0.0.1:{nodes[0].grpc_port}", "timeout": "10s"}
        with gateway(file) as running:
            running.started()
            until(lambda: running.get("/a").status == 200, "Envoy is connected", SECONDS)
            key = admin(nodes[1], "POST", "/consumers", {"name": "caller", "tier": "premium"})[1]["key"]
            until(lambda: {running.get("/a", x_api_key=key).status for _ in range(12)} == {200}, "it is known", SECONDS)
            assert running.get("/a", x_api_key=key).json["headers"]["x-headgate-user"] == "caller"
            assert running.get("/a", x_api_key="a-key-of-the-service-behind").status == 200
            assert admin(nodes[1], "POST", "/consumers/caller/revoke")[0] == 204
            until(lambda: {running.get("/a", x_api_key=key).status for _ in range(12)} == {401}, "revoked", SECONDS)


def test_while_the_database_is_down_consumers_keep_their_keys(nodes: list[Service], postgres: PostgresServer) -> None:
    key = admin(nodes[0], "POST", "/consumers", {"name": "lasting"})[1]["key"]
    until_known(nodes, key, known=True)
    postgres.stop()
    try:
        before = nodes[0].workers()
        os.kill(min(before), 9)
        until(lambda: len(nodes[0].workers()) == 2 and nodes[0].workers() != before, "another worker", SECONDS)
        until_known(nodes, key, known=True)
    finally:
        postgres.start()
