"""Tokens that a real Envoy verifies with keys that it fetches: forged, borrowed and odd ones, and issuers that fail."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator
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
    """A file with a route for anybody, and one for users."""
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
    told = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return signed(told, algorithm, key=key, **(KID if header is None else header))


def status(running: Gateway, credential: bytes, path: str = "/mine") -> int:
    return running.get(path, authorization=b"Bearer " + credential).status


GOOD = {
    "as it should be": token(),
    "without a kid": token({}),
    "of several audiences": token(aud=["web", "api"]),
    "with a header that says more than is needed": token({"cty": "x", "x5t": "abc", "odd": ["crit"], **KID}),
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


@pytest.mark.parametrize("what", GOOD)
def test_a_token_of_the_issuer_names_the_user(running: Gateway, what: str) -> None:
    reply = running.get("/mine", authorization=b"Bearer " + GOOD[what])
    assert (reply.status, reply.json["headers"]["x-headgate-user"]) == (200, "grace")


def test_a_token_that_has_just_expired_is_good_for_a_minute_more(running: Gateway) -> None:
    assert status(running, token(exp=int(time.time()) - 1)) == 200


@pytest.mark.parametrize("what", BAD)
def test_no_other_token_passes_anywhere(running: Gateway, service: Upstream, what: str) -> None:
    """Nor where none is needed: who shows one that is wrong is not nobody in particular."""
    before = len(service.served)
    assert {status(running, BAD[what], path) for path in ("/mine", "/else")} <= {400, 401}
    assert len(service.served) == before


def test_a_token_is_read_from_its_header_alone(running: Gateway) -> None:
    good = token().decode()
    assert running.get(f"/mine?access_token={good}").status == 401
    assert running.get("/mine", cookie=f"access_token={good}").status == 401
    assert running.get("/mine", authorization=f"bearer {good}").status == 200, "the scheme has no case"


def test_a_token_that_is_too_long_is_refused(running: Gateway) -> None:
    assert status(running, token(pad="x" * 15_000)) == 431


@pytest.mark.parametrize(
    ("answer", "code"),
    [(None, 200), (b"<html>", 200), (b'{"keys": []}', 200), (b"", 500), (b'{"keys": [{"kty": "oct"}]}', 200)],
    ids=["silence", "garbage", "no keys", "an error", "odd keys"],
)
def test_while_an_issuer_has_no_keys_its_tokens_prove_nothing(
    service: Upstream, answer: bytes | None, code: int
) -> None:
    """The gateway starts all the same, others are served, and when the keys are there, tokens are good."""
    with key_server(PUBLIC) as keys:
        keys.answer, keys.status = answer, code
        with gateway(guarded(service, keys)) as found:
            found.started()
            until(keys.asked.is_set, "the issuer is asked", SECONDS)
            assert found.get("/else").status == 200
            assert status(found, token()) == 401
            assert status(found, token(), "/else") == 401
            keys.answer, keys.status = keys.good, 200
            keys.ended.set()
            until(lambda: status(found, token()) == 200, "the keys are fetched", SECONDS)
