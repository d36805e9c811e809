"""The part in memory: a scenario is timed only if every contender answers as it demands; verdicts by given numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.contenders import OURS, PEERS
from benchmarks.in_memory import decisions
from benchmarks.in_memory.accuracy import Accuracy
from benchmarks.in_memory.decisions import Course, WrongPath
from benchmarks.in_memory.operations import Operations
from benchmarks.in_memory.report import MemoryResults, summary
from benchmarks.in_memory.scenarios import Kind, Limit, Path, Peer, Row, Scenario, all_scenarios
from benchmarks.tables import verdict
from benchmarks.timing import Figure, Pace

SCENARIO = Scenario(Kind.GCRA, Path.ALLOW, 1, (Limit(1000, 3600),))


def cost(best: float) -> Figure:
    return Figure((best, best * 1.1, best * 1.2))


def row(floor: float, ours: float, *peers: tuple[float, bool]) -> Row:
    measured = tuple(Peer(f"peer {number}", "call", equal, cost(best)) for number, (best, equal) in enumerate(peers))
    return Row(SCENARIO, cost(floor), cost(ours), measured)


@pytest.mark.parametrize(
    ("floor", "ours", "times", "within"),
    [(100, 500, 5.0, True), (100, 700, 7.0, True), (100, 701, 7.01, False)],
)
def test_our_cost_is_judged_as_a_multiple_of_the_floor(
    floor: float, ours: float, times: float, *, within: bool
) -> None:
    measured = row(floor, ours)
    assert measured.times_floor == pytest.approx(times)
    assert measured.within_floor is within


@pytest.mark.parametrize(("theirs", "times", "beats"), [(5000, 10.0, True), (2500, 5.0, True), (2499, 4.998, False)])
def test_the_fastest_peer_of_equal_work_is_the_one_to_beat(theirs: float, times: float, *, beats: bool) -> None:
    measured = row(100, 500, (9000, True), (theirs, True), (600, False))
    assert measured.times_faster == pytest.approx(times)
    assert measured.beats_peers is beats


def test_a_bare_call_counts_only_in_the_ratio_to_bare_calls() -> None:
    measured = row(100, 500, (4000, True), (1000, False))
    assert measured.times_faster == pytest.approx(8)
    assert measured.times_faster_than_bare == pytest.approx(2)


def test_without_a_peer_of_equal_work_there_is_no_verdict() -> None:
    measured = row(100, 500, (1000, False))
    assert measured.times_faster is None
    assert measured.beats_peers is None


def test_a_failure_stands_out() -> None:
    assert (verdict(True), verdict(False), verdict(None)) == ("PASS", "**FAIL**", "n/a")


def test_the_spread_is_the_distance_of_the_median_from_the_best() -> None:
    assert Figure((125, 100, 300)).spread == pytest.approx(0.25)


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    ours, theirs = Figure((10, 90, 20, 10, 10)), Figure((50, 450, 100, 20, 1000))
    assert theirs.over(ours) == pytest.approx(5)  # a slow round counts for both, a lucky one for nobody
    assert theirs.best / ours.best == pytest.approx(2)


ONCE = Pace(seconds=0, fewest=1, most=1)


def test_the_scenarios_are_all_combinations() -> None:
    scenarios = all_scenarios()
    assert len(set(scenarios)) == len(scenarios) == len(Kind) * len(Path) * 2 * 2
    assert {len(scenario.limits) for scenario in scenarios} == {1, 3}
    assert {scenario.keys for scenario in scenarios} == {1, 10_000}


@pytest.mark.parametrize("kind", Kind)
def test_every_algorithm_has_a_peer_of_equal_work(kind: Kind) -> None:
    assert any(peer.equal and peer.takes_part(kind, 1) for peer in PEERS)


@pytest.mark.parametrize("path", Path)
def test_an_answer_of_the_other_path_is_noticed(path: Path) -> None:
    scenario = Scenario(Kind.GCRA, path, 3, (Limit(2, 3600),))
    other = Path.DENY if path is Path.ALLOW else Path.ALLOW
    subject = OURS.open(scenario.kind, scenario.limits)
    Course(replace(scenario, path=other), ONCE.calls).prepare(subject)
    with pytest.raises(WrongPath, match=f"3 of 3 answers of headgate: check are not {path}, before timing"):
        Course(scenario, ONCE.calls).verify(OURS, subject, "before")


def test_a_limit_below_the_calls_of_a_round_is_noticed() -> None:
    with pytest.raises(WrongPath, match="990 of 1000"):
        decisions.measure(Scenario(Kind.FIXED_WINDOW, Path.ALLOW, 1, (Limit(10, 3600),)), ONCE)


@pytest.mark.parametrize("limits", [1, 3])
@pytest.mark.parametrize("keys", [1, 10])
@pytest.mark.parametrize("path", Path)
def test_a_scenario_measures_floor_ours_and_peers(path: Path, keys: int, limits: int) -> None:
    found = [s for s in all_scenarios(10) if (s.path, s.keys, len(s.limits)) == (path, keys, limits)]
    row = decisions.measure(next(s for s in found if s.kind is Kind.FIXED_WINDOW), ONCE)
    assert {peer.name for peer in row.peers} == {"limits", "throttled-py", "pyrate-limiter"}
    assert all(figure.best > 0 for figure in (row.floor, row.ours, *(peer.figure for peer in row.peers)))


def peeking(peek: float) -> Operations:
    return Operations(Kind.GCRA, {"check": Figure((100.0,) * 3), "peek": Figure((peek,) * 3)})


@pytest.mark.parametrize(("peek", "cheaply"), [(150, True), (200, True), (201, False)])
def test_a_peek_is_held_against_a_check(peek: float, *, cheaply: bool) -> None:
    assert peeking(peek).peeks_cheaply is cheaply


def test_the_summary_shows_the_worst_peek() -> None:
    told = summary(MemoryResults([], [peeking(150), peeking(210)], [], Accuracy({}, 0, 1.9)))
    assert "| `peek`: time, x `check` | 2.10 | at most 2 | **FAIL** | 1 of 2 | gcra |" in told
