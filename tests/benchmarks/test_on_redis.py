"""The Redis part: a contender is timed only if it limits and answers as demanded; verdicts come from given numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.contenders import REDIS_FLOOR, REDIS_OURS, REDIS_PEERS
from benchmarks.contenders.base import Blocking, RedisContender
from benchmarks.contenders.headgate import Degraded, allowed
from benchmarks.in_memory.scenarios import Kind
from benchmarks.on_redis.cases import (
    ALLOWING,
    KINDS,
    REFUSING,
    Amount,
    Case,
    Cost,
    Row,
    Traffic,
    Way,
    all_cases,
    cluster_cases,
)
from benchmarks.on_redis.measuring import Alone, RedisResults, WrongAnswer, driver, footprints, measure, prove, verify
from benchmarks.on_redis.report import summary
from benchmarks.on_redis.servers import Server, redis_server
from benchmarks.report import Results, render
from benchmarks.timing import Figure, Pace
from headgate import Decision, Limiter

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


ONCE = Pace(seconds=0, fewest=1, most=1)
SMALL = Case(Kind.GCRA, Way.TOGETHER, Traffic.MANY, ALLOWING[:1], 40, 20)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def participants() -> list[tuple[RedisContender, Case]]:
    """Every contender with every algorithm that it has, called in every way that it can be."""
    return [
        (contender, replace(SMALL, kind=kind, way=way, limits=ALLOWING[:limits]))
        for contender in (REDIS_OURS, *REDIS_PEERS)
        for kind in KINDS
        for way in (Way.ASYNC, Way.BLOCKING)
        for limits in (1, 3)
        if contender.takes_part(kind) and (contender.blocks or way is Way.ASYNC)
    ]


@pytest.mark.parametrize(("contender", "case"), participants(), ids=lambda value: getattr(value, "name", str(value)))
def test_a_contender_refuses_when_the_limit_is_used_up(
    contender: RedisContender, case: Case, server: Server, runner: asyncio.Runner
) -> None:
    server.forget()
    prove(contender, server.address(), case, runner)


def test_a_contender_that_limits_nothing_is_noticed(server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    with pytest.raises(WrongAnswer, match="does not limit to 3"):
        prove(REDIS_FLOOR, server.address(), SMALL, runner)


@pytest.mark.parametrize("way", Way)
def test_an_answer_of_the_other_path_is_noticed(way: Way, server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    case = replace(SMALL, way=way, limits=REFUSING[:1])
    driven = driver(REDIS_OURS, server.address(), case, runner)
    _, answers = driven.run(["user:1"] * 5)
    driven.close()
    with pytest.raises(WrongAnswer, match="3 of 5 answers of headgate"):
        verify(REDIS_OURS, driven, case, answers)


def test_a_degraded_decision_is_no_answer() -> None:
    with Limiter("5/day") as limiter:
        sound = limiter.check("user:1")
    degraded = Decision(True, 5, 4, 0, 0, sound.state, sound.quota, degraded="storage_unavailable")
    driven = Alone(Blocking(lambda _: degraded, allowed))
    with pytest.raises(Degraded, match="storage_unavailable"):
        verify(REDIS_OURS, driven, SMALL, driven.run(["user:1"])[1])


@pytest.mark.parametrize("traffic", Traffic)
@pytest.mark.parametrize("way", Way)
def test_a_case_measures_floor_ours_and_peers(way: Way, traffic: Traffic, server: Server) -> None:
    limits = REFUSING if traffic is Traffic.REFUSED else ALLOWING
    case = Case(Kind.FIXED_WINDOW, way, traffic, limits[:1], 40, 20, other_floors=True)
    row = measure(case, server, ONCE)
    assert {peer.name for peer in row.peers} == {"limits", "throttled-py", "pyrate-limiter"}
    assert all(cost.time.best > 0 and cost.client_us > 0 for cost in row.costs)
    assert row.other_floors


def test_a_client_has_a_footprint_in_every_library(server: Server) -> None:
    found = list(footprints(server, 5))
    assert {each.contender for each in found} == {"redis-py", "headgate", "limits", "throttled-py", "pyrate-limiter"}
    assert all(each.bytes_per_client > 40 for each in found)
