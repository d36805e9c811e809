"""The IETF's fields: well-formed for every quota and name, and true."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.numbers import EXACT
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.web.errors import InvalidHeader
from headgate.web.ietf import LARGEST, VERSIONS, draft_11, nothing, partition_key, sf_bytes, sf_string

SECOND = 1_000_000
STRING = r'"(?:[ !#-\[\]-~]|\\[\\"])*"'
INTEGER = r"(?:0|[1-9][0-9]{0,14})"
BINARY = r":[A-Za-z0-9+/]*=*:"
POLICY = rf"{STRING};q={INTEGER}(?:;w=[1-9][0-9]{{0,14}})?(?:;pk={BINARY})?"
STATE = rf"{STRING};r={INTEGER};t={INTEGER}(?:;pk={BINARY})?"


def decision(quota: Quota, remaining: int = 5, reset_us: int = 30 * SECOND, retry_us: int = 0) -> Decision:
    return Decision(not retry_us, quota.capacity, remaining, retry_us, reset_us, Pressure.NORMAL, quota)


def quota(text: str) -> Quota:
    return Quota.parse(text)[0]


POLICIES = [
    (quota("100/minute"), '"p";q=100;w=60'),
    (quota("5000/day gcra"), '"p";q=5000;w=86400'),
    (quota("100/minute burst 20"), '"p";q=120;w=72'),
    (Quota.from_bucket(100, 10), '"p";q=100;w=10'),
    (Quota.from_bucket(5, 10), '"p";q=5'),
    (Quota(10, SECOND // 10), '"p";q=10'),
    (Quota(10, 3 * SECOND // 2), '"p";q=10;w=2'),
    (Quota(1, 1), '"p";q=1'),
    (Quota.one_off(100), '"p";q=100'),
    (Quota(EXACT, SECOND, algorithm=Algorithm.FIXED_WINDOW), f'"p";q={LARGEST};w=1'),
]
STATES = [
    (decision(quota("9/s"), 5, 30 * SECOND), '"p";r=5;t=30'),
    (decision(quota("9/s"), 5, 30 * SECOND + 1), '"p";r=5;t=31'),
    (decision(quota("9/s"), 9, 0), '"p";r=9;t=0'),
    (decision(quota("9/s"), 0, 30 * SECOND, 1_500_000), '"p";r=0;t=2'),
    (decision(quota("9/s"), EXACT), f'"p";r={LARGEST};t=30'),
]


def test_a_policy_is_a_capacity_and_its_time_and_the_state_is_what_is_left_and_for_how_long() -> None:
    for limit, policy in POLICIES:
        assert draft_11([decision(limit, 1)], ["p"])[0] == ("RateLimit-Policy", policy)
    for made, state in STATES:
        assert draft_11([made], ["p"])[1] == ("RateLimit", state)


def test_several_limits_are_listed_in_order() -> None:
    limits = [decision(quota("20/s")), decision(quota("5000/day"))]
    assert draft_11(limits, ["burst", "daily"]) == [
        ("RateLimit-Policy", '"burst";q=20;w=1, "daily";q=5000;w=86400'),
        ("RateLimit", '"burst";r=5;t=30, "daily";r=5;t=30'),
    ]


def test_partition_keys_distinguish_users_without_identifying_them() -> None:
    key = partition_key(b"secret", "user@example.org")
    assert len(key) == 12
    assert key != partition_key(b"secret", "user2@example.org")
    limits = [decision(quota("20/s")), decision(quota("30/s"))]
    (_, policy), (_, state) = draft_11(limits, ["a", "b"], [b"\x00\xff\x10", b""])
    assert policy == '"a";q=20;w=1;pk=:AP8Q:, "b";q=30;w=1'
    assert state == '"a";r=5;t=30;pk=:AP8Q:, "b";r=5;t=30'
    assert sf_bytes(b"a") == ":YQ==:"


def test_versions_are_found_by_name() -> None:
    assert set(VERSIONS) == {"draft-11", "off"}
    assert VERSIONS["off"]([decision(quota("1/s"))], ["p"]) == nothing([], []) == []


def test_a_name_that_is_no_string_is_refused() -> None:
    for name in ("", "a\r\nSet-Cookie: x", "a\n", "é", "\x7f", "\x00", "x" * 257, None, 7, b"a", "\ud800"):
        with pytest.raises(InvalidHeader, match="printable ASCII"):
            sf_string(name)


@given(st.text(max_size=40) | st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40))
def test_any_printable_name_is_a_string_and_can_be_read_back(name: str) -> None:
    try:
        encoded = sf_string(name)
    except InvalidHeader:
        assert not name or not name.isascii() or not name.isprintable()
    else:
        assert re.fullmatch(STRING, encoded)
        assert re.sub(r"\\(.)", r"\1", encoded[1:-1]) == name


limits = st.builds(
    Quota,
    st.integers(1, 10**6),
    algorithm=st.just(Algorithm.FIXED_WINDOW),
    window_us=st.integers(1, 10**3).map(lambda ms: ms * 1000) | st.integers(1, 10**4).map(lambda s: s * SECOND),
)


@given(st.lists(st.tuples(limits, st.integers(0, EXACT), st.integers(0, EXACT), st.integers(0, EXACT)), min_size=1))
def test_any_decision_makes_well_formed_fields(parts: list[tuple[Quota, int, int, int]]) -> None:
    made = [decision(*part) for part in parts]
    for keys in ((), [b"key"] * len(made)):
        (_, policy), (_, state) = draft_11(made, [f'a"\\{number}' for number in range(len(made))], keys)
        assert re.fullmatch(rf"{POLICY}(?:, {POLICY})*", policy)
        assert re.fullmatch(rf"{STATE}(?:, {STATE})*", state)
