"""Benchmarks reject responses, servers and loads that differ from what a row claims."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.contenders import OURS, REDIS_FLOOR, REDIS_OURS
from benchmarks.contenders.base import Blocking
from benchmarks.contenders.headgate import Degraded, allowed
from benchmarks.in_memory import decisions, scenarios
from benchmarks.in_memory.decisions import Course, WrongPath
from benchmarks.in_memory.scenarios import Kind, Limit, Scenario
from benchmarks.integrations import measuring as integrations
from benchmarks.on_redis import measuring as on_redis
from benchmarks.on_redis.cases import ALLOWING, REFUSING, Case, Traffic, Way
from benchmarks.on_redis.servers import Server, ServerError, redis_server
from benchmarks.rules.cases import ENDPOINTS
from benchmarks.rules.measuring import WrongMatch
from benchmarks.rules.measuring import measure as measure_rules
from benchmarks.service.load import Loader, LoadError, read_h2load, read_json
from benchmarks.service.measuring import Amount, Subject, chosen, measure, post, run
from benchmarks.service.report import part
from benchmarks.service.requests import (
    HTTP_CHECK,
    RLS,
    WrongResult,
    gubernator_grpc,
    gubernator_http,
    rules,
)
from benchmarks.service.rows import all_rows
from benchmarks.service.servers import Cores, Setup, started
from benchmarks.timing import Figure, Pace
from headgate import Decision, Limiter
from tests.server.process.service import service

CORES = Cores.split()
ONCE = Pace(seconds=0, fewest=1, most=1)
ROWS = chosen(Amount(0, ONCE))
SMALL = Case(Kind.GCRA, Way.TOGETHER, Traffic.MANY, ALLOWING[:1], 40, 20)


@pytest.mark.parametrize("path", scenarios.Path)
def test_in_memory_an_outcome_of_the_other_path_is_an_error(path: scenarios.Path) -> None:
    scenario = Scenario(Kind.GCRA, path, 3, (Limit(2, 3600),))
    other = scenarios.Path.DENY if path is scenarios.Path.ALLOW else scenarios.Path.ALLOW
    subject = OURS.open(scenario.kind, scenario.limits)
    Course(replace(scenario, path=other), ONCE.calls).prepare(subject)
    with pytest.raises(WrongPath, match=f"3 of 3 answers of headgate: check are not {path}, before timing"):
        Course(scenario, ONCE.calls).verify(OURS, subject, "before")


def test_a_limit_below_the_calls_of_a_round_is_an_error() -> None:
    with pytest.raises(WrongPath, match="990 of 1000"):
        decisions.measure(Scenario(Kind.FIXED_WINDOW, scenarios.Path.ALLOW, 1, (Limit(10, 3600),)), ONCE)


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    ours, theirs = Figure((10, 90, 20, 10, 10)), Figure((50, 450, 100, 20, 1000))
    assert theirs.over(ours) == pytest.approx(5)  # a slow round counts for both, a fast one for neither
    assert theirs.best / ours.best == pytest.approx(2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_a_contender_that_limits_nothing_is_an_error(server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    with pytest.raises(on_redis.WrongResult, match="does not limit to 3"):
        on_redis.prove(REDIS_FLOOR, server.address(), SMALL, runner)


@pytest.mark.parametrize("way", Way)
def test_on_redis_an_outcome_of_the_other_path_is_an_error(way: Way, server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    case = replace(SMALL, way=way, limits=REFUSING[:1])
    driven = on_redis.driver(REDIS_OURS, server.address(), case, runner)
    _, answers = driven.run(["user:1"] * 5)
    driven.close()
    with pytest.raises(on_redis.WrongResult, match="3 of 5 answers of headgate"):
        on_redis.verify(REDIS_OURS, driven, case, answers)


def test_a_degraded_decision_is_an_error() -> None:
    with Limiter("5/day") as limiter:
        sound = limiter.check("user:1")
    degraded = Decision(True, 5, 4, 0, 0, sound.state, sound.quota, degraded="storage_unavailable")
    driven = on_redis.Alone(Blocking(lambda _: degraded, allowed))
    with pytest.raises(Degraded, match="storage_unavailable"):
        on_redis.verify(REDIS_OURS, driven, SMALL, driven.run(["user:1"])[1])


def test_a_limiter_that_does_not_limit_is_not_timed() -> None:
    for statuses in ([200] * 4, [200, 200, 200, 500], [429] * 4):
        with pytest.raises(integrations.NotLimited, match="under a limit of 3"):
            integrations.verify("some limiter", statuses)


def test_unexpected_rules_are_an_error() -> None:
    wrong = replace(ENDPOINTS.cases[0], expected=lambda _: ("another",))
    with pytest.raises(WrongMatch, match=r"one rule, 5 rules: found .*, not .*another"):
        list(measure_rules(replace(ENDPOINTS, cases=(wrong,)), (5, 30), ONCE))


@pytest.mark.parametrize("answer", ["allowed", "denied"])
def test_a_server_with_unexpected_responses_is_not_measured(answer: str) -> None:
    row = replace(ROWS["http"], allows=answer == "allowed")
    setup = replace(row.setup, rules=rules("user", limit=1 if row.allows else 100))
    with started(setup, CORES) as served:
        subject = Subject("headgate", replace(row, setup=setup), served, CORES, 1)
        post(served, HTTP_CHECK.path, HTTP_CHECK.body_of(0))
        with pytest.raises(WrongResult, match=r"headgate .* does not answer so"):
            subject.verify()


def test_refusals_in_a_load_are_an_error() -> None:
    row = ROWS["rls"]
    setup = replace(row.setup, rules=rules("user", limit=2))
    with started(setup, CORES) as served:
        subject = Subject("headgate", replace(row, setup=setup, counts=False), served, CORES, 1)
        with pytest.raises(WrongResult, match="198 of 200 requests were refused"):
            subject.round(0.1)


def test_a_server_must_have_counted_the_requests_that_it_admitted() -> None:
    row = replace(ROWS["floor"], counts=True)
    with started(row.setup, CORES) as served, pytest.raises(WrongResult, match="but took 0"):
        Subject("nginx", row, served, CORES, 10).round(0.1)


def test_the_output_of_a_server_that_does_not_start_is_shown() -> None:
    with pytest.raises(ServerError, match="no such thing"), started(Setup(rules=rules("user")), CORES, "no such thing"):
        pass


def test_a_peer_that_does_not_start_is_omitted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "gubernator"
    broken.write_text("#!/bin/sh\necho cannot >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    output: list[str] = []
    amount = Amount(0.1, ONCE, users=10, warm_up=False, rows="floor|gubernator_http", prompt=())
    results = run(amount, output.append)
    assert results.failed == ("gubernator_http",)
    assert list(results.costs.rows) == ["floor"]
    assert any("gubernator_http: left out: a server does not start" in each for each in output)
    assert "Installed, but left out because they failed: gubernator_http.\n" in part(results).page()


def test_a_peer_with_unexpected_responses_is_omitted_but_headgate_is_not() -> None:
    output: list[str] = []
    amount = Amount(0.1, ONCE, users=1, warm_up=False)
    with started(ROWS["floor"].setup, CORES) as served:  # refuses nothing
        floor = Subject("nginx", ROWS["floor"], served, CORES, 1)
        other = Subject("throttlecrab-server", all_rows()["throttlecrab_http_denied"], served, CORES, 1)
        assert list(measure({"floor": floor, "other": other}, amount, output.append)) == ["floor"]
        assert any(each.startswith("other: left out: throttlecrab-server") for each in output)
        with pytest.raises(WrongResult):
            measure({"ours": Subject("headgate", ROWS["http_denied"], served, CORES, 1)}, amount, output.append)


def test_an_error_of_gubernator_is_no_refusal() -> None:
    error = b'{"responses":[{"status":"UNDER_LIMIT","error":"no peers"}]}'
    for failing, response in ((gubernator_http(1), error), (gubernator_grpc(1), b"\x0a\x0a\x2a\x08no peers")):
        with pytest.raises(WrongResult, match="no peers"):
            failing.is_allowed(response)


H2LOAD = """\
starting benchmark...
progress: 100% done

finished in {took}, 59182.12 req/s, 9.59MB/s
requests: 2000 total, 2000 started, {done} done, {done} succeeded, 0 failed, 0 errored, 0 timeout
status codes: {fine} 2xx, 0 3xx, {refused} 4xx, 0 5xx
traffic: 32.42MB (34000000) total, 21.93MB (23000000) headers (space savings 0.00%), 3.05MB (3200000) data
"""


@pytest.mark.parametrize(("done", "fine", "refused"), [(2000, 1999, 1), (1990, 1990, 0), (0, 0, 0)])
def test_a_load_with_failed_requests_is_an_error(done: int, fine: int, refused: int) -> None:
    with pytest.raises(LoadError, match="requests failed"):
        read_h2load(H2LOAD.format(took="1s", done=done, fine=fine, refused=refused))
    with pytest.raises(LoadError, match="has no result"):
        read_h2load("starting benchmark...\n")
    with pytest.raises(LoadError, match="3 of 5 requests failed"):
        read_json('{"requests":5,"seconds":2.0,"failed":3}\n')


def test_refused_grpc_calls_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [{id: all, dimension: global, limit: 5, window: 1d}]\n")
    with service("--rules", str(file)) as found:
        loader = Loader(RLS, found.started().grpc_port, 10, {0})
        assert loader.send(10).refused == 5
        with pytest.raises(LoadError, match="100 of 100 requests"):
            loader.at_rate(1000, 0.1)
