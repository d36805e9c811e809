"""Consumers, made in the admin plane, are known by their keys to all workers of all nodes, as users of the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.gateways import gateway, minimal, upstream
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Service, service
from tests.servers import redis_server, until

ADMIN = "hg_an-operators-own-key-of-some-length"
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
    connection = HTTPConnection("127.0.0.1", node.http_port, timeout=SECONDS)
    try:
        headers = {"x-api-key": key, "x-forwarded-for": "203.0.113.9"}
        connection.request(
            "GET", "/api/v1/forward-auth", headers={"x-original-uri": "/a", "x-original-method": "GET", **headers}
        )
        response = connection.getresponse()
        response.read()
        return {part.strip() for part in response.headers.get("ratelimit-policy", "").split(",") if part}
    finally:
        connection.close()


def proves(node: Service, key: str) -> bool:
    return any(rule.startswith('"per-user"') for rule in rules_of(node, key))


def comes_to(nodes: list[Service], key: str, *, proves_it: bool) -> None:
    """Wait until a key proves who calls at all workers of all nodes, or at none of them."""
    until(lambda: {proves(node, key) for node in nodes for _ in range(12)} == {proves_it}, f"{proves_it}", SECONDS)


def cli(node: Service, *words: str) -> str:
    environment = {"HEADGATE_ADMIN_KEY": ADMIN, "HEADGATE_ADMIN_URL": f"http://127.0.0.1:{node.admin_port}"}
    command = [sys.executable, "-m", "headgate.cli", "consumers", *words]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def nodes(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Two services of two workers each, on one PostgreSQL and one Redis; no identity file."""
    folder = tmp_path_factory.mktemp("consumers")
    common = ("--database", postgres.database(), "--workers", "2")
    environment = {"HEADGATE_ADMIN_KEY": ADMIN}
    with redis_server() as redis:
        one = ("--store", redis.address, "--data-dir", str(folder / "one"))
        other = ("--store", redis.address, "--data-dir", str(folder / "other"))
        with service(*common, *one, environment=environment) as first:
            first.started()
            assert admin(first, "POST", "/apply", RULES)[0] == 200
            with service(*common, *other, environment=environment) as second:
                yield [first, second.started()]


def test_a_consumer_is_counted_as_a_user_with_its_tier_until_its_key_is_revoked(nodes: list[Service]) -> None:
    one, other = nodes
    key = cli(one, "create", "acme", "--tier", "premium", "--tenant", "big").splitlines()[-1]
    assert key.startswith("hgc_")
    comes_to(nodes, key, proves_it=True)
    wanted = {'"per-user";q=1000;w=3600', '"per-key";q=1000;w=3600', '"per-tenant";q=2000;w=3600'}
    until(lambda: wanted <= rules_of(other, key), "its tier is in force", SECONDS)
    used = admin(one, "GET", "/users/acme/limits")[1]
    assert (used["tier"], used["rules"][0]["limits"][0]["remaining"] < 1000) == ("premium", True)
    assert admin(one, "POST", "/users/acme/override", {"rule_id": "per-user", "limit": 7})[0] == 200
    until(lambda: '"per-user";q=7;w=3600' in rules_of(other, key), "its override is in force", SECONDS)
    assert "acme  premium  big     active" in cli(other, "list")
    assert cli(other, "revoke", "acme") == "all keys of acme are revoked\n"
    comes_to(nodes, key, proves_it=False)
    assert cli(one, "show", "acme").startswith("acme: ended, tier premium, tenant big\n")
    assert cli(one, "delete", "acme") == "consumer acme is deleted\n"
    assert admin(one, "GET", "/consumers/acme")[0] == 404
    assert admin(one, "GET", "/users/acme/limits")[1]["overrides"] == {}


def test_a_key_is_rotated_with_an_overlap(nodes: list[Service]) -> None:
    one, other = nodes
    old = admin(one, "POST", "/consumers", {"name": "rotated"})[1]["key"]
    comes_to(nodes, old, proves_it=True)
    status, problem = admin(one, "POST", "/consumers", {"name": "rotated"})
    assert (status, problem["detail"]) == (400, "consumer 'rotated' already has a key: rotate it, or revoke it first")
    new = cli(other, "rotate", "rotated", "--overlap", "3600").splitlines()[-1]
    comes_to(nodes, new, proves_it=True)
    assert proves(one, old)
    newest = cli(other, "rotate", "rotated").splitlines()[-1]
    comes_to(nodes, newest, proves_it=True)
    for ended in (old, new):
        comes_to(nodes, ended, proves_it=False)


def test_envoy_s_descriptors_name_a_consumer_by_its_key(nodes: list[Service]) -> None:
    key = admin(nodes[0], "POST", "/consumers", {"name": "limited"})[1]["key"]
    comes_to(nodes[:1], key, proves_it=True)  # one of the two of its tier
    asked = {"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": key}]}]}
    while nodes[0].post("/json", asked)[0] == 200:
        pass
    assert admin(nodes[0], "GET", "/users/limited/limits")[1]["rules"][0]["limits"][0]["remaining"] == 0
    assert admin(nodes[0], "DELETE", "/consumers/limited")[0] == 204
    until(lambda: {nodes[0].post("/json", asked)[0] for _ in range(12)} == {200}, "it is nobody's key", SECONDS)


def test_its_key_opens_neither_plane_and_no_secret_is_shown_twice(nodes: list[Service]) -> None:
    one = nodes[0]
    key = admin(one, "POST", "/consumers", {"name": "curious"})[1]["key"]
    assert admin(one, "GET", "/rules", key=key)[0] == 401
    viewer = admin(one, "POST", "/keys", {"name": "viewer", "role": "viewer"})[1]["key"]
    assert admin(one, "POST", "/consumers", {"name": "mine"}, key=viewer)[0] == 403
    assert admin(one, "GET", "/consumers/curious", key=viewer)[0] == 200
    told = [admin(one, "GET", path, key=viewer) for path in ("/consumers", "/audit?kind=consumer")]
    assert [status for status, _ in told] == [200, 200]
    assert key.split("_", 2)[2] not in repr(told)
    actions = {each["action"] for each in told[1][1]["items"]}
    assert actions >= {"create"}
    for wrong in ({"name": "a\n"}, {"name": "x", "tier": "nosuch"}, {"name": ""}):
        assert admin(one, "POST", "/consumers", wrong)[0] == 400


def test_a_gateway_refuses_what_is_revoked_and_keys_of_others_are_left_alone(nodes: list[Service]) -> None:
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


def test_while_the_database_is_away_keys_stay_as_they_were(nodes: list[Service], postgres: PostgresServer) -> None:
    key = admin(nodes[0], "POST", "/consumers", {"name": "lasting"})[1]["key"]
    comes_to(nodes, key, proves_it=True)
    postgres.stop()
    try:
        before = nodes[0].workers()
        os.kill(min(before), 9)
        until(lambda: len(nodes[0].workers()) == 2 and nodes[0].workers() != before, "another worker", SECONDS)
        comes_to(nodes, key, proves_it=True)
    finally:
        postgres.start()


def test_an_identity_file_says_where_keys_are_and_wants_a_database_for_consumers(tmp_path: Path) -> None:
    (tmp_path / "identity.yaml").write_text(
        "{version: 1, api_keys: {header: authorization, scheme: Bearer, keys: database}}"
    )
    environment = {"HEADGATE_ADMIN_KEY": ADMIN, "HEADGATE_RULES": ""}
    with service("--identity", "identity.yaml", cwd=tmp_path, environment=environment) as embedded:
        embedded.started()
        key = admin(embedded, "POST", "/consumers", {"name": "acme"})[1]["key"]
        asked = {"x-original-uri": "/api/v1/orders", "x-original-method": "GET", "x-forwarded-for": "203.0.113.9"}

        def policies(**headers: str) -> str:
            connection = HTTPConnection("127.0.0.1", embedded.http_port, timeout=SECONDS)
            connection.request("GET", "/api/v1/forward-auth", headers={**asked, **headers})
            response = connection.getresponse()
            connection.close()
            return response.headers.get("ratelimit-policy", "")

        without = policies()
        until(lambda: policies(authorization=f"Bearer {key}") != without, "it is known", SECONDS)
        assert policies(**{"x-api-key": key}) == without
    with service("--rules", os.devnull, "--identity", "identity.yaml", cwd=tmp_path) as without_database:
        assert without_database.ended() == 2
        assert "there is no database with consumers" in without_database.complained
