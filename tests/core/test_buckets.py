"""What all buckets share, by hand: rows are (time, cost, allowed, remaining, retry_after, reset_after), in us.

What only one of them does is in `test_token_bucket`, `test_leaky_bucket` and `test_gcra`.
"""

from __future__ import annotations

from typing import Protocol

import pytest

from headgate.core.algorithms import Algorithm, State
from headgate.core.quota import Quota

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
BUCKETS = [algorithm for algorithm in Algorithm if algorithm.is_bucket]
Row = tuple[int, int, bool, int, int, int] | tuple[int, int, bool, int, int, int, int]
"""With the delay of a queue, if there is one."""


class Bucket(Protocol):
    def __call__(self, limit: int, window_us: int = SECOND, burst: int = 0) -> Quota: ...


def play(quota: Quota, rows: list[Row], state: State = None, start: int = START) -> State:
    """Step through `rows`, with times relative to `start`, and return the last state."""
    for time, cost, *expected in rows:
        state, said = quota.step(state, cost, start + time)
        numbers = said.allowed, said.remaining, said.retry_after_us, said.reset_after_us, said.delay_us
        assert (time, cost, *expected) == (time, cost, *numbers[: len(expected)])
    return state


@pytest.fixture(params=BUCKETS)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    def bucket(limit: int, window_us: int = SECOND, burst: int = 0) -> Quota:
        return Quota(limit, window_us, burst=burst, algorithm=request.param)

    return bucket


class TestOneLimit:
    @pytest.fixture
    def five(self, bucket: Bucket) -> Quota:
        """A unit in 200 ms."""
        return bucket(5)

    @pytest.fixture
    def seven(self, bucket: Bucket) -> Quota:
        """A unit in 142857 1/7 us."""
        return bucket(7)

    def test_starts_full_and_refills_one_unit_at_a_time(self, five: Quota) -> None:
        play(
            five,
            [
                (0, 0, True, 5, 0, 0),
                (0, 1, True, 4, 0, 200_000),
                (0, 4, True, 0, 0, 1_000_000),
                (0, 1, False, 0, 200_000, 1_000_000),
                (199_999, 1, False, 0, 1, 800_001),
                (200_000, 1, True, 0, 0, 1_000_000),
                (1_199_999, 0, True, 4, 0, 1),
                (1_200_000, 0, True, 5, 0, 0),
                (1_200_000, 5, True, 0, 0, 1_000_000),
            ],
        )

    def test_rounds_waiting_times_up_to_whole_microseconds(self, seven: Quota) -> None:
        rows = [
            (0, 7, True, 0, 0, 1_000_000),
            (0, 1, False, 0, 142_858, 1_000_000),
            (0, 3, False, 0, 428_572, 1_000_000),
            (142_857, 1, False, 0, 1, 857_143),
            (142_858, 1, True, 0, 0, 1_000_000),  # 999999 1/7
            (285_714, 1, False, 0, 1, 857_144),  # 857143 1/7
        ]
        play(seven, [*rows, (285_715, 1, True, 0, 0, 1_000_000)])  # 999999 2/7
        play(seven, [*rows, (285_714, -6, True, 6, 0, 1), (285_715, 0, True, 7, 0, 0)])  # 1/7 us

    def test_a_capacity_below_the_limit(self, bucket: Bucket) -> None:
        play(
            bucket(10, burst=-7),
            [
                (0, 0, True, 3, 0, 0),
                (0, 3, True, 0, 0, 300_000),
                (0, 1, False, 0, 100_000, 300_000),
                (99_999, 1, False, 0, 1, 200_001),
                (100_000, 1, True, 0, 0, 300_000),
                (400_000, 3, True, 0, 0, 300_000),
            ],
        )


class TestChangedLimit:
    """The same state under another limit: what was used stays used, to the fraction."""

    @pytest.fixture
    def used_8(self, bucket: Bucket) -> State:
        return bucket(10).step(None, 8, START)[0]

    @pytest.mark.parametrize(
        ("limit", "row"),
        [
            (20, (0, 0, True, 12, 0, 800_000)),
            (20, (250_000, 0, True, 14, 0, 550_000)),  # until an admission the old limit refills: 5.5 were used
            (20, (250_000, 14, True, 0, 0, 975_000)),  # an admission: from now on at 20/s
            (20, (250_000, 15, False, 14, 50_000, 550_000)),
            (9, (250_000, 4, False, 3, 50_000, 550_000)),
            (9, (250_000, 3, True, 0, 0, 944_445)),  # 8.5 ninths of a second
            (7, (1, 1, False, 0, 199_999, 799_999)),  # 7.99999 were used
            (20, (10**15, 0, True, 20, 0, 0)),
            (9, (0, 0, True, 1, 0, 800_000)),
        ],
    )
    def test_raised_or_lowered(self, bucket: Bucket, used_8: State, limit: int, row: Row) -> None:
        play(bucket(limit), [row], used_8)

    def test_fractions_of_a_microsecond_still_count(self, bucket: Bucket) -> None:
        """2 of 7 a second come back in 285714 2/7 us, and one of them in 142857 1/7."""
        state, _ = bucket(7).step(None, 2, START)
        play(bucket(4), [(0, 0, True, 2, 0, 285_715), (0, 3, False, 2, 142_858, 285_715)], state)

    def test_lowered_below_what_was_used(self, bucket: Bucket, used_8: State) -> None:
        """It comes back by the limit it was used under, and a refusal changes nothing."""
        kept = play(bucket(4), [(0, 1, False, 0, 500_000, 800_000)], used_8)
        assert kept is used_8
        play(bucket(4), [(499_999, 1, False, 0, 1, 300_001), (500_000, 1, True, 0, 0, 1_000_000)], kept)

    def test_a_refund_while_more_is_used_than_the_capacity(self, bucket: Bucket, used_8: State) -> None:
        play(bucket(4), [(0, -1, True, 0, 0, 700_000), (0, -4, True, 1, 0, 300_000)], used_8)

    def test_what_was_charged_under_another_limit_stays(self, bucket: Bucket, used_8: State) -> None:
        after, _ = bucket(4).step(used_8, -8, START, START)
        assert after is used_8

    def test_another_burst(self, bucket: Bucket, used_8: State) -> None:
        play(bucket(10, burst=5), [(0, 0, True, 7, 0, 800_000)], used_8)
        state, _ = bucket(10, burst=5).step(None, 15, START)
        play(bucket(10), [(0, 0, True, 0, 0, 1_500_000), (0, 1, False, 0, 600_000, 1_500_000)], state)


class TestClockFallsBack:
    """Up to a window behind the state, the clock waits for it; further behind, the state is pulled to the present."""

    @pytest.mark.parametrize(("limit", "unit"), [(5, 200_000), (7, 142_858)])
    @pytest.mark.parametrize("behind", [1, 300_000, 999_999, 1_000_000])
    def test_by_up_to_a_window(self, bucket: Bucket, behind: int, limit: int, unit: int) -> None:
        quota = bucket(limit)
        full, _ = quota.step(None, limit, START)
        state = play(quota, [(-behind, 1, False, 0, unit + behind, 1_000_000 + behind)], full)
        play(quota, [(unit - 1, 1, False, 0, 1, 1_000_001 - unit), (unit, 1, True, 0, 0, 1_000_000)], state)

    @pytest.mark.parametrize(("limit", "unit"), [(5, 200_000), (7, 142_858)])
    def test_by_more_than_a_window(self, bucket: Bucket, limit: int, unit: int) -> None:
        quota, early = bucket(limit), -1_000_001
        full, _ = quota.step(None, limit, START)
        mended = play(quota, [(early, 1, False, 0, unit, 1_000_000)], full)
        assert mended != full
        play(quota, [(early + unit - 1, 1, False, 0, 1, 1_000_001 - unit)], mended)
        play(quota, [(early + unit, 1, True, 0, 0, 1_000_000)], mended)

    def test_nothing_left_is_not_less_than_nothing(self, bucket: Bucket) -> None:
        play(bucket(5), [(0, 5, True, 0, 0, SECOND), (-1, 0, True, 0, 0, 1_000_001)])
