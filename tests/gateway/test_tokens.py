"""Tokens that a real Envoy verifies with keys that it fetches: forged, borrowed and odd ones, and issuers that fail."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.gateway.gateways import SECONDS, Gateway, KeyServer, Upstream, gateway, key_server, minimal, upstream
from tests.servers import until
from tests.web.tokens import forged, hand_signed, jwk, private_key, public_pem, signed

NOW = int(time.time())
CLAIMS = {"iss": "https://id.example.com", "aud": "api", "sub": "grace", "exp": NOW + 3600}
KID = {"kid": "one"}
PUBLIC = jwk("RS256", alg="RS256", **KID)
OTHER = rsa.generate_private_key(65537, 2048)


def guarded(service: Upstream, keys: KeyServer) -> dict[str, Any]:
    """A file with a public route, and one for users."""
    issuer = {"issuer": CLAIMS["iss"], "audience": ["api"], "jwks_url": keys.url}
    routes = [{"path": "/", "service": "orders"}, {"path": "/mine", "service": "orders", "require": "user"}]
    return minimal(service.port, identity={"tokens": [issuer]}, routes=routes)


@pytest.fixture(scope="module")
def service() -> Iterator[Upstream]:
    with upstream("orders") as server:
        yield server


@pytest.fixture(scope="module")
def running(service: Upstream) -> Iterator[Gateway]:
    with key_server(PUBLIC) as keys, gateway(guarded(service, keys)) as found:
        found.started()
        until(lambda: status(found, token()) == 200, "the keys are fetched", SECONDS)
        yield found


def token(header: dict[str, Any] | None = None, algorithm: str = "RS256", key: Any = None, **claims: Any) -> bytes:
    """A token of the issuer, or of another key; claims that are None are left out."""
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return signed(given, algorithm, key=key, **(KID if header is None else header))


def status(running: Gateway, credential: bytes, path: str = "/mine") -> int:
    return running.get(path, authorization=b"Bearer " + credential).status


GOOD = {
    "as it should be": token(),
    "without a kid": token({}),
    "of several audiences": token(aud=["web", "api"]),
    "with unneeded header fields": token({"cty": "x", "x5t": "abc", "odd": ["crit"], **KID}),
    "with more than is needed, 12 KB": token(pad="x" * 8500),
}
BAD = {
    "alg none": forged({"alg": "none", **KID}, CLAIMS, b""),
    "alg None, signed": forged({"alg": "None", **KID}, CLAIMS),
    "no alg": forged(KID, CLAIMS),
    "no signature": forged({"alg": "RS256", **KID}, CLAIMS, b""),
    "the public key as a secret": hand_signed({"alg": "HS256", **KID}, CLAIMS, public_pem("RS256")),
    "its modulus as a secret": hand_signed({"alg": "HS256", **KID}, CLAIMS, urlsafe_b64decode(PUBLIC["n"] + "==")),
    "an empty secret": hand_signed({"alg": "HS256", **KID}, CLAIMS, b""),
    "another algorithm of the same key": token(algorithm="RS512", key=private_key("RS256")),
    "another padding of the same key": token(algorithm="PS256", key=private_key("RS256")),
    "another key": token(key=OTHER),
    "another key without a kid": token({}, key=OTHER),
    "another key under another kid": token({"kid": "two"}, key=OTHER),
    "a kid that is a path": token({"kid": "../../../dev/null"}, key=OTHER),
    "a key in the header": token({"jwk": {"kty": "RSA"}, **KID}, key=OTHER),
    "an address of keys in the header": token({"jku": "http://127.0.0.1/keys", "kid": "two"}, key=OTHER),
    "an extension that must be understood": token({"crit": ["x"], "x": 1, **KID}),
    "an extension that Envoy would have to know": token({"crit": ["exp"], "exp": 1, **KID}),
    "no extension, which must be understood": token({"crit": [], **KID}),
    "extensions that are not a list": token({"crit": {"x": 1}, **KID}),
    "expired": token(exp=NOW - 3600),
    "no expiry": token(exp=None),
    "an expiry before time": token(exp=-1),
    "not yet": token(nbf=NOW + 7200),
    "another audience": token(aud="web"),
    "no audience": token(aud=None),
    "another issuer": token(iss="https://id.example.com/"),
    "no issuer": token(iss=None),
    "no user": token(sub=None),
    "an empty user": token(sub=""),
    "a user with a line break": token(sub="a\r\nx-headgate-tier: pro"),
    "a user of 3 KB": token(sub="u" * 3000),
    "not JSON": forged({"alg": "RS256", **KID}, b"nonsense"),
    "four parts": token() + b".x",
    "two tokens": token() + b", Bearer " + token(),
    "a good one behind a bad one": token(key=OTHER) + b", Bearer " + token(),
    "a part of one": token()[:-20],
    "nothing": b"",
}


def test_a_token_of_the_issuer_names_the_user(running: Gateway) -> None:
    for what, good in GOOD.items():
        reply = running.get("/mine", authorization=b"Bearer " + good)
        assert (reply.status, reply.json["headers"]["x-headgate-user"]) == (200, "grace"), what
    assert status(running, token(exp=int(time.time()) - 1)) == 200, (
        "one that has just expired is good for a minute more"
    )


def test_no_other_token_passes_anywhere(running: Gateway, service: Upstream) -> None:
    """An invalid token is refused even where no token is required."""
    before = len(service.served)
    for what, bad in BAD.items():
        assert {status(running, bad, path) for path in ("/mine", "/else")} <= {400, 401}, what
    assert len(service.served) == before


def test_a_token_is_read_from_its_header_alone(running: Gateway) -> None:
    good = token().decode()
    assert running.get(f"/mine?access_token={good}").status == 401
    assert running.get("/mine", cookie=f"access_token={good}").status == 401
    assert running.get("/mine", authorization=f"bearer {good}").status == 200, "the scheme has no case"


def test_a_token_that_is_too_long_is_refused(running: Gateway) -> None:
    assert status(running, token(pad="x" * 15_000)) == 431


ANSWERS = {
    "silence": (None, 200),
    "garbage": (b"<html>", 200),
    "no-keys": (b'{"keys": []}', 200),
    "an-error": (b"", 500),
    "odd-keys": (b'{"keys": [{"kty": "oct"}]}', 200),
}
"""Responses of issuers without keys, and their statuses."""


def test_tokens_of_issuers_without_keys_are_refused(service: Upstream) -> None:
    """The gateway starts, serves other clients, and accepts tokens once their keys can be fetched."""
    with ExitStack() as stack:
        issuers = {name: stack.enter_context(key_server(PUBLIC)) for name in ANSWERS}
        named = []
        for name, keys in issuers.items():
            keys.answer, keys.status = ANSWERS[name]
            named.append({"issuer": f"https://{name}", "realm": name, "audience": ["api"], "jwks_url": keys.url})
        file = guarded(service, keys) | {"identity": {"tokens": named}}
        found = stack.enter_context(gateway(file)).started()
        assert found.get("/else").status == 200
        tokens = {name: token(iss=f"https://{name}") for name in issuers}
        for name, keys in issuers.items():
            until(keys.requested.is_set, f"{name} is fetched", SECONDS)
            assert {status(found, tokens[name], path) for path in ("/mine", "/else")} == {401}, name
        for keys in issuers.values():
            keys.answer, keys.status = keys.good, 200
            keys.ended.set()
        good = dict.fromkeys(tokens, 200)
        until(lambda: {name: status(found, each) for name, each in tokens.items()} == good, "keys are fetched", SECONDS)
