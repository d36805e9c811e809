"""The servers that the benchmark starts answer what they are asked, and their processor time is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.on_redis.servers import Server, ServerError, redis_server
from benchmarks.service import servers
from benchmarks.service.asking import HTTP_CHECK, Question, Wire, WrongAnswer, gubernator_grpc, gubernator_http, rules
from benchmarks.service.load import LoadError
from benchmarks.service.measuring import Amount, Subject, chosen, measure, observing, post, run
from benchmarks.service.report import render
from benchmarks.service.rows import all_rows, floors
from benchmarks.service.servers import PROGRAMS, Cores, Served, Setup, started
from benchmarks.timing import Pace
from tests.servers import until

CORES = Cores.split()
ONCE = Pace(0, 1, 1)
ROWS = chosen(Amount(0, ONCE))


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("name", floors())
def test_a_trivial_peer_allows_and_uses_processor_time(name: str) -> None:
    row = ROWS[name]
    with started(row.setup, CORES) as served:
        subject = Subject(name, row, served, CORES, 10)
        subject.verify()
        before = served.used_ns()
        assert subject.round(0.1) > 0
        assert served.used_ns() > before
    assert all(cpu > 0 for cpu in subject.cpu)


@pytest.mark.parametrize(
    "name",
    [
        "http",
        "http_denied",
        "grpc_denied",
        "rls",
        "authz",
        "authz_denied",
        "descriptors",
        "descriptors_denied",
        "both_denied",
        "shadow",
    ],
)
def test_ours_answers_as_its_row_says(name: str) -> None:
    row = ROWS[name]
    with started(row.setup, CORES) as served:
        subject = Subject(name, row, served, CORES, 10)
        subject.prepare(0)
        assert subject.round(0.1) > 0


def test_ours_is_asked_over_tls() -> None:
    row = ROWS["http_tls"]
    with started(row.setup, CORES) as served:
        subject = Subject("headgate", row, served, CORES, 10)
        subject.verify()
        assert subject.round(0.1) > 0


def test_the_soak_asks_for_users_and_paths_at_random(redis: Server) -> None:
    row = ROWS["soak"]
    redis.forget()
    with started(row.setup, CORES, redis.address()) as served:
        subject = Subject("headgate", row, served, CORES, store=redis)
        subject.prepare(0)
        subject.round(0.1)
        asked, *counted = redis.control.dbsize(), *redis.control.keys("*user-*")
    assert subject.store_us > 0
    assert asked > len(counted) / 2 > subject.requests / 4  # hardly anybody asks twice


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


def test_rows_are_chosen_by_their_ids_and_by_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(chosen(Amount(0, ONCE, rows="http(_denied)?"))) == ["http", "http_denied"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert not {row.setup.program for row in chosen(Amount(0, ONCE)).values()} & set(PROGRAMS)
    assert set(PROGRAMS) < {row.setup.program for row in all_rows().values()}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.setup.program in PROGRAMS] or ["none"])
def test_the_services_of_others_answer_as_their_rows_say(name: str, redis: Server) -> None:
    """As far as they are on the path; nothing to see where none is."""
    if name == "none":
        return
    row = ROWS[name]
    redis.forget()
    with started(row.setup, CORES, redis.address() if row.setup.redis else "") as served:
        subject = Subject(name, row, served, CORES, 10)
        subject.prepare(0)
        assert subject.round(0.1) > 0


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


def test_the_cores_are_shared_where_there_are_not_enough() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert Cores.split().server == (cores[0],)
    assert Cores.split(len(cores)) == Cores(tuple(cores), tuple(cores))


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


def test_observing_takes_some_time() -> None:
    assert observing(ONCE).best > 0


@pytest.mark.parametrize("program", ["nginx", "wrk", "h2load"])
def test_programs_tell_their_version(program: str) -> None:
    assert servers.version(program)[0].isdigit()


def test_the_body_of_a_check_has_its_user_and_address() -> None:
    assert HTTP_CHECK.body_of(7) == (
        b'{"principal":{"user":"user-7"},"endpoint":"/api/v1/orders","method":"POST","cost":1}'
    )
    assert b'"ip":"10.1.0.2"' in ROWS["three"].question.body_of(0x10002)
