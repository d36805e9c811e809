"""What a node may admit on its own: its share of each limit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Quota
from headgate.stores.fallback import share_of
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


def test_a_share_that_cannot_be_computed_exactly_is_rounded_down() -> None:
    assert share_of(Quota(10_000_000, 24 * HOUR), 3).limit in range(3_000_000, 3_333_334)
    prime = 1_000_000_007  # nothing near its third has a divisor in common with the window
    assert share_of(Quota(prime, 2 * prime), 3).limit == 1
