"""What Envoy is told about a gateway."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.gateway.bootstrap import HIDDEN, Resources, discovery, resources_of, version_of
from headgate.gateway.envoy import validate
from headgate.gateway.loading import load_gateway
from headgate.gateway.model import Gateway
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


def made(folder: Path, **fields: Any) -> tuple[Gateway, Resources]:
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({**LEAST, **fields}))
    gateway = load_gateway(path)
    return gateway, resources_of(gateway, "/run/headgate")


def manager(resources: Resources, listener: int = 0) -> Any:
    return resources.listeners[listener]["filter_chains"][0]["filters"][0]["typed_config"]


def filters(resources: Resources) -> list[str]:
    return [each["name"].rpartition(".")[2] for each in manager(resources)["http_filters"]]


def everything(folder: Path) -> dict[str, Any]:
    """A file that has everything."""
    authority = Authority(folder, "authority")
    authority.signed("server")
    (folder / "secret").write_text("s" * 40)
    tls = {"ca": "authority.pem", "name": "localhost", "certificate": "server.pem", "key": "server.key"}
    return {
        "listeners": [
            {"port": 8443, "address": "0.0.0.0", "tls": [{"certificate": "server.pem", "key": "server.key"}]},  # noqa: S104
            {"port": 8080, "address": "::", "redirect_to": 8443},
        ],
        "services": {
            "a": {"endpoints": ["127.0.0.1:1", "localhost:2"], "tls": tls, "protocol": "http2", "retries": 0},
            "b": {"endpoints": ["[::1]:3"], "health_check": {"path": "/healthz"}, "timeout": "none"},
        },
        "routes": [
            {"path": "/", "service": "a"},
            {
                "path": "/b",
                "service": "b",
                "methods": ["GET"],
                "cors": {"origins": ["*"], "headers": ["x-more"]},
                "websocket": True,
                "rewrite": "/",
                "cost_from_response": "x-cost",
                "attributes": {"kind": "x"},
            },
            {
                "path": "/c",
                "service": "b",
                "require": "any",
                "hosts": ["*.example.com"],
                "rewrite": "/d",
                "timeout": "5s",
            },
        ],
        "identity": {
            "api_keys": {"query": "key", "keys": [{"sha256": digest("k" * 20)}]},
            "tokens": [
                {"audience": "any", "secret_file": "secret", "realm": "one"},
                {
                    "audience": ["x"],
                    "issuer": "i",
                    "jwks_url": "https://localhost:9/k",
                    "ca": "authority.pem",
                    "realm": "2",
                },
            ],
            "trusted_hops": 2,
        },
        "admin": {"port": 8002},
        "on_headgate_failure": "allow",
    }


def test_envoy_accepts_what_is_made_of_every_field(tmp_path: Path) -> None:
    gateway, resources = made(tmp_path, **everything(tmp_path))
    assert validate(resources.whole(gateway, secret=False), tmp_path) == ""


@pytest.mark.parametrize(
    ("failure", "passed"), [("deny", "allow_missing_or_failed"), ("allow", "allow_missing")], ids=["deny", "allow"]
)
def test_bad_tokens_are_left_to_headgate_unless_requests_may_pass_without_it(
    tmp_path: Path, failure: str, passed: str
) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    tokens = [{"audience": "any", "secret_file": "secret"}]
    _, resources = made(tmp_path, identity={"tokens": tokens}, on_headgate_failure=failure)
    (chain,) = resources.listeners[0]["filter_chains"]
    (verifies,) = [each for each in chain["filters"][0]["typed_config"]["http_filters"] if "jwt" in each["name"]]
    (rule,) = verifies["typed_config"]["rules"]
    assert rule["requires"]["requires_any"]["requirements"] == [{"provider_name": "issuer-0"}, {passed: {}}]


def test_a_server_is_asked_for_its_health_by_the_name_that_it_has(tmp_path: Path) -> None:
    Authority(tmp_path, "authority")
    check = {"health_check": {"path": "/healthz"}}
    services = {
        "named": {"endpoints": ["orders.internal:80", "10.0.0.5:80"], **check},
        "v6": {"endpoints": ["[2001:db8::5]:80"], **check},
        "tls": {"endpoints": ["10.0.0.5:443"], "tls": {"ca": "authority.pem", "name": "orders.example.com"}, **check},
    }
    _, resources = made(tmp_path, services=services, routes=[{"path": "/", "service": "tls"}])
    asked = {each["name"]: each["health_checks"][0]["http_health_check"]["host"] for each in resources.clusters[:3]}
    assert asked == {"named": "orders.internal", "v6": "[2001:db8::5]", "tls": "orders.example.com"}


def test_what_envoy_refuses_is_told(tmp_path: Path) -> None:
    gateway, resources = made(tmp_path)
    whole = resources.whole(gateway, secret=False)
    whole["static_resources"]["clusters"][0]["type"] = "WRONG"
    assert "WRONG" in validate(whole, tmp_path)
    assert not (tmp_path / "whole.json").exists()


def test_what_may_be_shown_has_no_secrets(tmp_path: Path) -> None:
    gateway, resources = made(tmp_path, **everything(tmp_path))
    shown = json.dumps(resources.whole(gateway, secret=True))
    assert HIDDEN in shown
    assert "PRIVATE KEY" not in shown
    assert "c3Nzc3Nz" not in shown  # the shared secret, encoded
    assert digest("k" * 20) not in json.dumps(resources.whole(gateway, secret=False))  # Envoy knows no API keys


def test_only_what_is_needed_is_asked(tmp_path: Path) -> None:
    _, least = made(tmp_path)
    assert filters(least) == ["fault", "content_length", "cors", "ext_authz", "buffer", "router"]
    _, all_of_it = made(tmp_path, **everything(tmp_path))
    asked = ["jwt_authn", "ext_authz", "rbac", "buffer", "ratelimit", "header_to_metadata"]
    assert filters(all_of_it) == ["fault", "content_length", "cors", "header_mutation", *asked, "router"]
    assert [each["name"] for each in manager(all_of_it, 1)["http_filters"]] == ["envoy.filters.http.router"]


@pytest.mark.parametrize("on_failure", ["deny", "allow"])
def test_whoever_is_not_decided_about_passes_only_if_the_file_says_so(tmp_path: Path, on_failure: str) -> None:
    _, resources = made(tmp_path, on_headgate_failure=on_failure)
    authorization = manager(resources)["http_filters"][3]["typed_config"]
    assert authorization["failure_mode_allow"] is (on_failure == "allow")
    assert authorization["status_on_error"] == {"code": "ServiceUnavailable"}


def test_a_request_is_read_strictly(tmp_path: Path) -> None:
    _, resources = made(tmp_path)
    read = manager(resources)
    assert read["use_remote_address"] is True
    assert read["path_with_escaped_slashes_action"] == "REJECT_REQUEST"
    assert (read["normalize_path"], read["merge_slashes"]) == (True, True)
    assert read["common_http_protocol_options"]["headers_with_underscores_action"] == "DROP_HEADER"


def removed(resources: Resources) -> set[str]:
    (extension,) = manager(resources)["early_header_mutation_extensions"]
    mutations = extension["typed_config"]["mutations"]
    matchers = [mutation["remove_on_match"]["key_matcher"] for mutation in mutations]
    return {matcher["safe_regex"]["regex"] for matcher in matchers}


def test_headers_about_addresses_are_kept_only_from_proxies_of_ones_own(tmp_path: Path) -> None:
    def are_removed(found: Resources, *names: str) -> list[bool]:
        return [any(re.fullmatch(regex, name) for regex in removed(found)) for name in names]

    names = ("x-headgate-user", "x-http-method-override", "x-forwarded-for", "forwarded", "x-request-id")
    assert are_removed(made(tmp_path)[1], *names) == [True, True, True, True, False]
    behind = made(tmp_path, identity={"trusted_hops": 1})[1]
    assert are_removed(behind, *names) == [True, True, False, False, False]
    assert manager(behind)["xff_num_trusted_hops"] == 1


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
        _, resources = made(tmp_path, routes=routes)
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


def test_headgate_is_told_what_a_route_asks_for(tmp_path: Path) -> None:
    route = {
        "path": "/",
        "service": "a",
        "require": "user",
        "cost": 7,
        "attributes": {"kind": "x"},
        "credentials": "remove",
    }
    _, resources = made(tmp_path, routes=[route])
    settings = resources.routes[0]["virtual_hosts"][0]["routes"][3]["typed_per_filter_config"]
    assert settings["envoy.filters.http.ext_authz"]["check_settings"]["context_extensions"] == {
        "headgate.require": "user",
        "headgate.cost": "7",
        "headgate.service": "a",
        "headgate.credentials": "remove",
        "headgate.attribute.kind": "x",
    }


def test_a_service_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s" * 40)
    names = ("gateway", "headgate", "issuer-0")
    services = {name: {"endpoints": ["127.0.0.1:9001"]} for name in names}
    tokens = [{"audience": "any", "jwks_url": "http://localhost/keys"}]
    gateway, resources = made(
        tmp_path, services=services, routes=[{"path": "/", "service": "headgate"}], identity={"tokens": tokens}
    )
    assert [each["name"] for each in resources.clusters] == [*names, "@issuer-0", "@headgate"]
    assert validate(resources.whole(gateway, secret=False), tmp_path) == ""


def test_each_worker_has_a_socket_that_envoy_spreads_requests_over(tmp_path: Path) -> None:
    _, resources = made(tmp_path, decisions={"workers": 2}, store="redis://localhost")
    (cluster,) = [each for each in resources.clusters if each["name"] == "@headgate"]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    paths = [each["endpoint"]["address"]["pipe"]["path"] for each in endpoints]
    assert paths == ["/run/headgate/grpc-0.sock", "/run/headgate/grpc-1.sock"]


def test_what_is_the_same_has_the_same_version(tmp_path: Path) -> None:
    _, one = made(tmp_path)
    _, same = made(tmp_path)
    _, other = made(tmp_path, routes=[{"path": "/", "service": "b"}])
    assert one.file("routes") == same.file("routes")
    assert version_of(one.file("routes")) != version_of(other.file("routes"))
    assert one.file("listeners") == other.file("listeners")  # so that no connection is touched


def test_clusters_that_are_replaced_stay_until_they_are_not_used(tmp_path: Path) -> None:
    _, old = made(tmp_path)
    _, new = made(tmp_path, services={"a": {"endpoints": ["127.0.0.1:9009"]}})
    both = json.loads(discovery("clusters", new.with_clusters(old.clusters)))["resources"]
    ports = {each["name"]: str(each["load_assignment"]).partition("'port_value': ")[2][:4] for each in both}
    assert ports == {"a": "9009", "@headgate": "", "b": "9002"}
