"""Callers: verified credentials count, and claims do not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.web.address import AddressReader
from headgate.web.apikey import ApiKeys, Holder, digest
from headgate.web.errors import AmbiguousIdentity, InvalidSettings
from headgate.web.identity import Identifier, Identity, Payloads
from headgate.web.jwk import VerificationKey
from headgate.web.jwt import Issuer, TokenVerifier, VerifiedClaims
from tests.web.tokens import CLAIMS, NOW, SECRET, forged, hand_signed, signed

KEY = b"sk_live_4eC39HqLyjWDarjtT1zdp7dc"
PEER = "203.0.113.9"
TOKENS = TokenVerifier(
    [Issuer([VerificationKey.load("HS256", SECRET)], claims={"user": "sub", "tenant": "org", "tier": "plan"})]
)
KEYS = ApiKeys({digest(KEY): Holder("mobile", tier="premium")})
FULL = Identifier(AddressReader("x-forwarded-for", ["10.0.0.0/8"]), KEYS, TOKENS)
Lines = list[tuple[bytes, bytes]]


def api_key(value: bytes = KEY) -> Lines:
    return [(b"X-API-Key", value)]


def bearer(token: bytes) -> Lines:
    return [(b"Authorization", b"Bearer " + token)]


def test_each_verified_credential_adds_what_it_proves() -> None:
    """One does not hide another: else the limit per user could be escaped with a key."""
    claims = CLAIMS | {"org": "acme", "plan": "free"}
    cases: list[tuple[Lines, dict[str, str], str, str, str]] = [
        ([(b"host", b"x")], {}, "ip", "", "absent"),
        (api_key(), {"apikey": "mobile"}, "apikey", "premium", "absent"),
        (bearer(signed(claims)), {"user": "42", "tenant": "acme"}, "jwt", "free", "verified"),
        (
            api_key() + bearer(signed(CLAIMS | {"plan": "free"})),
            {"apikey": "mobile", "user": "42"},
            "apikey",
            "premium",
            "verified",
        ),
    ]
    for lines, principal, source, tier, reason in cases:
        found = FULL.identify(PEER, lines, NOW)
        assert found.principal == {**principal, "ip": PEER}
        assert (found.source, found.tier, found.reasons["jwt"]) == (source, tier, reason)
        assert found.reasons["ip"] == "untrusted_peer"
        assert (found.reasons["apikey"] == "absent") == ("apikey" not in principal)


def test_a_user_gets_no_tenant_and_no_tier_by_the_token_of_another() -> None:
    """Else one token of a high tier would lift the limits of many keys."""
    token = bearer(signed(CLAIMS | {"org": "t2", "plan": "premium"}))
    for tenant in ({}, {"tenant": "t1"}):
        keys = ApiKeys({digest(KEY): Holder("mobile", user="u1", **tenant)})
        found = Identifier(api_keys=keys, tokens=TOKENS).identify(PEER, api_key() + token, NOW)
        assert (found.principal, found.tier) == ({"apikey": "mobile", "user": "u1", **tenant, "ip": PEER}, "")
        assert (found.source, found.unproven) == ("apikey", "")


def test_a_token_that_a_proxy_has_found_behind_something_else_is_refused() -> None:
    """The service behind might use the first credential. Proxies join two lines."""
    identifier = Identifier(verified=[VerifiedClaims("issuer", {"user": "sub"})])
    address, payloads = AddressReader().read(PEER, []), {"issuer": {"sub": "ada"}}
    token = b"Bearer " + signed()
    alone = identifier.identify_at(address, [(b"authorization", token)], NOW, b"", payloads)
    assert alone.principal["user"] == "ada"
    for before in (b"Basic dTpw,", b"Basic dTpw ", b"X", b"Bearer a.b.c,", b"Bearer a.b.c "):
        with pytest.raises(AmbiguousIdentity):
            identifier.identify_at(address, [(b"authorization", before + token)], NOW, b"", payloads)


def test_the_address_from_a_trusted_proxy() -> None:
    found = FULL.identify("10.0.0.1", [(b"x-forwarded-for", b"6.6.6.6, 2001:db8:1:2::3")], NOW)
    assert found.principal == {"ip": "2001:db8:1:2::/64"}
    assert found.address.text == "2001:db8:1:2::3"
    assert found.reasons["ip"] == "header"


def test_a_credential_that_proves_nothing_counts_for_nothing_and_is_reported() -> None:
    cases: list[tuple[Lines, str, str, str]] = [
        (api_key(b"wrong"), "apikey", "unknown key", "apikey"),
        (api_key(b"a b"), "apikey", "malformed", "apikey"),
        (api_key(b""), "apikey", "malformed", "apikey"),
        (bearer(b"junk"), "jwt", "this is not a signed token", "jwt"),
        (bearer(signed(CLAIMS | {"exp": 1})), "jwt", "the token has expired", "jwt"),
        (
            bearer(forged({"alg": "none"}, CLAIMS)),
            "jwt",
            "the token is not signed with the algorithm of its key",
            "jwt",
        ),
        ([(b"authorization", b"Basic dTpw")], "jwt", "of another scheme", ""),
        ([(b"authorization", b"n1 Bearer " + signed())], "jwt", "of another scheme", ""),
        ([(b"authorization", b"")], "jwt", "not a bearer token", "jwt"),
        ([(b"authorization", b"\xff x")], "jwt", "not a bearer token", "jwt"),
    ]
    for lines, name, reason, unproven in cases:
        found = FULL.identify(PEER, lines, NOW)
        assert (dict(found.principal), found.source, found.tier) == ({"ip": PEER}, "ip", ""), lines
        assert (found.reasons[name], found.unproven) == (reason, unproven), lines
    both = (api_key() + bearer(signed()), ""), (api_key() + bearer(b"junk"), "jwt")
    for lines, unproven in (([], ""), *both, (api_key(b"wrong") + bearer(signed()), "apikey")):
        assert FULL.identify(PEER, lines, NOW).unproven == unproven


def test_keys_and_tokens_may_share_a_header_and_one_of_them_is_enough() -> None:
    keys = ApiKeys({digest(KEY): Holder("mobile")}, "authorization", "Bearer")
    both = Identifier(AddressReader(), keys, TOKENS)
    for token, proven, unproven in (
        (KEY, {"apikey": "mobile"}, ""),
        (signed(), {"user": "42"}, ""),
        (b"wrong", {}, "apikey"),
    ):
        found = both.identify(PEER, bearer(token), NOW)
        assert (found.principal, found.unproven) == ({**proven, "ip": PEER}, unproven)


BY_QUERY = Identifier(AddressReader(), ApiKeys({digest(KEY): Holder("mobile")}, query="api_key"))


def test_a_key_may_come_in_the_query() -> None:
    known = [b"api_key=" + KEY, b"a=b&%61pi%5fkey=" + KEY + b"&c", b"api_key=%73" + KEY[1:]]
    wrong = [b"api_key=", b"api_key", b"api_key=wrong", b"api_key=%ff%"]
    for queries, expected in (
        (known, ("mobile", "")),
        (wrong, (None, "apikey")),
        ([b"", b"a=b", b"API_KEY=x", b"xapi_key=x"], (None, "")),
    ):
        for query in queries:
            found = BY_QUERY.identify(PEER, [], NOW, query)
            assert (found.principal.get("apikey"), found.unproven) == expected, query
    several: list[tuple[Lines, bytes]] = [(api_key(), b"api_key=" + KEY), ([], b"api_key=a&api_key=a")]
    for lines, query in (*several, ([], b"api_key=" + KEY + b"&api%5Fkey=")):
        with pytest.raises(AmbiguousIdentity, match="several API keys"):
            BY_QUERY.identify(PEER, lines, NOW, query)


def identified(payloads: Payloads, lines: Lines = [], **settings: Any) -> Identity:  # noqa: B006  it is not changed
    """Identify a request with claims that a proxy has verified."""
    identifier = Identifier(AddressReader(), None, settings.get("tokens"), settings.get("verified", [VerifiedClaims()]))
    return identifier.identify_at(identifier.addresses.attested("127.0.0.1", None), lines, NOW, b"", payloads)


def test_claims_that_a_proxy_has_verified_are_believed_and_no_others() -> None:
    assert identified({"headgate": {"sub": "42"}}).principal == {"user": "42", "ip": "unknown"}
    assert identified({"other": {"sub": "42"}}).principal == {"ip": "unknown"}
    assert identified({"headgate": {"sub": "42"}}, bearer(signed())).principal["user"] == "42"
    assert identified({}, bearer(signed())).unproven == "jwt"
    assert identified({}, bearer(signed()), tokens=TOKENS).principal["user"] == "42"
    assert identified({"headgate": {"sub": ["42"]}}).unproven == "jwt"


CRITICAL: list[Any] = [
    *({"alg": "HS256", "crit": critical, "exp": 1} for critical in (["exp"], [], None)),
    *({"alg": "HS256", "b64": False, "crit": ["b64"]}, b'{"alg":"HS256","cr\\u0069t":["x"]}'),
    *(b'{"alg":"HS256","crit":["x"],"crit":[]}', b"{'alg':'HS256'}", b'{"alg":"HS256"', b'["crit"]', b"\xff"),
]


def test_a_token_with_critical_extensions_proves_nothing_even_if_a_proxy_accepts_it() -> None:
    """Envoy ignores crit. A header that cannot be read here might be read there, so it is refused as well."""
    for header in CRITICAL:
        found = identified({"headgate": {"sub": "42"}}, bearer(hand_signed(header, {"sub": "42"})))
        assert (found.principal, found.unproven) == ({"ip": "unknown"}, "jwt"), header
    assert identified({"headgate": {"sub": "42"}}, bearer(b"junk")).unproven == "jwt"
    assert identified({"headgate": {"sub": "42"}}, [(b"authorization", b"Basic eDp5")]).unproven == ""


def test_payloads_of_several_tokens_are_refused() -> None:
    several = [VerifiedClaims("one", realm="a"), VerifiedClaims("two", realm="b")]
    assert identified({"two": {"sub": "42"}}, verified=several).principal["user"] == "b:42"
    with pytest.raises(AmbiguousIdentity, match="several issuers"):
        identified({"one": {"sub": "1"}, "two": {"sub": "2"}}, verified=several)
    with pytest.raises(InvalidSettings, match="a separate key and realm"):
        Identifier(verified=[VerifiedClaims("one"), VerifiedClaims("two")])


def test_credentials_that_are_not_configured_are_ignored() -> None:
    found = Identifier().identify(PEER, api_key() + bearer(signed()), NOW)
    assert found.principal == {"ip": PEER}
    assert found.reasons == {"apikey": "not configured", "jwt": "not configured", "ip": "peer"}


def test_a_credential_sent_twice_is_refused() -> None:
    keys: list[Lines] = [api_key() * 2, [*api_key(), (b"x-api-key", b"")], [(b"X-Api-Key", b"a"), (b"x-aPI-kEY", KEY)]]
    for lines in (*keys, bearer(signed()) * 2, [(b"authorization", b"Basic x"), *bearer(signed())]):
        with pytest.raises(AmbiguousIdentity, match="has 2 headers"):
            FULL.identify(PEER, lines, NOW)


def test_a_name_that_resembles_a_credential_is_none() -> None:
    for name in (b"X_API_Key", b"X-API_Key", b"x-api-key ", b"HTTP_X_API_KEY", b"x-api-key\x00"):
        assert FULL.identify(PEER, [(name, KEY)], NOW).principal == {"ip": PEER}
        assert FULL.identify(PEER, [(name, b"other"), *api_key()], NOW).principal["apikey"] == "mobile"


def test_connection_cannot_remove_a_credential() -> None:
    for named in (b"close, X-API-Key", b"authorization", b"AUTHORIZATION, x-forwarded-for"):
        lines = [(b"connection", named), *api_key(), *bearer(signed())]
        assert FULL.identify(PEER, lines, NOW).principal == {"apikey": "mobile", "user": "42", "ip": PEER}


def test_forged_credentials_make_no_new_keys() -> None:
    """Random bearers, keys, user, tenant and agent headers. Nor can a client choose a victim and use up its limit."""
    chance = random.Random(2)
    seen = set()
    for number in range(1000):
        text = f"{chance.getrandbits(64):x}".encode()
        sent: Lines = [
            *bearer(forged({"alg": "HS256", "kid": text.decode()}, CLAIMS | {"sub": str(number)}, text)),
            *api_key(text),
            (b"x-user-id", b"42"),
            (b"x-tenant-id", text),
            (b"x-forwarded-for", b"6.6.6.%d" % (number % 256)),
            (b"x-real-ip", text),
            (b"user-agent", text),
            (b"cookie", b"session=" + text),
        ]
        seen.add(tuple(sorted(FULL.identify(PEER, sent, NOW).principal.items())))
    victim = [
        (b"x-user-id", b"42"),
        *bearer(forged({"alg": "none"}, {"sub": "42"})),
        *api_key(digest(KEY)[:32].encode()),
    ]
    seen.add(tuple(sorted(FULL.identify(PEER, victim, NOW).principal.items())))
    assert seen == {(("ip", PEER),)}


def test_no_credential_is_repeated() -> None:
    token = signed(CLAIMS | {"exp": 1})
    keys = ApiKeys(verified_upstream=True)
    for one in (FULL, Identifier(api_keys=keys, tokens=TOKENS)):
        shown = repr(one.identify(PEER, api_key(KEY) + bearer(token), NOW))
        assert KEY.decode() not in shown
        assert token.decode() not in shown
        with pytest.raises(AmbiguousIdentity) as error:
            one.identify(PEER, api_key() + api_key(), NOW)
        assert KEY.decode() not in str(error.value)


names = st.sampled_from([b"x-api-key", b"authorization", b"x-forwarded-for", b"X_API_KEY", b"connection", b"x-user-id"])
values = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"Bearer a.b.c", b"Bearer " + forged({"alg": "none"}, {"sub": "42"}), b"42", b"::1", b"Bearer"]),
)


@given(st.lists(st.tuples(names, values), max_size=6))
def test_nothing_forged_chooses_a_key(lines: Lines) -> None:
    try:
        found = FULL.identify(PEER, lines, NOW)
    except AmbiguousIdentity:
        counts = [sum(line.lower() == name for line, _ in lines) for name in (b"x-api-key", b"authorization")]
        assert max(counts) > 1
    else:
        assert found.principal == {"ip": PEER}


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=30)), max_size=5), st.text(max_size=12))
def test_any_request_has_a_principal(lines: Lines, peer: str) -> None:
    assume(len({line.lower() for line, _ in lines}) == len(lines))  # else it may be refused
    found = FULL.identify(peer, lines, NOW)
    assert found.principal["ip"]
    assert all(value.isprintable() for value in found.principal.values())
