"""GCRA, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after) in microseconds."""

from __future__ import annotations

import pytest

from headgate.core.algorithms import Algorithm, State
from headgate.core.quota import Quota
from tests.core.quotas import acceptable
from tests.core.test_laws import Int53

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_750_000_000 * SECOND
Row = tuple[int, int, bool, int, int, int]

FIVE = Quota(5, SECOND, algorithm=Algorithm.GCRA)  # an emission interval of 200 ms
SEVEN = Quota(7, SECOND, algorithm=Algorithm.GCRA)  # an emission interval of 142857 1/7 us
TEN = Quota(10, SECOND, algorithm=Algorithm.GCRA)


def gcra(limit: int, window_us: int = SECOND, burst: int = 0) -> Quota:
    return Quota(limit, window_us, burst=burst, algorithm=Algorithm.GCRA)


def play(quota: Quota, rows: list[Row], state: State = None) -> State:
    """Step through `rows`, with times relative to START, and return the last state."""
    for row in rows:
        time, cost, *_ = row
        state, said = quota.step(state, cost, START + time)
        assert row == (time, cost, said.allowed, said.remaining, said.retry_after_us, said.reset_after_us)
    return state


def test_admits_the_capacity_and_then_one_per_emission_interval() -> None:
    play(
        FIVE,
        [
            (0, 0, True, 5, 0, 0),
            (0, 1, True, 4, 0, 200_000),
            (0, 4, True, 0, 0, 1_000_000),
            (0, 1, False, 0, 200_000, 1_000_000),
            (199_999, 1, False, 0, 1, 800_001),
            (200_000, 1, True, 0, 0, 1_000_000),
            (1_199_999, 0, True, 4, 0, 1),
            (1_200_000, 5, True, 0, 0, 1_000_000),
        ],
    )


def test_its_state_is_the_theoretical_arrival_time() -> None:
    """In microseconds, and sevenths of them: 2/7 s are 285714 2/7 us."""
    state, _ = SEVEN.step(None, 2, START)
    assert state is not None
    assert state[:2] == (START + 285_714, 2)


def test_never_saves_up_more_than_its_capacity() -> None:
    play(SEVEN, [(0, 7, True, 0, 0, SECOND), (10**15, 0, True, 7, 0, 0), (10**15, 7, True, 0, 0, SECOND)])


def test_loses_no_fraction_of_an_interval() -> None:
    """7/s: the k-th unit is there at the first microsecond from k/7 s on, and after a second there were exactly 7."""
    state, _ = SEVEN.step(None, 7, START)
    for instant in (142_858, 285_715, 428_572, 571_429, 714_286, 857_143, 1_000_000):
        refused, refusal = SEVEN.step(state, 1, START + instant - 1)
        assert (refusal.allowed, refusal.retry_after_us) == (False, 1)
        state, admission = SEVEN.step(refused, 1, START + instant)
        assert admission.allowed


def test_rounds_waiting_times_up_to_whole_microseconds() -> None:
    play(
        SEVEN,
        [
            (0, 7, True, 0, 0, 1_000_000),
            (0, 3, False, 0, 428_572, 1_000_000),
            (142_857, 1, False, 0, 1, 857_143),
            (142_858, 1, True, 0, 0, 1_000_000),  # 999999 1/7
            (285_714, 1, False, 0, 1, 857_144),  # 857143 1/7
            (285_714, -6, True, 6, 0, 1),  # 1/7 us
            (285_715, 0, True, 7, 0, 0),
        ],
    )


def test_burst_is_tolerated_beyond_the_limit() -> None:
    play(
        gcra(10, burst=20),
        [
            (0, 30, True, 0, 0, 3_000_000),
            (0, 1, False, 0, 100_000, 3_000_000),
            (1_000_000, 11, False, 10, 100_000, 2_000_000),
            (1_000_000, 10, True, 0, 0, 3_000_000),
        ],
    )


def test_a_capacity_below_the_limit() -> None:
    play(
        gcra(10, burst=-7),
        [
            (0, 0, True, 3, 0, 0),
            (0, 3, True, 0, 0, 300_000),
            (0, 1, False, 0, 100_000, 300_000),
            (99_999, 1, False, 0, 1, 200_001),
            (100_000, 1, True, 0, 0, 300_000),
            (400_000, 3, True, 0, 0, 300_000),
        ],
    )


@pytest.mark.parametrize("behind", [0, 1, 1000 * SECOND, DAY - 1, DAY, DAY + 1, 10 * DAY])
def test_a_capacity_far_below_the_limit_stays_exact_when_the_clock_falls_back(behind: int) -> None:
    """A window is worth 1000003 * 86400000000 fractions here, which is more than 53 bits hold."""
    quota = acceptable(1_000_003, DAY, 5 - 1_000_003, Algorithm.GCRA)
    if quota:
        state, _ = quota.step(None, 5, Int53(START))
        quota.step(state, 1, Int53(START - behind))


def test_a_refund_gives_back_at_most_what_is_used() -> None:
    play(
        FIVE,
        [
            (0, -1, True, 5, 0, 0),
            (0, 5, True, 0, 0, 1_000_000),
            (0, -2, True, 2, 0, 600_000),
            (100_000, -1, True, 3, 0, 300_000),
            (100_000, -9, True, 5, 0, 0),
            (100_000, 5, True, 0, 0, 1_000_000),
        ],
    )


def test_a_look_takes_nothing() -> None:
    play(FIVE, [(0, 2, True, 3, 0, 400_000), *[(0, 0, True, 3, 0, 400_000)] * 3, (0, 3, True, 0, 0, SECOND)])


def test_a_look_at_what_has_no_exact_interval_changes_nothing() -> None:
    """The state stays to the fraction, however often somebody looks."""
    quota = gcra(999_983, DAY)
    state = play(quota, [(0, 3, True, 999_980, 0, 259_205)])
    assert play(quota, [(0, 0, True, 999_980, 0, 259_205), (1000, 0, True, 999_980, 0, 258_205)], state) == state


class TestChangedLimit:
    """The same state under another limit: what was used stays used, to the fraction."""

    used_8 = TEN.step(None, 8, START)[0]

    @pytest.mark.parametrize(
        ("limit", "row"),
        [
            (20, (0, 0, True, 12, 0, 800_000)),
            (20, (250_000, 0, True, 14, 0, 550_000)),  # 5.5 were used
            (20, (250_000, 14, True, 0, 0, 975_000)),  # an admission: from now on at 20/s
            (20, (250_000, 15, False, 14, 50_000, 550_000)),
            (9, (250_000, 4, False, 3, 50_000, 550_000)),
            (9, (250_000, 3, True, 0, 0, 944_445)),  # 8.5 ninths of a second
            (7, (1, 1, False, 0, 199_999, 799_999)),  # 7.99999 were used
            (20, (10**15, 0, True, 20, 0, 0)),
            (9, (0, 0, True, 1, 0, 800_000)),
        ],
    )
    def test_raised_or_lowered(self, limit: int, row: Row) -> None:
        play(gcra(limit), [row], self.used_8)

    def test_lowered_below_what_was_used(self) -> None:
        """It is paid off at the rate it was made under, and a refusal changes nothing."""
        kept = play(gcra(4), [(0, 1, False, 0, 500_000, 800_000)], self.used_8)
        assert kept is self.used_8
        play(gcra(4), [(499_999, 1, False, 0, 1, 300_001), (500_000, 1, True, 0, 0, 1_000_000)], kept)

    def test_a_debt_far_beyond_a_lowered_capacity_is_not_taken_for_a_mistake_of_the_clock(self) -> None:
        state, _ = gcra(1, burst=99).step(None, 100, START)
        assert play(gcra(1), [(0, 1, False, 0, 100 * SECOND, 100 * SECOND)], state) is state
        play(gcra(1, burst=99), [(0, 1, False, 0, SECOND, 100 * SECOND)], state)

    def test_a_refund_while_more_is_used_than_the_capacity(self) -> None:
        play(gcra(4), [(0, -1, True, 0, 0, 700_000), (0, -4, True, 1, 0, 300_000)], self.used_8)
        state, _ = gcra(1, burst=99).step(None, 100, START)
        state = play(gcra(1), [(0, -1, True, 0, 0, 99 * SECOND)], state)
        play(gcra(1), [(0, 1, False, 0, 99 * SECOND, 99 * SECOND)], state)

    @pytest.mark.parametrize("behind", [2_000_001, 10**12])
    def test_a_clock_that_falls_back_is_told_from_a_debt_under_another_limit(self, behind: int) -> None:
        """At 10/s the capacity is worth one second, and one window more is the most that is waited for."""
        mended = play(gcra(4), [(-behind, 1, False, 0, 700_000, 1_000_000)], TEN.step(None, 10, START)[0])
        play(gcra(4), [(-behind + 700_000, 1, True, 0, 0, 1_000_000)], mended)

    def test_a_clock_that_falls_back_is_told_from_a_debt_under_another_capacity(self) -> None:
        """1 of 10/minute is worth 6 s: 5 minutes ahead, it is the clock that is wrong, whatever the capacity is now."""
        state, _ = gcra(10, 60 * SECOND, burst=-9).step(None, 1, START)
        play(gcra(10, 60 * SECOND, burst=90), [(-300 * SECOND, 0, True, 99, 0, 6 * SECOND)], state)

    def test_what_was_charged_under_another_limit_stays(self) -> None:
        after, _ = gcra(4).step(self.used_8, -8, START, START)
        assert after is self.used_8


class TestClockFallsBack:
    """The time that the clock lost is waited for, up to a window beyond the capacity; further back, it is forgotten."""

    @pytest.mark.parametrize("behind", [1, 300_000, 999_999, 1_000_000])
    def test_by_up_to_a_window(self, behind: int) -> None:
        state, _ = FIVE.step(None, 5, START)
        kept = play(FIVE, [(-behind, 1, False, 0, 200_000 + behind, 1_000_000 + behind)], state)
        assert kept is state

    @pytest.mark.parametrize("behind", [1, 300_000, 999_999, 1_000_000])
    def test_by_up_to_a_window_with_fractions(self, behind: int) -> None:
        state, _ = SEVEN.step(None, 7, START)
        play(SEVEN, [(-behind, 1, False, 0, 142_858 + behind, 1_000_000 + behind)], state)

    @pytest.mark.parametrize(("quota", "interval"), [(FIVE, 200_000), (SEVEN, 142_858)], ids=str)
    def test_by_more_than_a_window(self, quota: Quota, interval: int) -> None:
        state, _ = quota.step(None, quota.limit, START)
        early = -1_000_001
        mended = play(quota, [(early, 1, False, 0, interval, 1_000_000)], state)
        assert mended != state
        play(quota, [(early + interval - 1, 1, False, 0, 1, 1_000_001 - interval)], mended)
        play(quota, [(early + interval, 1, True, 0, 0, 1_000_000)], mended)

    def test_nothing_left_is_not_less_than_nothing(self) -> None:
        state, _ = FIVE.step(None, 5, START)
        play(FIVE, [(-1, 0, True, 0, 0, 1_000_001)], state)

    def test_what_is_left_can_still_be_taken(self) -> None:
        """The 300 ms cost 1.5 of the 4 units that were left."""
        play(FIVE, [(0, 1, True, 4, 0, 200_000), (-300_000, 1, True, 1, 0, 700_000)])


def test_a_charge_is_given_back_as_far_as_it_counts_after_the_burst_was_changed() -> None:
    """Of 3 units, 1 has come back after 100 ms; the other 2 are given back."""
    state, _ = gcra(10, burst=2).step(None, 3, START)
    state, _ = gcra(10, burst=2).step(state, 4, START + 1)
    _, said = gcra(10, burst=5).step(state, -3, START + 100_001, START)
    assert (said.remaining, said.reset_after_us) == (11, 400_000)


def test_state_is_five_integers_for_ever() -> None:
    state: State = None
    for number in range(1000):
        state, _ = SEVEN.step(state, number % 3, START + number * 12_345)
        assert state is not None
        assert [type(part) for part in state] == [int] * 5
