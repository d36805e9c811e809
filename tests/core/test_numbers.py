"""Whole numbers in range, and rates in lowest terms."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import ceil, inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT, fineness, rate, whole

SECOND = 1_000_000
DAY = 86_400 * SECOND


class TestWhole:
    @pytest.mark.parametrize("value", [-3, 0, 1, 7])
    def test_in_range(self, value: int) -> None:
        assert whole("x", value, -3, 7, InvalidQuota) == value

    @pytest.mark.parametrize(
        "value", [True, False, 1.0, 1e3, 0.5, nan, inf, "1", "", b"1", None, [1], Fraction(1), Decimal(1), 1j], ids=repr
    )
    def test_not_whole(self, value: Any) -> None:
        with pytest.raises(InvalidQuota) as error:
            whole("x", value, -3, 7, InvalidQuota)
        assert str(error.value) == f"x must be a whole number from -3 to 7, not {value!r}"

    def test_a_long_value_is_cut_short(self) -> None:
        with pytest.raises(InvalidQuota) as error:
            whole("x", "y" * 1000, -3, 7, InvalidQuota)
        start = "'" + "y" * 49
        assert str(error.value) == f"x must be a whole number from -3 to 7, not {start}... (1002 characters)"


class TestRate:
    """How a bucket counts: exactly where 53 bits allow it."""

    @pytest.mark.parametrize(
        ("limit", "window_us", "capacity", "expected"),
        [
            (5, SECOND, 5, (1, 1, 200_000)),
            (7, SECOND, 20, (7, 1, SECOND)),
            (10, 4, 10, (5, 1, 2)),
            (1, SECOND, EXACT // SECOND, (1, 1, SECOND)),
            (EXACT, 1, EXACT, (EXACT, 1, 1)),
            (1_000_003, DAY, 1_000_003, (1_000_003 << 29, DAY, 1 << 29)),  # a power of two in one unit of cost
            (999_999_937, 366 * DAY, 999_999_937, (999_999_937 << 19, 366 * DAY, 1 << 19)),
            (1_000_003, DAY, 1, (1_000_003, 1, DAY)),
        ],
    )
    def test_of_a_limit(self, limit: int, window_us: int, capacity: int, expected: tuple[int, int, int]) -> None:
        assert rate(limit, window_us, fineness(limit, window_us, capacity)) == expected

    def test_of_a_one_off_allowance(self) -> None:
        once = rate(0, SECOND, 0)
        assert [once.left(8, elapsed) for elapsed in (0, SECOND - 1, SECOND)] == [8, 8, 0]
        assert (once.wait(8), once.wait(0)) == (SECOND, 0)

    @given(
        st.one_of(st.integers(1, 1000), st.integers(1, 10**9)),
        st.one_of(st.integers(1, 366 * DAY), st.sampled_from([SECOND, DAY, 366 * DAY])),
        st.data(),
    )
    def test_waits_until_so_much_has_come_back_and_not_longer(
        self, limit: int, window_us: int, data: st.DataObject
    ) -> None:
        counting = rate(limit, window_us, fineness(limit, window_us, limit))
        used = data.draw(st.integers(1, limit * counting.unit))
        lacking = data.draw(st.integers(1, used))
        wait = counting.wait(lacking)
        assert counting.left(used, wait) <= used - lacking < counting.left(used, wait - 1)
        real = Fraction(used, counting.unit) - Fraction(limit * wait, window_us)
        assert max(Fraction(0), real) <= Fraction(counting.left(used, wait), counting.unit)

    @given(
        st.one_of(st.integers(1, 366 * DAY), st.sampled_from([1, 999_983, SECOND, DAY, 366 * DAY])),
        st.one_of(st.integers(0, 1000), st.integers(1, 10**9)),
        st.one_of(st.integers(0, 1000), st.integers(1, 10**9)),
        st.data(),
    )
    def test_carried_over_it_is_the_same_rounded_up(
        self, window_us: int, then: int, limit: int, data: st.DataObject
    ) -> None:
        old, new = (rate(each, window_us, each and fineness(each, window_us, each)) for each in (then, limit))
        used = data.draw(st.integers(0, max(1, min(then, limit)) * old.unit))
        assert old.carried(used, new) == ceil(Fraction(used * new.unit, old.unit))
        assert old.units(used) == ceil(Fraction(used, old.unit))
