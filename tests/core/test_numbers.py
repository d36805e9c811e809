"""Whole numbers in range, and rates in lowest terms."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidCost, InvalidKey, InvalidQuota, UsageError
from headgate.core.numbers import EXACT, carried_over, exact_rate, reduced, whole
from headgate.core.quota import MAX_WINDOW_US
from tests.core.test_laws import Int53

SECOND = 1_000_000
DAY = 86_400 * SECOND


class TestWhole:
    @pytest.mark.parametrize("value", [-3, 0, 1, 7])
    def test_in_range(self, value: int) -> None:
        assert whole("x", value, -3, 7, InvalidQuota) == value

    @pytest.mark.parametrize("value", [-4, 8, 1 << 63, -(10**30)])
    def test_out_of_range(self, value: int) -> None:
        with pytest.raises(InvalidQuota, match=f"^x must be a whole number from -3 to 7, not {value}$"):
            whole("x", value, -3, 7, InvalidQuota)

    @pytest.mark.parametrize("value", [True, False, 1.0, nan, "1", None, Fraction(1)], ids=repr)
    def test_not_whole(self, value: Any) -> None:
        with pytest.raises(InvalidQuota) as error:
            whole("x", value, -3, 7, InvalidQuota)
        assert str(error.value) == f"x must be a whole number from -3 to 7, not {value!r}"

    @pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["10**5000", "-10**5000"])
    def test_a_number_too_long_to_be_printed(self, value: int) -> None:
        with pytest.raises(InvalidQuota, match=r"^x must be a whole number from -3 to 7, not a number that long$"):
            whole("x", value, -3, 7, InvalidQuota)

    def test_a_long_value_is_cut_short(self) -> None:
        with pytest.raises(InvalidQuota) as error:
            whole("x", "y" * 1000, -3, 7, InvalidQuota)
        start = "'" + "y" * 49
        assert str(error.value) == f"x must be a whole number from -3 to 7, not {start}... (1002 characters)"

    @pytest.mark.parametrize("error", [InvalidCost, InvalidKey, InvalidQuota])
    def test_raises_what_it_is_told_to(self, error: type[UsageError]) -> None:
        with pytest.raises(error):
            whole("x", 8, 1, 7, error)


@pytest.mark.parametrize(
    ("limit", "window_us", "rate"),
    [
        (5, SECOND, (1, 200_000)),
        (7, SECOND, (7, SECOND)),
        (10, 4, (5, 2)),
        (1, 1, (1, 1)),
        (0, SECOND, (0, 1)),
    ],
)
def test_reduced(limit: int, window_us: int, rate: tuple[int, int]) -> None:
    assert reduced(limit, window_us) == rate


class TestExactRate:
    """(gain, unit): whole numbers, and none above EXACT."""

    @pytest.mark.parametrize(
        ("limit", "window_us", "capacity", "rate"),
        [
            (5, SECOND, 5, (1, 200_000)),
            (7, SECOND, 20, (7, SECOND)),
            (EXACT, 1, EXACT, (EXACT, 1)),
            (1, SECOND, EXACT // SECOND, (1, SECOND)),
        ],
    )
    def test_accepted(self, limit: int, window_us: int, capacity: int, rate: tuple[int, int]) -> None:
        assert exact_rate(limit, window_us, capacity) == rate

    @pytest.mark.parametrize(
        ("limit", "window_us", "capacity", "hint"),
        [
            (1_000_003, DAY, 1_000_003, " (such as 1000000)"),
            (123_457, DAY, 123_457, " (such as 123460)"),
            (1, SECOND, EXACT // SECOND + 1, ""),  # no rounder one helps
            (7, SECOND, EXACT, ""),
        ],
    )
    def test_refused(self, limit: int, window_us: int, capacity: int, hint: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            exact_rate(limit, window_us, capacity)
        assert str(error.value) == (
            f"{limit} per {window_us} us with a capacity of {capacity} cannot be computed exactly: "
            f"use a rounder limit{hint}, a shorter window or a smaller burst"
        )


class TestCarriedOver:
    """Of a state written under one limit, what it means under another."""

    @pytest.mark.parametrize(
        ("used", "elapsed", "written_under", "limit", "expected"),
        [
            (8 * 100_000, 0, 10, 20, 8 * 50_000),
            (8 * 100_000, 250_000, 10, 20, 275_000),  # 5.5 units
            (8 * 100_000, 800_000, 10, 20, 0),
            (8 * 100_000, 10**15, 10, 20, 0),
            (0, 0, 10, 20, 0),
            (1, 0, 10, 20, 1),  # half a fraction, rounded up
            (2, 0, 10, 20, 1),
            (99_999, 0, 10, 20, 50_000),  # 49999.5
            (7 * SECOND, 1, 7, 5, 1_399_999),  # 6.999993 units are 1399998.6
            (8, 999, 0, 10, 8 * 100_000),  # from a one-off allowance: no refill
            (8, SECOND - 1, 0, 10, 8 * 100_000),
            (8, SECOND, 0, 10, 0),  # which was not used for so long
            (8 * 100_000, 250_000, 10, 0, 6),  # to one: 5.5, rounded up
        ],
    )
    def test_table(self, used: int, elapsed: int, written_under: int, limit: int, expected: int) -> None:
        assert carried_over(used, elapsed, written_under, limit, SECOND) == expected

    @given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 1000), st.integers(0, 2 * SECOND))
    def test_is_what_is_left_rounded_up(self, units: int, then: int, limit: int, elapsed: int) -> None:
        _, then_unit = reduced(then, SECOND)
        _, unit = reduced(limit, SECOND)
        left = max(Fraction(0), units - Fraction(then * elapsed, SECOND))
        assert carried_over(units * then_unit, elapsed, then, limit, SECOND) == ceil(left * unit)

    @given(
        st.data(),
        st.one_of(st.integers(1, MAX_WINDOW_US), st.sampled_from([1, 999_983, SECOND, DAY, 365 * DAY, MAX_WINDOW_US])),
        st.one_of(st.integers(1, 1000), st.integers(1, EXACT)),
        st.one_of(st.integers(1, 1000), st.integers(1, EXACT)),
    )
    def test_never_loses_anything_and_adds_little(
        self, data: st.DataObject, window_us: int, then: int, limit: int
    ) -> None:
        """Less than one fraction is added; if the units of both do not multiply within EXACT, two coarse parts more."""
        _, then_unit = reduced(then, window_us)
        _, unit = reduced(limit, window_us)
        countable = EXACT // unit  # units, the capacity is at most this many
        used = data.draw(st.integers(0, min(EXACT, countable * then_unit - 1)))
        exact = Fraction(used, then_unit) * unit
        result = carried_over(Int53(used), Int53(0), then, limit, window_us)
        if then_unit * unit <= EXACT:
            assert result == ceil(exact)
        else:
            coarse = ceil(Fraction(then_unit, countable))
            assert exact <= result < exact + Fraction(coarse - 1 + then_unit % coarse, then_unit) * unit + 1
        assert result <= -(-used // then_unit) * unit <= EXACT

    @pytest.mark.parametrize("used", [EXACT, EXACT // 15_625 * 15_625, 15_625 * (EXACT // SECOND)])
    def test_beyond_what_can_be_counted_it_is_no_less_than_any_capacity(self, used: int) -> None:
        """2**51 per second count in fractions of 1/15625, of which 2**51 are more units than 1 per second can count."""
        assert reduced(EXACT, SECOND)[1] == 15_625
        assert EXACT // SECOND * SECOND <= carried_over(used, 0, EXACT, 1, SECOND) <= EXACT
