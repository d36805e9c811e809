"""Who asks: what is verified counts, and what is merely claimed does not."""

from __future__ import annotations

import random
import secrets
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


def test_a_request_without_credentials_is_that_of_its_address() -> None:
    who = FULL.identify(PEER, [(b"host", b"x")], NOW)
    assert who.principal == {"ip": PEER}
    assert (who.source, who.tier) == ("ip", "")
    assert who.reasons == {"apikey": "absent", "jwt": "absent", "ip": "untrusted_peer"}


def test_an_api_key_comes_first() -> None:
    who = FULL.identify(PEER, api_key(), NOW)
    assert who.principal == {"apikey": "mobile", "ip": PEER}
    assert (who.source, who.tier) == ("apikey", "premium")


def test_then_a_verified_token() -> None:
    who = FULL.identify(PEER, bearer(signed(CLAIMS | {"org": "acme", "plan": "free"})), NOW)
    assert who.principal == {"user": "42", "tenant": "acme", "ip": PEER}
    assert (who.source, who.tier) == ("jwt", "free")
    assert who.reasons["jwt"] == "verified"


def test_one_credential_does_not_hide_another() -> None:
    """Else the limit per user could be escaped with a key."""
    who = FULL.identify(PEER, api_key() + bearer(signed(CLAIMS | {"plan": "free"})), NOW)
    assert who.principal == {"apikey": "mobile", "user": "42", "ip": PEER}
    assert (who.source, who.tier) == ("apikey", "premium")


def test_where_both_say_who_the_user_is_the_api_key_wins() -> None:
    keys = ApiKeys({digest(KEY): Holder("mobile", user="u1", tenant="t1")})
    who = Identifier(api_keys=keys, tokens=TOKENS).identify(
        PEER, api_key() + bearer(signed(CLAIMS | {"org": "t2"})), NOW
    )
    assert who.principal == {"apikey": "mobile", "user": "u1", "tenant": "t1", "ip": PEER}


def test_a_user_gets_no_tenant_and_no_tier_by_the_token_of_another() -> None:
    """Else one token of a high tier would lift the limits of many keys."""
    keys = ApiKeys({digest(KEY): Holder("mobile", user="u1")})
    dear = bearer(signed(CLAIMS | {"org": "t2", "plan": "premium"}))
    who = Identifier(api_keys=keys, tokens=TOKENS).identify(PEER, api_key() + dear, NOW)
    assert (who.principal, who.tier) == ({"apikey": "mobile", "user": "u1", "ip": PEER}, "")
    assert (who.source, who.unproven) == ("apikey", "")


@pytest.mark.parametrize("before", [b"Basic dTpw,", b"Basic dTpw ", b"X", b"Bearer a.b.c,", b"Bearer a.b.c "])
def test_a_token_that_a_proxy_has_found_behind_something_else_is_refused(before: bytes) -> None:
    """The service behind might go by what comes first. Proxies make one line of two."""
    identifier = Identifier(verified=[VerifiedClaims("issuer", {"user": "sub"})])
    address, told = AddressReader().read(PEER, []), {"issuer": {"sub": "ada"}}
    token = b"Bearer " + signed()
    alone, joined = (b"authorization", token), (b"authorization", before + token)
    assert identifier.identify_at(address, [alone], NOW, b"", told).principal["user"] == "ada"
    with pytest.raises(AmbiguousIdentity):
        identifier.identify_at(address, [joined], NOW, b"", told)


def test_a_trusted_proxy_says_where_the_client_is() -> None:
    who = FULL.identify("10.0.0.1", [(b"x-forwarded-for", b"6.6.6.6, 2001:db8:1:2::3")], NOW)
    assert who.principal == {"ip": "2001:db8:1:2::/64"}
    assert who.address.text == "2001:db8:1:2::3"
    assert who.reasons["ip"] == "header"


@pytest.mark.parametrize(
    ("lines", "name", "why"),
    [
        (api_key(b"wrong"), "apikey", "unknown key"),
        (api_key(b"a b"), "apikey", "malformed"),
        (api_key(b""), "apikey", "malformed"),
        (bearer(b"junk"), "jwt", "this is not a signed token"),
        (bearer(signed(CLAIMS | {"exp": 1})), "jwt", "the token has expired"),
        (bearer(forged({"alg": "none"}, CLAIMS)), "jwt", "the token is not signed by the algorithm of its key"),
        ([(b"authorization", b"Basic dTpw")], "jwt", "of another scheme"),
        ([(b"authorization", b"n1 Bearer " + signed())], "jwt", "of another scheme"),
        ([(b"authorization", b"")], "jwt", "not a bearer token"),
    ],
)
def test_what_is_not_verified_counts_for_nothing(lines: Lines, name: str, why: str) -> None:
    who = FULL.identify(PEER, lines, NOW)
    assert (dict(who.principal), who.source, who.tier) == ({"ip": PEER}, "ip", "")
    assert who.reasons[name] == why


@pytest.mark.parametrize(
    ("lines", "unproven"),
    [
        ([], ""),
        (api_key() + bearer(signed()), ""),
        (api_key(b"wrong"), "apikey"),
        (api_key(b""), "apikey"),
        (bearer(b"junk"), "jwt"),
        ([(b"authorization", b"\xff x")], "jwt"),
        ([(b"authorization", b"Basic dTpw")], ""),
        (api_key() + bearer(b"junk"), "jwt"),
        (api_key(b"wrong") + bearer(signed()), "apikey"),
    ],
)
def test_a_credential_that_was_presented_and_proves_nothing_is_told(lines: Lines, unproven: str) -> None:
    assert FULL.identify(PEER, lines, NOW).unproven == unproven


@pytest.mark.parametrize(("token", "unproven"), [(KEY, ""), (signed(), ""), (b"wrong", "apikey")])
def test_where_keys_and_tokens_share_a_header_one_of_them_is_enough(token: bytes, unproven: str) -> None:
    keys = ApiKeys({digest(KEY): Holder("mobile")}, "authorization", "Bearer")
    assert Identifier(AddressReader(), keys, TOKENS).identify(PEER, bearer(token), NOW).unproven == unproven


BY_QUERY = Identifier(AddressReader(), ApiKeys({digest(KEY): Holder("mobile")}, query="api_key"))


@pytest.mark.parametrize(
    ("query", "unproven"),
    [
        (b"", ""),
        (b"a=b", ""),
        (b"API_KEY=x", ""),
        (b"xapi_key=x", ""),
        (b"api_key=" + KEY, None),
        (b"a=b&%61pi%5fkey=" + KEY + b"&c", None),
        (b"api_key=%73" + KEY[1:], None),
        (b"api_key=", "apikey"),
        (b"api_key", "apikey"),
        (b"api_key=wrong", "apikey"),
        (b"api_key=%ff%", "apikey"),
    ],
)
def test_a_key_may_come_in_the_query(query: bytes, unproven: str | None) -> None:
    who = BY_QUERY.identify(PEER, [], NOW, query)
    assert (who.principal.get("apikey"), who.unproven) == (("mobile", "") if unproven is None else (None, unproven))


@pytest.mark.parametrize(
    ("lines", "query"),
    [(api_key(), b"api_key=" + KEY), ([], b"api_key=a&api_key=a"), ([], b"api_key=" + KEY + b"&api%5Fkey=")],
)
def test_several_keys_are_refused_wherever_they_are(lines: Lines, query: bytes) -> None:
    with pytest.raises(AmbiguousIdentity, match="several API keys"):
        BY_QUERY.identify(PEER, lines, NOW, query)


def told(payloads: Payloads, lines: Lines = [], **settings: Any) -> Identity:  # noqa: B006  it is not changed
    """Who asks, by what a proxy tells."""
    identifier = Identifier(AddressReader(), None, settings.get("tokens"), settings.get("verified", [VerifiedClaims()]))
    return identifier.identify_at(identifier.addresses.attested("127.0.0.1", None), lines, NOW, b"", payloads)


def test_claims_that_a_proxy_has_verified_are_believed_and_no_others() -> None:
    assert told({"headgate": {"sub": "42"}}).principal == {"user": "42", "ip": "unknown"}
    assert told({"other": {"sub": "42"}}).principal == {"ip": "unknown"}
    assert told({"headgate": {"sub": "42"}}, bearer(signed())).principal["user"] == "42"
    assert told({}, bearer(signed())).unproven == "jwt"
    assert told({}, bearer(signed()), tokens=TOKENS).principal["user"] == "42"
    assert told({"headgate": {"sub": ["42"]}}).unproven == "jwt"


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["exp"], "exp": 1},
        {"alg": "HS256", "crit": []},
        {"alg": "HS256", "crit": None},
        {"alg": "HS256", "b64": False, "crit": ["b64"]},
        b'{"alg":"HS256","cr\\u0069t":["x"]}',
        b'{"alg":"HS256","crit":["x"],"crit":[]}',
        b"{'alg':'HS256'}",
        b'{"alg":"HS256"',
        b'["crit"]',
        b"\xff",
    ],
)
def test_a_token_that_demands_what_nobody_understands_proves_nothing_whatever_the_proxy_says(header: Any) -> None:
    """Envoy does not look at crit. What cannot be read here might be read there: it is refused as well."""
    who = told({"headgate": {"sub": "42"}}, bearer(hand_signed(header, {"sub": "42"})))
    assert (who.principal, who.unproven) == ({"ip": "unknown"}, "jwt")
    assert told({"headgate": {"sub": "42"}}, bearer(b"junk")).unproven == "jwt"
    assert told({"headgate": {"sub": "42"}}, [(b"authorization", b"Basic eDp5")]).unproven == ""


def test_a_proxy_that_tells_of_several_tokens_is_not_believed_about_any() -> None:
    several = [VerifiedClaims("one", realm="a"), VerifiedClaims("two", realm="b")]
    assert told({"two": {"sub": "42"}}, verified=several).principal["user"] == "b:42"
    with pytest.raises(AmbiguousIdentity, match="several issuers"):
        told({"one": {"sub": "1"}, "two": {"sub": "2"}}, verified=several)
    with pytest.raises(InvalidSettings, match="a key and a realm"):
        Identifier(verified=[VerifiedClaims("one"), VerifiedClaims("two")])


def test_what_is_not_configured_is_not_looked_at() -> None:
    who = Identifier().identify(PEER, api_key() + bearer(signed()), NOW)
    assert who.principal == {"ip": PEER}
    assert who.reasons == {"apikey": "not configured", "jwt": "not configured", "ip": "peer"}


@pytest.mark.parametrize(
    "lines",
    [
        api_key() + api_key(),
        [*api_key(), (b"x-api-key", b"")],
        [(b"X-Api-Key", b"other"), (b"x-aPI-kEY", KEY)],
        bearer(signed()) + bearer(signed()),
        [(b"authorization", b"Basic x"), *bearer(signed())],
    ],
)
def test_a_credential_sent_twice_is_refused(lines: Lines) -> None:
    with pytest.raises(AmbiguousIdentity, match="has 2 headers"):
        FULL.identify(PEER, lines, NOW)


@pytest.mark.parametrize("name", [b"X_API_Key", b"X-API_Key", b"x-api-key ", b"HTTP_X_API_KEY", b"x-api-key\x00"])
def test_a_name_that_resembles_a_credential_is_none(name: bytes) -> None:
    assert FULL.identify(PEER, [(name, KEY)], NOW).principal == {"ip": PEER}
    assert FULL.identify(PEER, [(name, b"other"), *api_key()], NOW).principal["apikey"] == "mobile"


@pytest.mark.parametrize("named", [b"close, X-API-Key", b"authorization", b"AUTHORIZATION, x-forwarded-for"])
def test_connection_cannot_name_a_credential_away(named: bytes) -> None:
    lines = [(b"connection", named), *api_key(), *bearer(signed())]
    assert FULL.identify(PEER, lines, NOW).principal == {"apikey": "mobile", "user": "42", "ip": PEER}


def test_rotating_what_anybody_can_send_makes_no_new_keys() -> None:
    """Reference 5, row 2: random bearers, keys, user, tenant and agent headers, 150 buckets each."""
    chance = random.Random(2)
    seen = set()
    for number in range(1000):
        text = f"{chance.getrandbits(64):x}".encode()
        sent: Lines = [
            *bearer(forged({"alg": "HS256", "kid": text.decode()}, CLAIMS | {"sub": str(number)}, text)),
            *api_key(text),
            (b"x-user-id", text),
            (b"x-tenant-id", text),
            (b"x-forwarded-for", b"6.6.6.%d" % (number % 256)),
            (b"x-real-ip", text),
            (b"user-agent", text),
            (b"cookie", b"session=" + text),
        ]
        seen.add(tuple(sorted(FULL.identify(PEER, sent, NOW).principal.items())))
    assert seen == {(("ip", PEER),)}


def test_nobody_can_name_a_victim() -> None:
    """Reference 5, row 30: an unverified claim must not burn another's limit."""
    victim = [
        (b"x-user-id", b"42"),
        *bearer(forged({"alg": "none"}, {"sub": "42"})),
        *api_key(digest(KEY)[:32].encode()),
    ]
    assert FULL.identify(PEER, victim, NOW).principal == {"ip": PEER}


def test_api_keys_may_come_as_bearers_beside_tokens() -> None:
    keys = ApiKeys({digest(KEY): Holder("mobile")}, "authorization", "Bearer")
    both = Identifier(api_keys=keys, tokens=TOKENS)
    assert both.identify(PEER, bearer(KEY), NOW).principal == {"apikey": "mobile", "ip": PEER}
    assert both.identify(PEER, bearer(signed()), NOW).principal == {"user": "42", "ip": PEER}


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
        who = FULL.identify(PEER, lines, NOW)
    except AmbiguousIdentity:
        counts = [sum(line.lower() == name for line, _ in lines) for name in (b"x-api-key", b"authorization")]
        assert max(counts) > 1
    else:
        assert who.principal == {"ip": PEER}


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=30)), max_size=5), st.text(max_size=12))
def test_any_request_is_somebodys(lines: Lines, peer: str) -> None:
    assume(len({line.lower() for line, _ in lines}) == len(lines))  # else it may be refused
    who = FULL.identify(peer, lines, NOW)
    assert who.principal["ip"]
    assert all(value.isprintable() for value in who.principal.values())


def test_different_keys_are_different_principals() -> None:
    many = [secrets.token_hex(16).encode() for _ in range(500)]
    one = Identifier(api_keys=ApiKeys(verified_upstream=True))
    assert len({one.identify(PEER, api_key(key), NOW).principal["apikey"] for key in many}) == 500
