"""A real Envoy authorizes requests by a real service, as documented."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.server.process.service import Service, service
from tests.server.rls.envoys import EXAMPLES, SECONDS, Envoy, envoy
from tests.servers import free_port
from tests.web.tokens import jwk, signed

KEY_ID = "2026-11"
REPORTING, SEARCH = "ak_a-long-random-key", "ak_another-random-key"
RULES = """
version: 1
rules:
  - {id: per-address, dimension: ip, limit: 1000, window: 365d, algorithm: fixed_window}
  - {id: per-user, dimension: user, limit: 5, window: 365d, algorithm: fixed_window}
  - {id: per-key, dimension: apikey, limit: 20, window: 365d, algorithm: fixed_window}
  - {id: orders, dimension: user, when: {service: orders}, methods: [POST], limit: 2, window: 365d,
     algorithm: fixed_window}
  - {id: elsewhere, dimension: ip, endpoint: /elsewhere, limit: 1, window: 365d, algorithm: fixed_window,
     refusal_status: 451, refusal_message: Not where you are.}
tiers:
  pro: {per-user: {limit: 50}}
"""


@pytest.fixture(scope="module")
def headgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    rules = tmp_path_factory.mktemp("authz") / "rules.yaml"
    rules.write_text(RULES)
    with service("--rules", str(rules), "--identity", str(EXAMPLES / "authz" / "identity.yaml")) as found:
        yield found.started()


@pytest.fixture(scope="module")
def asking(headgate: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_text(json.dumps({"keys": [jwk("ES256", kid=KEY_ID, alg="ES256", use="sig")]}))
    with envoy(headgate.grpc_port, "authz.yaml", filename=f"{keys}}}") as found:
        yield found


def bearer(**claims: Any) -> str:
    content = {"iss": "https://id.example.com", "aud": "api", "exp": int(time.time()) + 300, **claims}
    return f"Bearer {signed(content, 'ES256', kid=KEY_ID).decode()}"


def upstream_saw(asking: Envoy) -> dict[str, str]:
    ours = [(name.decode(), value.decode()) for name, value in asking.upstream.headers[-1] if b"headgate" in name]
    assert len({name for name, _ in ours}) == len(ours)
    return dict(ours)


def test_a_request_without_credentials_passes_as_its_address(asking: Envoy) -> None:
    reply = asking.get("/")
    assert (reply.status, reply.body) == (200, b"from upstream")
    assert reply.headers["x-ratelimit-limit"] == "1000"
    assert upstream_saw(asking) == {}
    asking.logged("GET 200 outcome=allowed rule=per-address user=- apikey=- ip=127.0.0.1")


def test_a_refused_grpc_call_gets_a_status_of_grpc(asking: Envoy) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{asking.port}") as channel:
        call: Any = channel.unary_unary("/orders/Take")
        codes = []
        for _ in range(4):
            with pytest.raises(grpc.RpcError) as caught:  # the upstream does not speak gRPC
                call(b"", metadata=[("authorization", bearer(sub="edsger"))], timeout=SECONDS)
            error: Any = caught.value
            codes.append(error.code())
    assert codes[2:] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    assert grpc.StatusCode.RESOURCE_EXHAUSTED not in codes[:2]
    assert "orders allows 2" in error.details()


def test_a_verified_token_names_the_user_to_rules_logs_and_upstream(asking: Envoy) -> None:
    replies = [asking.get("/orders/7", "POST", authorization=bearer(sub="ada", org="acme")) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert upstream_saw(asking) == {"x-headgate-user": "ada", "x-headgate-tenant": "acme"}
    refused = replies[2]
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["cache-control"] == "no-store"
    assert json.loads(refused.body)["violated-policies"] == ["orders"]
    asking.logged("POST 429 outcome=denied rule=orders user=ada apikey=- ip=127.0.0.1")


def test_an_api_key_is_verified_by_its_digest_and_upstreams_see_its_name(asking: Envoy) -> None:
    for reply in (asking.get("/", x_api_key=SEARCH), asking.get(f"/?a=b&api_key={SEARCH}")):
        assert (reply.status, '"per-key"' in reply.headers["ratelimit"]) == (200, True)
        assert upstream_saw(asking) == {
            "x-headgate-user": "42",
            "x-headgate-apikey": "search",
            "x-headgate-tier": "pro",
        }


def test_credentials_are_removed_if_the_route_is_set_so(asking: Envoy) -> None:
    assert asking.get("/search?q=x", x_api_key=REPORTING, x_headgate_user="eve").status == 200
    assert b"x-api-key" not in dict(asking.upstream.headers[-1])
    assert asking.get(f"/search?api_key={REPORTING}&q=x").status == 200
    assert asking.upstream.served[-1] == b"GET /search?q=x HTTP/1.1"
    assert upstream_saw(asking) == {"x-headgate-apikey": "reporting", "x-headgate-tenant": "acme"}


def test_a_route_may_require_a_user(asking: Envoy) -> None:
    assert asking.get("/orders/1").status == 401
    assert asking.get("/orders/1", x_api_key=REPORTING).status == 401
    assert asking.get("/orders/1", x_api_key=SEARCH).status == 200
    assert asking.get("/orders/1", authorization=bearer(sub="bob")).status == 200


def test_behind_a_trusted_proxy_the_client_is_its_peer(headgate: Service, tmp_path: Path) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [jwk("ES256", kid=KEY_ID)]}))
    with envoy(headgate.grpc_port, "authz.yaml", filename=f"{keys}}}", xff_num_trusted_hops="1") as found:
        assert found.get("/", x_forwarded_for="198.51.100.1, 203.0.113.9").status == 200
        found.logged("ip=203.0.113.9")


@pytest.mark.parametrize(("allows", "status"), [("false", 503), ("true", 200)])
def test_without_headgate_envoy_does_as_configured(tmp_path: Path, allows: str, status: int) -> None:
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk("ES256", kid=KEY_ID)]}))
    replaced = {"filename": f"{tmp_path / 'jwks.json'}}}", "failure_mode_allow": allows}
    with envoy(free_port(), "authz.yaml", **replaced) as found:
        assert found.get("/").status == status
