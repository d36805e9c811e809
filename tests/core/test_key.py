"""Keys: injective, bounded, and picky."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, InvalidKey, Quota
from headgate.core.key import (
    LITERAL,
    LONGEST,
    LONGEST_ONCE,
    ONCE_US,
    Principal,
    bounded,
    checked_name,
    checked_principal,
    once_token,
    space,
)
from headgate.core.plan import Family

SECOND = 1_000_000
QUOTAS = [Quota(1, window, algorithm=algorithm) for algorithm in Algorithm for window in (1, 11, SECOND)]

names = st.text("ab1|:", min_size=1, max_size=4).map(lambda text: text.replace("|", "/"))
principals = st.one_of(
    st.text("ab1|:{}\x00 ", min_size=1, max_size=4),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
    st.integers(LITERAL - 1, LITERAL + 2).flatmap(lambda size: st.text("ab", min_size=size, max_size=size)),
)
parts = st.tuples(names, st.sampled_from(QUOTAS), principals)


def full(name: str, quota: Quota, principal: str) -> tuple[str, Principal]:
    return space(checked_name(name), quota), bounded(checked_principal(principal))


@given(parts, parts)
def test_different_parts_make_different_keys(one: tuple[str, Quota, str], other: tuple[str, Quota, str]) -> None:
    assert (full(*one) == full(*other)) == (one == other)


@given(parts)
def test_the_parts_are_distinct(key: tuple[str, Quota, str]) -> None:
    """The space has one bar, after the name; text is kept as it is, and a digest is bytes."""
    name, quota, principal = key
    place, who = full(*key)
    assert place.split("|") == [name, quota.shape]
    assert who == principal if len(principal) <= LITERAL else isinstance(who, bytes)


def test_from_129_characters_on_a_principal_is_its_digest() -> None:
    assert bounded("x" * 128) == "x" * 128
    digest = bounded("x" * 129)
    assert isinstance(digest, bytes)
    assert len(digest) == 16
    assert digest != bounded("x" * 130)
    assert bounded("é" * 128) == "é" * 128
    assert len(bounded("x" * LONGEST)) == 16


def test_a_digest_is_the_same_in_every_process() -> None:
    """It is BLAKE2b of the UTF-8 text, in 128 bits: a store outlives its clients."""
    assert bounded("x" * 129) == bytes.fromhex("b9ee96f69e8210c624fee55d71d5a54f")


def test_the_limit_is_not_part_of_the_key() -> None:
    assert space("api", Quota(5, SECOND)) == space("api", Quota(50, SECOND, burst=7)) == "api|tb:1000000"


class TestNames:
    @pytest.mark.parametrize("name", ["a", "orders-user", "A.b_c:d/e-9", "x" * 64])
    def test_good(self, name: str) -> None:
        assert checked_name(name) == name

    @pytest.mark.parametrize(
        "name",
        ["", "x" * 65, "a b", "a|b", "a\n", "\na", "a\x00", "é", "{a}", "a,b", "٣", None, 5, True, b"a", ["a"]],
        ids=repr,
    )
    def test_bad(self, name: Any) -> None:
        with pytest.raises(InvalidKey) as error:
            checked_name(name)
        assert str(error.value) == f"a name must have 1 to 64 of A-Z a-z 0-9 _ . : / -, not {name!r}"

    def test_a_long_name_is_not_repeated_at_length(self) -> None:
        with pytest.raises(InvalidKey) as error:
            checked_name("x" * 1_000_000)
        assert len(str(error.value)) < 200


class TestPrincipals:
    @pytest.mark.parametrize(
        "principal",
        ["u", "user:42", "a|b", "{x}", "a\nb\x00", " ", "é", "e\u0301", "\U0001f600", "x" * LONGEST],
        ids=ascii,
    )
    def test_good(self, principal: str) -> None:
        """Any text, as it is: nothing is trimmed, folded or normalized."""
        assert checked_principal(principal) == principal

    @pytest.mark.parametrize("principal", [None, 42, 1.5, True, b"user", bytearray(b"u"), ["u"], ("u",)], ids=repr)
    def test_not_text(self, principal: Any) -> None:
        with pytest.raises(InvalidKey) as error:
            checked_principal(principal)
        kind = type(principal).__name__
        assert str(error.value) == f"a key must be text, such as 'user:42', not {kind}: decode or format it first"

    @pytest.mark.parametrize("length", [0, LONGEST + 1, 1_000_000])
    def test_bad_length(self, length: int) -> None:
        with pytest.raises(InvalidKey, match=f"^a key must have 1 to 65536 characters, not {length}$"):
            checked_principal("x" * length)

    @pytest.mark.parametrize(("principal", "at"), [("\ud800", 0), ("ab\udcff", 2), ("\ude00\ud83d", 0), ("é\udfff", 1)])
    def test_a_lone_surrogate(self, principal: str, at: int) -> None:
        with pytest.raises(InvalidKey, match=f"^a key must be valid Unicode text; character {at} is a lone surrogate$"):
            checked_principal(principal)

    @given(st.text(st.characters(), max_size=200))
    def test_any_text_is_kept_or_refused(self, principal: str) -> None:
        try:
            assert checked_principal(principal) == principal
        except InvalidKey:
            assert not principal or any("\ud800" <= character <= "\udfff" for character in principal)
        else:
            bounded(principal)


class TestOnceTokens:
    questions = st.tuples(
        names,
        st.lists(st.sampled_from(QUOTAS), min_size=1, max_size=3, unique_by=lambda quota: quota.shape).map(tuple),
        principals,
        st.integers(1, 12),
        st.text("ab1:|=#,", min_size=1, max_size=4),
    )

    @staticmethod
    def token(name: str, quotas: tuple[Quota, ...], principal: str, cost: int, key: str) -> bytes:
        return once_token(Family(name, quotas).plan(principal), cost, key)

    @given(questions, questions)
    def test_different_questions_have_different_tokens(self, one: Any, other: Any) -> None:
        assert (self.token(*one) == self.token(*other)) == (one == other)
        assert len(self.token(*one)) == 16

    def test_a_part_cannot_imitate_another(self) -> None:
        """Nor can text be chosen so that it looks like a digest, or like two parts."""
        limits = Family("api", [Quota(5, SECOND)])
        digest = bounded("x" * 200)
        assert isinstance(digest, bytes)
        asked = [
            ("x" * 200, 1, "k"),
            (digest.hex(), 1, "k"),
            (f"#{digest.hex()}", 1, "k"),
            ("a", 1, "k1"),
            ("a", 11, "k"),
        ]
        asked += [("a", 1, "1:k"), ("a", 1, "k1:1"), ("a1:k", 1, "k")]
        assert len({once_token(limits.plan(who), cost, key) for who, cost, key in asked}) == len(asked)

    def test_a_changed_limit_is_the_same_question(self) -> None:
        plans = [Family("api", [Quota(limit, SECOND)]).plan("user") for limit in (5, 50)]
        assert once_token(plans[0], 1, "key") == once_token(plans[1], 1, "key")

    def test_a_token_is_the_same_in_every_process(self) -> None:
        """It is BLAKE2b of the parts, each with its length before it, in 128 bits."""
        plan = Family("api", [Quota(5, SECOND)]).plan("user")
        assert once_token(plan, 1, "order-1042") == bytes.fromhex("bdf0cdc4603f0eca571e4d4cb82ee367")
        assert ONCE_US == 300 * SECOND

    @pytest.mark.parametrize("key", ["k", "é" * 512, " ", "a\x00b", "x" * LONGEST_ONCE], ids=ascii)
    def test_good_keys(self, key: str) -> None:
        assert once_token((), 1, key)

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            ("", "an idempotency key must have 1 to 512 characters, not 0"),
            ("x" * 513, "an idempotency key must have 1 to 512 characters, not 513"),
            (b"key", "an idempotency key must be text, such as 'order-1042', not bytes: decode or format it first"),
            (None, "an idempotency key must be text, such as 'order-1042', not NoneType: decode or format it first"),
            (1042, "an idempotency key must be text, such as 'order-1042', not int: decode or format it first"),
            ("ab\ud800", "an idempotency key must be valid Unicode text; character 2 is a lone surrogate"),
        ],
    )
    def test_bad_keys(self, key: Any, message: str) -> None:
        with pytest.raises(InvalidKey) as error:
            once_token((), 1, key)
        assert str(error.value) == message
