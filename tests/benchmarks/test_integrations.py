"""The part about integrations: limiters are timed only if they limit, and judged by what they add to a request."""

from __future__ import annotations

import pytest

from benchmarks.integrations.measuring import MOST_SHARE, NotLimited, Row, measure, verify
from benchmarks.integrations.report import summary
from benchmarks.timing import Figure, Pace


def row(plain: float, ours: float, theirs: float) -> Row:
    figures = [Figure((us * 1000, us * 1000 + 500)) for us in (plain, ours, theirs)]
    return Row("Flask, all routes", "memory", "flask-limiter", *figures)


@pytest.mark.parametrize(("ours", "share", "passed"), [(20, 0.25, True), (25, 0.375, False), (5, -0.125, True)])
def test_only_what_a_limit_adds_is_held_against_what_the_other_adds(ours: float, share: float, *, passed: bool) -> None:
    measured = row(10, ours, 50)
    assert measured.share == pytest.approx(share)
    assert measured.passed is passed
    assert pytest.approx(1 / 3) == MOST_SHARE


def test_the_summary_has_a_verdict_on_every_row() -> None:
    told = summary([row(10, 20, 50), row(10, 40, 50)])
    assert "| Flask, all routes, memory | 10.0 | flask-limiter: 40.0 | 0.25 | at most 0.33 | PASS |" in told
    assert told.count("**FAIL**") == 1


@pytest.mark.parametrize("statuses", [[200] * 4, [200, 200, 200, 500], [429] * 4])
def test_what_does_not_limit_is_not_timed(statuses: list[int]) -> None:
    with pytest.raises(NotLimited, match="under a limit of 3"):
        verify("some limiter", statuses)


def test_a_framework_is_measured_in_memory() -> None:
    measured = measure("Starlette, all routes", "memory", Pace(0, 1, 1, calls=5))
    assert (measured.store, measured.peer, len(measured.ours.rounds)) == ("memory", "slowapi", 1)
