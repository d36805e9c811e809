"""The servers that the benchmark starts answer what they are asked, and their processor time is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from benchmarks.on_redis.servers import ServerError
from benchmarks.service import processor, servers
from benchmarks.service.asking import GRPC_CHECK, HTTP_CHECK, RLS, Question
from benchmarks.service.measuring import Subject, WrongAnswer
from benchmarks.service.servers import Cores, Served

CORES = Cores.split()
PEERS: dict[str, tuple[Callable[[Cores], AbstractContextManager[Served]], Question]] = {
    "nginx": (servers.nginx, HTTP_CHECK),
    "uvicorn": (servers.uvicorn, HTTP_CHECK),
    "grpcio": (servers.grpcio, RLS),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_allows_and_uses_processor_time(name: str) -> None:
    start, question = PEERS[name]
    with start(CORES) as served:
        subject = Subject(name, "trivial", served, question, CORES)
        subject.verify()
        before = served.used_ns()
        assert subject.round(0.1) > 0
        assert served.used_ns() > before
    assert all(cpu > 0 for cpu in subject.cpu)


@pytest.mark.parametrize("question", [HTTP_CHECK, GRPC_CHECK, RLS], ids=lambda question: question.path)
def test_ours_takes_what_it_is_asked_for(question: Question) -> None:
    with servers.headgate(CORES) as served:
        subject = Subject("headgate", question.path, served, question, CORES, counts=True)
        subject.warm_up()
        assert subject.round(0.1) > 0


def test_ours_is_asked_over_tls() -> None:
    with servers.headgate(CORES, tls=True) as served:
        subject = Subject("headgate", "TLS", served, HTTP_CHECK, CORES, counts=True)
        subject.verify()
        assert subject.round(0.1) > 0


def test_a_server_that_does_not_allow_is_not_measured() -> None:
    never = Question(HTTP_CHECK.wire, HTTP_CHECK.path, HTTP_CHECK.content_type, HTTP_CHECK.body_of, lambda _: False)
    with servers.nginx(CORES) as served, pytest.raises(WrongAnswer, match=r"nginx .* does not allow"):
        Subject("nginx", "constant", served, never, CORES).verify()


def test_a_server_that_counts_must_have_counted_what_it_answered() -> None:
    with servers.nginx(CORES) as served, pytest.raises(WrongAnswer, match="but took 0"):
        Subject("nginx", "constant", served, HTTP_CHECK, CORES, counts=True).round(0.1)


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerError, match="no such thing"), servers.headgate(CORES, "no such thing"):
        pass


def test_the_cores_are_shared_where_there_are_not_enough() -> None:
    cores = sorted(os.sched_getaffinity(0))
    assert Cores.split().server == (cores[0],)
    assert Cores.split(len(cores)) == Cores(tuple(cores), tuple(cores))


def test_processor_time_is_that_of_the_children_too() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        while len(processor.processes(parent.pid)) < 2:
            assert parent.poll() is None
        assert processor.used_ns(parent.pid) > 0
    finally:
        parent.communicate(b"\n")
    assert processor.used_ns(parent.pid) == 0


@pytest.mark.parametrize("program", ["nginx", "wrk", "h2load"])
def test_programs_tell_their_version(program: str) -> None:
    assert servers.version(program)[0].isdigit()
