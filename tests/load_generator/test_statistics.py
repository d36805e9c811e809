"""Percentiles are exact, outcomes are counted apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.load_generator.outcomes import (
    ALLOWED,
    ALLOWED_DEGRADED,
    DENIED,
    DENIED_DEGRADED,
    LOST,
    NO_ANSWER,
    SHED,
    Kind,
    Outcome,
    failed,
)
from headgate.load_generator.statistics import Latencies, Summary, Tally


def latencies(values: list[int]) -> Latencies:
    found = Latencies()
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], [7, 7, 7, 7, 7, 7]),
        ([1, 2], [1, 1, 2, 2, 2, 2]),
        (list(range(1, 101)), [1, 50, 90, 99, 100, 100]),
        (list(range(1000, 0, -1)), [1, 500, 900, 990, 999, 1000]),
        ([5] * 999 + [5000], [5, 5, 5, 5, 5, 5000]),
        ([5] * 998 + [5000] * 2, [5, 5, 5, 5, 5000, 5000]),
    ],
)
def test_percentiles_of_known_data(values: list[int], expected: list[int]) -> None:
    assert latencies(values).percentiles([0, 500, 900, 990, 999, 1000]) == expected


@given(st.lists(st.integers(0, 5000), min_size=1), st.integers(1, 1000))
def test_a_percentile_is_the_smallest_that_enough_do_not_exceed(values: list[int], share: int) -> None:
    (found,) = latencies(values).percentiles([share])
    assert found == sorted(values)[math.ceil(len(values) * share / 1000) - 1]


def test_of_nothing_there_are_none() -> None:
    assert Latencies().percentiles([500]) == []
    assert Latencies().mean() == 0
    assert Latencies().histogram() == []
    assert Tally().latency() is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0], [(1, 1)]),
        ([1, 2, 3, 5, 6], [(1, 1), (2, 1), (5, 2), (10, 1)]),
        ([40, 50, 900], [(50, 2), (100, 0), (200, 0), (500, 0), (1000, 1)]),
        ([2_000_001], [(5_000_000, 1)]),
    ],
)
def test_the_histogram_has_round_bounds(values: list[int], expected: list[tuple[int, int]]) -> None:
    assert latencies(values).histogram() == expected


@given(st.lists(st.integers(0, 10**8), min_size=1))
def test_the_histogram_has_all_of_them(values: list[int]) -> None:
    rows = latencies(values).histogram()
    assert sum(count for _, count in rows) == len(values)
    assert [bound for bound, _ in rows] == sorted({bound for bound, _ in rows})
    assert rows[0][1]
    assert rows[-1][1]
    assert rows[-1][0] >= max(values)


def test_only_decisions_have_latencies() -> None:
    tally = Tally()
    ends: list[tuple[Outcome, int]] = [(ALLOWED, 10), (DENIED, 30), (ALLOWED_DEGRADED, 20), (DENIED_DEGRADED, 20)]
    ends += [(SHED, 1), (SHED, 1), (LOST, 99_999), (NO_ANSWER, 1), (NO_ANSWER, 1), (failed("HTTP 500"), 0)]
    for outcome, microseconds in ends:
        tally.add(outcome, microseconds)
    assert [tally.of(kind) for kind in (Kind.ALLOWED, Kind.DENIED, Kind.SHED, Kind.ERROR)] == [2, 2, 2, 4]
    assert tally.degraded() == 2
    assert list(tally.errors().items()) == [("no answer in time", 2), ("HTTP 500", 1), ("connection lost", 1)]
    latency = tally.latency()
    assert latency is not None
    assert (latency.min, latency.mean, latency.max) == (10, 20, 30)
    assert latency.percentiles == {"p50": 20, "p90": 30, "p99": 30, "p99.9": 30}


def test_a_summary_divides_by_no_zero() -> None:
    summary = Summary(0.0, 0, 0, 0, 0, 0, {}, 0, 1, 0, 0, None)
    assert (summary.rate, summary.decided, summary.failed) == (0, 0, 0)
