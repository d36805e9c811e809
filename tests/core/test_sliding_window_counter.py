"""Sliding window counter, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after), in us."""

from __future__ import annotations

from functools import partial

import pytest

from headgate import Algorithm, Quota
from tests.core import test_buckets
from tests.core.test_buckets import SECOND, Row

WINDOW = 10 * SECOND
MIDNIGHT = 20_000 * 86_400 * SECOND
play = partial(test_buckets.play, start=MIDNIGHT)


def counter(limit: int = 10, window_us: int = WINDOW) -> Quota:
    return Quota(limit, window_us, algorithm=Algorithm.SLIDING_WINDOW_COUNTER)


def test_weighs_the_previous_window_by_its_overlap() -> None:
    play(
        counter(),
        [
            (0, 0, True, 10, 0, 0),
            (0, 10, True, 0, 0, 20 * SECOND),
            (5 * SECOND, 1, False, 0, 6 * SECOND, 15 * SECOND),  # at 11 s the 10 count as 9
            (10 * SECOND, 1, False, 0, SECOND, 10 * SECOND),
            (10_999_999, 1, False, 0, 1, 9_000_001),
            (11 * SECOND, 1, True, 0, 0, 19 * SECOND),  # 9 + 1
            (12 * SECOND, 1, True, 0, 0, 18 * SECOND),  # 8 + 2
            (15 * SECOND, 0, True, 3, 0, 15 * SECOND),  # 5 + 2
            (15 * SECOND + 1, 0, True, 3, 0, 14_999_999),  # a little less counts as 3 all the same
            (20 * SECOND, 1, True, 7, 0, 20 * SECOND),  # 2 + 1
            (39_999_999, 0, True, 9, 0, 1),  # one ten millionth of 1
            (40 * SECOND, 0, True, 10, 0, 0),
        ],
    )


class TestRetryAfter:
    """Exact, whether the previous window makes room within this window, or this one has to become the previous."""

    state = play(counter(), [(0, 10, True, 0, 0, 20 * SECOND), (12 * SECOND, 2, True, 0, 0, 18 * SECOND)])

    @pytest.mark.parametrize(
        ("cost", "retry"),
        [
            (1, 1 * SECOND),  # 13 s: 7 + 2 + 1
            (3, 3 * SECOND),  # 15 s: 5 + 2 + 3
            (7, 7 * SECOND),  # 19 s: 1 + 2 + 7
            (8, 8 * SECOND),  # 20 s, when the 10 are out of sight: 2 + 8
            (9, 13 * SECOND),  # 25 s: half of 2, and 9
            (10, 18 * SECOND),  # 30 s: nothing but these 10
        ],
    )
    def test_is_exact(self, cost: int, retry: int) -> None:
        now = 12 * SECOND
        quota = counter()
        play(quota, [(now, cost, False, 0, retry, 18 * SECOND)], self.state)
        assert not quota.step(self.state, cost, MIDNIGHT + now + retry - 1)[1].allowed
        assert quota.step(self.state, cost, MIDNIGHT + now + retry)[1].allowed


def test_a_refund_takes_from_this_window_and_then_from_the_previous() -> None:
    play(
        counter(),
        [
            (0, -1, True, 10, 0, 0),
            (0, 10, True, 0, 0, 20 * SECOND),
            (15 * SECOND, 5, True, 0, 0, 15 * SECOND),
            (15 * SECOND, -2, True, 2, 0, 15 * SECOND),  # 5 + 3
            (15 * SECOND, -3, True, 5, 0, 5 * SECOND),  # half of 10
            (15 * SECOND, -4, True, 7, 0, 5 * SECOND),  # half of 6
            (15 * SECOND, -9, True, 10, 0, 0),
            (15 * SECOND, 10, True, 0, 0, 15 * SECOND),
        ],
    )


class TestCoarseGrains:
    """Beyond 100 s an overlap is counted in grains of 10, 100, ... microseconds, rounded up."""

    @pytest.mark.parametrize(
        ("window_us", "elapsed"),
        [
            (100 * SECOND, 14_285_715),  # to the microsecond: 100/7 s are 14285714.3 us
            (1000 * SECOND, 142_857_150),  # to 10 us: 142857142.9
            (10_000 * SECOND, 1_428_571_500),  # to 100 us: 1428571428.6
        ],
    )
    def test_round_against_the_request(self, window_us: int, elapsed: int) -> None:
        """7 of 7 in the previous window leave room for 1 when a seventh of it is past."""
        quota = counter(7, window_us)
        begin = MIDNIGHT - MIDNIGHT % window_us
        state, _ = quota.step(None, 7, begin)
        refusal = quota.step(state, 1, begin)[1]
        assert refusal.retry_after_us == window_us + elapsed
        assert quota.step(state, 1, begin + window_us)[1].retry_after_us == elapsed
        assert not quota.step(state, 1, begin + window_us + elapsed - 1)[1].allowed
        assert quota.step(state, 1, begin + window_us + elapsed)[1].allowed


class TestChangedLimit:
    used_8 = counter().step(None, 8, MIDNIGHT)[0]

    @pytest.mark.parametrize(
        ("limit", "row"),
        [
            (20, (0, 1, True, 11, 0, 20 * SECOND)),
            (9, (0, 1, True, 0, 0, 20 * SECOND)),
            (4, (0, 1, False, 0, 16_250_000, 20 * SECOND)),  # at 16.25 s, 3/8 of the 8 count
            (4, (0, 4, False, 0, 20 * SECOND, 20 * SECOND)),
            (4, (0, -1, True, 0, 0, 20 * SECOND)),
            (4, (0, -5, True, 1, 0, 20 * SECOND)),
            (4, (10 * SECOND, 1, False, 0, 6_250_000, 10 * SECOND)),
            (4, (10 * SECOND, 0, True, 0, 0, 10 * SECOND)),
        ],
    )
    def test_raised_or_lowered(self, limit: int, row: Row) -> None:
        play(counter(limit), [row], self.used_8)


class TestClockFallsBack:
    """Up to a window behind the window counted, the clock waits for it; further, the counts are pulled to now."""

    used_4 = counter().step(None, 4, MIDNIGHT + 15 * SECOND)[0]

    def test_by_more_than_a_window(self) -> None:
        """All 4 are counted in the window that ends in a microsecond; 2.5 s into the next there is room for 7."""
        mended = play(counter(), [(-1, 7, False, 6, 2_500_001, 10_000_001)], self.used_4)
        assert mended != self.used_4
        play(counter(), [(2_499_999, 7, False, 6, 1, 7_500_001), (2_500_000, 7, True, 0, 0, 17_500_000)], mended)
