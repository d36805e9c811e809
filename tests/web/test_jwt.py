"""Tokens: believed when signed, current and ours; every trick of the trade is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.web.errors import InvalidSettings, InvalidToken
from headgate.web.jwk import VerificationKey, key_set
from headgate.web.jwt import LONGEST, Issuer, TokenVerifier
from tests.web.tokens import CLAIMS, NOW, NOW_S, SECRET, forged, hand_signed, jwk, private_key, public_pem, signed

ASYMMETRIC = ["RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA"]
HS256 = VerificationKey.load("HS256", SECRET)
HMAC = TokenVerifier([Issuer([HS256])])


def reason(verifier: TokenVerifier, token: bytes, now: int = NOW) -> str:
    with pytest.raises(InvalidToken) as error:
        verifier.verify(token, now)
    assert str(error.value)
    return error.value.reason


def rsa_verifier() -> TokenVerifier:
    keys = key_set({"keys": [jwk("RS256", kid="k1"), jwk("RS256", kid="k2")]}, ["RS256"])
    return TokenVerifier([Issuer(keys)])


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_shared_secret_verifies(algorithm: str) -> None:
    verifier = TokenVerifier([Issuer([VerificationKey.load(algorithm, SECRET)])])
    assert verifier.verify(signed(algorithm=algorithm), NOW) == {"user": "42"}


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_public_key_verifies(algorithm: str) -> None:
    pem = VerificationKey.load(algorithm, public_pem(algorithm))
    for keys in ([pem], key_set({"keys": [jwk(algorithm, kid="k1", alg=algorithm)]}, [algorithm])):
        verifier = TokenVerifier([Issuer(keys)])
        assert verifier.verify(signed(algorithm=algorithm, kid="k1"), NOW) == {"user": "42"}
        token = signed(algorithm=algorithm)
        tampered = token[:-8] + (b"AAAAAAAA" if not token.endswith(b"AAAAAAAA") else b"BBBBBBBB")
        assert reason(verifier, tampered) == "signature"


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "NONE", "", None, 0, ["HS256"], "HS512", "hs256"])
def test_the_token_does_not_choose_the_algorithm(algorithm: Any) -> None:
    assert reason(HMAC, forged({"alg": algorithm, "typ": "JWT"}, CLAIMS)) == "algorithm"
    assert reason(HMAC, forged({"alg": algorithm}, CLAIMS, b"")) == "malformed"


def test_a_token_without_an_algorithm_is_refused() -> None:
    assert reason(HMAC, forged({"typ": "JWT"}, CLAIMS)) == "algorithm"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_public_key_is_no_hmac_secret(algorithm: str) -> None:
    """The attacker signs with HS256, and the public key, which everybody has, as the secret."""
    verifier = TokenVerifier([Issuer([VerificationKey.load(algorithm, public_pem(algorithm))])])
    for secret in (public_pem(algorithm), public_pem(algorithm).strip()):
        token = hand_signed({"alg": "HS256", "typ": "JWT"}, CLAIMS, secret)
        assert reason(verifier, token) == "algorithm"


def test_another_hash_of_the_same_family_is_another_algorithm() -> None:
    verifier = TokenVerifier([Issuer([VerificationKey.load("RS256", public_pem("RS256"))])])
    for other in ("RS512", "PS256"):
        assert reason(verifier, signed(algorithm=other, key=private_key("RS256"))) == "algorithm"


@pytest.mark.parametrize(
    "kid",
    ["../../etc/passwd", "' OR 1=1 --", "k1\x00", "k3", "", "x" * 1_000_000, "k1 ", "/dev/null", "http://evil/", "K1"],
)
def test_a_key_id_is_only_looked_up(kid: str) -> None:
    token = signed(algorithm="RS256", kid=kid)
    assert reason(rsa_verifier(), token) == ("key" if len(token) <= LONGEST else "too_long")


@pytest.mark.parametrize("kid", [7, ["k1"], {"k1": 1}, True])
def test_a_key_id_is_text(kid: Any) -> None:
    assert reason(rsa_verifier(), forged({"alg": "RS256", "kid": kid}, CLAIMS)) == "key"


def test_a_key_id_is_well_formed_even_where_it_does_not_matter() -> None:
    assert HMAC.verify(signed(kid="any"), NOW)
    for kid in ("../../etc/passwd", "a b", "", "x" * 65):
        assert reason(HMAC, signed(kid=kid)) == "key"


def test_with_several_keys_a_token_must_name_one() -> None:
    assert rsa_verifier().verify(signed(algorithm="RS256", kid="k2"), NOW) == {"user": "42"}
    assert reason(rsa_verifier(), signed(algorithm="RS256")) == "key"


def test_keys_that_a_token_brings_along_are_not_used() -> None:
    """jku, jwk, x5u, x5c: the attacker signs with a key of his own and points at it."""
    mine = private_key("PS256")
    for header in ({"jwk": jwk("PS256")}, {"jku": "https://evil/jwks"}, {"x5u": "https://evil/"}, {"x5c": ["MII"]}):
        assert reason(rsa_verifier(), signed(algorithm="RS256", key=mine, kid="k1", **header)) == "signature"
        good = signed(algorithm="RS256", kid="k1", **header)
        assert rsa_verifier().verify(good, NOW) == {"user": "42"}


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": []},
        {"crit": None},
        {"crit": ["b64"], "b64": True},
        {"b64": False},
        {"zip": "DEF"},
    ],
)
def test_extensions_are_not_understood(header: dict[str, Any]) -> None:
    """PyJWT's CVE-2026-32597 was to ignore `crit`."""
    assert reason(HMAC, hand_signed({"alg": "HS256", **header}, CLAIMS)) == "extension"


@pytest.mark.parametrize("kind", ["JWE", "dpop+jwt", "logout+jwt", 7])
def test_tokens_for_other_purposes_are_refused(kind: Any) -> None:
    assert reason(HMAC, forged({"alg": "HS256", "typ": kind}, CLAIMS)) == "type"
    assert HMAC.verify(signed(typ="at+JWT"), NOW)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b".",
        b"..",
        b"a.b",
        b"a.b.c.d",
        b"a.b.c.d.e",
        signed() + b"\n",
        b" " + signed(),
        signed() + b"=",
        signed().replace(b".", b".."),
        forged(b"[]", CLAIMS),
        forged(b"null", CLAIMS),
        forged(b"{", CLAIMS),
        forged(b"[" * 5000, CLAIMS),
        forged(b'{"a":' * 900, CLAIMS),
        forged(b"\xff\xfe", CLAIMS),
        forged(b'{"alg":"HS256","kid":"\\ud800"}', b"{}"),
        b"a" + signed(),
    ],
    ids=lambda token: ascii(token[:16]),
)
def test_what_is_no_token_is_refused(token: bytes) -> None:
    assert reason(HMAC, token) in {"malformed", "key"}


def test_a_token_has_a_size() -> None:
    large = signed(CLAIMS | {"x": "y" * LONGEST})
    assert reason(HMAC, large) == "too_long"
    assert reason(HMAC, b"x" * 100_000_000) == "too_long"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": NOW_S - 59}, ""),
        ({"exp": NOW_S - 60}, "expired"),
        ({"exp": NOW_S - 59.5}, ""),
        ({"exp": None}, "expiry"),
        ({"exp": str(NOW_S + 9)}, "claim"),
        ({"exp": True}, "claim"),
        ({"exp": -1}, "claim"),
        ({"exp": 1e300}, "claim"),
        ({"exp": 10**40}, "claim"),
        ({"exp": float("nan")}, "malformed"),
        ({"exp": float("inf")}, "malformed"),
        ({"nbf": NOW_S + 60}, ""),
        ({"nbf": NOW_S + 61}, "not_yet_valid"),
        ({"iat": NOW_S + 61}, "not_yet_valid"),
        ({"nbf": "x"}, "claim"),
        ({"aud": "someone else"}, "audience"),
        ({"sub": None}, "claim"),
        ({"sub": ""}, "claim"),
        ({"sub": ["42"]}, "claim"),
        ({"sub": True}, "claim"),
        ({"sub": 4.2}, "claim"),
        ({"sub": 10**30}, "claim"),
        ({"sub": "x" * 513}, "claim"),
        ({"sub": "a\r\nb"}, "claim"),
        ({"sub": "\x1b[2J"}, "claim"),
        ({"sub": "\u202egnp.exe"}, "claim"),
        ({"sub": "a\x00"}, "claim"),
    ],
)
def test_claims_are_checked(claims: dict[str, Any], expected: str) -> None:
    payload = {key: value for key, value in (CLAIMS | claims).items() if value is not None}
    token = hand_signed({"alg": "HS256"}, payload)
    if expected:
        assert reason(HMAC, token) == expected
    else:
        assert HMAC.verify(token, NOW)


@pytest.mark.parametrize(
    ("audience", "expected"),
    [
        ("api", ""),
        (["web", "api"], ""),
        (["web"], "audience"),
        ([], "audience"),
        ([["api"]], "audience"),
        (7, "audience"),
    ],
)
def test_the_audience_must_be_us(audience: Any, expected: str) -> None:
    verifier = TokenVerifier([Issuer([HS256], audience=["api", "admin"])])
    token = hand_signed({"alg": "HS256"}, CLAIMS | {"aud": audience})
    if expected:
        assert reason(verifier, token) == expected
    else:
        assert verifier.verify(token, NOW)
    assert reason(verifier, signed()) == "audience"


def test_the_issuer_must_be_the_configured_one() -> None:
    verifier = TokenVerifier([Issuer([HS256], "https://id.example")])
    assert verifier.verify(signed(CLAIMS | {"iss": "https://id.example"}), NOW)
    for other in ("https://id.example/", "https://evil.example", ""):
        assert reason(verifier, signed(CLAIMS | {"iss": other})) == "issuer"
    assert reason(verifier, signed()) == "issuer"


def test_claims_tell_what_the_settings_say() -> None:
    issuer = Issuer([HS256], claims={"user": "email", "tenant": "https://x/org", "tier": "plan", "region": "region"})
    claims = CLAIMS | {"email": "jörg@example.org", "https://x/org": 7, "plan": "premium"}
    told = TokenVerifier([issuer]).verify(signed(claims), NOW)
    assert told == {"user": "jörg@example.org", "tenant": "7", "tier": "premium"}


def test_users_of_two_issuers_are_two_users() -> None:
    other = VerificationKey.load("HS256", SECRET[::-1])
    verifier = TokenVerifier(
        [Issuer([HS256], "a", realm="a", claims={"user": "sub", "tier": "tier"}), Issuer([other], "b", realm="b")]
    )
    assert verifier.verify(signed(CLAIMS | {"iss": "a", "tier": "free"}), NOW) == {"user": "a:42", "tier": "free"}
    assert verifier.verify(signed(CLAIMS | {"iss": "b"}, key=SECRET[::-1]), NOW) == {"user": "b:42"}
    assert reason(verifier, signed(CLAIMS | {"iss": "b"})) == "signature"
    assert reason(verifier, signed(CLAIMS | {"iss": "c"})) == "issuer"
    assert reason(verifier, signed()) == "issuer"
    assert reason(verifier, forged({"alg": "HS256"}, {"iss": ["a"]})) == "issuer"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": []}, "no key"),
        ({"keys": [HS256, VerificationKey.load("ES256", public_pem("ES256"), key_id="e")]}, "one type"),
        ({"keys": [HS256, HS256]}, "different ids"),
        ({"keys": [HS256, VerificationKey.load("HS512", SECRET, key_id="x")]}, "different ids"),
        ({"leeway_s": 601}, "leeway_s"),
        ({"leeway_s": -1}, "leeway_s"),
        ({"realm": "a:b"}, "realm"),
        ({"claims": {}}, "names the user"),
        ({"claims": {"user": "sub", "ip": "addr"}}, "cannot set 'ip'"),
        ({"claims": {"user": "sub", "apikey": "k"}}, "cannot set 'apikey'"),
        ({"claims": {"user": ""}}, "cannot set 'user'"),
    ],
)
def test_an_issuer_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message):
        Issuer(**({"keys": [HS256]} | settings))


@pytest.mark.parametrize(
    "issuers",
    [
        [],
        [Issuer([HS256]), Issuer([HS256])],
        [Issuer([HS256], "a", realm="x"), Issuer([HS256], "b", realm="x")],
        [Issuer([HS256], "a", realm="x"), Issuer([HS256], "a", realm="y")],
        [Issuer([HS256], "a"), Issuer([HS256], "b", realm="y")],
        [Issuer([HS256], realm="x"), Issuer([HS256], "b", realm="y")],
    ],
)
def test_issuers_must_be_told_apart(issuers: list[Issuer]) -> None:
    with pytest.raises(InvalidSettings, match="issuer"):
        TokenVerifier(issuers)


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), st.text(max_size=6)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
headers = st.fixed_dictionaries(
    {}, optional={name: st.one_of(anything, st.just("HS256")) for name in ("alg", "kid", "typ", "crit", "b64")}
)


@given(headers, st.dictionaries(st.sampled_from(["iss", "exp", "sub"]), anything), st.binary(max_size=40))
def test_no_forgery_is_believed(header: dict[str, Any], claims: dict[str, Any], signature: bytes) -> None:
    token = forged(header, claims, signature)
    verifier = TokenVerifier([Issuer([HS256], "a", realm="a"), Issuer([HS256], "b", realm="b")])
    for one in (HMAC, verifier):
        with pytest.raises(InvalidToken):
            one.verify(token, NOW)


@given(st.one_of(st.binary(max_size=100), st.text("aA0-_.=", max_size=60).map(str.encode)))
def test_no_bytes_are_believed(token: bytes) -> None:
    with pytest.raises(InvalidToken):
        HMAC.verify(token, NOW)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "sub", "aud", "iss", "tier"]), anything))
def test_whatever_an_issuer_signs_is_read_or_refused(claims: dict[str, Any]) -> None:
    issuer = Issuer([HS256], claims={"user": "sub", "tier": "tier"})
    try:
        told = issuer.read(CLAIMS | claims, NOW)
    except InvalidToken:
        return
    assert told["user"].isprintable()
    assert told["user"]


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_any_signature_is_good_or_not(algorithm: str) -> None:
    verifier = TokenVerifier([Issuer([VerificationKey.load(algorithm, public_pem(algorithm))])])
    for signature in (b"\x00", b"\xff" * 64, b"\x00" * 64, b"x" * 256, b"\xff" * 256, b"\x00" * 132, b"0" * 5000):
        assert reason(verifier, forged({"alg": algorithm}, CLAIMS, signature)) == "signature"
