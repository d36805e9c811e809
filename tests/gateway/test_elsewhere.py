"""A gateway whose decisions are made elsewhere, behind a load balancer, with keys of an issuer that are fetched."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from headgate.web.apikey import digest
from tests.gateway.gateways import SECONDS, Gateway, gateway, key_server, minimal, upstream
from tests.server.process.certificates import Authority
from tests.server.process.service import service
from tests.servers import until

RULES = """\
version: 1
rules:
  - {id: per-address, dimension: ip, limit: 3, window: 1h, endpoint: /limited}
  - {id: per-user, dimension: user, limit: 2, window: 1h, endpoint: /mine}
"""
IDENTITY = """\
version: 1
api_keys: {keys: [{sha256: %s, name: reporting, user: ada}]}
jwt_metadata: [{key: issuer-0, claims: {user: sub}}]
"""
KEY = "ak_reporting-0123456789"
CALLER = "the-key-of-the-edge-0123456789"


@pytest.fixture(scope="module")
def private() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def issuer(private: rsa.RSAPrivateKey) -> Iterator[str]:
    """Where the public key is."""
    public = {**RSAAlgorithm.to_jwk(private.public_key(), as_dict=True), "kid": "one", "alg": "RS256"}
    with key_server(public) as server:
        yield server.url


@pytest.fixture(scope="module")
def running(issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("decisions")
    (folder / "rules.yaml").write_text(RULES)
    (folder / "identity.yaml").write_text(IDENTITY % digest(KEY))
    (folder / "callers").write_text(f"edge {digest(CALLER)}\n")
    (folder / "key").write_text(f"{CALLER}\n")
    authority = Authority(folder, "authority")
    for name in ("server", "gateway"):
        authority.signed(name)
    options = ["--rules", "rules.yaml", "--identity", "identity.yaml", "--client-ca", "authority.pem"]
    options += ["--caller-keys", "callers"]
    options += ["--tls-cert", "server.pem", "--tls-key", "server.key"]
    with upstream("orders") as orders, service(*options, cwd=folder) as deciding:
        deciding.started()
        file = minimal(orders.port)
        del file["rules"]
        file["decisions"] = {
            "address": f"127.0.0.1:{deciding.grpc_port}",
            "tls": {
                "ca": f"{folder}/authority.pem",
                "name": "localhost",
                "certificate": f"{folder}/gateway.pem",
                "key": f"{folder}/gateway.key",
            },
            "caller_key_file": f"{folder}/key",
            "timeout": "10s",
        }
        token = {"audience": ["api"], "issuer": "https://id.example.com", "jwks_url": issuer}
        file["identity"] = {"tokens": [token], "trusted_hops": 1}
        with gateway(file) as found:
            found.started()
            until(lambda: found.get("/else").status == 200, "Envoy is connected, for which it has a second", SECONDS)
            yield found


def test_a_service_elsewhere_decides_and_knows_the_api_keys(running: Gateway) -> None:
    assert not running.children("headgate.server.worker")
    assert [running.get("/mine", x_api_key=KEY).status for _ in range(3)] == [200, 200, 429]
    assert running.get("/mine", x_api_key="ak_guessed").status == 401


def test_a_gateway_with_an_unknown_caller_key_gets_no_decisions(running: Gateway) -> None:
    good = running.data["decisions"]
    assert running.get("/else").status == 200
    (running.folder / "key").write_text("another-key-0123456789")
    for change in ({"caller_key_file": "key"}, {"caller_key_file": None}):
        given = {name: value for name, value in {**good, **change}.items() if value}
        running.changed(decisions=given)
        until(lambda: running.get("/else").status == 503, "no decision", SECONDS)
    running.changed(decisions=good)
    until(lambda: running.get("/else").status == 200, "it is known again", SECONDS)


def test_tokens_are_verified_by_keys_that_envoy_fetched(running: Gateway, private: rsa.RSAPrivateKey) -> None:
    claims = {"iss": "https://id.example.com", "aud": "api", "sub": "grace", "exp": int(time.time()) + 600}
    bearer: dict[str, Any] = {"authorization": "Bearer " + jwt.encode(claims, private, "RS256", {"kid": "one"})}
    until(lambda: running.get("/else", **bearer).status == 200, "the keys are fetched", SECONDS)
    assert running.get("/else", **bearer).json["headers"]["x-headgate-user"] == "grace"
    assert [running.get("/mine", **bearer).status for _ in range(3)] == [200, 200, 429]


def test_the_client_has_the_address_that_the_load_balancer_sends(running: Gateway) -> None:
    """The last address is the one that it wrote; what stands before it is what the client claims."""
    forged = ["198.51.100.1", "198.51.100.2", "::1", "127.0.0.1"]
    for lie in forged[:3]:
        assert running.get("/limited", x_forwarded_for=f"{lie}, 203.0.113.9").status == 200
    assert running.get("/limited", x_forwarded_for=f"{forged[3]}, 203.0.113.9").status == 429
    assert running.get("/limited", x_forwarded_for="203.0.113.10").status == 200


def test_readiness_and_metrics_are_those_of_the_gateway_alone(running: Gateway) -> None:
    assert running.get("/readyz", port=running.admin).json["status"] == "ready"
    assert "envoy_cluster_upstream_rq_total" in running.metrics()


def test_a_silent_client_is_disconnected_and_others_do_not_wait(running: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", running.port), SECONDS) as silent:
        silent.sendall(b"GET /else HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert running.get("/else").status == 200
        assert silent.recv(65_536).startswith(b"HTTP/1.1 408")
