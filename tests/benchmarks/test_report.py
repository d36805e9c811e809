"""The benchmark as a command, and the report it renders."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks.__main__ import main
from benchmarks.scenarios import Kind
from benchmarks.tables import percent, table


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
    titles = (
        "Environment",
        "Memory",
        "Verdicts",
        "Method",
        "Decisions",
        "Memory per key",
        "Redis",
        "Redis: verdicts",
        "Rules",
        "Service",
    )
    places = [report.index(f"## {title}\n" if title != "Decisions" else "## Decisions") for title in titles]
    assert places == sorted(places)
    assert "0.003 %" in report


def test_the_report_has_all_that_was_asked_of_redis(run: pathlib.Path) -> None:
    report = (run / "report.md").read_text()
    parts = ("64 callers", "one caller", "three limits", "cluster", "processor time", "memory")
    assert all(f"### Redis: {part}\n" in report for part in parts)
    for question in ("64 callers: x the best peer", "64 callers: x `INCR`", "one async caller: time", "three limits"):
        assert f"| {question}" in report
    assert "| redis-server | " in report


def test_the_report_has_all_that_was_asked_of_rules(run: pathlib.Path) -> None:
    report = (run / "report.md").read_text()
    parts = ("verdicts", "method", "matching", "Envoy descriptors", "decisions", "building")
    assert all(f"### Rules: {part}\n" in report for part in parts)
    for question in ("us per request", "time, 1,000 against 10", "another in each request: us per request"):
        assert f"rules: {question} |" in report or f"rules, {question} |" in report


def test_the_report_has_all_that_was_asked_of_the_service(run: pathlib.Path) -> None:
    report = (run / "report.md").read_text()
    parts = ("verdicts", "method", "requests", "latency", "observing", "1,000,000 requests per second")
    assert all(f"### Service: {part}\n" in report for part in parts)
    for question in (
        "HTTP check: processor time, x nginx",
        "RLS: x less processor time",
        "RLS on Redis: rate, x RLS on",
    ):
        assert f"| {question}" in report
    assert "| nginx | " in report


def test_the_raw_numbers_are_written_on_request(run: pathlib.Path) -> None:
    raw = json.loads((run / "raw.json").read_text())
    assert len(raw["memory"]["rows"]) == 56
    libraries = {"headgate", "limits", "throttled-py", "pyrate-limiter"}
    assert {each["contender"] for each in raw["memory"]["footprints"]} == libraries
    assert {each["contender"] for each in raw["redis"]["footprints"]} == libraries | {"redis-py"}
    assert all(set(row["times"]) == {"10", "100", "1000"} for row in raw["rules"]["rows"])
    assert raw["service"]["costs"]["rls_redis"]["store_us"] > 0


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n|---|---:|\n| x | 1 |\n"


def test_a_share_of_nothing_is_no_number() -> None:
    assert (percent(1, 8, 1), percent(0, 0)) == ("12.5 %", "-")
