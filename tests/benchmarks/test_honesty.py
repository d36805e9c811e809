"""What the benchmark does not believe: an answer, a server or a load that is not what its row says is no figure."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
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
from benchmarks.service import servers
from benchmarks.service.asking import (
    HTTP_CHECK,
    RLS,
    Question,
    Wire,
    WrongAnswer,
    gubernator_grpc,
    gubernator_http,
    rules,
)
from benchmarks.service.load import Loader, LoadError, read_h2load, read_json
from benchmarks.service.measuring import Amount, Subject, chosen, measure, post, run
from benchmarks.service.report import render
from benchmarks.service.rows import all_rows
from benchmarks.service.servers import Cores, Served, Setup, started
from benchmarks.timing import Figure, Pace
from headgate import Decision, Limiter
from tests.server.process.service import service
from tests.servers import until

CORES = Cores.split()
ONCE = Pace(seconds=0, fewest=1, most=1)
ROWS = chosen(Amount(0, ONCE))
SMALL = Case(Kind.GCRA, Way.TOGETHER, Traffic.MANY, ALLOWING[:1], 40, 20)


@pytest.mark.parametrize("path", scenarios.Path)
def test_in_memory_an_answer_of_the_other_path_is_noticed(path: scenarios.Path) -> None:
    scenario = Scenario(Kind.GCRA, path, 3, (Limit(2, 3600),))
    other = scenarios.Path.DENY if path is scenarios.Path.ALLOW else scenarios.Path.ALLOW
    subject = OURS.open(scenario.kind, scenario.limits)
    Course(replace(scenario, path=other), ONCE.calls).prepare(subject)
    with pytest.raises(WrongPath, match=f"3 of 3 answers of headgate: check are not {path}, before timing"):
        Course(scenario, ONCE.calls).verify(OURS, subject, "before")


def test_a_limit_below_the_calls_of_a_round_is_noticed() -> None:
    with pytest.raises(WrongPath, match="990 of 1000"):
        decisions.measure(Scenario(Kind.FIXED_WINDOW, scenarios.Path.ALLOW, 1, (Limit(10, 3600),)), ONCE)


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    ours, theirs = Figure((10, 90, 20, 10, 10)), Figure((50, 450, 100, 20, 1000))
    assert theirs.over(ours) == pytest.approx(5)  # a slow round counts for both, a lucky one for nobody
    assert theirs.best / ours.best == pytest.approx(2)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with redis_server() as started:
        yield started


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_a_contender_that_limits_nothing_is_noticed(server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    with pytest.raises(on_redis.WrongAnswer, match="does not limit to 3"):
        on_redis.prove(REDIS_FLOOR, server.address(), SMALL, runner)


@pytest.mark.parametrize("way", Way)
def test_on_redis_an_answer_of_the_other_path_is_noticed(way: Way, server: Server, runner: asyncio.Runner) -> None:
    server.forget()
    case = replace(SMALL, way=way, limits=REFUSING[:1])
    driven = on_redis.driver(REDIS_OURS, server.address(), case, runner)
    _, answers = driven.run(["user:1"] * 5)
    driven.close()
    with pytest.raises(on_redis.WrongAnswer, match="3 of 5 answers of headgate"):
        on_redis.verify(REDIS_OURS, driven, case, answers)


def test_a_degraded_decision_is_no_answer() -> None:
    with Limiter("5/day") as limiter:
        sound = limiter.check("user:1")
    degraded = Decision(True, 5, 4, 0, 0, sound.state, sound.quota, degraded="storage_unavailable")
    driven = on_redis.Alone(Blocking(lambda _: degraded, allowed))
    with pytest.raises(Degraded, match="storage_unavailable"):
        on_redis.verify(REDIS_OURS, driven, SMALL, driven.run(["user:1"])[1])


@pytest.mark.parametrize("statuses", [[200] * 4, [200, 200, 200, 500], [429] * 4])
def test_what_does_not_limit_is_not_timed(statuses: list[int]) -> None:
    with pytest.raises(integrations.NotLimited, match="under a limit of 3"):
        integrations.verify("some limiter", statuses)


def test_other_rules_than_expected_are_noticed() -> None:
    wrong = replace(ENDPOINTS.cases[0], expected=lambda _: ("another",))
    with pytest.raises(WrongMatch, match=r"one rule, 5 rules: found .*, not .*another"):
        list(measure_rules(replace(ENDPOINTS, cases=(wrong,)), (5, 30), ONCE))


@pytest.mark.parametrize("answer", ["allowed", "denied"])
def test_a_server_that_answers_otherwise_is_not_measured(answer: str) -> None:
    row = replace(ROWS["http"], allows=answer == "allowed")
    setup = replace(row.setup, rules=rules("user", limit=1 if row.allows else 100))
    with started(setup, CORES) as served:
        subject = Subject("headgate", replace(row, setup=setup), served, CORES, 1)
        post(served, HTTP_CHECK.path, HTTP_CHECK.body_of(0))
        with pytest.raises(WrongAnswer, match=r"headgate .* does not answer so"):
            subject.verify()


def test_refusals_in_a_load_are_noticed() -> None:
    row = ROWS["rls"]
    setup = replace(row.setup, rules=rules("user", limit=2))
    with started(setup, CORES) as served:
        subject = Subject("headgate", replace(row, setup=setup, counts=False), served, CORES, 10)
        with pytest.raises(WrongAnswer, match="180 of 200 requests were refused"):
            subject.round(0.1)


def test_a_server_that_counts_must_have_counted_what_it_answered() -> None:
    row = replace(ROWS["floor"], counts=True)
    with started(row.setup, CORES) as served, pytest.raises(WrongAnswer, match="but took 0"):
        Subject("nginx", row, served, CORES, 10).round(0.1)


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerError, match="no such thing"), started(Setup(rules=rules("user")), CORES, "no such thing"):
        pass


def test_a_service_of_others_that_does_not_start_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "gubernator"
    broken.write_text("#!/bin/sh\necho cannot >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told: list[str] = []
    amount = Amount(0.1, ONCE, users=10, warm_up=False, rows="floor|gubernator_http", latency=False)
    results = run(amount, told.append)
    assert results.failed == ("gubernator_http",)
    assert list(results.costs.rows) == ["floor"]
    assert any("gubernator_http: left out: a server does not start" in each for each in told)
    assert "On the path, but left out, for they failed: gubernator_http.\n" in render(results)


def test_a_service_of_others_that_answers_otherwise_is_left_out_but_ours_is_not() -> None:
    told: list[str] = []
    amount = Amount(0.1, ONCE, users=1, warm_up=False)
    with started(ROWS["floor"].setup, CORES) as served:  # which refuses nobody
        floor = Subject("nginx", ROWS["floor"], served, CORES, 1)
        other = Subject("throttlecrab-server", all_rows()["throttlecrab_http_denied"], served, CORES, 1)
        assert list(measure({"floor": floor, "other": other}, amount, told.append)) == ["floor"]
        assert any(each.startswith("other: left out: throttlecrab-server") for each in told)
        with pytest.raises(WrongAnswer):
            measure({"ours": Subject("headgate", ROWS["http_denied"], served, CORES, 1)}, amount, told.append)


@pytest.mark.parametrize("failing", [gubernator_http(1), gubernator_grpc(1)])
def test_an_error_of_gubernator_is_not_taken_for_a_refusal(failing: Question) -> None:
    answer = b'{"responses":[{"status":"UNDER_LIMIT","error":"no peers"}]}'
    with pytest.raises(WrongAnswer, match="no peers"):
        failing.is_allowed(answer if failing.wire is Wire.HTTP else b"\x0a\x0a\x2a\x08no peers")


def test_rows_that_do_not_exist_are_an_error_that_names_those_that_do() -> None:
    with pytest.raises(LoadError, match=r"no row .* is called 'htpp': there are floor, .*http, "):
        chosen(Amount(0, ONCE, rows="htpp"))


def test_processor_time_is_that_of_the_children_too() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        while len(servers.processes(parent.pid)) < 2:
            assert parent.poll() is None
        assert servers.used_ns(parent.pid) > 0
    finally:
        parent.communicate(b"\n")
    assert servers.used_ns(parent.pid) == 0


def test_a_server_that_shares_its_core_waits_for_it() -> None:
    words = ["taskset", "-c", str(CORES.server[0]), sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(words) for _ in range(2)]
    try:
        served = Served(busy[0].pid)
        before = served.waited_ns()
        until(lambda: served.waited_ns() > before, "the other one has its turn")
    finally:
        for each in busy:
            each.kill()
            each.wait()


H2LOAD = """\
starting benchmark...
progress: 100% done

finished in {took}, 59182.12 req/s, 9.59MB/s
requests: 2000 total, 2000 started, {done} done, {done} succeeded, 0 failed, 0 errored, 0 timeout
status codes: {fine} 2xx, 0 3xx, {refused} 4xx, 0 5xx
traffic: 32.42MB (34000000) total, 21.93MB (23000000) headers (space savings 0.00%), 3.05MB (3200000) data
"""


@pytest.mark.parametrize(("done", "fine", "refused"), [(2000, 1999, 1), (1990, 1990, 0), (0, 0, 0)])
def test_a_load_in_which_requests_failed_is_no_figure(done: int, fine: int, refused: int) -> None:
    with pytest.raises(LoadError, match="requests failed"):
        read_h2load(H2LOAD.format(took="1s", done=done, fine=fine, refused=refused))
    with pytest.raises(LoadError, match="does not say"):
        read_h2load("starting benchmark...\n")
    with pytest.raises(LoadError, match="3 of 5 requests failed"):
        read_json('{"requests":5,"seconds":2.0,"failed":3}\n')


def test_grpc_that_is_refused_is_no_figure(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [{id: all, dimension: global, limit: 5, window: 1d}]\n")
    with service("--rules", str(file)) as found:
        loader = Loader(RLS, found.started().grpc_port, 10, {0})
        assert loader.ask(10).refused == 5
        with pytest.raises(LoadError, match="100 of 100 requests"):
            loader.at_rate(1000, 0.1)
