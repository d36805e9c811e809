"""The ratios and verdicts of the benchmark report, from given numbers."""

from __future__ import annotations

import pytest

from benchmarks.scenarios import Kind, Limit, Path, Scenario
from benchmarks.timing import Figure
from benchmarks.verdicts import Peer, Row, verdict

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
