"""Quotas: what is accepted, what is refused and with which words, and that they are plain values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import ceil, floor, inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Calendar, HeadgateError, InvalidQuota, Quota
from headgate.core.numbers import EXACT
from headgate.core.quota import MAX_WINDOW_US, ONE_OFF_WINDOW_US
from tests.core.quotas import AWKWARD, quotas

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_750_000_000 * SECOND

SPECIAL = [
    Quota(5, SECOND, refill_every_us=250_000),
    Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    Quota(5, SECOND, warn_percent=60, calm_percent=10),
    Quota.one_off(5),
    Quota.per(5, Calendar("month", "Europe/Berlin")),
]


def refusal(error: pytest.ExceptionInfo[InvalidQuota]) -> str:
    """Return the message, which is for users: of the one error tree, a ValueError too, and short."""
    assert isinstance(error.value, HeadgateError)
    assert isinstance(error.value, ValueError)
    message = str(error.value)
    assert len(message) < 300
    return message


def five_per_second(name: str, value: Any) -> Quota:
    numbers: dict[str, Any] = {"limit": 5, "window_us": SECOND, name: value}
    return Quota(**numbers)


class TestNumbers:
    ranges = (
        ("limit", 1, EXACT),
        ("window_us", 1, MAX_WINDOW_US),
        ("burst", -4, EXACT),  # a capacity of at least 1
        ("refill_every_us", 1, MAX_WINDOW_US),
        ("warn_percent", 1, 100),
        ("calm_percent", 1, 100),
    )

    @pytest.mark.parametrize(
        ("build", "name", "low", "high"),
        [
            *[(partial(five_per_second, name), name, low, high) for name, low, high in ranges],
            (Quota.one_off, "capacity", 1, EXACT),
            (lambda value: Quota.one_off(5, keep_us=value), "window_us", 1, MAX_WINDOW_US),
            (lambda value: Quota.from_bucket(value, 1), "capacity", 1, EXACT),
            (lambda value: Quota.per(value, Calendar("month")), "limit", 1, EXACT),
            (
                lambda value: Quota.from_bucket(10, 1, min_refill_interval_ms=value),
                "min_refill_interval_ms",
                0,
                EXACT // 1000,
            ),
        ],
    )
    def test_is_whole_and_in_range(self, build: Callable[[Any], Quota], name: str, low: int, high: int) -> None:
        for value in (low - 1, low - SECOND, high + 1, 10**30, 1.0, True, False, None, "5"):
            with pytest.raises(InvalidQuota) as error:
                build(value)
            assert refusal(error) == f"{name} must be a whole number from {low} to {high}, not {value!r}"
        for endless in (10**5000, -(10**5000)):  # Python refuses to write out more than 4300 digits
            with pytest.raises(InvalidQuota) as error:
                build(endless)
            assert refusal(error).startswith(f"{name} must be")

    @pytest.mark.parametrize(
        "quota",
        [
            {"limit": EXACT, "window_us": 1},
            {"limit": 1, "window_us": MAX_WINDOW_US},
            {"limit": 1, "window_us": 1, "burst": EXACT - 1},
            {"limit": EXACT, "window_us": 1, "burst": 1 - EXACT},
            {"limit": EXACT, "window_us": 1, "burst": 1 - EXACT, "algorithm": "gcra"},
            {"limit": 5, "window_us": SECOND, "burst": -4, "algorithm": "leaky_bucket", "queue": True},
            {"limit": 1, "window_us": 1, "warn_percent": 100, "calm_percent": 100},
            {"limit": 1, "window_us": 1, "warn_percent": 1, "calm_percent": 1},
            {"limit": 1, "window_us": 1, "refill_every_us": MAX_WINDOW_US},
            {"limit": 0, "window_us": MAX_WINDOW_US, "burst": EXACT},
            {"limit": EXACT, "window_us": MAX_WINDOW_US, "algorithm": "fixed_window"},
            {"limit": EXACT, "window_us": MAX_WINDOW_US, "algorithm": "sliding_window_log"},
        ],
        ids=str,
    )
    def test_the_extremes_are_accepted_and_work(self, quota: dict[str, Any]) -> None:
        built = Quota(**quota)
        assert built.step(None, 1, START)[1].remaining == built.capacity - 1

    def test_calm_is_at_most_warn(self) -> None:
        assert Quota(5, SECOND, warn_percent=50, calm_percent=50).calm_percent == 50
        with pytest.raises(InvalidQuota, match=r"^calm_percent, 51, must not be above warn_percent, 50: give both$"):
            Quota(5, SECOND, warn_percent=50, calm_percent=51)


class TestExactness:
    """Every whole limit can be counted; where fractions would leave 53 bits, they are rounded for the limit's sake."""

    @pytest.mark.parametrize("algorithm", list(Algorithm))
    @pytest.mark.parametrize("limit", [999_999, 49_999, 1_000_001, 100_000_000, 999_999_937, 10**9])
    def test_every_limit_works_with_every_algorithm(self, algorithm: Algorithm, limit: int) -> None:
        for window_us in (1000, 1001, SECOND, 60 * SECOND, 2256 * SECOND, DAY, 366 * DAY):
            quota = Quota(limit, window_us, algorithm=algorithm)
            state, admitted = quota.step(None, limit, START)
            assert (admitted.allowed, admitted.remaining) == (True, 0)
            refused = quota.step(state, 1, START)[1]
            assert not quota.step(state, 1, START + refused.retry_after_us - 1)[1].allowed
            assert quota.step(state, 1, START + refused.retry_after_us)[1].allowed
            assert 0 <= quota.rounding <= Fraction(1, 1 << 18)
            assert quota.grain_us == 1 or quota.grain_us * 200_000 <= window_us

    @pytest.mark.parametrize(
        ("text", "rounding"),
        [
            ("100/minute", 0),
            ("5000/day", 0),
            ("20011/day gcra", 0),
            ("999999/day", Fraction(1, 1 << 29)),
            ("10007/week", Fraction(1, 1 << 35)),
            ("997/30d leaky_bucket", Fraction(1, 1 << 39)),
            ("1000001/h gcra", Fraction(1, 1 << 29)),
            ("999999/day fixed_window", 0),
            ("500 once", 0),
        ],
    )
    def test_a_quota_has_its_rounding(self, text: str, rounding: Fraction) -> None:
        assert Quota.parse(text)[0].rounding == rounding

    @pytest.mark.parametrize(
        ("limit", "window_us", "grain_us"),
        [
            (10**8, 60 * SECOND, 10),
            (100, 60 * SECOND, 1),
            (22_517_998, 100 * SECOND, 1),
            (22_517_999, 100 * SECOND, 10),
            (10, 100 * SECOND + 1, 10),
            (10**9, 366 * 86_400 * SECOND, 10**8),
            (1 << 51, 2, 10),
        ],
    )
    def test_a_sliding_counter_has_its_grain(self, limit: int, window_us: int, grain_us: int) -> None:
        assert Quota(limit, window_us, algorithm=Algorithm.SLIDING_WINDOW_COUNTER).grain_us == grain_us
        assert Quota(5, window_us).grain_us == 1

    @pytest.mark.parametrize("algorithm", [algorithm for algorithm in Algorithm if algorithm.is_bucket])
    def test_more_than_can_be_counted(self, algorithm: Algorithm) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota(1, 86_400 * SECOND, burst=10**6, algorithm=algorithm)
        assert refusal(error) == (
            "a capacity of 1000001 would take 2739 years to come back at 1 per 86400000000 us, and at most 71 can be "
            "counted: use a smaller burst or a larger limit"
        )
        with pytest.raises(InvalidQuota) as error:
            Quota((1 << 49) + 1, 86_400 * SECOND, algorithm=algorithm)
        assert refusal(error) == (
            f"{(1 << 49) + 1} per 86400000000 us with a capacity of {(1 << 49) + 1} cannot be counted: "
            f"use at most {1 << 49}"
        )

    @pytest.mark.parametrize("limit", [10**6, 10**9, 999_983])
    def test_steps_may_be_long(self, limit: int) -> None:
        quota = Quota(limit, 86_400 * SECOND, refill_every_us=3600 * SECOND)
        state, _ = quota.step(None, limit, START)
        refused = quota.step(state, 1, START)[1]
        assert (refused.allowed, refused.retry_after_us) == (False, 3600 * SECOND)
        assert quota.step(state, limit // 24, START + 3600 * SECOND)[1].allowed


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            *[
                ({"algorithm": "leaky_bucket", "queue": queue}, "queue must be True or False")
                for queue in ("no", 1, None)
            ],
            *[
                (
                    {"burst": burst, "algorithm": algorithm},
                    f"{algorithm} has no burst: raise the limit, or use token_bucket, leaky_bucket or gcra",
                )
                for burst in (1, -1)
                for algorithm in ("fixed_window", "sliding_window_log", "sliding_window_counter")
            ],
            *[
                ({"burst": -5, "algorithm": each}, f"burst must be a whole number from -4 to {EXACT}, not -5")
                for each in Algorithm
                if each.is_bucket
            ],
            ({"limit": 0, "burst": -1}, f"burst must be a whole number from 0 to {EXACT}, not -1"),
            *[
                ({"algorithm": each, "queue": True}, f"only leaky_bucket can be a queue, not {each}")
                for each in Algorithm
                if each != "leaky_bucket"
            ],
            *[
                ({"algorithm": each, "refill_every_us": 2}, f"only token_bucket has a refill interval, not {each}")
                for each in Algorithm
                if each != "token_bucket"
            ],
            *[
                (
                    {"limit": 0, "burst": 5 * each.is_bucket, "algorithm": each},
                    f"limit must be a whole number from 1 to {EXACT}, not 0",
                )
                for each in Algorithm
                if each != "token_bucket"
            ],
            *[
                ({"algorithm": name}, f"unknown algorithm {name!r}: use one of {', '.join(Algorithm)}")
                for name in ("", "token-bucket", "TOKEN_BUCKET", "tb", None, 5, ["gcra"])
            ],
        ],
    )
    def test_what_an_algorithm_does_not_have(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota(**{"limit": 5, "window_us": SECOND, **options})
        assert refusal(error).startswith(message)


def test_a_one_off_is_a_bucket_without_refill() -> None:
    assert Quota.one_off(5) == Quota(0, ONE_OFF_WINDOW_US, burst=5)
    assert Quota.one_off(5, keep_us=SECOND) == Quota(0, SECOND, burst=5)


class TestFromBucket:
    """The other spelling: a capacity, and a refill rate in tokens per second."""

    @pytest.mark.parametrize(
        ("capacity", "rate", "limit", "window_us", "burst"),
        [
            (20, 10, 10, SECOND, 10),
            (10, 10, 10, SECOND, 0),
            (5, 10, 10, SECOND, -5),
            (1, 3, 3, SECOND, -2),
            (5, 7, 7, SECOND, -2),
            (1, 1.5, 3, 2 * SECOND, -2),
            (10, 33.3, 333, 10 * SECOND, -323),
            (10, "4/6", 2, 3 * SECOND, 8),  # in lowest terms
            (100, 7, 7, SECOND, 93),
            (10, 0.5, 1, 2 * SECOND, 9),
            (10, 0.1, 1, 10 * SECOND, 9),  # as written, not as the nearest binary fraction
            (10, "0.3", 3, 10 * SECOND, 7),
            (10, "1/3", 1, 3 * SECOND, 9),
            (10, Fraction(1, 7), 1, 7 * SECOND, 9),
            (10, Decimal("0.25"), 1, 4 * SECOND, 9),
            (1, "1e-6", 1, 1_000_000 * SECOND, 0),
            (1, 1000, 1000, SECOND, -999),
            (3_000_000, 2_000_000, 2_000_000, SECOND, 1_000_000),
            (10, 10_000, 10_000, SECOND, 10 - 10_000),  # it fills within a millisecond
            *[  # a float means the fraction that it is the nearest to
                (10, rate, limit, seconds * SECOND, 10 - limit)
                for rate, limit, seconds in [(1000 / 60, 50, 3), (1 / 3, 1, 3), (100 / 7, 100, 7), (1e-8, 1, 10**8)]
            ],
            (1, 4.1234567e-9, 1, 242_514_976 * SECOND, 0),  # rounded to whole seconds
            (10, "3.14159265358979", 3_126_535, 995_207 * SECOND, 10 - 3_126_535),  # the next below in few seconds
        ],
    )
    def test_table(self, capacity: int, rate: Any, limit: int, window_us: int, burst: int) -> None:
        for algorithm in (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, Algorithm.GCRA):
            expected = Quota(limit, window_us, burst=burst, algorithm=algorithm)
            assert Quota.from_bucket(capacity, rate, algorithm=algorithm) == expected

    @pytest.mark.parametrize("rate", [0, 0.0, -0.0, "0", "0.000", Fraction(0)], ids=repr)
    @pytest.mark.parametrize("interval", [0, 500])
    def test_without_refill_it_is_a_one_off(self, rate: Any, interval: int) -> None:
        assert Quota.from_bucket(10, rate, min_refill_interval_ms=interval) == Quota.one_off(10)

    @pytest.mark.parametrize(("interval", "every"), [(0, 1), (1, 1000), (250, 250_000), (60_000, 60 * SECOND)])
    def test_the_refill_interval_is_given_in_milliseconds(self, interval: int, every: int) -> None:
        quota = Quota.from_bucket(10, 5, min_refill_interval_ms=interval)
        assert quota == Quota(5, SECOND, burst=5, refill_every_us=every)

    @given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**4))
    def test_a_whole_fraction_is_taken_as_it_is(self, capacity: int, tokens: int, seconds: int) -> None:
        """Unless the bucket would take more than 71 years to refill."""
        rate = Fraction(tokens, seconds)
        try:
            quota = Quota.from_bucket(capacity, rate)
        except InvalidQuota:
            assert capacity / rate * SECOND > EXACT or rate > 1000 * capacity
        else:
            assert quota.capacity == capacity
            assert (quota.limit, quota.window_us) == (rate.numerator, rate.denominator * SECOND)

    @given(st.floats(1e-7, 1e5))
    def test_every_rate_written_as_a_number_works(self, rate: float) -> None:
        """As it is written, or the next lower one that can be counted: within 10^-9 of it."""
        quota = Quota.from_bucket(100, rate)
        served = Fraction(quota.limit * SECOND, quota.window_us)
        assert float(served) <= rate
        assert (Fraction(str(rate)) - served) * 10**9 < Fraction(str(rate))

    @pytest.mark.parametrize(("capacity", "rate"), [(1, "3"), (5, "7"), (1, "1.5"), (10, "33.3"), (3, "1/3")])
    @given(gaps=st.lists(st.one_of(st.integers(0, SECOND), st.sampled_from([0, 1, 333_333, 333_334])), max_size=30))
    def test_is_that_bucket_exactly(self, capacity: int, rate: str, gaps: list[int]) -> None:
        """Against a level kept as a fraction: tokens come back continuously, and one is taken per request."""
        quota = Quota.from_bucket(capacity, rate)
        state, _ = quota.step(None, capacity, START)
        level, now, per_us = Fraction(0), START, Fraction(rate) / SECOND
        for gap in gaps:
            now += gap
            level = min(Fraction(capacity), level + gap * per_us)
            if level < 1:
                wait = ceil((1 - level) / per_us)
                assert not quota.step(state, 1, now + wait - 1)[1].allowed
                assert quota.step(state, 1, now + wait)[1].allowed
                expected = (False, 0, wait, ceil((capacity - level) / per_us))
            else:
                level -= 1
                expected = (True, floor(level), 0, ceil((capacity - level) / per_us))
            state, said = quota.step(state, 1, now)
            assert expected == (said.allowed, said.remaining, said.retry_after_us, said.reset_after_us)

    @pytest.mark.parametrize(
        "rate",
        [-1, -0.5, "-1/3", nan, inf, -inf, "", "fast", "10/s", "1/0", True, None, [1], b"1", 1j, Decimal("NaN")],
        ids=repr,
    )
    def test_bad_rate(self, rate: Any) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota.from_bucket(10, rate)
        assert refusal(error) == (
            f"refill_rate must be a number of tokens per second, such as 10, 0.5 or '1/3', not {rate!r}"
        )

    @pytest.mark.parametrize(
        ("capacity", "rate", "options", "message"),
        [
            *[
                (
                    10,
                    rate,
                    {},
                    f"a refill_rate of {rate} fills a bucket of 10 within a millisecond: give at most 1000 times the",
                )
                for rate in (1e308, 10**30, 1 << 63, "1e30", EXACT + 1, "10000.001")
            ],
            (EXACT, EXACT + 1, {}, f"limit must be a whole number from 1 to {EXACT}"),
            (
                1_000_000,
                "1/7919",
                {},
                "a bucket of 1000000 with a refill_rate of 1/7919: a capacity of 1000000 would take 251 years to come",
            ),
            (10, 1e-30, {}, "a refill_rate of 1e-30: less than one token in 3660 days"),
            *[(10, rate, {}, "refill_rate") for rate in (10**5000, "9" * 5000, "1/" + "9" * 5000)],
            *[(10, rate, {}, "") for rate in (1e-9, "1e-9", 5e-324, "1e-4000")],
            (10, 10, {"algorithm": "fixed_window"}, "fixed_window has no refill_rate: give limit and window, or use"),
            (
                10,
                10,
                {"algorithm": "gcra", "min_refill_interval_ms": 5},
                "only token_bucket has a refill interval, not",
            ),
            (10, 0, {"algorithm": "leaky_bucket"}, "only a token_bucket may have a refill_rate of 0, not leaky_bucket"),
            (10, 10, {"queue": True}, "only leaky_bucket can be a queue, not token_bucket"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_bucket(self, capacity: int, rate: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota.from_bucket(capacity, rate, **options)
        assert message in refusal(error)


class TestCalendar:
    """Windows of the calendar: the periods take the place of the window."""

    berlin = Calendar("month", "Europe/Berlin")

    def test_per_is_a_fixed_window_of_the_nominal_length(self) -> None:
        quota = Quota.per(250, self.berlin, warn_percent=90, calm_percent=50)
        assert quota == Quota(250, 31 * DAY, 0, Algorithm.FIXED_WINDOW, False, 1, 90, 50, self.berlin)

    @pytest.mark.parametrize(("unit", "days"), [("day", 1), ("week", 7), ("month", 31), ("year", 366)])
    def test_the_window_is_that_of_the_longest_period(self, unit: str, days: int) -> None:
        assert Quota.per(1, Calendar(unit)).window_us == days * DAY

    def test_the_shape_is_unit_and_zone(self) -> None:
        calendars = [Calendar(unit, zone) for unit in ("day", "month") for zone in ("Europe/Berlin", "Europe/Paris")]
        shapes = [Quota.per(5, calendar).shape for calendar in calendars]
        assert shapes == [
            "fw:day@Europe/Berlin",
            "fw:day@Europe/Paris",
            "fw:month@Europe/Berlin",
            "fw:month@Europe/Paris",
        ]

    @pytest.mark.parametrize("algorithm", [each for each in Algorithm if each is not Algorithm.FIXED_WINDOW])
    def test_other_algorithms_know_no_calendar(self, algorithm: Algorithm) -> None:
        with pytest.raises(InvalidQuota) as error:
            Quota(5, 31 * DAY, algorithm=algorithm, calendar=self.berlin)
        assert refusal(error) == f"only fixed_window counts by a calendar, not {algorithm}"

    @pytest.mark.parametrize("window_us", [DAY, 31 * DAY + 1])
    def test_another_window_is_refused(self, window_us: int) -> None:
        with pytest.raises(InvalidQuota) as error:
            replace(Quota.per(5, self.berlin), window_us=window_us)
        assert refusal(error) == (
            "the windows are those of the calendar (month in Europe/Berlin): leave window_us as it is, 2678400000000, "
            "or set calendar to None"
        )

    @pytest.mark.parametrize("calendar", ["month", ("month", "Europe/Berlin"), 5, False], ids=repr)
    def test_not_a_calendar(self, calendar: Any) -> None:
        right = "a Calendar, such as Calendar('month', 'Europe/Berlin'); other windows are text, such as '5/minute'"
        message = f"calendar must be {right}, not {calendar!r}"
        with pytest.raises(InvalidQuota) as error:
            Quota.per(5, calendar)
        assert refusal(error) == message
        with pytest.raises(InvalidQuota) as error:
            Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW, calendar=calendar)
        assert refusal(error) == message


class TestValue:
    """A quota is a frozen value: what was stated is all that matters."""

    def test_is_frozen_and_slotted(self) -> None:
        quota: Any = Quota(5, SECOND)
        for name in ("limit", "capacity", "step"):
            with pytest.raises(FrozenInstanceError):
                setattr(quota, name, 6)
        assert not hasattr(quota, "__dict__")

    @pytest.mark.parametrize("quota", AWKWARD + SPECIAL, ids=str)
    def test_equality_and_hash_ignore_what_is_derived(self, quota: Quota) -> None:
        twin = replace(quota)
        assert twin.step is not quota.step
        assert twin == quota
        assert hash(twin) == hash(quota)
        assert len({quota, twin}) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"limit": 6},
            {"window_us": 2 * SECOND},
            {"burst": 1},
            {"burst": -1},
            {"algorithm": Algorithm.GCRA},
            {"refill_every_us": 2},
            {"warn_percent": 81},
            {"calm_percent": 69},
        ],
        ids=str,
    )
    def test_every_stated_field_makes_a_difference(self, change: dict[str, Any]) -> None:
        assert Quota(5, SECOND) != replace(Quota(5, SECOND), **change)

    @pytest.mark.parametrize("quota", AWKWARD + SPECIAL, ids=str)
    def test_copies_are_equal_and_work(self, quota: Quota) -> None:
        pickled = [pickle.loads(pickle.dumps(quota, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301  our own bytes
        for twin in [*pickled, copy.copy(quota), copy.deepcopy(quota)]:
            assert twin == quota
            assert [getattr(twin, field.name) for field in fields(Quota) if field.name != "step"] == [
                getattr(quota, field.name) for field in fields(Quota) if field.name != "step"
            ]
            assert twin.step(None, 1, START) == quota.step(None, 1, START)

    @given(quotas())
    def test_shape_is_algorithm_and_window(self, quota: Quota) -> None:
        """And not the limit: changing that keeps the state."""
        assert quota.shape == f"{quota.algorithm.code}:{quota.window_us}"
        assert replace(quota, limit=1, burst=0).shape == quota.shape
        assert quota.capacity == quota.limit + quota.burst

    def test_shapes_of_different_algorithms_differ(self) -> None:
        shapes = [Quota(5, SECOND, algorithm=algorithm).shape for algorithm in Algorithm]
        assert shapes == ["tb:1000000", "lb:1000000", "fw:1000000", "swl:1000000", "swc:1000000", "gcra:1000000"]

    def test_repr_shows_what_was_stated(self) -> None:
        assert repr(Quota(5, SECOND, burst=2)) == (
            "Quota(limit=5, window_us=1000000, burst=2, algorithm=<Algorithm.TOKEN_BUCKET: 'token_bucket'>, "
            "queue=False, refill_every_us=1, warn_percent=80, calm_percent=70, calendar=None)"
        )
