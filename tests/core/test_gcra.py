"""What only GCRA does, by hand; the rows are those of `test_buckets`."""

from __future__ import annotations

import pytest

from headgate import Algorithm, Quota
from tests.core.quotas import acceptable
from tests.core.test_buckets import SECOND, START, play
from tests.core.test_laws import Int53

DAY = 86_400 * SECOND


def gcra(limit: int, window_us: int = SECOND, burst: int = 0) -> Quota:
    return Quota(limit, window_us, burst=burst, algorithm=Algorithm.GCRA)


def test_its_state_is_the_theoretical_arrival_time() -> None:
    """In microseconds, and sevenths of them: 2/7 s are 285714 2/7 us."""
    state, _ = gcra(7).step(None, 2, START)
    assert state is not None
    assert state[:2] == (START + 285_714, 2)


@pytest.mark.parametrize("behind", [0, 1, 1000 * SECOND, DAY - 1, DAY, DAY + 1, 10 * DAY])
def test_a_capacity_far_below_the_limit_stays_exact_when_the_clock_falls_back(behind: int) -> None:
    """A window is worth 1000003 * 86400000000 fractions here, which is more than 53 bits hold."""
    quota = acceptable(1_000_003, DAY, 5 - 1_000_003, Algorithm.GCRA)
    if quota:
        state, _ = quota.step(None, 5, Int53(START))
        quota.step(state, 1, Int53(START - behind))


def test_a_look_at_what_has_no_exact_interval_changes_nothing() -> None:
    """The state stays to the fraction, however many peeks there are."""
    quota = gcra(999_983, DAY)
    state = play(quota, [(0, 3, True, 999_980, 0, 259_205)])
    assert play(quota, [(0, 0, True, 999_980, 0, 259_205), (1000, 0, True, 999_980, 0, 258_205)], state) == state


class TestChangedLimit:
    def test_a_debt_far_beyond_a_lowered_capacity_is_not_taken_for_a_mistake_of_the_clock(self) -> None:
        state, _ = gcra(1, burst=99).step(None, 100, START)
        assert play(gcra(1), [(0, 1, False, 0, 100 * SECOND, 100 * SECOND)], state) is state
        play(gcra(1, burst=99), [(0, 1, False, 0, SECOND, 100 * SECOND)], state)

    @pytest.mark.parametrize("behind", [2_000_001, 10**12])
    def test_a_clock_that_falls_back_is_distinguished_from_a_debt_under_another_limit(self, behind: int) -> None:
        """At 10/s the capacity is worth one second, and one window more is the most that is waited for."""
        mended = play(gcra(4), [(-behind, 1, False, 0, 700_000, 1_000_000)], gcra(10).step(None, 10, START)[0])
        play(gcra(4), [(-behind + 700_000, 1, True, 0, 0, 1_000_000)], mended)

    def test_a_clock_that_falls_back_is_distinguished_from_a_debt_under_another_capacity(self) -> None:
        """1 of 10/minute is worth 6 s: 5 minutes ahead, it is the clock that is wrong, whatever the capacity is now."""
        state, _ = gcra(10, 60 * SECOND, burst=-9).step(None, 1, START)
        play(gcra(10, 60 * SECOND, burst=90), [(-300 * SECOND, 0, True, 99, 0, 6 * SECOND)], state)


class TestClockFallsBack:
    """The time that the clock lost is waited for, up to a window beyond the capacity; further back, it is forgotten."""

    def test_what_is_left_can_still_be_taken(self) -> None:
        """The 300 ms cost 1.5 of the 4 units that were left."""
        play(gcra(5), [(0, 1, True, 4, 0, 200_000), (-300_000, 1, True, 1, 0, 700_000)])


def test_a_charge_is_refunded_as_far_as_it_counts_after_the_burst_was_changed() -> None:
    """Of 3 units, 1 has come back after 100 ms; the other 2 are refunded."""
    state, _ = gcra(10, burst=2).step(None, 3, START)
    state, _ = gcra(10, burst=2).step(state, 4, START + 1)
    _, said = gcra(10, burst=5).step(state, -3, START + 100_001, START)
    assert (said.remaining, said.reset_after_us) == (11, 400_000)
