"""Gateway files: values, problems, and warnings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headgate.config.problems import InvalidRules
from headgate.gateway.loading import load_gateway
from headgate.gateway.model import Cors, HealthCheck, gateway_schema
from headgate.gateway.running import identity_file
from headgate.gateway.scalars import UpstreamEndpoint
from tests.server.process.certificates import Authority

DIGEST = "0a" * 32
GOOD: dict[str, Any] = {
    "version": 1,
    "listeners": [{"port": 8000}],
    "services": {"orders": {"endpoints": ["127.0.0.1:9001"]}},
    "routes": [{"path": "/orders", "service": "orders"}],
    "rules": {"rules": [{"id": "a", "dimension": "ip", "limit": 5, "window": "1m"}]},
}

FULL: dict[str, Any] = GOOD | yaml.safe_load(f"""
services:
  orders:
    endpoints: ["10.0.0.5:80", "orders.internal:8000", "[2001:db8::5]:8000"]
    protocol: http2
    health_check: {{path: /healthz, interval: 2s, unhealthy_after: 3}}
    connect_timeout: 500ms
    timeout: none
    retries: 0
routes:
  - path: /orders
    service: orders
    hosts: [API.example.com, "*.example.org"]
    methods: [POST, GET]
    require: user
    cost: 5
    cost_from_response: X-Cost
    attributes: {{kind: write, costly: true}}
    credentials: remove
    cors: {{origins: ["https://app.example.com"], max_age: 1h}}
    websocket: true
    timeout: 1m
    rewrite: /v1/orders
identity:
  api_keys: {{keys: [{{sha256: "{DIGEST.upper()}", name: reporting, tier: pro}}]}}
  tokens: [{{audience: [api], secret_file: secret, claims: {{tenant: org}}}}]
  trusted_hops: 1
rules: rules.yaml
store: redis://localhost:6379/0
on_headgate_failure: allow
decisions: {{workers: 2, timeout: 100ms}}
limits: {{connections: 10, header_kb: 8, body_mb: 1, idle: 1m}}
admin: {{port: 8002}}
threads: 2
access_log: "off"
drain_delay: 0
drain: 5s
""")
"""A file with every field."""


def loaded(folder: Path, file: object) -> Any:
    path = folder / "gateway.yaml"
    path.write_text(file if isinstance(file, str) else yaml.safe_dump(file, sort_keys=False))
    return load_gateway(path)


def problems(folder: Path, file: object) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        loaded(folder, file)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def route(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "routes": [{"path": "/orders", "service": "orders", **fields}]}


def identity(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "identity": fields}


def test_defaults_of_the_fields(tmp_path: Path) -> None:
    gateway = loaded(tmp_path, GOOD)
    assert gateway.listeners[0].name == "127.0.0.1:8000"
    assert gateway.on_headgate_failure == "deny"
    assert gateway.routes[0].require == "none"
    assert gateway.routes[0].cost == 1
    assert gateway.decisions.store == "memory"
    assert gateway.services["orders"].endpoints == (UpstreamEndpoint("127.0.0.1", 9001),)


def test_every_field_is_read(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("{version: 1, rules: [{id: a, limit: 1, window: 1m}]}")
    (tmp_path / "secret").write_text("x" * 32 + "\n")
    jsonschema.validate(FULL, gateway_schema())
    gateway = loaded(tmp_path, FULL)
    service, read = gateway.services["orders"], gateway.routes[0]
    assert service.health_check == HealthCheck("/healthz", 2.0, 1.0, 2, 3)
    assert (service.is_http2, service.connect_timeout, service.timeout, service.retries) == (True, 0.5, 0.0, 0)
    assert [each.is_address for each in service.endpoints] == [True, False, True]
    assert read.hosts == ("api.example.com", "*.example.org")
    assert read.methods == ("GET", "POST")
    assert (read.cost_from_response, read.attributes) == ("x-cost", {"kind": "write", "costly": "true"})
    assert read.cors == Cors(("https://app.example.com",), max_age=3600)
    assert gateway.api_keys["keys"][0]["sha256"] == DIGEST
    (issuer,) = gateway.issuers
    assert (issuer.audience, issuer.claims) == (("api",), {"user": "sub", "tenant": "org"})
    assert json.loads(issuer.jwks)["keys"][0]["alg"] == "HS256"
    assert (gateway.drain_delay, gateway.drain_seconds) == (0.0, 5.0)
    assert (gateway.access_log, gateway.max_header_kb) == (False, 8)
    assert "x" * 32 not in repr(gateway)


BAD = [
    ({}, ["a gateway file needs 'version'", "needs 'listeners'", "needs 'services'", "needs 'routes'"]),
    ([], ["is not a gateway file"]),
    ({**GOOD, "listner": []}, ["a gateway file has no 'listner'. Did you mean 'listeners'?"]),
    ({**GOOD, "version": 2}, ["Write 1, without quotes."]),
    ({**GOOD, "listeners": []}, ["listeners: has no listener"]),
    ({**GOOD, "listeners": [{"port": 0}]}, ["listeners[0].port: 0 is not a whole number from 1 to 65535"]),
    ({**GOOD, "listeners": [{"port": 8000}, {"port": 8000}]}, ["8000 is already the port of another listener"]),
    (
        {**GOOD, "listeners": [{"port": 8000}], "admin": {"port": 8000}},
        ["admin.port: 8000 is already the port of a listener"],
    ),
    ({**GOOD, "admin": {"port": "x"}}, ["admin.port: 'x' is not a whole number"]),
    ({**GOOD, "listeners": [{"port": 1, "address": "a b"}]}, ["'a b' is not an IP address"]),
    ({**GOOD, "listeners": [{"port": 1, "address": "localhost"}]}, ["is not an IP address", "Write 127.0.0.1."]),
    (route(hosts=["api example"]), ["'api example' is not a host"]),
    ({**GOOD, "listeners": [{"port": 1, "tls": {"certificate": "no.pem", "key": "no.key"}}]}, ["cannot be read"]),
    ({**GOOD, "services": {"orders": {}}}, ["a service needs 'endpoints'"]),
    ({**GOOD, "services": {"orders": {"endpoints": []}}}, ["endpoints: has no server"]),
    ({**GOOD, "services": {"orders": {"endpoints": ["localhost"]}}}, ["'localhost' is not a host with a port"]),
    ({**GOOD, "services": {"orders": {"endpoints": ["a:99999"]}}}, ["99999 is not a port"]),
    ({**GOOD, "services": {"orders": {"endpoints": ["[::zz]:1"]}}}, ["is not a host with a port"]),
    (route(service="order"), ["service 'order' does not exist", "Did you mean 'orders'?"]),
    (route(path="orders"), ["'orders' is not a path"]),
    (route(path="/orders/"), ["another spelling of a path", "Write /orders."]),
    (route(path="/a/../b"), ["it has a .. segment"]),
    (route(path="/a%2Fb"), ["%2F"]),
    (route(require="admin"), ["'admin' is unknown. Accepted: one of none, any, user, apikey"]),
    (route(methods=["FETCH"]), ["methods[0]: 'FETCH' is unknown"]),
    (route(cost=-1), ["-1 is not a whole number from 0 to 100000"]),
    (route(timeout="0s"), ["a window must be longer than 0"]),
    (route(timeout="2d"), ["is not from 0.01 s to 86400 s"]),
    (route(attributes={"user": "ada"}), ["'user' cannot be a key here"]),
    (route(attributes={"Kind": "a"}), ["'Kind' cannot be a key here"]),
    (route(cost_from_response="x cost"), ["a header name must have"]),
    (route(cors={"origins": ["app.example.com"]}), ["'app.example.com' is not an origin"]),
    (route(cors={"origins": ["*"], "credentials": True}), ["cookies for every origin"]),
    ({**GOOD, "routes": []}, ["routes: has no route"]),
    ({**GOOD, "routes": GOOD["routes"] * 2}, ["routes[1]: is for the same requests as routes[0]"]),
    (identity(api_keys={"keys": [{"sha256": "my secret key"}]}), ["is not a digest"]),
    (identity(api_keys={"keys": [{"sha256": DIGEST}] * 2}), ["is already used by identity.api_keys.keys[0]"]),
    (identity(tokens=[{"secret_file": "secret"}]), ["an issuer needs 'audience'"]),
    (identity(tokens=[{"audience": []}]), ["audience: is empty"]),
    (identity(tokens=[{"audience": "any"}]), ["must have exactly one source of keys", "jwks, jwks_url, secret_file"]),
    (identity(tokens=[{"audience": "any", "jwks": "no.json", "algorithms": ["RS256"]}]), ["cannot be read"]),
    (identity(tokens=[{"audience": "any", "jwks": "rules", "algorithms": ["RS256"]}]), ["a JWK set is JSON"]),
    (identity(tokens=[{"audience": "any", "jwks": "rules"}]), ["name the algorithms that sign its tokens"]),
    (identity(tokens=[{"audience": "any", "secret_file": "short"}]), ["must have at least 32 bytes"]),
    (
        identity(tokens=[{"audience": "any", "secret_file": "long", "algorithms": ["RS256"]}]),
        ["a shared secret is for one algorithm"],
    ),
    (identity(tokens=[{"audience": "any", "jwks_url": "https://u@h/"}]), ["has no host, or contains a user name"]),
    (
        identity(tokens=[{"audience": "any", "jwks_url": "http://h/", "algorithms": ["RS256"]}]),
        ["fetched keys name their own algorithms"],
    ),
    (identity(tokens=[{"audience": "any", "secret_file": "long"}] * 2), ["has no realm"]),
    (
        identity(
            api_keys={"header": "Authorization", "keys": [{"sha256": DIGEST}]},
            tokens=[{"audience": "any", "secret_file": "long"}],
        ),
        ["Authorization has the tokens"],
    ),
    ({key: value for key, value in GOOD.items() if key != "rules"}, ["there are no rules"]),
    ({**GOOD, "rules": "no.yaml"}, ["gateway.yaml:11:8: rules: 'no.yaml' cannot be read: No such file or directory"]),
    ({**GOOD, "store": "mysql://h"}, ["gateway.yaml:17:8: store: "]),
    (identity(api_keys={"keys": []}), ["identity.api_keys.keys: has no key"]),
    (
        {**GOOD, "ignore_case": True},
        ["ignore_case: the rules are case-sensitive", "Write ignore_case: true in the rules, too"],
    ),
    (
        {**GOOD, "ignore_case": False, "rules": {**GOOD["rules"], "ignore_case": True}},
        ["ignore_case: the rules ignore case"],
    ),
    (route(hosts=["::zz"]), ["routes[0].hosts[0]: '::zz' is not a host"]),
    (route(hosts=["1:2"]), ["routes[0].hosts: 1:2 is not an IPv6 address"]),
    ({**GOOD, "rules": "rules"}, ["is not a file of rules"]),
    ({**GOOD, "rules": {"rules": [{"id": "a", "limit": 5, "windw": "1m"}]}}, ["rules.rules[0].windw: a rule has no"]),
    ({**GOOD, "decisions": {"workers": 2}}, ["2 workers need a store that they share"]),
    ({**GOOD, "decisions": {"caller_key_file": "long"}}, ["is for a remote service"]),
    ({**GOOD, "decisions": {"address": "h:1"}}, ["rules: the remote decision service has its own"]),
    ({**GOOD, "on_headgate_failure": "open"}, ["one of deny, allow"]),
]


@pytest.mark.parametrize(("file", "expected"), BAD, ids=[expected[0][:60] for _, expected in BAD])
def test_invalid_files_are_explained(tmp_path: Path, file: object, expected: list[str]) -> None:
    for name, text in {"rules": "nonsense", "short": "abc", "long": "x" * 40}.items():
        (tmp_path / name).write_text(text)
    found = problems(tmp_path, file)
    for text in expected:
        assert any(text in problem for problem in found), found


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
version: 1
listeners: [{port: 8000}]
services:
  orders: {endpoints: ["127.0.0.1:9001"], retires: 1}
routes:
  - {path: /orders, service: orders, require: everything}
rules:
  rules:
    - {id: a, limit: 5, window: never}
"""
    found = problems(tmp_path, text)
    assert [problem.split(": ")[:2] for problem in found] == [
        ["gateway.yaml:4:43", "services.orders.retires"],
        ["gateway.yaml:6:47", "routes[0].require"],
        ["gateway.yaml:9:33", "rules.rules[0].window"],
    ]


def test_a_fault_of_form_does_not_hide_others(tmp_path: Path) -> None:
    """Well-formed parts are still checked: their references, repetitions and files."""
    text = """\
version: 1
listeners: [{port: 8000, tls: {certificate: no.pem, key: no.key}}, {port: none}, {port: 8000}]
services:
  orders: {endpoints: ["127.0.0.1:9001", "nowhere"], retires: 1}
  users: nothing
routes:
  - {path: /users, service: users}
  - {path: /orders, service: order, methods: [GET, FETCH]}
  - {path: /orders, service: orders, methods: [GET], cors: {origin: ["*"]}}
identity:
  api_keys: {keys: [{sha256: abc}]}
  tokens: [{audience: any, jwks: no.json, algorithms: [RS256]}, nothing]
rule: rules.yaml
decisions: {workers: 2}
"""
    found = problems(tmp_path, text)
    assert [problem.split(": ")[1] for problem in found] == [
        "listeners[0].tls.certificate",
        "listeners[0].tls.key",
        "listeners[1].port",
        "listeners[2].port",
        "services.orders.endpoints[1]",
        "services.orders.retires",
        "services.users",
        "routes[1].service",
        "routes[1].methods[1]",
        "routes[2]",
        "routes[2].cors.origin",
        "identity.api_keys.keys[0].sha256",
        "identity.tokens[0]",
        "identity.tokens[0].jwks",
        "identity.tokens[1]",
        "rule",
        "decisions.workers",
    ], found


TWO_ROUTES = [{"path": "/orders", "service": "orders"}, {"path": "/orders", "service": "orders", "hosts": ["a b"]}]
ONE_FAULT = [
    ({**GOOD, "routes": TWO_ROUTES}, "routes[1].hosts[0]: 'a b' is not a host"),
    (identity(tokens=[{"audience": "any", "jwks_url": "ftp://h"}]), "identity.tokens[0].jwks_url: 'ftp://h' cannot be"),
    (identity(tokens=[{"audience": "any", "jwks_ulr": "https://h"}]), "Did you mean 'jwks_url'?"),
    ("version: 1\nlisteners:\n\t- port: 8000\n", "A tab cannot indent: use spaces."),
    ("version: 1\nlisteners:\n  - \t- port: 8000\n", "A tab cannot indent: use spaces."),
]


@pytest.mark.parametrize(("file", "expected"), ONE_FAULT, ids=[expected for _, expected in ONE_FAULT])
def test_one_fault_is_one_problem(tmp_path: Path, file: object, expected: str) -> None:
    (found,) = problems(tmp_path, file)
    assert expected in found


PRIVATE = {"path": "/orders/private", "service": "orders", "require": "user"}
ALL, BELOW = {"path": "/", "service": "orders"}, {"path": "/orders", "service": "orders"}
PAGES = {**GOOD["services"], "pages": {"endpoints": ["127.0.0.1:9002"]}}
AROUND: list[tuple[dict[str, Any], list[str]]] = [
    ({"routes": [BELOW, PRIVATE]}, ["such as /ORDERS/PRIVATE, it goes to routes[0]"]),
    (
        {"routes": [ALL, {**PRIVATE, "methods": ["GET", "POST"]}], "ignore_case": False},
        ["HEAD, PUT, DELETE, ... of it goes to routes[0], which requires none"],
    ),
    (
        {"routes": [{**ALL, "hosts": ["api.example.com"]}, {**PRIVATE, "path": "/7"}]},
        ["at the host api.example.com, its requests go to routes[0], which requires none"],
    ),
    ({"routes": [{**ALL, "require": "any"}, {**PRIVATE, "require": "apikey"}]}, ["in different letter case"]),
    ({"routes": [{**ALL, "require": "user"}, {**PRIVATE, "require": "any"}]}, []),
    ({"routes": [{**BELOW, "require": "user"}, PRIVATE]}, []),
    ({"routes": [BELOW, {**PRIVATE, "path": "/orders/7"}]}, []),
    ({"routes": [BELOW, PRIVATE], "rules": {**GOOD["rules"], "ignore_case": True}}, []),
    ({"routes": [{**ALL, "service": "pages"}, {**PRIVATE, "methods": ["GET"]}], "services": PAGES}, []),
]
"""Files with a route that requires a user, and its bypasses."""


def test_a_bypass_of_a_route_is_a_warning(tmp_path: Path) -> None:
    for fields, expected in AROUND:
        warnings = loaded(tmp_path, {**GOOD, **fields}).warnings
        assert len(warnings) == len(expected), warnings
        for warning, text in zip(warnings, expected, strict=True):
            assert text in warning.message, fields
            assert warning.line, fields


def test_bypasses_of_a_thousand_routes_with_hosts_are_found_quickly(tmp_path: Path) -> None:
    """Comparing all routes for each route and host took ten minutes."""
    guarded = [{**PRIVATE, "path": "/shop/a", "hosts": [f"h{number}.example.com"]} for number in range(1000)]
    warnings = loaded(tmp_path, {**GOOD, "routes": [*guarded, {"path": "/shop", "service": "orders"}]}).warnings
    assert len(warnings) == len(guarded)
    assert all("it goes to routes[1000]" in warning.message for warning in warnings)


def test_the_keys_of_the_database_may_be_named(tmp_path: Path) -> None:
    for keys in ({"keys": "database"}, {}):
        gateway = loaded(tmp_path, identity(api_keys={**keys, "consumers": "sqlite:///headgate.db"}))
        assert identity_file(gateway)["api_keys"] == {"keys": "database"}


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all inner values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


JUNK: list[Any] = [None, 0, -1, 2.5, True, "", "x", "*", [], [None], ["x"], {}, {"x": 1}, [{}], {"path": "/"}]


def test_any_value_in_any_place_is_read_or_refused(tmp_path: Path) -> None:
    """Loading never fails itself: what follows a fault is checked without the faulty part."""
    for *outer, last in places(FULL):
        for junk in JUNK:
            file: Any = deepcopy(FULL)
            part = file
            for key in outer:
                part = part[key]
            part[last] = junk
            with suppress(InvalidRules):
                loaded(tmp_path, json.dumps(file))


def test_a_key_instead_of_its_digest_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidRules) as caught:
        loaded(tmp_path, identity(api_keys={"keys": [{"sha256": "the key itself"}]}))
    assert "the key itself" not in repr(caught.value.problems)


def test_a_password_in_invalid_yaml_is_not_shown(tmp_path: Path) -> None:
    for text in ("store: redis://:s3cret@a\nstore: redis://:s3cret@b\n", "store: 'redis://:s3cret@a' x\n"):
        (tmp_path / "gateway.yaml").write_text(f"version: 1\n{text}")
        with pytest.raises(InvalidRules) as caught:
            load_gateway(tmp_path / "gateway.yaml")
        assert "s3cret" not in repr(caught.value.problems), text
        assert "syntax" in {problem.kind for problem in caught.value.problems}, text


def test_a_certificate_goes_with_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    (one, key), (_, other) = authority.signed("one"), authority.signed("other")
    tls = {"certificate": str(one), "key": str(other)}
    (problem,) = problems(tmp_path, {**GOOD, "listeners": [{"port": 1, "tls": tls}]})
    assert problem.endswith("certificate and key cannot be used: the key belongs to another certificate")
    swapped = {"certificate": str(key), "key": str(one)}
    (problem,) = problems(tmp_path, {**GOOD, "listeners": [{"port": 1, "tls": swapped}]})
    assert "they are swapped" in problem
    good = {"certificate": str(one), "key": str(key)}
    gateway = loaded(tmp_path, {**GOOD, "listeners": [{"port": 1, "tls": [good]}]})
    assert len(gateway.listeners[0].certificates) == 1
