"""Forward authentication: the headers of proxies, which proxies are trusted, and the responses for their clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.admission import CALLER_HEADERS
from headgate.server.api.forward_auth import ForwardAuth
from headgate.server.wire.messages import HttpRequest, HttpResponse, Peer
from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.identity import Identifier
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier, VerifiedClaims
from tests.server.serving import Service, fields, problem, serving

RULES = """
version: 1
rules:
  - {id: orders-ip, dimension: ip, endpoint: /orders/**, methods: [POST], limit: 2, window: 1m, algorithm: fixed_window}
  - {id: keys, dimension: apikey, limit: 7, window: 1m, algorithm: fixed_window}
deny: [{ip: 192.0.2.0/24}]
"""
PATH = "/api/v1/forward-auth"
TRUSTED = AddressReader("x-forwarded-for", trusted=["127.0.0.0/8"])
INSIDE = AddressReader("x-forwarded-for", trusted=["10.0.0.0/8"])
CLIENT = ("X-Forwarded-For", "203.0.113.9")
NGINX = [("Host", "127.0.0.1"), ("X-Original-URI", "/orders/7?a=b"), ("X-Original-Method", "POST"), CLIENT]
CADDY = [
    *(("Host", "headgate:8080"), ("X-Forwarded-Host", "api.example.com"), ("X-Forwarded-Method", "POST")),
    *(("X-Forwarded-Proto", "https"), ("X-Forwarded-Uri", "/orders/7"), CLIENT),
]
TRAEFIK = [
    *(("X-Forwarded-Host", "api.example.com"), ("X-Forwarded-Method", "POST"), ("X-Forwarded-Port", "443")),
    *(("X-Forwarded-Proto", "https"), ("X-Forwarded-Server", "traefik-1"), ("X-Forwarded-Uri", "/orders/7?a=b")),
    *(CLIENT, ("X-Real-Ip", "203.0.113.9")),
]


def forwarded(service: Service, headers: list[tuple[str, str]], method: str = "GET", **more: Any) -> HttpResponse:
    return service.send(method, PATH, b"", headers, **more)


@pytest.fixture
def service() -> Any:
    with serving(RULES) as service:
        yield service


@pytest.mark.parametrize("headers", [NGINX, TRAEFIK, CADDY], ids=["nginx", "traefik", "caddy"])
def test_a_request_passes_until_its_limit(service: Service, headers: list[tuple[str, str]]) -> None:
    passed = [forwarded(service, headers) for _ in range(2)]
    assert [(response.status, response.body) for response in passed] == [(200, b"")] * 2
    assert fields(passed[0]).items() >= {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1"}.items()
    assert fields(passed[0])["ratelimit-policy"] == '"orders-ip";q=2;w=60'
    refused = forwarded(service, headers)
    assert problem(refused, 429)["violated-policies"] == ["orders-ip"]
    assert fields(refused)["retry-after"] == "20"
    assert fields(refused)["cache-control"] == "no-store"


def test_clients_are_identified_by_the_address_that_the_proxy_saw(service: Service) -> None:
    """What clients claim stands left of it; some proxies ask with the method of the request."""
    for method, addresses, status in (
        ("POST", "9.9.9.9, 203.0.113.9", 200),
        ("DELETE", "9.9.9.9, 203.0.113.9", 200),
        ("HEAD", "8.8.8.8, 203.0.113.9", 429),
        ("GET", "203.0.113.9, 203.0.113.10", 200),
    ):
        assert forwarded(service, [*NGINX[:3], ("X-Forwarded-For", addresses)], method).status == status


def test_only_trusted_proxies_may_call(service: Service) -> None:
    """By default, those on this machine."""
    for peer in ("203.0.113.1", "10.0.0.1", "::ffff:203.0.113.1", "2001:db8::1"):
        assert "trusted" in problem(forwarded(service, NGINX, peer=peer), 403)["detail"], peer
    with serving(forward_auth=ForwardAuth()) as unlimited:
        for local in ("127.0.0.1", "127.9.9.9", "::1", None):
            assert forwarded(unlimited, NGINX, peer=local).status == 200, local
    with serving(RULES, forward_auth=ForwardAuth(identifier=lambda: Identifier(INSIDE))) as other:
        assert forwarded(other, NGINX, peer="10.1.2.3").status == 200
        assert forwarded(other, NGINX, peer="127.0.0.1").status == 403


def test_ambiguous_requests_are_refused(service: Service) -> None:
    uri, method = ("X-Original-URI", "/orders"), ("X-Original-Method", "GET")
    for headers in (
        *([CLIENT], NGINX[1:2], NGINX[2:3], [uri, ("X-Forwarded-Method", "GET")]),
        *([*NGINX, ("X-Forwarded-Uri", "/free")], [*TRAEFIK, ("X-Original-URI", "/free")]),
        *([*NGINX, ("X-Original-URI", "/free")], [*NGINX, method], [uri, ("X-Original-Method", "")]),
        *[[("X-Original-URI", path), method] for path in ("", "/a/../orders", "//orders", "/\xff")],
        [("X-Original-URI", "/x"), ("X-Original-Method", "G E T")],
    ):
        assert problem(forwarded(service, headers))["detail"], headers


def test_settings_select_the_headers_of_the_proxy() -> None:
    with serving(RULES, forward_auth=ForwardAuth(kind="forwarded")) as service:
        forged = [*TRAEFIK, ("X-Original-URI", "/free"), ("X-Original-Method", "GET")]
        assert [forwarded(service, forged).status for _ in range(3)] == [200, 200, 429]
        assert forwarded(service, NGINX).status == 400


def test_the_status_of_refusals_can_be_one_that_nginx_understands() -> None:
    with serving(RULES, forward_auth=ForwardAuth(deny_status=403)) as service:
        assert [forwarded(service, NGINX).status for _ in range(3)] == [200, 200, 403]
        assert forwarded(service, [CLIENT]).status == 403


def test_clients_can_be_identified_by_a_key() -> None:
    keys = ApiKeys({digest("secret-of-ada"): Holder("ada")})
    with serving(RULES, forward_auth=ForwardAuth(identifier=lambda: Identifier(TRUSTED, keys))) as service:
        response = forwarded(service, [*NGINX, ("X-Api-Key", "secret-of-ada")])
        assert '"keys"' in fields(response)["ratelimit"]
        assert forwarded(service, [*NGINX, ("X-Api-Key", "a"), ("X-Api-Key", "b")]).status == 400


KEYS = {digest("a"): Holder()}


@pytest.mark.parametrize(
    ("means", "taken"),
    [
        ({"api_keys": ApiKeys(KEYS)}, "x-api-key"),
        ({"tokens": TokenVerifier([Issuer([VerificationKey.load("HS256", "s" * 32)])])}, "authorization"),
        ({"api_keys": ApiKeys(KEYS, "x-client-key")}, ""),
        ({"verified": [VerifiedClaims("headgate", {"user": "sub"})]}, ""),
    ],
    ids=["keys", "tokens", "keys elsewhere", "claims that Envoy tells"],
)
def test_credentials_of_proxies_are_not_those_of_clients(means: dict[str, Any], taken: str) -> None:
    """Where both would come in one header, nothing passes: one would be taken for the other."""
    settings = ForwardAuth(identifier=lambda: Identifier(TRUSTED, **means), callers=CALLER_HEADERS)
    with serving(RULES, forward_auth=settings) as service:
        response = forwarded(service, NGINX)
    if taken:
        assert f"with caller keys, {taken} of a request identifies the proxy" in problem(response)["detail"]
    else:
        assert response.status == 200


NAMES = [
    *(b"x-original-uri", b"x-original-method", b"x-original-host", b"x-forwarded-uri", b"x-forwarded-method"),
    *(b"x-forwarded-host", b"x-forwarded-for", b"forwarded", b"authorization"),
]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.binary() | st.sampled_from([b"/orders", b"POST"])), max_size=6),
    st.sampled_from(["127.0.0.1", "203.0.113.1", "nonsense", None]),
)
def test_any_headers_get_a_response(headers: list[tuple[bytes, bytes]], peer: str | None) -> None:
    with serving(RULES) as service:
        response = service.ask(HttpRequest(b"GET", PATH.encode(), b"", headers, b"", Peer(peer)))
    assert response.status in {200, 400, 403, 429}


def test_a_response_lists_no_more_limits_than_a_proxy_accepts() -> None:
    """Of many, the one that decides: a head that is too long would be a failure to nginx, and so no refusal."""
    rules = "".join([f"  - {{id: {'r' * 60}{n}, dimension: ip, limit: {n + 1}, window: 1m}}\n" for n in range(100)])
    with serving(f"version: 1\nrules:\n{rules}") as service:
        responses = [forwarded(service, NGINX) for _ in range(2)]
    assert [response.status for response in responses] == [200, 429]
    for response in responses:
        assert fields(response)["ratelimit-policy"] == f'"{"r" * 60}0";q=1;w=60'
        assert sum(len(name) + len(value) + 4 for name, value in response.headers) < 1000
