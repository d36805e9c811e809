"""The token bucket, the fair share and the bound of a node's own protection, each alone, in virtual time."""

from __future__ import annotations

import pytest

from headgate.core.quota import SECOND
from headgate.server.ceiling import Bound, FairShare, TokenBucket, Usage
from headgate.testing import ManualClock

MS = SECOND // 1000


@pytest.mark.parametrize("per_second", [3, 1000, 10_000])
def test_a_bucket_has_a_tenth_of_a_second_at_once(per_second: int) -> None:
    clock = ManualClock()
    bucket = TokenBucket(per_second, clock)
    assert sum(bucket.take() for _ in range(2 * per_second)) == max(1, per_second // 10) == bucket.burst
    clock.advance(1)
    assert sum(bucket.take() for _ in range(2 * per_second)) == bucket.burst


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    bucket = TokenBucket(1000, ManualClock())
    assert bucket.take(60)
    assert not bucket.take(60)
    assert sum(bucket.take() for _ in range(1000)) == 40, "the refused ones took nothing"


def test_a_bucket_of_any_number_is_never_empty() -> None:
    assert TokenBucket(0).take(10**12)


def test_shares_count_for_a_second_after_tokens_ran_out() -> None:
    shares, greedy = FairShare(1000), Usage(taken=5000)
    assert shares.may(greedy, 0)
    shares.ran_out(0)
    assert [shares.may(greedy, now) for now in (100, SECOND - 1, SECOND)] == [False, False, True]
    assert shares.scarce_until == 0


@pytest.mark.parametrize("sharers", [1, 2, 5])
def test_tokens_are_divided_evenly_among_those_who_ask(sharers: int) -> None:
    shares, usages, taken = FairShare(1000), [Usage() for _ in range(sharers)], [0] * sharers
    for now in range(0, 10 * SECOND, MS):
        shares.ran_out(now)
        for number, usage in enumerate(usages):
            while shares.may(usage, now):
                shares.charge(usage, 1, now)
                taken[number] += 1
    for each in taken:
        assert 0.9 <= each / (10_000 / sharers) <= 1.3, "a share is a little ahead of time"


def test_a_connection_that_asks_little_has_its_share_beside_greedy_ones() -> None:
    shares, greedy, modest = FairShare(1000), Usage(), Usage()
    for now in range(0, 3 * SECOND, 5 * MS):
        shares.ran_out(now)
        while shares.may(greedy, now):
            shares.charge(greedy, 1, now)
        assert shares.may(modest, now)
        shares.charge(modest, 1, now)


def test_a_batch_is_paid_for_by_the_share_of_its_connection() -> None:
    shares, other, batches = FairShare(1000), Usage(), Usage()
    shares.ran_out(0)
    assert shares.may(other, 0)
    shares.charge(batches, 300, 0)
    paid = next(now for now in range(0, SECOND, MS) if shares.may(batches, now))
    assert 250 * MS <= paid <= 700 * MS, "300 tokens, at 1000 a second while alone and 500 with another"
    assert shares.may(other, paid)


def test_a_bound_counts_what_is_open_and_whose() -> None:
    bound, ada, bob = Bound(8), 0, 0
    for _ in range(5):
        ada = bound.open(ada)
    assert (ada, bound.total, bound.busy) == (5, 5, 1)
    bob = bound.open(bob)
    assert (bound.total, bound.busy) == (6, 2)
    assert bound.is_over_share(ada), "three quarters are open, and its share is a half"
    assert not bound.is_over_share(bob)
    ada = bound.close(ada)
    assert not bound.is_over_share(ada), "fewer than three quarters are"
    assert bound.close(bob) == 0
    assert (bound.total, bound.busy) == (4, 1)
