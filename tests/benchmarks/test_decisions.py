"""A scenario is timed only if every contender answers as it demands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import decisions
from benchmarks.contenders import OURS, PEERS
from benchmarks.decisions import Course, WrongPath
from benchmarks.scenarios import Kind, Limit, Path, Scenario, all_scenarios
from benchmarks.timing import Pace

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
    Course(replace(scenario, path=other)).prepare(subject)
    with pytest.raises(WrongPath, match=f"3 of 3 answers of headgate: check are not {path}, before timing"):
        Course(scenario).verify(OURS, subject, "before")


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
