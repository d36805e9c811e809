"""The ratios and verdicts of the part about rules, from given numbers."""

from __future__ import annotations

import pytest

from benchmarks.report import Results, render
from benchmarks.rules.figures import Building, Decided, Row
from benchmarks.rules.report import summary
from benchmarks.rules.running import RulesResults
from benchmarks.timing import Figure


def cost(us: float) -> Figure:
    return Figure((us * 1000,) * 3)


def row(few: float, most: float, *, case: str = "one rule", envoy: bool = False, everywhere: bool = False) -> Row:
    return Row(case, envoy, everywhere, {10: cost(few), 1000: cost(most)}, {10: cost(0.1), 1000: cost(0.2)})


@pytest.mark.parametrize(("few", "most", "prompt"), [(4, 5, True), (4, 5.01, False), (5.01, 4, False)])
def test_the_slowest_number_of_rules_is_the_one_that_must_be_fast_enough(
    few: float, most: float, *, prompt: bool
) -> None:
    assert row(few, most).is_prompt is prompt


@pytest.mark.parametrize(("most", "growth", "flat"), [(3, 0.75, True), (4.8, 1.2, True), (4.84, 1.21, False)])
def test_many_rules_are_held_against_few(most: float, growth: float, *, flat: bool) -> None:
    measured = row(4, most)
    assert measured.growth == pytest.approx(growth)
    assert measured.is_flat is flat


def test_a_time_is_held_against_the_floor_of_the_same_size() -> None:
    assert [row(4, 5).times_floor(size) for size in (10, 1000)] == pytest.approx([40, 25])


def test_the_summary_judges_what_the_caches_hold_apart_from_what_they_do_not() -> None:
    two = row(4.5, 4.9, case="two rules")
    told = summary([row(4, 4), two, row(4, 6, everywhere=True), row(2, 2.2, envoy=True)])
    assert "| rules: us per request | 4.90 | at most 5 | PASS | 2 of 2 | two rules |" in told
    assert "| rules: time, 1,000 against 10 | 1.09 | at most 1.2 | PASS | 2 of 2 | two rules |" in told
    assert "| rules, another in each request: us per request | 6.00 | at most 5 | **FAIL** | 0 of 1 |" in told
    assert "| Envoy descriptors: time, 1,000 against 10 | 1.10 | at most 1.2 | PASS | 1 of 1 |" in told
    assert "Envoy descriptors, another" not in told


def test_the_report_shows_decisions_beside_the_same_limits_without_rules() -> None:
    decided = Decided(2, "allow", floor=cost(0.2), limiter=cost(2), plan=cost(4), engine=cost(9))
    building = Building("compiled", {10: 0.001, 1000: 0.05})
    results = RulesResults([row(4, 4), row(2, 2, envoy=True)], [decided], 1000, [building])
    report = render(Results({"cores": "2"}, rules=results))
    assert "| 2, allow | 0.20 +0 % | 2.00 +0 % | 4.00 +0 % | 9.00 +0 % | 4.50 | 45.0 |" in report
    assert "| compiled | 1.0 | 50.0 | 50.0 |" in report
    assert "## Redis\n" not in report
