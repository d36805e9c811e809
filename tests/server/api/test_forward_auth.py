"""Proxies that ask for their clients: what they send, whom they may be, what they hear."""

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
from headgate.web.errors import InvalidSettings
from headgate.web.headers import ResponseHeaders
from headgate.web.identity import Identifier
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier, VerifiedClaims
from tests.server.serving import Service, fields, problem, serving
from tests.servers import free_port

RULES = """
version: 1
rules:
  - {id: orders-ip, dimension: ip, endpoint: /orders/**, methods: [POST], limit: 2, window: 1m, algorithm: fixed_window}
  - {id: host, dimension: ip, when: {host: api.example.com}, limit: 9, window: 1m, algorithm: fixed_window}
  - {id: keys, dimension: apikey, limit: 7, window: 1m, algorithm: fixed_window}
deny: [{ip: 192.0.2.0/24}]
"""
PATH = "/api/v1/forward-auth"
CLIENT = ("X-Forwarded-For", "203.0.113.9")
NGINX = [("Host", "127.0.0.1"), ("X-Original-URI", "/orders/7?a=b"), ("X-Original-Method", "POST"), CLIENT]
TRAEFIK = [
    ("X-Forwarded-Host", "api.example.com"),
    ("X-Forwarded-Method", "POST"),
    ("X-Forwarded-Port", "443"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Server", "traefik-1"),
    ("X-Forwarded-Uri", "/orders/7?a=b"),
    CLIENT,
    ("X-Real-Ip", "203.0.113.9"),
]
CADDY = [
    ("Host", "headgate:8080"),
    ("X-Forwarded-Host", "api.example.com"),
    ("X-Forwarded-Method", "POST"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Uri", "/orders/7"),
    CLIENT,
]


def asked(service: Service, headers: list[tuple[str, str]], method: str = "GET", **more: Any) -> HttpResponse:
    return service.send(method, PATH, b"", headers, **more)


@pytest.fixture
def service() -> Any:
    with serving(RULES) as service:
        yield service


@pytest.mark.parametrize("headers", [NGINX, TRAEFIK, CADDY], ids=["nginx", "traefik", "caddy"])
def test_a_request_passes_until_its_limit(service: Service, headers: list[tuple[str, str]]) -> None:
    passed = [asked(service, headers) for _ in range(2)]
    assert [(response.status, response.body) for response in passed] == [(200, b"")] * 2
    assert fields(passed[0]).items() >= {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1"}.items()
    assert fields(passed[0])["ratelimit-policy"] == '"orders-ip";q=2;w=60'
    refused = asked(service, headers)
    assert problem(refused, 429)["violated-policies"] == ["orders-ip"]
    assert fields(refused)["retry-after"] == "20"
    assert fields(refused)["cache-control"] == "no-store"


def test_any_method_is_the_proxys_and_not_the_clients(service: Service) -> None:
    """Some proxies ask with the method of the request."""
    assert [asked(service, NGINX, method).status for method in ("POST", "DELETE", "HEAD")] == [200, 200, 429]


def test_clients_are_told_apart_by_the_address_that_the_proxy_saw(service: Service) -> None:
    """What clients claim stands left of it."""
    for _ in range(2):
        assert asked(service, [*NGINX[:3], ("X-Forwarded-For", "9.9.9.9, 203.0.113.9")]).status == 200
    assert asked(service, [*NGINX[:3], ("X-Forwarded-For", "8.8.8.8, 203.0.113.9")]).status == 429
    assert asked(service, [*NGINX[:3], ("X-Forwarded-For", "203.0.113.9, 203.0.113.10")]).status == 200


def test_who_is_on_a_list_is_forbidden(service: Service) -> None:
    """They are not told by which entry: it may name networks, users or keys of others."""
    refused = asked(service, [*NGINX[:3], ("X-Forwarded-For", "192.0.2.1")])
    assert problem(refused, 403)["detail"] == "This client is not admitted."
    assert b"192.0.2" not in refused.body


def test_a_place_in_a_queue_is_told_in_a_header() -> None:
    """The proxy, or the client, can wait for it."""
    rules = (
        "version: 1\nrules: [{id: queue, dimension: ip, limit: 60, window: 1m, algorithm: leaky_bucket, queue: true}]"
    )
    with serving(rules) as service:
        told = [fields(asked(service, NGINX)) for _ in range(3)]
    assert [each.get("x-ratelimit-delay") for each in told] == [None, "1", "2"]


def test_the_reset_is_a_time_unless_seconds_are_asked_for(service: Service) -> None:
    now = -(-service.clock.now() // 1_000_000)
    assert fields(asked(service, NGINX))["x-ratelimit-reset"] == f"{now + 20}"
    with serving(RULES, forward_auth=ForwardAuth(headers=ResponseHeaders(reset_format="seconds"))) as other:
        assert fields(asked(other, NGINX))["x-ratelimit-reset"] == "20"


@pytest.mark.parametrize("peer", ["203.0.113.1", "10.0.0.1", "::ffff:203.0.113.1", "2001:db8::1"])
def test_only_a_trusted_proxy_may_ask(service: Service, peer: str) -> None:
    assert "trusted" in problem(asked(service, NGINX, peer=peer), 403)["detail"]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", None])
def test_what_runs_on_this_machine_is_trusted(service: Service, peer: str | None) -> None:
    assert asked(service, NGINX, peer=peer).status == 200


def test_other_proxies_are_trusted_if_the_settings_say_so() -> None:
    with serving(RULES, forward_auth=ForwardAuth(trusted=["10.0.0.0/8"])) as service:
        assert asked(service, NGINX, peer="10.1.2.3").status == 200
        assert asked(service, NGINX, peer="127.0.0.1").status == 403


@pytest.mark.parametrize(
    "headers",
    [
        [CLIENT],
        NGINX[1:2],
        NGINX[2:3],
        [("X-Original-URI", "/orders"), ("X-Forwarded-Method", "GET")],
        [*NGINX, ("X-Forwarded-Uri", "/free")],
        [*TRAEFIK, ("X-Original-URI", "/free")],
        [*NGINX, ("X-Original-URI", "/free")],
        [*NGINX, ("X-Original-Method", "GET")],
        [("X-Original-URI", "/orders"), ("X-Original-Method", "")],
        [("X-Original-URI", ""), ("X-Original-Method", "GET")],
        [("X-Original-URI", "/a/../orders"), ("X-Original-Method", "GET")],
        [("X-Original-URI", "//orders"), ("X-Original-Method", "GET")],
        [("X-Original-URI", "/\xff"), ("X-Original-Method", "GET")],
        [("X-Original-URI", "/x"), ("X-Original-Method", "G E T")],
    ],
)
def test_what_leaves_it_open_which_rules_apply_is_refused(service: Service, headers: list[tuple[str, str]]) -> None:
    assert problem(asked(service, headers))["detail"]


def test_the_settings_say_which_headers_are_the_proxys() -> None:
    with serving(RULES, forward_auth=ForwardAuth(kind="forwarded")) as service:
        forged = [*TRAEFIK, ("X-Original-URI", "/free"), ("X-Original-Method", "GET")]
        assert [asked(service, forged).status for _ in range(3)] == [200, 200, 429]
        assert asked(service, NGINX).status == 400


def test_the_status_of_refusals_can_be_one_that_nginx_understands() -> None:
    with serving(RULES, forward_auth=ForwardAuth(deny_status=403)) as service:
        assert [asked(service, NGINX).status for _ in range(3)] == [200, 200, 403]
        assert asked(service, [CLIENT]).status == 403


def test_the_host_is_an_attribute_if_the_settings_say_so() -> None:
    with serving(RULES, forward_auth=ForwardAuth(host=True)) as service:
        assert fields(asked(service, TRAEFIK))["ratelimit"].count(";r=") == 2
        assert fields(asked(service, NGINX))["ratelimit"].count(";r=") == 1
        for host in ("API.example.com", "api.example.com.", "api.example.com.:80"):
            headers = [("X-Forwarded-Host", host), *TRAEFIK[1:]]
            assert fields(asked(service, headers))["ratelimit-policy"].count('"host"') == 1


def test_who_asks_may_prove_it_with_a_key() -> None:
    keys = ApiKeys({digest("secret-of-ada"): Holder("ada")})
    reader = AddressReader("x-forwarded-for", trusted=["127.0.0.0/8"])
    with serving(RULES, forward_auth=ForwardAuth(identifier=lambda: Identifier(reader, keys))) as service:
        response = asked(service, [*NGINX, ("X-Api-Key", "secret-of-ada")])
        assert '"keys"' in fields(response)["ratelimit"]
        assert asked(service, [*NGINX, ("X-Api-Key", "a"), ("X-Api-Key", "b")]).status == 400


TRUSTED = AddressReader("x-forwarded-for", trusted=["127.0.0.0/8"])


@pytest.mark.parametrize(
    ("identifier", "taken"),
    [
        (Identifier(TRUSTED, ApiKeys({digest("a"): Holder()})), "x-api-key"),
        (
            Identifier(TRUSTED, tokens=TokenVerifier([Issuer([VerificationKey.load("HS256", "s" * 32)])])),
            "authorization",
        ),
        (Identifier(TRUSTED, ApiKeys({digest("a"): Holder()}, "x-client-key")), ""),
        (Identifier(TRUSTED, verified=[VerifiedClaims("headgate", {"user": "sub"})]), ""),
    ],
    ids=["keys", "tokens", "keys elsewhere", "claims that Envoy tells"],
)
def test_what_proxies_prove_themselves_with_is_not_their_clients(identifier: Identifier, taken: str) -> None:
    """Where both would come in one header, nothing passes: one would be taken for the other."""
    settings = ForwardAuth(identifier=lambda: identifier, callers=CALLER_HEADERS)
    with serving(RULES, forward_auth=settings) as service:
        response = asked(service, NGINX)
    if taken:
        assert f"with caller keys, {taken} of a request belongs to the proxy" in problem(response)["detail"]
    else:
        assert response.status == 200


@pytest.mark.parametrize("options", [{"deny_status": 200}, {"kind": "both"}, {"identifier": Identifier}])
def test_settings_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        ForwardAuth(**options)


@pytest.mark.parametrize(("failure", "status"), [("allow", 200), ("local", 200), ("deny", 503)])
def test_while_the_store_is_away_the_mode_answers(failure: str, status: int) -> None:
    with serving(RULES, store=f"redis://127.0.0.1:{free_port()}/0", failure=failure) as service:
        response = asked(service, NGINX)
    assert response.status == status
    assert fields(response)["x-ratelimit-degraded"] == "true"


NAMES = [
    *(b"x-original-uri", b"x-original-method", b"x-original-host", b"x-forwarded-uri", b"x-forwarded-method"),
    *(b"x-forwarded-host", b"x-forwarded-for", b"forwarded", b"authorization"),
]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.binary() | st.sampled_from([b"/orders", b"POST"])), max_size=6),
    st.sampled_from(["127.0.0.1", "203.0.113.1", "nonsense", None]),
)
def test_whatever_is_sent_is_answered(headers: list[tuple[bytes, bytes]], peer: str | None) -> None:
    with serving(RULES, forward_auth=ForwardAuth(host=True)) as service:
        response = service.ask(HttpRequest(b"GET", PATH.encode(), b"", headers, b"", Peer(peer)))
    assert response.status in {200, 400, 403, 429}


def test_an_answer_lists_no_more_limits_than_a_proxy_takes() -> None:
    """Of many, the one that decides: a head that is too long would be a failure to nginx, and so no refusal."""
    rules = "".join([f"  - {{id: {'r' * 60}{n}, dimension: ip, limit: {n + 1}, window: 1m}}\n" for n in range(100)])
    with serving(f"version: 1\nrules:\n{rules}") as service:
        told = [asked(service, NGINX) for _ in range(2)]
    assert [response.status for response in told] == [200, 429]
    for response in told:
        assert fields(response)["ratelimit-policy"] == f'"{"r" * 60}0";q=1;w=60'
        assert sum(len(name) + len(value) + 4 for name, value in response.headers) < 1000
