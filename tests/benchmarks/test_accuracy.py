"""The replay that measures how often the sliding window counter is wrong."""

from __future__ import annotations

import pytest

from benchmarks.in_memory import accuracy
from benchmarks.in_memory.accuracy import ALL, LIMIT, MINUTE, START, Request


def requests(*times: int) -> list[Request]:
    return [Request(START - START % MINUTE + at, 0, "steady") for at in times]


def test_the_trace_is_the_same_in_every_run_and_in_order() -> None:
    first, second = accuracy.generate(0.01), accuracy.generate(0.01)
    assert first == second
    assert first == sorted(first)
    assert {request.pattern for request in first} == {pattern.name for pattern in accuracy.PATTERNS}


def test_within_one_window_the_counter_is_never_wrong() -> None:
    tally = accuracy.replay(requests(*range(150))).tallies[ALL]
    assert (tally.requests, tally.misjudged, tally.over_admitted, tally.refused_with_room) == (150, 0, 0, 0)
    assert tally.counter_refusals == tally.log_refusals == 150 - LIMIT


def test_a_burst_at_the_end_of_a_window_is_underestimated_later() -> None:
    """Half a window after it, the estimate of the burst is half of it; the log still counts all."""
    burst = [MINUTE - 1] * LIMIT
    tally = accuracy.replay(requests(*burst, MINUTE + MINUTE // 2)).tallies[ALL]
    assert tally.misjudged == 1
    assert tally.over_admitted == 1
    assert tally.rate_errors == pytest.approx((LIMIT + 1 - (LIMIT // 2 + 1)) / (LIMIT + 1))


def test_a_burst_at_the_start_of_a_window_is_overestimated_later() -> None:
    """Half a window after the next begins, the burst has left the trailing window, and half of it still counts."""
    burst = [0] * LIMIT
    later = [MINUTE + MINUTE // 2 + number for number in range(LIMIT)]
    tally = accuracy.replay(requests(*burst, *later)).tallies[ALL]
    assert tally.refused_with_room == tally.counter_refusals == LIMIT // 2
    assert tally.over_admitted == tally.log_refusals == 0


def test_the_worst_case_is_just_under_twice_the_limit() -> None:
    assert 1.9 < accuracy.replay([]).worst_window < 2
