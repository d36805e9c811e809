"""The ratios and verdicts of the Redis part, from given numbers."""

from __future__ import annotations

import pytest

from benchmarks.on_redis.cases import ALLOWING, Amount, Case, Traffic, Way, all_cases, cluster_cases
from benchmarks.on_redis.figures import Cost, Row
from benchmarks.on_redis.report import summary
from benchmarks.on_redis.running import RedisResults
from benchmarks.report import Results, render
from benchmarks.scenarios import Kind
from benchmarks.timing import Figure

AMOUNT = Amount(keys=1000, calls=640, calls_alone=50)
CASE = Case(Kind.GCRA, Way.TOGETHER, Traffic.MANY, ALLOWING[:1], 1000, 640)
ALONE = Case(Kind.GCRA, Way.BLOCKING, Traffic.MANY, ALLOWING[:1], 1000, 50)


def cost(name: str, us: float, *, equal: bool = True) -> Cost:
    return Cost(name, "call", equal, Figure((us * 1000,) * 5), client_us=us / 2, server_us=us / 4)


def row(case: Case, floor: float, ours: float, *peers: tuple[float, bool]) -> Row:
    others = tuple(cost(f"peer {number}", us, equal=equal) for number, (us, equal) in enumerate(peers))
    return Row(case, cost("redis-py", floor), cost("headgate", ours), others)


@pytest.mark.parametrize(("theirs", "times", "beats"), [(60, 6.0, True), (50, 5.0, True), (49, 4.9, False)])
def test_the_best_peer_is_the_fastest_call_however_little_it_answers(
    theirs: float, times: float, *, beats: bool
) -> None:
    measured = row(CASE, 40, 10, (90, True), (theirs, False))
    assert measured.times_peer == pytest.approx(times)
    assert measured.times_equal_peer == pytest.approx(9)
    assert measured.beats_peers is beats


@pytest.mark.parametrize(("ours", "beats"), [(39, True), (40, False), (41, False)])
def test_many_callers_are_held_against_the_rate_of_a_bare_incr(ours: float, *, beats: bool) -> None:
    assert row(CASE, 40, ours).beats_floor is beats


@pytest.mark.parametrize(("ours", "prompt"), [(100, True), (110, True), (111, False)])
def test_one_caller_is_held_against_the_time_of_a_bare_incr(ours: float, *, prompt: bool) -> None:
    assert row(ALONE, 100, ours).is_prompt is prompt


def test_without_a_peer_there_is_no_verdict_on_peers() -> None:
    measured = row(CASE, 40, 10)
    assert measured.times_peer is None
    assert measured.beats_peers is None


def test_the_summary_shows_the_worst_row_and_fails_if_any_row_does() -> None:
    other = Case(Kind.FIXED_WINDOW, Way.TOGETHER, Traffic.HOT, ALLOWING[:1], 1000, 640)
    told = summary([row(CASE, 40, 10, (60, True)), row(other, 40, 10, (40, True)), row(ALONE, 100, 105)])
    assert "| 64 callers: x the best peer | 4.00 | at least 5 | **FAIL** | 1 of 2 | fixed_window, one key |" in told
    assert "| 64 callers: x `INCR` | 4.00 | above 1 | PASS | 2 of 2 |" in told
    assert "| one blocking caller: time, x `INCR` | 1.05 | at most 1.1 | PASS | 1 of 1 |" in told
    assert "cluster" not in told


def test_a_part_that_was_not_measured_is_left_out_of_the_report() -> None:
    rows = [row(CASE, 40, 10, (60, True)), row(ALONE, 100, 105, (120, True))]
    report = render(Results({"cores": "2"}, None, RedisResults("7.0.15", rows, [])))
    assert "## Redis\n" in report
    assert "| gcra, 1,000 keys | 25,000 | 100,000 | 4.00 | PASS | peer 0: call 16,667 | 6.00 | PASS |" in report
    assert "| one blocking caller, gcra, 1,000 keys | 100.0 | 105.0 | 1.05 | PASS |" in report
    assert "## Memory\n" not in report


def test_the_cases_are_all_different_and_cover_what_is_asked() -> None:
    cases = all_cases(AMOUNT) + cluster_cases(AMOUNT)
    assert len(set(cases)) == len(cases)
    assert {case.way for case in cases} == set(Way)
    assert {len(case.limits) for case in cases} == {1, 3}
    assert any(case.cluster for case in cases)


@pytest.mark.parametrize("case", [CASE, ALONE], ids=str)
def test_every_round_calls_as_often_as_the_case_says(case: Case) -> None:
    assert [len(case.round(number)) for number in (-1, 0, 7)] == [case.calls] * 3
    assert set(case.round(3)) <= set(case.all_keys())
