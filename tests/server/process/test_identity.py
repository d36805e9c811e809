"""``headgate serve --identity``: clients of proxies are counted by what they prove, and by nothing that they claim."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate.web.apikey import digest
from tests.server.api import test_nginx
from tests.server.process.service import SECONDS, Service, service, written
from tests.servers import redis_server, until
from tests.web.tokens import forged, hand_signed, jwk, public_pem, signed

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "identity"
REPORTING, SEARCH = "ak_a-long-random-key", "ak_another-random-key"
KEY_ID = "2026-11"
RULES = """
version: 1
rules:
  - {id: per-key, dimension: apikey, limit: 100, window: 365d, algorithm: fixed_window}
  - {id: per-user, dimension: user, limit: 10, window: 365d, algorithm: fixed_window}
  - {id: per-tenant, dimension: tenant, limit: 1000, window: 365d, algorithm: fixed_window}
  - {id: per-address, dimension: ip, limit: 30, window: 365d, algorithm: fixed_window}
tiers:
  pro: {per-user: {limit: 20}}
"""
_NUMBERS = count(1)


def prepared(folder: Path) -> Path:
    """Put the example into a folder, with rules that last and keys of which the private ones are known here."""
    (folder / "rules.yaml").write_text(RULES)
    (folder / "jwks.json").write_text(json.dumps({"keys": [jwk("ES256", kid=KEY_ID, alg="ES256", use="sig")]}))
    path = folder / "identity.yaml"
    path.write_text((EXAMPLE / "identity.yaml").read_text())
    return path


def options(identity: Path) -> tuple[str, ...]:
    return "--rules", str(identity.with_name("rules.yaml")), "--identity", str(identity)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(*options(prepared(tmp_path_factory.mktemp("identity")))) as found:
        yield found.started()


def address() -> str:
    """A client that has not asked yet."""
    number = next(_NUMBERS)
    return f"203.0.{number // 250}.{number % 250 + 1}"


def asked(found: Service, *headers: tuple[str, str], client: str = "") -> tuple[int, dict[str, int], str]:
    """Ask as nginx does, with what its client sent; return the status, what is left by rule, and the body."""
    connection = HTTPConnection("127.0.0.1", found.http_port, timeout=SECONDS)
    try:
        connection.putrequest("GET", "/api/v1/forward-auth")
        for name, value in (
            ("X-Original-URI", "/orders"),
            ("X-Original-Method", "GET"),
            ("X-Forwarded-For", client or address()),
            *headers,
        ):
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        left = {name: int(rest) for name, rest in re.findall(r'"([^"]+)";r=(\d+)', response.getheader("ratelimit", ""))}
        return response.status, left, response.read().decode()
    finally:
        connection.close()


def token(user: str, **claims: Any) -> str:
    """A token as the issuer of the example signs it."""
    return signed(told(user, **claims), "ES256", kid=KEY_ID).decode()


def told(user: str, **claims: Any) -> dict[str, Any]:
    standard = {"iss": "https://id.example.com", "aud": "api", "sub": user, "exp": int(time.time()) + 3600}
    return {name: value for name, value in (standard | claims).items() if value is not None}


def bearer(text: str | bytes) -> tuple[str, str]:
    return "Authorization", f"Bearer {text if isinstance(text, str) else text.decode()}"


def test_an_api_key_counts_for_its_holder_wherever_it_is_used(served: Service) -> None:
    before = asked(served, ("X-Api-Key", REPORTING))[1]
    status, left, _ = asked(served, ("x-api-key", REPORTING))
    assert status == 200
    assert left.keys() == {"per-key", "per-tenant", "per-address"}
    assert left == {**before, "per-key": before["per-key"] - 1, "per-tenant": before["per-tenant"] - 1}


def test_the_user_and_the_tier_of_a_key_are_those_of_its_holder(served: Service) -> None:
    left = asked(served, ("X-Api-Key", SEARCH))[1]
    assert 10 <= left["per-user"] < 20
    assert asked(served, bearer(token("42", plan="pro")))[1]["per-user"] == left["per-user"] - 1


def test_a_verified_token_counts_for_its_user_and_its_tenant(served: Service) -> None:
    for rest in (9, 8):
        status, left, _ = asked(served, bearer(token("t1", org="initech")))
        assert (status, left) == (200, {"per-user": rest, "per-tenant": 990 + rest, "per-address": 29})


def test_a_user_is_refused_at_the_limit_from_any_address(served: Service) -> None:
    assert [asked(served, bearer(token("t2")))[0] for _ in range(11)] == [200] * 10 + [429]
    status, _, body = asked(served, bearer(token("t2")))
    assert (status, json.loads(body)["violated-policies"]) == (429, ["per-user"])


def test_the_tier_in_a_token_applies(served: Service) -> None:
    assert asked(served, bearer(token("t3", plan="pro")))[1]["per-user"] == 19
    assert asked(served, bearer(token("t3", plan="unknown")))[1]["per-user"] == 8


def test_a_key_and_a_token_both_count(served: Service) -> None:
    left = asked(served, bearer(token("t4")), ("X-Api-Key", REPORTING))[1]
    assert left.keys() == {"per-key", "per-user", "per-tenant", "per-address"}
    assert left["per-user"] == 9


def forgeries() -> dict[str, bytes]:
    now = int(time.time())
    header = {"alg": "ES256", "kid": KEY_ID}
    good = token("victim").encode()
    unsigned, _, _ = good.rpartition(b".")
    stranger = jwk("ES256", kid=KEY_ID)
    return {
        "expired": token("victim", exp=now - 3600).encode(),
        "without an expiry": token("victim", exp=None).encode(),
        "not yet valid": token("victim", nbf=now + 3600).encode(),
        "for another audience": token("victim", aud="other").encode(),
        "of another issuer": token("victim", iss="https://evil.example.com").encode(),
        "without a user": token("", sub=None).encode(),
        "no algorithm": forged({"alg": "none"}, told("victim"), b""),
        "no algorithm, with a signature": forged({"alg": "none", "kid": KEY_ID}, told("victim")),
        "an algorithm in capitals": forged({"alg": "NONE", "kid": KEY_ID}, told("victim")),
        "signed by the public key": hand_signed({"alg": "HS256", "kid": KEY_ID}, told("victim"), public_pem("ES256")),
        "signed by another key": signed(told("victim"), "ES384", kid=KEY_ID),
        "of an unknown key": signed(told("victim"), "ES256", kid="other"),
        "with a key of its own": signed(told("victim"), "EdDSA", kid=KEY_ID, jwk=stranger),
        "another payload": b".".join(
            [good.split(b".")[0], forged(header, told("victim", plan="pro")).split(b".")[1], b"x"]
        ),
        "without a signature": unsigned + b".",
        "no token at all": b"victim",
    }


@pytest.mark.parametrize("kind", forgeries())
def test_a_token_that_is_not_to_be_believed_chooses_nothing(served: Service, kind: str) -> None:
    client = address()
    bad = bearer(forgeries()[kind])
    assert asked(served, bad, client=client)[:2] == (200, {"per-address": 29})
    assert asked(served, bad, client=client)[:2] == (200, {"per-address": 28})


def test_an_unknown_key_chooses_nothing_and_each_guess_counts_for_its_address(served: Service) -> None:
    client = address()
    guesses = [asked(served, ("X-Api-Key", f"ak_{number}"), client=client)[1] for number in range(3)]
    assert guesses == [{"per-address": 29}, {"per-address": 28}, {"per-address": 27}]
    assert asked(served, ("X-Api-Key", digest(REPORTING)), client=client)[1] == {"per-address": 26}


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Api-Key", REPORTING), ("x-api-key", SEARCH)],
        [("X-Api-Key", REPORTING), ("X-Api-Key", REPORTING)],
        [bearer("a.b.c"), ("authorization", "Basic abc")],
    ],
)
def test_a_credential_that_is_there_twice_is_refused(served: Service, headers: list[tuple[str, str]]) -> None:
    status, left, body = asked(served, *headers)
    assert (status, left) == (400, {})
    assert "2 headers" in json.loads(body)["detail"]


def test_what_a_client_writes_left_of_its_address_changes_nothing(served: Service) -> None:
    client = address()
    seen = [asked(served, client=f"{claimed}, {client}")[1] for claimed in ("192.0.2.1", "192.0.2.2", "junk")]
    assert seen == [{"per-address": 29}, {"per-address": 28}, {"per-address": 27}]


def test_a_proxy_that_the_file_does_not_trust_is_not_heard(tmp_path: Path) -> None:
    """Neither what it says of the address nor the credential chooses anything."""
    identity = prepared(tmp_path)
    identity.write_text(identity.read_text().replace('127.0.0.0/8, "::1", ', ""))
    with service(*options(identity)) as found:
        status, left, body = asked(found.started(), ("X-Api-Key", REPORTING))
        assert (status, left) == (403, {})
        assert "trusted" in json.loads(body)["detail"]


def test_the_address_is_in_the_header_that_the_file_names(tmp_path: Path) -> None:
    identity = tmp_path / "identity.yaml"
    prepared(tmp_path)
    identity.write_text("version: 1\naddresses: {header: cf-connecting-ip}\n")
    with service(*options(identity), "--trusted-proxies", "127.0.0.1") as found:
        found.started()
        seen = [asked(found, ("CF-Connecting-IP", "192.0.2.7"), client=f"192.0.2.{number}")[1] for number in (1, 2)]
        assert seen == [{"per-address": 29}, {"per-address": 28}]


@pytest.mark.parametrize("sent", [False, True])
def test_a_changed_file_counts_with_and_without_sighup_and_a_wrong_one_does_not(tmp_path: Path, *, sent: bool) -> None:
    identity = prepared(tmp_path)
    with service(*options(identity)) as found:
        found.started()
        assert "per-key" in asked(found, ("X-Api-Key", REPORTING))[1]
        written(identity, identity.read_text().replace(digest(REPORTING), digest("ak_new")))
        if sent:
            found.signal(signal.SIGHUP)
        until(lambda: "per-key" in asked(found, ("X-Api-Key", "ak_new"))[1], "the new key counts", SECONDS)
        assert "per-key" not in asked(found, ("X-Api-Key", REPORTING))[1]
        good = identity.read_text()
        written(identity, good.replace("sha256", "sha265"))
        if sent:
            found.signal(signal.SIGHUP)
        until(lambda: "the identity settings in force stay" in found.complained, "it complains", SECONDS)
        assert f"{identity}:12:7" in found.complained
        assert "per-key" in asked(found, ("X-Api-Key", "ak_new"))[1]
        written(identity, good)
        written(tmp_path / "jwks.json", json.dumps({"keys": [jwk("ES256", kid="next")]}))
        if sent:
            found.signal(signal.SIGHUP)
        until(
            lambda: "per-user" in asked(found, bearer(signed(told("u"), "ES256", kid="next")))[1],
            "the new keys of the issuer count",
            SECONDS,
        )
        assert "per-user" not in asked(found, bearer(token("u")))[1]


def test_all_workers_read_the_file_again(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    with redis_server() as redis, service(*options(identity), "--workers", "2", "--store", redis.address) as found:
        found.started()
        assert all("per-key" in asked(found, ("X-Api-Key", REPORTING))[1] for _ in range(20))
        written(identity, identity.read_text().replace(digest(REPORTING), digest("ak_new")))
        found.signal(signal.SIGHUP)
        until(
            lambda: all("per-key" in asked(found, ("X-Api-Key", "ak_new"))[1] for _ in range(20)),
            "all workers know the new key",
            SECONDS,
        )


def complaint(*arguments: str) -> str:
    """What a service says that cannot run as given."""
    command = [sys.executable, "-m", "headgate.cli", "serve", "--http-port", "0", "--grpc-port", "0", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize("more", [[], ["--check"], ["--workers", "2", "--store", "redis://localhost:1"]])
def test_a_wrong_file_is_a_reason_not_to_start(tmp_path: Path, more: list[str]) -> None:
    identity = tmp_path / "identity.yaml"
    prepared(tmp_path)
    identity.write_text("version: 1\ntokens:\n  - algorithms: [ES256]\n    jwks: none.json\n")
    said = complaint(*options(identity), *more)
    assert said.startswith(f"headgate: {identity}:4:11: tokens[0].jwks: {tmp_path}/none.json cannot be read: No such")


def test_a_file_that_is_not_there_is_named_with_the_option(tmp_path: Path) -> None:
    assert "--identity: there is no file" in complaint("--identity", str(tmp_path / "none"))


def test_what_is_said_in_two_places_is_refused(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    said = complaint(*options(identity), "--trusted-proxies", "10.0.0.0/8")
    assert f"{identity}:6:3: addresses.trusted: the option --trusted-proxies sets the trusted proxies, too" in said


def test_headers_that_are_the_proxys_own_cannot_be_its_clients(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    callers = tmp_path / "callers"
    callers.write_text(f"edge {digest('edge-key')}\n")
    with service(*options(identity), "--caller-keys", str(callers)) as found:
        status, _, told = asked(found.started(), ("X-Api-Key", "edge-key"))
        assert status == 400
        assert "with caller keys, authorization and x-api-key of a request belongs to the proxy" in told
    keys = identity.read_text().partition("tokens:")[0].replace("x-api-key", "x-client-key")
    identity.write_text(keys)
    with service(*options(identity), "--caller-keys", str(callers)) as found:
        proxy = ("X-Api-Key", "edge-key")
        left = asked(found.started(), proxy, ("X-Client-Key", REPORTING))[1]
        assert left.keys() == {"per-key", "per-tenant", "per-address"}
        assert asked(found, ("X-Client-Key", REPORTING))[0] == 401


def test_a_real_nginx_passes_on_what_its_clients_prove(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    with (
        service(*options(identity), "--deny-status", "403") as found,
        test_nginx.nginx_before(tmp_path, found.started().http_port) as nginx,
    ):
        port, good = nginx.port, dict([bearer(token("n1"))])
        assert [test_nginx.ask(port, "GET", "/orders", good)[0] for _ in range(11)] == [200] * 10 + [429]
        assert test_nginx.ask(port, "GET", "/orders", {"X-Api-Key": REPORTING})[0] == 200
        for _ in range(30):
            test_nginx.ask(port, "GET", "/orders", dict([bearer(forged({"alg": "none"}, told("n2"), b""))]))
        assert test_nginx.ask(port, "GET", "/orders", {"X-Forwarded-For": "192.0.2.1"})[0] == 429
