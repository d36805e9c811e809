"""The benchmark as a command, and the report it renders."""

from __future__ import annotations

import json
import pathlib
import re
from functools import cache

import pytest

from benchmarks.__main__ import PARTS, QUICK, main, run
from benchmarks.in_memory.scenarios import Kind
from benchmarks.report import Results, render
from benchmarks.service.measuring import chosen
from benchmarks.tables import percent, table


@cache
def measured(part: str) -> Results:
    """Return what a quick run of one part finds."""
    return run(QUICK, [part])


@pytest.fixture(scope="module")
def report() -> str:
    """Return the report of all parts."""
    environment: dict[str, str] = {}
    for part in PARTS:
        environment |= measured(part).environment
    return render(Results(environment, **{part: getattr(measured(part), part) for part in PARTS}))


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_measured_alone(part: str) -> None:
    found = measured(part)
    assert [each for each in PARTS if getattr(found, each) is not None] == [part]


def test_the_report_has_all_algorithms_peers_and_verdicts(report: str) -> None:
    assert all(f"| {kind}, allow |" in report and f"| {kind}, deny, 1 |" in report for kind in Kind)
    assert all(f"{peer}:" in report for peer in ("limits", "throttled-py", "pyrate-limiter"))
    assert "within 7x" in report
    assert "5x faster" in report
    assert "PASS" in report or "FAIL" in report


def test_the_report_opens_with_fifteen_lines_of_its_own_figures(report: str) -> None:
    opening = report[: report.index("## Environment")]
    lines = [line for line in opening.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == 15
    in_memory, _, _, service, *_ = [getattr(measured(part), part) for part in PARTS]
    fastest = min(row.ours.best for row in in_memory.rows if len(row.scenario.limits) == 1)
    assert f"| decision in memory, one limit | {fastest:,.0f} to " in opening
    assert f"{service.costs.rows['http'].per_second:,.0f} a second" in opening
    reached, judged = re.findall(r"(\d+) of (\d+) verdicts below are PASS", opening)[0]
    assert 0 <= int(reached) <= int(judged)


def test_the_report_goes_from_verdicts_over_method_to_numbers(report: str) -> None:
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
        "Integrations",
        "Clients",
        "Gateway",
        "Replay",
    )
    places = [report.index(f"## {title}\n" if title != "Decisions" else "## Decisions") for title in titles]
    assert places == sorted(places)
    assert "0.003 %" in report


def test_the_report_has_all_that_was_asked_of_redis(report: str) -> None:
    parts = ("64 callers", "one caller", "three limits", "cluster", "processor time", "memory")
    assert all(f"### Redis: {part}\n" in report for part in parts)
    for question in ("64 callers: x the best peer", "64 callers: x `INCR`", "one async caller: time", "three limits"):
        assert f"| {question}" in report
    assert "| redis-server | " in report


def test_the_report_has_all_that_was_asked_of_rules(report: str) -> None:
    parts = ("verdicts", "method", "matching", "Envoy descriptors", "decisions", "building")
    assert all(f"### Rules: {part}\n" in report for part in parts)
    for question in ("us per request", "time, 1,000 against 10", "another in each request: us per request"):
        assert f"rules: {question} |" in report or f"rules, {question} |" in report


def test_the_report_has_all_that_was_asked_of_the_service(report: str) -> None:
    parts = ("verdicts", "method", "requests", "latency", "observing", "1,000,000 requests per second")
    assert all(f"### Service: {part}\n" in report for part in parts)
    for question in (
        "HTTP check: processor time, x nginx",
        "RLS: x less processor time",
        "RLS on Redis: rate, x RLS on",
    ):
        assert f"| {question}" in report
    assert "| nginx | " in report


def test_what_was_measured_is_complete() -> None:
    in_memory, redis, rules, service, _, _, clients, gateway, replay = [getattr(measured(part), part) for part in PARTS]
    assert len(in_memory.rows) == 56
    assert [row.case.processes for row in clients.rows] == [1, 4, 1, 4]
    assert all(row.ideal > 0 and row.seconds > 0 for row in clients.rows)
    assert set(gateway.rows) == {"none", "authz", "rls"}
    assert all(row.envoy.best > 0 for row in gateway.rows.values())
    assert [name for name, row in gateway.rows.items() if row.decides.best > 0] == ["authz", "rls"]
    libraries = {"headgate", "limits", "throttled-py", "pyrate-limiter"}
    assert {each.contender for each in in_memory.footprints} == libraries
    assert {each.contender for each in redis.footprints} == libraries | {"redis-py"}
    assert all(set(row.times) == {10, 100, 1000} for row in rules.rows)
    assert service.costs.rows["rls_redis"].store_us > 0
    assert set(service.costs.rows) == set(chosen(QUICK.service))
    assert [row.lines for row in replay.rows] == [1000, 2000]
    assert all(row.cpu_us > 0 and row.peak_mib > 0 for row in replay.rows)
    assert replay.equal == replay.compared == 500


def test_as_a_command_it_writes_the_report_and_the_raw_numbers(tmp_path: pathlib.Path) -> None:
    main(["--quick", "--only", "rules", "--output", str(tmp_path / "report.md"), "--json", str(tmp_path / "raw.json")])
    assert "## Rules\n" in (tmp_path / "report.md").read_text()
    assert json.loads((tmp_path / "raw.json").read_text())["rules"]["rows"]


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n|---|---:|\n| x | 1 |\n"


def test_a_share_of_nothing_is_no_number() -> None:
    assert (percent(1, 8, 1), percent(0, 0)) == ("12.5 %", "-")
