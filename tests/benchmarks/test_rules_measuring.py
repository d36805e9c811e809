"""Rules are timed only if the right ones are found, in every arrangement."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.rules import deciding
from benchmarks.rules.cases import ARRANGEMENTS, ENDPOINTS, Arrangement, Case
from benchmarks.rules.figures import Building, Row
from benchmarks.rules.measuring import CALLS, Course, WrongMatch, measure
from benchmarks.timing import Pace

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
    found = list(deciding.measure(20, ONCE))
    assert [(each.matching, each.path) for each in found] == deciding.tasks()
    assert all(each.times_limiter > 0 and each.plan.best > 0 for each in found)
