"""The benchmark as a command, and the report it renders."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks.__main__ import main
from benchmarks.report import percent, table
from benchmarks.scenarios import Kind


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bench")
    main(["--quick", "--output", str(folder / "report.md"), "--json", str(folder / "raw.json")])
    return folder


def test_the_report_has_all_algorithms_peers_and_verdicts(run: pathlib.Path) -> None:
    report = (run / "report.md").read_text()
    assert all(f"| {kind}, allow |" in report and f"| {kind}, deny, 1 |" in report for kind in Kind)
    assert all(f"{peer}:" in report for peer in ("limits", "throttled-py", "pyrate-limiter"))
    assert "within 7x" in report
    assert "5x faster" in report
    assert "PASS" in report or "FAIL" in report


def test_the_report_goes_from_verdicts_over_method_to_numbers(run: pathlib.Path) -> None:
    report = (run / "report.md").read_text()
    places = [report.index(f"## {title}") for title in ("Verdicts", "Method", "Environment", "Decisions", "Memory")]
    assert places == sorted(places)
    assert "0.003 %" in report


def test_the_raw_numbers_are_written_on_request(run: pathlib.Path) -> None:
    raw = json.loads((run / "raw.json").read_text())
    assert len(raw["rows"]) == 56
    assert {each["contender"] for each in raw["footprints"]} == {"headgate", "limits", "throttled-py", "pyrate-limiter"}


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n|---|---:|\n| x | 1 |\n"


def test_a_share_of_nothing_is_no_number() -> None:
    assert (percent(1, 8, 1), percent(0, 0)) == ("12.5 %", "-")
