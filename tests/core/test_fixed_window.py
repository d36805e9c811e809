"""Fixed window, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after) in microseconds."""

from __future__ import annotations

from functools import partial

import pytest

from headgate import Algorithm, Calendar, Quota
from tests.core import test_buckets
from tests.core.test_buckets import SECOND, Row
from tests.core.test_calendar import HOUR, at

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


class TestChangedLimit:
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

    @pytest.mark.parametrize(("now", "left"), [(-1, 1), (-10 * SECOND, 10 * SECOND), (-7 * MINUTE, MINUTE)])
    def test_by_more_than_a_window(self, now: int, left: int) -> None:
        """The denial mends the state: from the end of the present window on, all is free again."""
        mended = play(fixed(3), [(now, 2, False, 1, left, left)], self.used_2)
        assert mended != self.used_2
        play(fixed(3), [(now + left - 1, 2, False, 1, 1, 1), (now + left, 2, True, 1, 0, MINUTE)], mended)


@pytest.mark.parametrize(
    ("unit", "rows"),
    [
        (
            "day",
            [
                ((2025, 3, 30), 2, True, 1, 0, 23),
                ((2025, 3, 30, 1), 2, False, 1, 22, 22),
                ((2025, 3, 30, 3), 1, True, 0, 0, 21),
                ((2025, 3, 30, 23), 1, False, 0, 1, 1),
                ((2025, 3, 31), 3, True, 0, 0, 24),
                ((2025, 10, 26), 3, True, 0, 0, 25),
                ((2025, 10, 26, 12), 1, False, 0, 12, 12),
                ((2025, 10, 27), 0, True, 3, 0, 0),
            ],
        ),
        (
            "month",
            [
                ((2025, 2, 27, 23), 3, True, 0, 0, 25),
                ((2025, 2, 28, 23), 1, False, 0, 1, 1),
                ((2025, 3, 1), 3, True, 0, 0, 31 * 24 - 1),
                ((2025, 3, 1), -1, True, 1, 0, 31 * 24 - 1),
                ((2025, 3, 31, 23), 2, False, 1, 1, 1),
                ((2025, 4, 1), 2, True, 1, 0, 30 * 24),
            ],
        ),
        ("week", [((2025, 6, 15, 23), 3, True, 0, 0, 1), ((2025, 6, 16), 1, True, 2, 0, 7 * 24)]),
        ("year", [((2024, 12, 31, 23), 3, True, 0, 0, 1), ((2025, 1, 1), 1, True, 2, 0, 365 * 24)]),
    ],
    ids=["day", "month", "week", "year"],
)
def test_by_the_calendar(unit: str, rows: list[tuple[tuple[int, ...], int, bool, int, float, float]]) -> None:
    """Each row is (local time in Berlin, cost, allowed, remaining, retry_after, reset_after), durations in hours."""
    quota, state = Quota.per(3, Calendar(unit, "Europe/Berlin")), None
    for local, cost, *expected in rows:
        state, said = quota.step(state, cost, at("Europe/Berlin", *local))
        waits = [said.retry_after_us // HOUR, said.reset_after_us // HOUR]
        assert [said.allowed, said.remaining, *waits] == expected, local
