"""Who sends a request, and whether it may pass: what Envoy is answered."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server import authz
from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.identity import Identifier
from tests.server.authz.conftest import IDENTIFIER, KEY, RULES, Asking, answered, asking, question
from tests.servers import free_port

BY_KEY = ("x-api-key", KEY.encode())


@pytest.fixture
def service() -> Iterator[Asking]:
    with asking() as found:
        yield found


def test_nobody_in_particular_passes_as_its_address_until_its_limit(service: Asking) -> None:
    answers = [service.ask() for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    first, last = answers[0], answers[5]
    assert (first.upstream, first.fields["x-ratelimit-remaining"]) == ({}, "4")
    assert first.removed == [f"x-headgate-{what}" for what in ("user", "apikey", "tenant", "tier")]
    assert first.metadata == {"outcome": "allowed", "rule_id": "addresses", "state": "normal", "ip": "203.0.113.9"}
    assert (last.fields["retry-after"], last.fields["cache-control"]) == ("20", "no-store")
    assert last.problem["violated-policies"] == ["addresses"]
    assert last.metadata == {"outcome": "denied", "rule_id": "addresses", "state": "throttled", "ip": "203.0.113.9"}


def test_a_key_proves_what_its_holder_is(service: Asking) -> None:
    answer = service.ask("/", "GET", [BY_KEY])
    assert answer.upstream == {
        "x-headgate-user": "ada",
        "x-headgate-apikey": "reporting",
        "x-headgate-tenant": "acme",
        "x-headgate-tier": "pro",
    }
    assert answer.removed == []
    assert answer.metadata.items() >= {"user": "ada", "apikey": "reporting", "tenant": "acme", "tier": "pro"}.items()
    assert '"users";q=100' in answer.fields["ratelimit-policy"]


def test_a_key_may_come_in_the_query(service: Asking) -> None:
    assert service.ask(f"/a?b=c&key={KEY}").upstream["x-headgate-apikey"] == "reporting"
    assert service.ask(f"/a?key={KEY}", "GET", [BY_KEY]).status == 400
    assert service.ask(f"/a?key={KEY}&k%65y={KEY}").status == 400


def test_claims_that_envoy_has_verified_prove_what_they_name(service: Asking) -> None:
    claims = {"sub": "ada lovelace/%é", "org": 42, "plan": "pro", "exp": 1.5}
    answer = service.ask(claims=claims)
    assert answer.upstream == {
        "x-headgate-user": "ada%20lovelace/%25%C3%A9",
        "x-headgate-tenant": "42",
        "x-headgate-tier": "pro",
    }
    assert answer.removed == ["x-headgate-apikey"]
    assert answer.metadata["user"] == "ada lovelace/%é"
    assert "shadow_denied" not in answer.metadata


def test_what_a_shadow_rule_would_have_refused_is_in_the_metadata(service: Asking) -> None:
    told = [service.ask(claims={"sub": "eve"}).metadata.get("shadow_denied") for _ in range(2)]
    assert [None if each is None else [*each] for each in told] == [None, ["tried"]]


@pytest.mark.parametrize(
    "claims", [{}, {"sub": None}, {"sub": ""}, {"sub": 1.5}, {"sub": True}, {"sub": ["ada"]}, {"sub": "a\nb"}]
)
def test_claims_that_name_nobody_are_refused(service: Asking, claims: dict[str, Any]) -> None:
    answer = service.ask(claims=claims)
    assert (answer.status, answer.problem["detail"]) == (401, "the token is not accepted")


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        ([("x-api-key", b"guess")], "API key"),
        ([("x-api-key", b"")], "API key"),
        ([("x-api-key", b"ak_1\xff")], "API key"),
        ([("authorization", b"Bearer x.y.z")], "token"),
        ([("authorization", b"\xff\xff x")], "token"),
    ],
)
def test_a_credential_that_proves_nothing_is_401_and_counts_for_its_address(
    service: Asking, lines: list[tuple[str, bytes]], detail: str
) -> None:
    answers = [service.ask("/", "GET", lines) for _ in range(6)]
    assert [answer.status for answer in answers] == [401] * 5 + [429]
    assert detail in answers[0].problem["detail"]
    assert answers[0].fields["www-authenticate"] == 'Bearer, ApiKey header="x-api-key"'
    assert (answers[0].fields["cache-control"], answers[0].fields["x-ratelimit-remaining"]) == ("no-store", "4")
    assert answers[0].metadata["outcome"] == "denied"


@pytest.mark.parametrize("raw", [True, False])
def test_a_credential_that_is_there_twice_is_refused_however_headers_come(service: Asking, raw: bool) -> None:  # noqa: FBT001  it is a parameter of the test
    lines = [BY_KEY, ("x-api-key", b"plain")] if raw else [("x-api-key", b"ak_1,plain")]
    assert service.ask("/", "GET", lines, raw=raw).status == (400 if raw else 401)


def test_headers_may_come_merged(service: Asking) -> None:
    answer = service.ask("/", "GET", [BY_KEY, ("x_headgate_user", b"eve")], raw=False)
    assert (answer.upstream["x-headgate-user"], answer.removed) == ("ada", ["x_headgate_user"])


@pytest.mark.parametrize(
    ("require", "lines", "claims", "status"),
    [
        ("none", [], None, 200),
        ("any", [], None, 401),
        ("any", [("x-api-key", b"plain")], None, 200),
        ("any", [], {"sub": "eve"}, 200),
        ("user", [("x-api-key", b"plain")], None, 401),
        ("user", [BY_KEY], None, 200),
        ("user", [], {"sub": "eve"}, 200),
        ("apikey", [], {"sub": "eve"}, 401),
        ("apikey", [("x-api-key", b"plain")], None, 200),
        ("any", [("authorization", b"Basic dTpw")], None, 401),
        ("none", [("authorization", b"Basic dTpw")], None, 200),
    ],
)
def test_a_route_says_who_may_pass(
    service: Asking, require: str, lines: list[tuple[str, bytes]], claims: dict[str, Any] | None, status: int
) -> None:
    assert service.ask("/", "GET", lines, claims=claims, route={"headgate.require": require}).status == status


def test_a_route_has_a_cost_and_attributes(service: Asking) -> None:
    dear = {"headgate.cost": "4", "headgate.attribute.class": "bulk", "another.extension": "of others"}
    assert service.ask(route=dear).fields["x-ratelimit-remaining"] == "1"
    orders = {"headgate.service": "orders"}
    assert [service.ask("/", "POST", route=orders, client="198.51.100.7").status for _ in range(2)] == [200, 429]
    answer = service.ask(route={"headgate.cost": "6"})
    assert (answer.status, "retry-after" in answer.fields) == (429, False)  # no wait would help


def test_a_route_may_keep_credentials_from_its_upstream(service: Asking) -> None:
    removing = {"headgate.credentials": "remove"}
    answer = service.ask("/?a=b", "GET", [BY_KEY], route=removing)
    assert ({*answer.removed}, answer.parameters) == ({"x-api-key", "authorization"}, [])
    key = BY_KEY[1].decode()
    assert service.ask(f"/?a=b&key={key}", "GET", [], route=removing).parameters == ["key"]
    assert service.ask(f"/?k%65y={key}", "GET", [], route=removing).parameters == ["k%65y"]  # as Envoy knows it
    assert service.ask(f"/?key={key}", "GET", []).parameters == []


@pytest.mark.parametrize("method", ["get", "Post"])
def test_a_method_that_routes_and_services_may_take_for_two_is_refused(service: Asking, method: str) -> None:
    assert service.ask("/", method).status == 400


@pytest.mark.parametrize(
    "route",
    [
        {"headgate.requires": "user"},
        {"headgate.require": "admin"},
        {"headgate.cost": "-1"},
        {"headgate.cost": "1.5"},
        {"headgate.cost": "100001"},
        {"headgate.cost": "\u0661"},
        {"headgate.credentials": "drop"},
        {"headgate.attribute.ip": "192.0.2.1"},
        {"headgate.attribute.User_Id": "root"},
        {"headgate.attribute.": "x"},
        {"headgate.attribute.service": "orders", "headgate.service": "users"},
        {"headgate.": ""},
    ],
)
def test_a_route_that_says_what_nobody_understands_is_closed(
    service: Asking, route: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    answers = [service.ask(route=route) for _ in range(2)]
    assert [answer.status for answer in answers] == [503, 503]
    assert answers[0].metadata == {"outcome": "error"}
    assert len(caplog.records) == 1  # clients choose how often
    assert "Envoy is not configured as it should be" in caplog.text


def test_envoy_tells_who_the_client_behind_its_own_proxies_is(service: Asking) -> None:
    def asked(*addresses: bytes) -> tuple[int, Any]:
        metadata = [(b"x-headgate-client-address", address) for address in addresses]
        answer = service.raw(question(client="10.0.0.1").SerializeToString(), *metadata)
        return answer.status, answer.metadata.get("ip")

    assert asked(b"198.51.100.7") == (200, "198.51.100.7")
    assert asked(b"2001:db8::1") == (200, "2001:db8::/64")
    assert asked() == (200, "10.0.0.1")
    assert [asked(*each)[0] for each in ((b"a", b"b"), (b"",), (b"unknown",), (b"\xff",))] == [503] * 4


def test_a_client_without_an_address_is_unknown_only_on_a_pipe(service: Asking) -> None:
    assert service.ask(client="").status == 503
    message = question(client="")
    message.attributes.source.address.pipe.path = "/run/envoy"
    assert service.raw(message.SerializeToString()).metadata["ip"] == "unknown"


@pytest.mark.parametrize("peer", ["203.0.113.1", "2001:db8::1", None])
def test_only_a_trusted_proxy_may_ask(service: Asking, peer: str | None, caplog: pytest.LogCaptureFixture) -> None:
    answer = service.raw(question().SerializeToString(), peer=peer)
    assert (answer.status, "trusted" in answer.problem["detail"]) == (403, True)
    assert "asked to authorize requests" in caplog.text


def test_who_is_on_a_list_is_forbidden(service: Asking) -> None:
    answer = service.ask(client="192.0.2.1")
    assert (answer.status, answer.problem["detail"]) == (403, "This client is not admitted.")
    assert answer.metadata["reason"]


@pytest.mark.parametrize("path", ["//a", "/a/../b", "/%2e%2e/b", "/a\\b", "/a;b"])
def test_a_path_that_servers_read_in_different_ways_is_refused(service: Asking, path: str) -> None:
    assert service.ask(path).status == 400


@pytest.mark.parametrize(
    ("lines", "raw", "status"),
    [
        ([(":path", b"/a!")], True, 200),
        ([(":path", b"/a\xff")], True, 400),
        ([(":path", "/a\u00e9".encode())], True, 200),
        ([], True, 400),
        ([(":path", b"/a!")], False, 400),
    ],
)
def test_a_path_is_read_as_it_came_or_not_at_all(
    service: Asking,
    lines: list[tuple[str, bytes]],
    raw: bool,  # noqa: FBT001  a column of the table
    status: int,
) -> None:
    """Envoy shows bytes that are not UTF-8 as exclamation marks, except in headers that it sends raw."""
    assert service.ask("/a!", "GET", lines, raw=raw).status == status


@pytest.mark.parametrize("message", [b"", b"\x0a\x05short", question("", "GET").SerializeToString()])
def test_what_asks_nothing_is_refused(service: Asking, message: bytes) -> None:
    assert service.raw(message).status == 400


def test_a_message_that_the_wire_cannot_read_is_refused(service: Asking) -> None:
    methods = authz.methods(service.service)
    assert answered(methods.unreadable[authz.CHECK]).status == 400


@given(data=st.binary(max_size=200))
def test_no_message_does_worse_than_to_be_refused(data: bytes) -> None:
    with asking() as service:
        for message in (data, question().SerializeToString() + data):
            assert service.raw(message).status in {200, 400, 401, 503}


@given(
    lines=st.lists(
        st.tuples(st.sampled_from(["x-api-key", "authorization", "x-headgate-user"]), st.binary(max_size=20)),
        max_size=4,
    ),
    query=st.text(max_size=20),
)
def test_no_bytes_of_a_client_prove_anything_by_chance(lines: list[tuple[str, bytes]], query: str) -> None:
    with asking() as service:
        answer = service.ask(f"/?{query}", "GET", lines)
    assert not answer.upstream
    assert answer.status in {200, 400, 401}
    if any(name == "x-api-key" for name, _ in lines):
        assert answer.status != 200


@pytest.mark.parametrize(("failure", "status"), [("allow", 200), ("local", 200), ("deny", 503)])
def test_while_the_store_is_away_the_mode_answers(failure: str, status: int) -> None:
    with asking(store=f"redis://127.0.0.1:{free_port()}/0?timeout=0.1", failure=failure) as service:
        answer = service.ask()
        assert (answer.status, answer.fields["x-ratelimit-degraded"]) == (status, "true")
        assert answer.metadata["degraded"]


def test_a_failure_of_ours_is_a_refusal(service: Asking, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Identifier:
        raise RuntimeError("a mistake")

    service.service._identifier = broken  # nothing that a client sends does this
    with caplog.at_level(logging.ERROR, "headgate.server"):
        answer = service.ask()
    assert (answer.status, answer.metadata) == (503, {"outcome": "error"})
    assert "a mistake" in caplog.text
    assert "a mistake" not in str(answer.problem)


def test_calls_are_counted_by_how_they_ended(service: Asking) -> None:
    for path in ("/", "//a"):
        service.ask(path)
    for _ in range(5):
        service.ask()
    _, page = service.served.recorder.metrics()
    counted = [line for line in page.decode().splitlines() if 'api="ext_authz"' in line and "_total" in line]
    told = {line.split('outcome="')[1].split('"')[0]: line.rsplit(" ", 1)[1] for line in counted}
    assert told.items() >= {"allowed": "5", "denied": "1", "error": "1"}.items()


def test_an_identity_that_changes_counts_from_the_next_request_on(service: Asking) -> None:
    assert service.ask("/", "GET", [("x-api-key", b"new")]).status == 401
    service.identifier = replace(IDENTIFIER, api_keys=ApiKeys({digest("new"): Holder("new")}))
    assert service.ask("/", "GET", [("x-api-key", b"new")]).upstream["x-headgate-apikey"] == "new"


def test_without_an_identity_file_clients_are_known_by_address() -> None:
    with asking(RULES) as service:
        service.identifier = Identifier(AddressReader("x-forwarded-for", trusted=["127.0.0.1"]))
        answer = service.ask("/", "GET", [BY_KEY, ("x-forwarded-for", b"198.51.100.1"), ("x-headgate-user", b"eve")])
        assert (answer.status, answer.upstream, answer.metadata["ip"]) == (200, {}, "203.0.113.9")
        assert service.ask(route={"headgate.require": "any"}).fields["www-authenticate"] == "Bearer"
