"""The benchmark as a command, and the report it renders."""

from __future__ import annotations

import json
import pathlib
import re
from functools import cache

import pytest

from benchmarks.__main__ import QUICK, main, run
from benchmarks.in_memory.scenarios import Kind
from benchmarks.report import PARTS, Results, render
from benchmarks.service.measuring import chosen


@cache
def measured(part: str) -> Results:
    """Return what a quick run of one part finds."""
    return run(QUICK, [part])


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Return the report of all parts, by page."""
    environment: dict[str, str] = {}
    for part in PARTS:
        environment |= measured(part).environment
    return render(Results(environment, **{part: getattr(measured(part), part) for part in PARTS}))


@pytest.mark.parametrize("part", PARTS)
def test_each_part_can_be_measured_alone(part: str) -> None:
    found = measured(part)
    assert [each for each in PARTS if getattr(found, each) is not None] == [part]


def test_a_page_of_results_links_to_a_page_for_each_part(pages: dict[str, str]) -> None:
    short = pages["benchmarks.md"]
    assert re.findall(r"\((benchmarks/\w+\.md)\)", short) == [page for page in pages if page != "benchmarks.md"]
    assert len(pages) == len(PARTS) + 1
    assert "| redis-server | " in short
    assert "| nginx | " in short


def test_the_page_of_results_has_a_line_for_each_figure(pages: dict[str, str]) -> None:
    short = pages["benchmarks.md"]
    lines = [line for line in short[: short.index("## Environment")].splitlines() if line.startswith("| ")][1:]
    assert len(lines) == 15
    in_memory, _, _, service, *_ = [getattr(measured(part), part) for part in PARTS]
    fastest = min(row.ours.best for row in in_memory.rows if len(row.scenario.limits) == 1)
    assert f"| decision in memory, one limit | {fastest:,.0f} to " in short
    assert f"{service.costs.rows['http'].per_second:,.0f} a second" in short
    reached, judged = re.findall(r"(\d+) of (\d+) verdicts are PASS", short)[0]
    assert 0 <= int(reached) <= int(judged)


def test_a_page_has_verdicts_method_and_rows(pages: dict[str, str]) -> None:
    sections = {
        "memory": ("Verdicts", "Method", "Decisions: one limit", "Decisions: three limits", "Memory per key"),
        "redis": ("Verdicts", "Method", "64 callers", "One caller", "Three limits", "Cluster", "Processor time"),
        "rules": ("Verdicts", "Method", "Matching", "Envoy descriptors", "Decisions", "Building"),
        "service": ("Verdicts", "Method", "Requests", "Latency", "Observing", "1,000,000 requests per second"),
        "integrations": ("Verdicts", "Method", "Numbers"),
        "clients": ("Verdicts", "Method"),
        "gateway": ("Verdicts", "Method", "Numbers"),
        "replay": ("Method",),
    }
    for part, titles in sections.items():
        page = pages[f"benchmarks/{part}.md"]
        places = [page.index(f"## {title}\n") for title in titles]
        assert places == sorted(places), part


def test_a_page_has_the_verdicts_that_its_aims_need(pages: dict[str, str]) -> None:
    memory, rules = pages["benchmarks/memory.md"], pages["benchmarks/rules.md"]
    assert all(f"| {kind}, allow |" in memory and f"| {kind}, deny, 1 |" in memory for kind in Kind)
    assert all(f"{peer}:" in memory for peer in ("limits", "throttled-py", "pyrate-limiter"))
    assert all(text in memory for text in ("within 8x", "within 14x", "3x faster", "0.003 %"))
    for verdict in ("64 callers: x the best peer", "64 callers: x `INCR`", "one async caller: time", "three limits"):
        assert f"| {verdict}" in pages["benchmarks/redis.md"]
    for verdict in ("us per request", "time, 1,000 against 10", "another in each request: us per request"):
        assert f"rules: {verdict} |" in rules or f"rules, {verdict} |" in rules
    for verdict in (
        "HTTP check: processor time, x nginx",
        "RLS: x less processor time",
        "RLS on Redis: rate, x RLS on",
    ):
        assert f"| {verdict}" in pages["benchmarks/service.md"]


def test_the_measurements_are_complete() -> None:
    in_memory, redis, rules, service, _, _, clients, gateway, replay = [getattr(measured(part), part) for part in PARTS]
    assert len(in_memory.rows) == 56
    assert [row.case.processes for row in clients.rows] == [1, 4]
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


def test_as_a_command_it_writes_the_pages_and_the_raw_numbers(tmp_path: pathlib.Path) -> None:
    main(["--quick", "--only", "rules", "--output", str(tmp_path), "--json", str(tmp_path / "raw.json")])
    assert (tmp_path / "benchmarks.md").read_text().startswith("# Benchmarks\n")
    assert (tmp_path / "benchmarks" / "rules.md").read_text().startswith("# Benchmarks: Rules\n")
    assert json.loads((tmp_path / "raw.json").read_text())["rules"]["rows"]
