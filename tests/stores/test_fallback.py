"""The decisions of a node without the store: by its share of each limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Quota
from headgate.core.mode import Mode
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.stores.fallback import Fallback, share_of
from headgate.testing import ManualClock
from tests.core.quotas import AWKWARD, quotas

SECOND = 1_000_000
HOUR = 3600 * SECOND
TEN = Quota(10, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)


@given(quotas() | st.sampled_from([*AWKWARD, Quota.one_off(7), Quota(10, HOUR, burst=-9)]), st.integers(1, 50))
def test_a_share_is_rounded_up_and_all_shares_stay_within_the_bound(quota: Quota, nodes: int) -> None:
    share = share_of(quota, nodes)
    assert share.shape == quota.shape
    assert 1 <= share.capacity <= -(-quota.capacity // nodes)
    assert nodes * share.capacity < quota.capacity + nodes
    assert min(1, quota.limit) <= share.limit <= -(-quota.limit // nodes)


def test_shares_of_ordinary_quotas_are_exact() -> None:
    assert share_of(TEN, 1) is TEN
    assert share_of(Quota(100, 60 * SECOND, burst=20), 8) == Quota(13, 60 * SECOND, burst=2)
    assert share_of(Quota(100, HOUR, burst=-99), 8) == Quota(13, HOUR, burst=-12)
    assert share_of(replace(TEN, limit=1), 8) == replace(TEN, limit=1)
    assert share_of(Quota.one_off(10), 4) == Quota.one_off(3)


def test_a_share_that_would_take_longer_to_come_back_than_can_be_counted_is_rounded_down() -> None:
    assert share_of(Quota(10_000_000, 24 * HOUR), 3).limit == 3_333_334
    longest = Quota(3, 24 * HOUR, burst=78_187 - 3)  # 71.3 years
    assert share_of(longest, 2) == Quota(2, 24 * HOUR, burst=39_094 - 2)
    assert share_of(longest, 3) == Quota(1, 24 * HOUR, burst=26_062 - 1)


def a_plan(*names: str, limit: int = 3) -> Plan:
    quota = Quota(limit, HOUR)
    return tuple([Limit(f"{name}|{quota.shape}", "ada", quota) for name in names])


def mode_by_name(limit: Limit) -> Mode:
    return Mode(limit.space.partition("|")[0].partition("-")[0])


@pytest.fixture
def mixed(manual_clock: ManualClock) -> Fallback:
    return Fallback(mode_by_name, 1, 100, manual_clock)


def test_each_limit_is_answered_in_its_own_mode(mixed: Fallback) -> None:
    plan = a_plan("allow", "local-1", "local-2")
    assert [mixed.answer(Call(Verb.CHECK, plan, 1), 7).allowed for _ in range(4)] == [True, True, True, False]
    refusal = mixed.answer(Call(Verb.CHECK, plan, 1), 7)
    assert [part.allowed for part in refusal.limits] == [True, False, False]
    assert [part.remaining for part in refusal.limits] == [3, 0, 0]


def test_one_limit_that_denies_takes_nothing_from_the_others(mixed: Fallback) -> None:
    denied = mixed.answer(Call(Verb.CHECK, a_plan("local-1", "deny"), 1), 7)
    assert (denied.allowed, denied.retry_after_us) == (False, 7)
    assert [part.allowed for part in denied.limits] == [True, False]
    assert mixed.answer(Call(Verb.PEEK, a_plan("local-1"), 1), 7).remaining == 3
    assert not mixed.answer(Call(Verb.CHECK_ONCE, a_plan("local-1", "deny"), 1, b"x" * 16), 7)
    assert mixed.answer(Call(Verb.PEEK, a_plan("local-1"), 1), 7).remaining == 3


def test_the_strictest_mode_is_that_of_the_plan(mixed: Fallback) -> None:
    assert mixed.mode_of(a_plan("allow")) is Mode.ALLOW
    assert mixed.mode_of(a_plan("allow", "local")) is Mode.LOCAL
    assert mixed.mode_of(a_plan("deny", "local", "allow")) is Mode.DENY


def test_mixed_modes_count_a_retry_once_and_refund(mixed: Fallback) -> None:
    plan = a_plan("allow", "local")
    assert [mixed.answer(Call(Verb.CHECK_ONCE, plan, 1, b"x" * 16), 7).limits[1].remaining for _ in range(3)] == [
        2,
        2,
        2,
    ]
    assert mixed.answer(Call(Verb.REFUND, plan, 1), 7).limits[1].remaining == 3
    mixed.answer(Call(Verb.CHECK, plan, 3), 7)
    mixed.reset(plan)
    assert mixed.answer(Call(Verb.PEEK, plan, 3), 7).allowed
    mixed.close()
