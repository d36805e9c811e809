"""API keys: only known ones become principals, and none is ever shown."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.web.apikey import ApiKeys, Holder, credential, digest, is_fit
from headgate.web.errors import InvalidSettings

KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
SECRET = b"sixteen bytes or more of chance"
MOBILE = Holder("mobile-app", user="u1", tenant="acme", tier="premium")


def test_the_digest_is_what_sha256sum_prints() -> None:
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest(b"abc", SECRET) == hmac.new(SECRET, b"abc", "sha256").hexdigest()


def test_a_known_key_is_its_holder() -> None:
    for secret in (b"", SECRET):
        keys = ApiKeys({digest(KEY, secret): MOBILE}, secret=secret)
        assert keys.find(KEY.encode()) == keys.find(b" \t" + KEY.encode() + b" ") == (MOBILE, "known key")
        assert keys.find(digest(KEY, secret).encode()) == (None, "unknown key"), "a digest is not a key"
        assert {keys.find(secrets.token_hex(16).encode()) for _ in range(500)} == {(None, "unknown key")}
    holder, _ = ApiKeys({digest(KEY): Holder(tier="free")}).find(KEY.encode())
    assert holder == Holder(digest(KEY)[:32], tier="free"), "without a name, it is called by the digest"


def test_an_unknown_key_is_compared_like_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeys({digest(KEY): MOBILE})
    keys.find(KEY.encode())
    keys.find(b"no")
    assert compared == [(64, 64)] * 2


def test_an_invalid_key_is_malformed() -> None:
    values = b"", b" ", b"a b", b"a,b", b"a\x00", b"a\r\nb", b"\xc3\xa9", b"x" * 513, b"x" * 1_000_000, b"\x7f"
    for value in values:
        for keys in (ApiKeys({digest(value): MOBILE}), ApiKeys(verified_upstream=True)):
            assert keys.find(value) == (None, "malformed"), value[:9]


def test_a_key_verified_upstream_is_its_own_principal() -> None:
    keys = ApiKeys(verified_upstream=True, secret=SECRET)
    assert keys.find(KEY.encode()) == (Holder(digest(KEY, SECRET)[:32]), "verified upstream")


@given(st.from_regex(rb"[!-+]{1,40}", fullmatch=True), st.from_regex(rb"[!-+]{1,40}", fullmatch=True))
def test_different_keys_are_different_principals(one: bytes, other: bytes) -> None:
    keys = ApiKeys(verified_upstream=True)
    assert (keys.find(one) == keys.find(other)) == (one == other)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_not(value: bytes) -> None:
    for keys in (ApiKeys({digest(KEY): MOBILE}, scheme="Bearer"), ApiKeys(verified_upstream=True)):
        holder, reason = keys.find(value)
        assert (holder is None) == (reason in {"malformed", "of another scheme", "unknown key"})


def test_the_scheme_is_the_first_word() -> None:
    for value, found in ((b"Bearer abc", b"abc"), (b"bEARER  abc ", b"abc"), (b"Bearer", b"")):
        assert credential(value, "bearer") == credential(value, "Bearer") == found
    for value in (b"abc", b"n1 Bearer abc", b"Bearerabc"):
        assert credential(value, "bearer") is None
    assert credential(b"Bearer abc", "") == b"Bearer abc"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set either the known keys"),
        ({"known": {digest(KEY): MOBILE}, "verified_upstream": True}, "set either the known keys"),
        ({"known": {KEY: MOBILE}}, "given by its digest"),
        ({"known": {digest(KEY).upper(): MOBILE}}, "given by its digest"),
        ({"known": {digest(KEY): "mobile"}}, "must be a Holder"),
        ({"verified_upstream": True, "secret": b"short"}, "at least 16 random bytes"),
        ({"verified_upstream": True, "secret": "text"}, "at least 16 random bytes"),
        ({"verified_upstream": True, "scheme": "Be arer"}, "scheme must be a word"),
        ({"verified_upstream": True, "header": "X_API_KEY"}, "no underscore"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettings, match=message) as error:
        ApiKeys(**settings)
    assert KEY not in str(error.value)


def test_a_holder_has_printable_names() -> None:
    texts: list[Any] = ["a\nb", "\x1b[31m", "\u202egnp", "\ud800", "x" * 513, "é" * 257, 7]
    for text in texts:
        with pytest.raises(InvalidSettings, match="printable text"):
            Holder(user=text)


def test_no_secret_is_in_a_representation() -> None:
    keys = ApiKeys({digest(KEY, SECRET): MOBILE}, secret=SECRET)
    assert SECRET.decode() not in repr(keys)
    assert digest(KEY, SECRET) not in repr(keys)
    assert is_fit("é" * 256)
