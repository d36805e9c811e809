"""The authorization service: identification, limits, and the responses to Envoy."""

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


def test_an_anonymous_client_passes_until_the_limit_of_its_address(service: Asking) -> None:
    answers = [service.ask() for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    first, last = answers[0], answers[5]
    assert (first.upstream, first.fields["x-ratelimit-remaining"]) == ({}, "4")
    assert first.removed == [f"x-headgate-{what}" for what in ("user", "apikey", "tenant", "tier")]
    assert first.metadata == {"outcome": "allowed", "rule_id": "addresses", "state": "normal", "ip": "203.0.113.9"}
    assert (last.fields["retry-after"], last.fields["cache-control"]) == ("20", "no-store")
    assert last.problem["violated-policies"] == ["addresses"]
    assert last.metadata == {"outcome": "denied", "rule_id": "addresses", "state": "throttled", "ip": "203.0.113.9"}


def test_a_key_identifies_its_holder_in_a_header_or_the_query(service: Asking) -> None:
    answer = service.ask("/", "GET", [BY_KEY])
    proven = {"user": "ada", "apikey": "reporting", "tenant": "acme", "tier": "pro"}
    assert answer.upstream == {f"x-headgate-{name}": value for name, value in proven.items()}
    assert answer.removed == []
    assert answer.metadata.items() >= proven.items()
    assert '"users";q=100' in answer.fields["ratelimit-policy"]
    assert service.ask(f"/a?b=c&key={KEY}").upstream["x-headgate-apikey"] == "reporting"
    assert service.ask(f"/a?key={KEY}", "GET", [BY_KEY]).status == 400
    assert service.ask(f"/a?key={KEY}&k%65y={KEY}").status == 400


def test_claims_that_envoy_has_verified_identify_the_client(service: Asking) -> None:
    answer = service.ask(claims={"sub": "ada lovelace/%é", "org": 42, "plan": "pro", "exp": 1.5})
    proven = {"user": "ada%20lovelace/%25%C3%A9", "tenant": "42", "tier": "pro"}
    assert answer.upstream == {f"x-headgate-{name}": value for name, value in proven.items()}
    assert answer.removed == ["x-headgate-apikey"]
    assert answer.metadata["user"] == "ada lovelace/%é"
    assert "shadow_denied" not in answer.metadata


def test_refusals_of_shadow_rules_are_in_the_metadata(service: Asking) -> None:
    seen = [service.ask(claims={"sub": "eve"}).metadata.get("shadow_denied") for _ in range(2)]
    assert [None if each is None else [*each] for each in seen] == [None, ["tried"]]


def test_claims_without_a_user_are_refused(service: Asking) -> None:
    for claims in ({}, *({"sub": value} for value in (None, "", 1.5, True, ["ada"], "a\nb"))):
        answer = service.ask(claims=claims, client="198.51.100.9")
        assert (answer.status, answer.problem["detail"]) == (401, "the token is not accepted"), claims
        service.served.clock.advance(60)


def test_a_credential_that_proves_nothing_is_401_and_counts_for_its_address(service: Asking) -> None:
    for number, (name, value, detail) in enumerate(
        (
            *[("x-api-key", value, "API key") for value in (b"guess", b"", b"ak_1\xff")],
            *[("authorization", value, "token") for value in (b"Bearer x.y.z", b"\xff\xff x")],
        )
    ):
        answers = [service.ask("/", "GET", [(name, value)], client=f"198.51.100.{number}") for _ in range(6)]
        assert [answer.status for answer in answers] == [401] * 5 + [429], value
        first = answers[0]
        assert detail in first.problem["detail"]
        assert first.fields["www-authenticate"] == 'Bearer, ApiKey header="x-api-key"'
        assert (first.fields["cache-control"], first.fields["x-ratelimit-remaining"]) == ("no-store", "4")
        assert first.metadata["outcome"] == "denied"


def test_a_credential_that_is_there_twice_is_refused_however_headers_come(service: Asking) -> None:
    assert service.ask("/", "GET", [BY_KEY, ("x-api-key", b"plain")]).status == 400
    assert service.ask("/", "GET", [("x-api-key", b"ak_1,plain")], raw=False).status == 401
    answer = service.ask("/", "GET", [BY_KEY, ("x_headgate_user", b"eve")], raw=False)
    assert (answer.upstream["x-headgate-user"], answer.removed) == ("ada", ["x_headgate_user"])


def test_a_route_can_require_a_credential(service: Asking) -> None:
    plain, basic, eve = [("x-api-key", b"plain")], [("authorization", b"Basic dTpw")], {"sub": "eve"}
    for require, lines, claims, status in (
        *(("none", [], None, 200), ("none", basic, None, 200), ("any", [], None, 401), ("any", plain, None, 200)),
        *(("any", [], eve, 200), ("any", basic, None, 401), ("user", plain, None, 401), ("user", [BY_KEY], None, 200)),
        *(("user", [], eve, 200), ("apikey", [], eve, 401), ("apikey", plain, None, 200)),
    ):
        answer = service.ask("/", "GET", lines, claims=claims, route={"headgate.require": require})
        assert answer.status == status, (require, lines, claims)
        service.served.clock.advance(60)


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


def test_a_route_with_invalid_settings_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    routes = [{"headgate.cost": value} for value in ("-1", "1.5", "100001", "\u0661")]
    for name, value in (
        *(("requires", "user"), ("require", "admin"), ("credentials", "drop"), ("", "")),
        *(("attribute.ip", "192.0.2.1"), ("attribute.User_Id", "root"), ("attribute.", "x")),
    ):
        routes.append({f"headgate.{name}": value})
    for route in (*routes, {"headgate.attribute.service": "orders", "headgate.service": "users"}):
        caplog.clear()
        with asking() as service:
            answers = [service.ask(route=route) for _ in range(2)]
        assert [answer.status for answer in answers] == [503, 503], route
        assert answers[0].metadata == {"outcome": "error"}
        assert len(caplog.records) == 1, "clients choose how often"
        assert "refused because of its configuration" in caplog.text


def test_envoy_sends_the_address_of_clients_behind_proxies(service: Asking) -> None:
    def outcome(*addresses: bytes) -> tuple[int, Any]:
        metadata = [(b"x-headgate-client-address", address) for address in addresses]
        answer = service.raw(question(client="10.0.0.1").SerializeToString(), *metadata)
        return answer.status, answer.metadata.get("ip")

    assert outcome(b"198.51.100.7") == (200, "198.51.100.7")
    assert outcome(b"2001:db8::1") == (200, "2001:db8::/64")
    assert outcome() == (200, "10.0.0.1")
    assert [outcome(*each)[0] for each in ((b"a", b"b"), (b"",), (b"unknown",), (b"\xff",))] == [503] * 4


def test_a_client_without_an_address_is_unknown_only_on_a_pipe(service: Asking) -> None:
    assert service.ask(client="").status == 503
    message = question(client="")
    message.attributes.source.address.pipe.path = "/run/envoy"
    assert service.raw(message.SerializeToString()).metadata["ip"] == "unknown"


def test_only_trusted_proxies_may_call(service: Asking, caplog: pytest.LogCaptureFixture) -> None:
    for peer in ("203.0.113.1", "2001:db8::1", None):
        answer = service.raw(question().SerializeToString(), peer=peer)
        assert (answer.status, "trusted" in answer.problem["detail"]) == (403, True)
    assert "sent an authorization request" in caplog.text


def test_clients_on_a_deny_list_are_forbidden(service: Asking) -> None:
    answer = service.ask(client="192.0.2.1")
    assert (answer.status, answer.problem["detail"]) == (403, "This client is not admitted.")
    assert answer.metadata["reason"]


def test_ambiguous_and_malformed_requests_are_refused(service: Asking) -> None:
    """Envoy shows bytes that are not UTF-8 as exclamation marks, except in headers that it sends raw."""
    for path in ("//a", "/a/../b", "/%2e%2e/b", "/a\\b", "/a;b"):
        assert service.ask(path).status == 400, path
    for method in ("get", "Post"):
        assert service.ask("/", method).status == 400, method
    for lines, raw, status in (
        ([(":path", b"/a!")], True, 200),
        ([(":path", b"/a\xff")], True, 400),
        ([(":path", "/a\u00e9".encode())], True, 200),
        ([], True, 400),
        ([(":path", b"/a!")], False, 400),
    ):
        assert service.ask("/a!", "GET", lines, raw=raw).status == status, lines
    for message in (b"", b"\x0a\x05short", question("", "GET").SerializeToString()):
        assert service.raw(message).status == 400, message


def test_a_message_that_the_wire_cannot_read_is_refused(service: Asking) -> None:
    methods = authz.methods(service.service)
    assert answered(methods.unreadable[authz.CHECK]).status == 400


@given(data=st.binary(max_size=200))
def test_any_message_gets_a_response(data: bytes) -> None:
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
def test_random_bytes_identify_no_client(lines: list[tuple[str, bytes]], query: str) -> None:
    with asking() as service:
        answer = service.ask(f"/?{query}", "GET", lines)
    assert not answer.upstream
    assert answer.status in {200, 400, 401}
    if any(name == "x-api-key" for name, _ in lines):
        assert answer.status != 200


@pytest.mark.parametrize(("failure", "status"), [("allow", 200), ("local", 200), ("deny", 503)])
def test_while_the_store_is_down_the_mode_decides(failure: str, status: int) -> None:
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
    seen = {line.split('outcome="')[1].split('"')[0]: line.rsplit(" ", 1)[1] for line in counted}
    assert seen.items() >= {"allowed": "5", "denied": "1", "error": "1"}.items()


def test_a_changed_identity_applies_to_the_next_request(service: Asking) -> None:
    assert service.ask("/", "GET", [("x-api-key", b"new")]).status == 401
    service.identifier = replace(IDENTIFIER, api_keys=ApiKeys({digest("new"): Holder("new")}))
    assert service.ask("/", "GET", [("x-api-key", b"new")]).upstream["x-headgate-apikey"] == "new"


def test_without_an_identity_file_clients_are_known_by_address() -> None:
    with asking(RULES) as service:
        service.identifier = Identifier(AddressReader("x-forwarded-for", trusted=["127.0.0.1"]))
        answer = service.ask("/", "GET", [BY_KEY, ("x-forwarded-for", b"198.51.100.1"), ("x-headgate-user", b"eve")])
        assert (answer.status, answer.upstream, answer.metadata["ip"]) == (200, {}, "203.0.113.9")
        assert service.ask(route={"headgate.require": "any"}).fields["www-authenticate"] == "Bearer"
