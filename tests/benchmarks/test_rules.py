"""The part about rules: they are timed only if the right ones are found, and judged by given numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.report import Results, render
from benchmarks.rules.cases import ARRANGEMENTS, ENDPOINTS, Arrangement, Case
from benchmarks.rules.measuring import (
    CALLS,
    Building,
    Course,
    Decided,
    Row,
    RulesResults,
    WrongMatch,
    decide,
    decision_tasks,
    measure,
)
from benchmarks.rules.report import summary
from benchmarks.timing import Figure, Pace


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


ONCE = Pace(seconds=0, fewest=1, most=1)
SIZES = (5, 30)
ONE, _, EVERYWHERE = ENDPOINTS.cases


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda each: each.cases[0].name)
def test_every_case_is_measured_in_every_size_beside_a_floor(arrangement: Arrangement) -> None:
    found = list(measure(arrangement, SIZES, ONCE))
    rows = [each for each in found if isinstance(each, Row)]
    assert [row.case for row in rows] == [case.name for case in arrangement.cases]
    assert all(tuple(row.times) == tuple(row.floors) == SIZES for row in rows)
    steps = [each for each in found if isinstance(each, Building)]
    assert steps
    assert all(seconds > 0 for step in steps for seconds in step.seconds.values())


@pytest.mark.parametrize(
    ("arrangement", "case"),
    [(arrangement, case) for arrangement in ARRANGEMENTS for case in arrangement.cases],
    ids=lambda each: each.name if isinstance(each, Case) else "",
)
def test_each_rule_is_found_for_its_requests(arrangement: Arrangement, case: Case) -> None:
    built = arrangement.build(20)
    for number in range(19):
        assert built.found(built.match(case.ask(number))) == case.expected(number)


def test_the_floor_finds_the_rule_too() -> None:
    for arrangement in ARRANGEMENTS:
        built = arrangement.build(20)
        assert [built.floor(arrangement.cases[0].ask(number)) for number in range(19)] == list(range(19))


def test_other_rules_than_expected_are_noticed() -> None:
    wrong = replace(ONE, expected=lambda _: ("another",))
    with pytest.raises(WrongMatch, match=r"one rule, 5 rules: found .*, not .*another"):
        list(measure(replace(ENDPOINTS, cases=(wrong,)), SIZES, ONCE))


def test_requests_are_for_one_rule_or_for_all_in_turn() -> None:
    same, other = Course(ONE, 3001), Course(EVERYWHERE, 3001)
    assert {len(course.requests(0)) for course in (same, other)} == {CALLS}
    assert set(same.numbers(0)) == set(same.numbers(7)) == {1500}
    assert {number for turn in range(3) for number in other.numbers(turn)} == set(range(3000))


def test_decisions_by_rules_are_allowed_or_denied_as_announced() -> None:
    found = list(decide(20, ONCE))
    assert [(each.matching, each.path) for each in found] == decision_tasks()
    assert all(each.times_limiter > 0 and each.plan.best > 0 for each in found)
