"""Envoy's configuration of a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from headgate.gateway.bootstrap import HIDDEN, Resources, discovery, resources_of
from headgate.gateway.envoy import validate
from headgate.gateway.loading import load_gateway
from headgate.web.apikey import digest
from tests.server.process.certificates import Authority

RULES = {"rules": [{"id": "a", "dimension": "ip", "limit": 5, "window": "1m"}]}
LEAST: dict[str, Any] = {
    "version": 1,
    "listeners": [{"port": 8000}],
    "services": {"a": {"endpoints": ["127.0.0.1:9001"]}, "b": {"endpoints": ["127.0.0.1:9002"]}},
    "routes": [{"path": "/", "service": "a"}],
    "rules": RULES,
}


def made(folder: Path, **fields: Any) -> Resources:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({**LEAST, **fields}))
    return resources_of(load_gateway(path), "/run/headgate")


def manager(resources: Resources, listener: int = 0) -> Any:
    return resources.listeners[listener]["filter_chains"][0]["filters"][0]["typed_config"]


def filters(resources: Resources) -> list[str]:
    return [each["name"].rpartition(".")[2] for each in manager(resources)["http_filters"]]


EVERYTHING = f"""
listeners:
  - {{port: 8443, address: 0.0.0.0, tls: [{{certificate: server.pem, key: server.key}}]}}
  - {{port: 8080, address: '::', redirect_to: 8443}}
services:
  a:
    endpoints: ["127.0.0.1:1", "localhost:2"]
    tls: {{ca: authority.pem, name: localhost, certificate: server.pem, key: server.key}}
    protocol: http2
    retries: 0
  b: {{endpoints: ["[::1]:3"], health_check: {{path: /healthz}}, timeout: none}}
routes:
  - {{path: /, service: a}}
  - {{path: /b, service: b, methods: [GET], cors: {{origins: ["*"], headers: [x-more]}}, websocket: true, rewrite: /,
     cost_from_response: x-cost, attributes: {{kind: x}}}}
  - {{path: /c, service: b, require: any, hosts: ["*.example.com"], rewrite: /d, timeout: 5s}}
identity:
  api_keys: {{query: key, keys: [{{sha256: {digest("k" * 20)}}}]}}
  tokens:
    - {{audience: any, secret_file: secret, realm: one}}
    - {{audience: [x], issuer: i, jwks_url: "https://localhost:9/k", ca: authority.pem, realm: "2"}}
  trusted_hops: 2
admin: {{port: 8002}}
on_headgate_failure: allow
"""
"""A file that has everything."""


def everything(folder: Path) -> dict[str, Any]:
    """The fields of `EVERYTHING`, with the files that it names in a folder."""
    Authority(folder, "authority").signed("server")
    (folder / "secret").write_text("s" * 40)
    fields: dict[str, Any] = yaml.safe_load(EVERYTHING)
    return fields


def test_envoy_accepts_what_is_made_of_every_field(tmp_path: Path) -> None:
    resources = made(tmp_path, **everything(tmp_path))
    assert validate(resources.whole(secret=False), tmp_path) == ""


def test_headgate_refuses_invalid_tokens_unless_requests_may_pass_without_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    tokens = [{"audience": "any", "secret_file": "secret"}]
    for failure, passed in (("deny", "allow_missing_or_failed"), ("allow", "allow_missing")):
        resources = made(tmp_path, identity={"tokens": tokens}, on_headgate_failure=failure)
        (verifies,) = [each for each in manager(resources)["http_filters"] if "jwt" in each["name"]]
        (rule,) = verifies["typed_config"]["rules"]
        assert rule["requires"]["requires_any"]["requirements"] == [{"provider_name": "issuer-0"}, {passed: {}}]


def test_health_checks_use_the_host_of_the_server(tmp_path: Path) -> None:
    Authority(tmp_path, "authority")
    check = {"health_check": {"path": "/healthz"}}
    services = {
        "named": {"endpoints": ["orders.internal:80", "10.0.0.5:80"], **check},
        "v6": {"endpoints": ["[2001:db8::5]:80"], **check},
        "tls": {"endpoints": ["10.0.0.5:443"], "tls": {"ca": "authority.pem", "name": "orders.example.com"}, **check},
    }
    resources = made(tmp_path, services=services, routes=[{"path": "/", "service": "tls"}])
    hosts = {each["name"]: each["health_checks"][0]["http_health_check"]["host"] for each in resources.clusters[:3]}
    assert hosts == {"named": "orders.internal", "v6": "[2001:db8::5]", "tls": "orders.example.com"}


def test_an_error_of_envoy_is_reported(tmp_path: Path) -> None:
    resources = made(tmp_path)
    whole = resources.whole(secret=False)
    whole["static_resources"]["clusters"][0]["type"] = "WRONG"
    assert "WRONG" in validate(whole, tmp_path)
    assert not (tmp_path / "whole.json").exists()


def test_the_printed_configuration_has_no_secrets(tmp_path: Path) -> None:
    resources = made(tmp_path, **everything(tmp_path))
    shown = json.dumps(resources.whole(secret=True))
    assert HIDDEN in shown
    assert "PRIVATE KEY" not in shown
    assert "c3Nzc3Nz" not in shown  # the shared secret, encoded
    assert digest("k" * 20) not in json.dumps(resources.whole(secret=False))  # Envoy knows no API keys


def test_only_the_needed_filters_are_configured(tmp_path: Path) -> None:
    least = made(tmp_path)
    assert filters(least) == ["fault", "content_length", "cors", "ext_authz", "buffer", "router"]
    all_of_it = made(tmp_path, **everything(tmp_path))
    needed = ["jwt_authn", "ext_authz", "rbac", "buffer", "ratelimit", "header_to_metadata"]
    assert filters(all_of_it) == ["fault", "content_length", "cors", "header_mutation", *needed, "router"]
    assert [each["name"] for each in manager(all_of_it, 1)["http_filters"]] == ["envoy.filters.http.router"]


ROUTES = [
    {"path": "/", "service": "a"},
    {"path": "/x", "service": "b", "methods": ["POST"]},
    {"path": "/x", "service": "a"},
    {"path": "/x/y", "service": "b"},
    {"path": "/", "service": "b", "hosts": ["api.example.com"]},
    {"path": "/w", "service": "b", "hosts": ["*.example.com"]},
]
WHERE = {
    "*": ["400", "400", "400", "b /x/y", "b /x POST", "a /x", "a /", "404"],
    "api.example.com": ["400", "400", "400", "b /", "b /w", "b /x/y", "b /x POST", "a /x", "a /", "404"],
    "*.example.com": ["400", "400", "400", "b /w", "b /x/y", "b /x POST", "a /x", "a /", "404"],
}


def test_the_nearest_host_comes_first_then_the_longest_path_then_the_method(tmp_path: Path) -> None:
    for routes in (ROUTES, ROUTES[::-1]):
        resources = made(tmp_path, routes=routes)
        hosts = {
            host["domains"][0]: [shown(route) for route in host["routes"]]
            for host in resources.routes[0]["virtual_hosts"]
        }
        assert hosts == WHERE


def shown(route: Any) -> str:
    if "direct_response" in route:
        return str(route["direct_response"]["status"])
    match = route["match"]
    path = match.get("path_separated_prefix", match.get("prefix"))
    methods = [header["string_match"]["exact"] for header in match.get("headers", ())]
    return " ".join([route["route"]["cluster"], path, *methods])


def test_a_service_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    names = ("gateway", "headgate", "issuer-0")
    services = {name: {"endpoints": ["127.0.0.1:9001"]} for name in names}
    tokens = [{"audience": "any", "jwks_url": "http://localhost/keys"}]
    resources = made(
        tmp_path, services=services, routes=[{"path": "/", "service": "headgate"}], identity={"tokens": tokens}
    )
    assert [each["name"] for each in resources.clusters] == [*names, "@issuer-0", "@headgate"]
    assert validate(resources.whole(secret=False), tmp_path) == ""


def test_equal_resources_have_the_same_version(tmp_path: Path) -> None:
    one = made(tmp_path)
    same = made(tmp_path)
    other = made(tmp_path, routes=[{"path": "/", "service": "b"}])
    assert one.file("routes") == same.file("routes")
    assert len({json.loads(each.file("routes"))["version_info"] for each in (one, same, other)}) == 2
    assert one.file("listeners") == other.file("listeners")  # so that no connection is touched


def test_replaced_clusters_stay_until_they_are_unused(tmp_path: Path) -> None:
    old = made(tmp_path)
    new = made(tmp_path, services={"a": {"endpoints": ["127.0.0.1:9009"]}})
    both = json.loads(discovery("clusters", new.with_clusters(old.clusters)))["resources"]
    ports = {each["name"]: str(each["load_assignment"]).partition("'port_value': ")[2][:4] for each in both}
    assert ports == {"a": "9009", "@headgate": "", "b": "9002"}
