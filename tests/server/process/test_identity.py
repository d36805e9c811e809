"""``headgate serve --identity``: clients of proxies are counted by verified credentials only."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.__main__ import main
from headgate.web.apikey import digest
from tests.server.api import test_nginx
from tests.server.process.service import SECONDS, Service, service, written
from tests.servers import fetched, until
from tests.web.tokens import forged, hand_signed, jwk, public_pem, signed

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "identity"
REPORTING = "ak_a-long-random-key"
KEY_ID = "2026-11"
RULES = """
version: 1
rules:
  - {id: per-key, dimension: apikey, limit: 100, window: 365d, algorithm: fixed_window}
  - {id: per-user, dimension: user, limit: 10, window: 365d, algorithm: fixed_window}
  - {id: per-tenant, dimension: tenant, limit: 1000, window: 365d, algorithm: fixed_window}
  - {id: per-address, dimension: ip, limit: 30, window: 365d, algorithm: fixed_window}
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
    number = next(_NUMBERS)
    return f"203.0.{number // 250}.{number % 250 + 1}"


def send(found: Service, *headers: tuple[str, str], client: str = "") -> tuple[int, dict[str, int], str]:
    """Send a request like nginx; return the status, the units left by rule, and the body."""
    proxied = {"X-Original-URI": "/orders", "X-Original-Method": "GET", "X-Forwarded-For": client or address()}
    reply = fetched(found.http_port, "/api/v1/forward-auth", **proxied, **dict(headers))
    left = {name: int(rest) for name, rest in re.findall(r'"([^"]+)";r=(\d+)', reply.headers.get("ratelimit", ""))}
    return reply.status, left, reply.body.decode()


def token(user: str, **claims: Any) -> str:
    return signed(claims_of(user, **claims), "ES256", kid=KEY_ID).decode()


def claims_of(user: str, **claims: Any) -> dict[str, Any]:
    standard = {"iss": "https://id.example.com", "aud": "api", "sub": user, "exp": int(time.time()) + 3600}
    return {name: value for name, value in (standard | claims).items() if value is not None}


def bearer(text: str | bytes) -> tuple[str, str]:
    return "Authorization", f"Bearer {text if isinstance(text, str) else text.decode()}"


def test_an_invalid_token_counts_for_its_address(served: Service) -> None:
    """`tests.web.test_jwt` has all forgeries."""
    for kind, forgery in {
        "expired": token("victim", exp=int(time.time()) - 3600).encode(),
        "no algorithm": forged({"alg": "none", "kid": KEY_ID}, claims_of("victim"), b""),
        "signed by the public key": hand_signed(
            {"alg": "HS256", "kid": KEY_ID}, claims_of("victim"), public_pem("ES256")
        ),
        "no token at all": b"victim",
    }.items():
        client, bad = address(), bearer(forgery)
        for left in (29, 28):
            assert send(served, bad, client=client)[:2] == (200, {"per-address": left}), kind


def test_an_unknown_key_counts_for_its_address(served: Service) -> None:
    client = address()
    guesses = (*(f"ak_{number}" for number in range(3)), digest(REPORTING))
    left = [send(served, ("X-Api-Key", guess), client=client)[1] for guess in guesses]
    assert left == [{"per-address": number} for number in (29, 28, 27, 26)]


def test_a_file_that_is_wrong_or_missing_or_contradicts_an_option_is_a_reason_not_to_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity, unread = prepared(tmp_path), tmp_path / "unread.yaml"
    unread.write_text("version: 1\ntokens:\n  - algorithms: [ES256]\n    jwks: none.json\n")
    both = f"{identity}:6:3: addresses.trusted: the option --trusted-proxies sets the trusted proxies, too"
    for words, message in (
        ((*options(identity), "--trusted-proxies", "10.0.0.0/8"), both),
        (("--identity", str(tmp_path / "none")), "--identity: file '"),
        (options(unread), f"{unread}:4:11: tokens[0].jwks: {tmp_path}/none.json cannot be read: No such"),
    ):
        assert main(["serve", "--check", *words]) == 2
        assert message in capsys.readouterr().err


def test_headers_of_the_proxy_cannot_be_those_of_its_clients(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    callers = tmp_path / "callers"
    callers.write_text(f"edge {digest('edge-key')}\n")
    proxy = ("X-Api-Key", "edge-key")
    with service(*options(identity), "--caller-keys", str(callers)) as found:
        status, _, claims_of = send(found.started(), proxy)
        assert status == 400
        assert "with caller keys, authorization and x-api-key of a request identifies the proxy" in claims_of
        written(identity, identity.read_text().partition("tokens:")[0].replace("x-api-key", "x-client-key"))
        until(lambda: send(found, proxy)[0] == 200, "the clients' header is another", SECONDS)
        left = send(found, proxy, ("X-Client-Key", REPORTING))[1]
        assert {*left} == {"per-key", "per-tenant", "per-address"}
        assert send(found, ("X-Client-Key", REPORTING))[0] == 401


def test_a_real_nginx_passes_on_the_credentials_of_clients(tmp_path: Path) -> None:
    identity = prepared(tmp_path)
    with (
        service(*options(identity), "--deny-status", "403") as found,
        test_nginx.nginx_before(tmp_path, found.started().http_port) as nginx,
    ):

        def status(**headers: str) -> int:
            return fetched(nginx.port, "/orders", **headers).status

        assert [status(**dict([bearer(token("n1"))])) for _ in range(11)] == [200] * 10 + [429]
        assert status(x_api_key=REPORTING) == 200
        for _ in range(30):
            status(**dict([bearer(forged({"alg": "none"}, claims_of("n2"), b""))]))
        assert status(x_forwarded_for="192.0.2.1") == 429
