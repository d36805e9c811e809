"""Tokens: accepted if signed, current and ours; known attacks are refused."""

from __future__ import annotations

import pickle
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


def test_a_shared_secret_verifies() -> None:
    for algorithm in ("HS256", "HS384", "HS512"):
        verifier = TokenVerifier([Issuer([VerificationKey.load(algorithm, SECRET)])])
        assert verifier.verify(signed(algorithm=algorithm), NOW) == {"user": "42"}


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_public_key_verifies(algorithm: str) -> None:
    """And a false signature of any form does not."""
    pem = VerificationKey.load(algorithm, public_pem(algorithm))
    for keys in ([pem], key_set({"keys": [jwk(algorithm, kid="k1", alg=algorithm)]}, [algorithm])):
        verifier = TokenVerifier([Issuer(keys)])
        assert verifier.verify(signed(algorithm=algorithm, kid="k1"), NOW) == {"user": "42"}
        token = signed(algorithm=algorithm)
        tampered = token[:-8] + (b"AAAAAAAA" if not token.endswith(b"AAAAAAAA") else b"BBBBBBBB")
        assert reason(verifier, tampered) == "signature"
        for signature in (b"\x00", b"\xff" * 64, b"\x00" * 64, b"x" * 256, b"\xff" * 256, b"\x00" * 132, b"0" * 5000):
            token = forged({"alg": algorithm, "kid": "k1"}, CLAIMS, signature)
            assert reason(verifier, token) == "signature"


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "NONE", "", None, 0, ["HS256"], "HS512", "hs256"])
def test_the_token_does_not_choose_the_algorithm(algorithm: Any) -> None:
    assert reason(HMAC, forged({"alg": algorithm, "typ": "JWT"}, CLAIMS)) == "algorithm"
    assert reason(HMAC, forged({"alg": algorithm}, CLAIMS, b"")) == "malformed"
    assert reason(HMAC, forged({"typ": "JWT"}, CLAIMS)) == "algorithm"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_public_key_is_no_hmac_secret(algorithm: str) -> None:
    """The attacker signs with HS256, and the public key as the secret."""
    verifier = TokenVerifier([Issuer([VerificationKey.load(algorithm, public_pem(algorithm))])])
    for secret in (public_pem(algorithm), public_pem(algorithm).strip()):
        token = hand_signed({"alg": "HS256", "typ": "JWT"}, CLAIMS, secret)
        assert reason(verifier, token) == "algorithm"


def test_another_hash_of_the_same_family_is_another_algorithm() -> None:
    verifier = TokenVerifier([Issuer([VerificationKey.load("RS256", public_pem("RS256"))])])
    for other in ("RS512", "PS256"):
        assert reason(verifier, signed(algorithm=other, key=private_key("RS256"))) == "algorithm"


def test_a_key_id_is_only_looked_up() -> None:
    for kid in ("../../etc/passwd", "' OR 1=1 --", "k1\x00", "k3", "", "k1 ", "/dev/null", "http://evil/", "K1"):
        assert reason(rsa_verifier(), signed(algorithm="RS256", kid=kid)) == "key", kid
    assert reason(rsa_verifier(), signed(algorithm="RS256", kid="x" * 1_000_000)) == "too_long"
    not_text: list[Any] = [7, ["k1"], {"k1": 1}, True]
    for kid in not_text:
        assert reason(rsa_verifier(), forged({"alg": "RS256", "kid": kid}, CLAIMS)) == "key", kid
    assert HMAC.verify(signed(kid="any"), NOW), "it does not matter here, but must be well-formed"
    for kid in ("../../etc/passwd", "a b", "", "x" * 65):
        assert reason(HMAC, signed(kid=kid)) == "key", kid
    assert rsa_verifier().verify(signed(algorithm="RS256", kid="k2"), NOW) == {"user": "42"}
    assert reason(rsa_verifier(), signed(algorithm="RS256")) == "key", "with several keys, a token must name one"


def test_keys_that_a_token_brings_along_are_not_used() -> None:
    """jku, jwk, x5u, x5c: the attacker signs with a key of his own and points at it."""
    mine = private_key("PS256")
    for header in ({"jwk": jwk("PS256")}, {"jku": "https://evil/jwks"}, {"x5u": "https://evil/"}, {"x5c": ["MII"]}):
        assert reason(rsa_verifier(), signed(algorithm="RS256", key=mine, kid="k1", **header)) == "signature"
        good = signed(algorithm="RS256", kid="k1", **header)
        assert rsa_verifier().verify(good, NOW) == {"user": "42"}


def test_extensions_are_not_understood() -> None:
    """PyJWT's CVE-2026-32597 was to ignore `crit`."""
    headers: list[dict[str, Any]] = [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"crit": None}, {"b64": False}]
    for header in (*headers, {"crit": ["b64"], "b64": True}, {"zip": "DEF"}):
        assert reason(HMAC, hand_signed({"alg": "HS256", **header}, CLAIMS)) == "extension", header


def test_tokens_for_other_purposes_are_refused() -> None:
    for kind in ("JWE", "dpop+jwt", "logout+jwt", 7):
        assert reason(HMAC, forged({"alg": "HS256", "typ": kind}, CLAIMS)) == "type"
    assert HMAC.verify(signed(typ="at+JWT"), NOW)


def test_malformed_tokens_are_refused() -> None:
    headers = (b"[]", b"null", b"{", b"[" * 5000, b'{"a":' * 900, b"\xff\xfe", b'{"alg":"HS256","kid":"\\ud800"}')
    tokens = [forged(header, CLAIMS) for header in headers]
    tokens += [b"", b".", b"..", b"a.b", b"a.b.c.d", b"a.b.c.d.e"]
    tokens += [signed() + b"\n", b" " + signed(), signed() + b"=", signed().replace(b".", b".."), b"a" + signed()]
    for token in tokens:
        assert reason(HMAC, token) in {"malformed", "key"}, token[:16]
    for token in (signed(CLAIMS | {"x": "y" * LONGEST}), b"x" * 100_000_000):
        assert reason(HMAC, token) == "too_long"


def test_the_error_has_a_reason_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(InvalidToken("expired", "the token has expired")))  # noqa: S301  our own
    assert (error.reason, str(error)) == ("expired", "the token has expired")


CLAIMED: list[tuple[dict[str, Any], str]] = [
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
]


def test_claims_are_checked() -> None:
    for claims, expected in CLAIMED:
        payload = {key: value for key, value in (CLAIMS | claims).items() if value is not None}
        token = hand_signed({"alg": "HS256"}, payload)
        if expected:
            assert reason(HMAC, token) == expected, claims
        else:
            assert HMAC.verify(token, NOW), claims


def test_the_audience_must_be_us() -> None:
    verifier = TokenVerifier([Issuer([HS256], audience=["api", "admin"])])
    for audience in ("api", ["web", "api"]):
        assert verifier.verify(hand_signed({"alg": "HS256"}, CLAIMS | {"aud": audience}), NOW)
    others: list[Any] = [["web"], [], [["api"]], 7]
    for audience in others:
        assert reason(verifier, hand_signed({"alg": "HS256"}, CLAIMS | {"aud": audience})) == "audience", audience
    assert reason(verifier, signed()) == "audience"


def test_the_issuer_must_be_the_configured_one() -> None:
    verifier = TokenVerifier([Issuer([HS256], "https://id.example")])
    assert verifier.verify(signed(CLAIMS | {"iss": "https://id.example"}), NOW)
    for other in ("https://id.example/", "https://evil.example", ""):
        assert reason(verifier, signed(CLAIMS | {"iss": other})) == "issuer"
    assert reason(verifier, signed()) == "issuer"


def test_claims_are_mapped_by_the_settings() -> None:
    issuer = Issuer([HS256], claims={"user": "email", "tenant": "https://x/org", "tier": "plan", "region": "region"})
    claims = CLAIMS | {"email": "jörg@example.org", "https://x/org": 7, "plan": "premium"}
    found = TokenVerifier([issuer]).verify(signed(claims), NOW)
    assert found == {"user": "jörg@example.org", "tenant": "7", "tier": "premium"}


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


def test_issuers_must_be_distinct() -> None:
    alike = [[("", ""), ("", "")], [("a", "x"), ("b", "x")], [("a", "x"), ("a", "y")]]
    for named in ([], *alike, [("a", ""), ("b", "y")], [("", "x"), ("b", "y")]):
        with pytest.raises(InvalidSettings, match="issuer"):
            TokenVerifier([Issuer([HS256], issuer, realm=realm) for issuer, realm in named])


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


@given(
    st.builds(
        forged, headers, st.dictionaries(st.sampled_from(["iss", "exp", "sub"]), anything), st.binary(max_size=40)
    )
    | st.binary(max_size=100)
    | st.text("aA0-_.=", max_size=60).map(str.encode)
)
def test_no_forgery_and_no_other_bytes_are_believed(token: bytes) -> None:
    verifier = TokenVerifier([Issuer([HS256], "a", realm="a"), Issuer([HS256], "b", realm="b")])
    for one in (HMAC, verifier):
        with pytest.raises(InvalidToken):
            one.verify(token, NOW)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "sub", "aud", "iss", "tier"]), anything))
def test_any_signed_claims_are_read_or_refused(claims: dict[str, Any]) -> None:
    issuer = Issuer([HS256], claims={"user": "sub", "tier": "tier"})
    try:
        found = issuer.read(CLAIMS | claims, NOW)
    except InvalidToken:
        return
    assert found["user"].isprintable()
    assert found["user"]
