"""Fixed window, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after) in microseconds."""

from __future__ import annotations

from functools import partial

import pytest

from headgate.core.algorithms import Algorithm, void_at
from headgate.core.quota import Quota
from tests.core import test_buckets
from tests.core.test_buckets import SECOND, Row

MINUTE = 60 * SECOND
MIDNIGHT = 20_000 * 86_400 * SECOND
play = partial(test_buckets.play, start=MIDNIGHT)


def fixed(limit: int, window_us: int = MINUTE) -> Quota:
    return Quota(limit, window_us, algorithm=Algorithm.FIXED_WINDOW)


def test_counts_until_the_window_ends() -> None:
    play(
        fixed(3),
        [
            (10 * SECOND, 0, True, 3, 0, 0),
            (10 * SECOND, 2, True, 1, 0, 50 * SECOND),
            (20 * SECOND, 2, False, 1, 40 * SECOND, 40 * SECOND),
            (59_999_999, 1, True, 0, 0, 1),
            (59_999_999, 1, False, 0, 1, 1),
            (MINUTE, 3, True, 0, 0, MINUTE),
            (MINUTE, 1, False, 0, MINUTE, MINUTE),
            (10 * MINUTE, 1, True, 2, 0, MINUTE),
        ],
    )


def test_admits_twice_the_limit_around_a_boundary_and_no_more() -> None:
    play(
        fixed(3),
        [
            (59_999_999, 3, True, 0, 0, 1),
            (MINUTE, 3, True, 0, 0, MINUTE),
            (MINUTE + 1, 1, False, 0, MINUTE - 1, MINUTE - 1),
            (2 * MINUTE - 1, 1, False, 0, 1, 1),
        ],
    )


@pytest.mark.parametrize("window_us", [1, 7 * SECOND, MINUTE, 3600 * SECOND, 86_400 * SECOND])
def test_windows_are_aligned_to_the_epoch(window_us: int) -> None:
    """Not to the first request: one that comes in the last microsecond is forgotten in the next."""
    quota, boundary = fixed(2, window_us), 12_345_678 * window_us
    state, last = quota.step(None, 2, boundary - 1)
    assert last.reset_after_us == 1
    assert quota.step(state, 2, boundary)[1].reset_after_us == window_us


def test_a_look_takes_nothing() -> None:
    play(fixed(3), [(0, 1, True, 2, 0, MINUTE), *[(0, 0, True, 2, 0, MINUTE)] * 3, (0, 2, True, 0, 0, MINUTE)])


def test_a_refund_gives_back_at_most_what_is_used() -> None:
    state = play(
        fixed(3),
        [
            (0, -1, True, 3, 0, 0),
            (0, 3, True, 0, 0, MINUTE),
            (5 * SECOND, -1, True, 1, 0, 55 * SECOND),
            (5 * SECOND, -9, True, 3, 0, 0),
        ],
    )
    assert void_at(state, fixed(3)) == 0
    play(fixed(3), [(5 * SECOND, 3, True, 0, 0, 55 * SECOND), (5 * SECOND, 1, False, 0, 55 * SECOND, 55 * SECOND)])


def test_a_refund_after_the_window_gives_nothing_back() -> None:
    play(fixed(3), [(0, 3, True, 0, 0, MINUTE), (MINUTE, -2, True, 3, 0, 0), (MINUTE, 3, True, 0, 0, MINUTE)])


class TestChangedLimit:
    """The same state under another limit: what was used stays used."""

    used_4 = fixed(5).step(None, 4, MIDNIGHT)[0]

    @pytest.mark.parametrize(
        ("limit", "row"),
        [
            (9, (SECOND, 1, True, 4, 0, 59 * SECOND)),
            (5, (SECOND, 1, True, 0, 0, 59 * SECOND)),
            (4, (SECOND, 1, False, 0, 59 * SECOND, 59 * SECOND)),
            (2, (SECOND, 1, False, 0, 59 * SECOND, 59 * SECOND)),
            (2, (SECOND, -1, True, 0, 0, 59 * SECOND)),
            (2, (SECOND, -3, True, 1, 0, 59 * SECOND)),
            (2, (MINUTE, 2, True, 0, 0, MINUTE)),
        ],
    )
    def test_raised_or_lowered(self, limit: int, row: Row) -> None:
        play(fixed(limit), [row], self.used_4)


class TestClockFallsBack:
    """Up to a window behind the window counted, the clock waits for it; further, the count is pulled to the present."""

    used_2 = fixed(3).step(None, 2, MIDNIGHT + 90 * SECOND)[0]  # in the second minute of the day

    def test_within_the_window(self) -> None:
        play(fixed(3), [(MINUTE, 1, True, 0, 0, MINUTE)], self.used_2)

    @pytest.mark.parametrize("now", [0, 50 * SECOND, MINUTE - 1])
    def test_by_up_to_a_window(self, now: int) -> None:
        wait = 2 * MINUTE - now
        kept = play(fixed(3), [(now, 2, False, 1, wait, wait)], self.used_2)
        assert kept is self.used_2
        play(fixed(3), [(now, 1, True, 0, 0, wait), (now, 1, False, 0, wait, wait)], self.used_2)

    @pytest.mark.parametrize(("now", "left"), [(-1, 1), (-10 * SECOND, 10 * SECOND), (-7 * MINUTE, MINUTE)])
    def test_by_more_than_a_window(self, now: int, left: int) -> None:
        """The denial mends the state: from the end of the present window on, all is free again."""
        mended = play(fixed(3), [(now, 2, False, 1, left, left)], self.used_2)
        assert mended != self.used_2
        play(fixed(3), [(now + left - 1, 2, False, 1, 1, 1), (now + left, 2, True, 1, 0, MINUTE)], mended)
