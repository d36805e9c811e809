"""Live figures: any node shows what all of them decide, what is wrong with them, and what to do about it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.admin.test_fleet import Fleet, FleetService
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Clients
from tests.servers import RedisServer, redis_server, until

RULES = {
    "version": 1,
    "rules": [
        {"id": "orders-user", "endpoint": "/api/v1/orders/**", "limit": 2, "window": "1h"},
        {"id": "tried", "endpoint": "/api/v1/orders/**", "limit": 1, "window": "1h", "shadow": True},
    ],
}


def seen(service: FleetService, found: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """Ask for checks and figures until the figures show something."""
    last: list[dict[str, Any]] = []

    def is_found() -> object:
        status, answer = service.ask("GET", "/live")
        assert status == 200, answer
        last[:] = [answer]
        return found(answer)

    until(is_found, what, SECONDS)
    return last[0]


def rates_of(answer: dict[str, Any]) -> dict[int, float]:
    """Return the requests per second of nodes that write, by their process."""
    nodes = answer["nodes"]["items"]
    return {each["process"]: each["rates"]["allowed"] + each["rates"]["refused"] for each in nodes if each["rates"]}


def kinds(answer: dict[str, Any]) -> set[str]:
    return {each["kind"] for each in answer["attention"]}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two services, of one process and of two workers."""
    found = Fleet(tmp_path_factory.mktemp("live"), postgres.database(), redis.address)
    try:
        often = ("--admin-reads", "100000/minute")
        for service in (found.start("data", "--workers", "1", *often), found.start("data", *often)):
            service.started()
        assert found.all[0].ask("POST", "/apply", RULES)[0] == 200
        for service in found.all:
            service.comes_to(1)
        yield found
    finally:
        for service in found.all:
            service.stop()


@contextmanager
def busy(*services: FleetService) -> Iterator[None]:
    """Let a client ask each service again and again."""
    clients = [Clients(service.http_port, ["ann"]) for service in services]
    for some in clients:
        some.__enter__()
    try:
        yield
    finally:
        for some in clients:
            some.__exit__(None, None, None)


def test_any_node_shows_what_all_decide(fleet: Fleet) -> None:
    one, other = fleet.all[:2]
    both = {one.process.pid, other.process.pid}
    with busy(one, other):
        for service in (one, other):
            answer = seen(
                service, lambda answer: {name for name, rate in rates_of(answer).items() if rate} >= both, "both"
            )
            assert answer["scope"] == "fleet"
            rates = answer["rates"]
            assert rates["allowed"] + rates["refused"] == pytest.approx(sum(rates_of(answer).values()), abs=0.1)
            (me,) = [each for each in answer["nodes"]["items"] if each["is_this"]]
            assert me["process"] == service.process.pid
            assert {each["state"] for each in answer["nodes"]["items"]} == {"ok"}
            assert {each["workers"] for each in answer["nodes"]["items"]} == {1, 2}
        answer = seen(one, lambda answer: len(answer["history"]["points"]) > 2, "a history")
        assert answer["history"]["points"][-1]["refused"] > 0
        assert [each["rule_id"] for each in answer["refusing_rules"]] == ["orders-user"]
        assert answer["refusing_rules"][0]["refused_share"] > 0.5
        assert [each["rule_id"] for each in answer["shadow_rules"]] == ["tried"]
        assert {each["rule_id"] for each in answer["busiest_rules"]} == {"orders-user", "tried"}
        answer = seen(one, lambda answer: answer["refused_keys"], "hot keys")
        assert answer["refused_keys"][0]["rule_id"] == "orders-user"
        assert answer["attention"] == []


def test_a_node_that_is_killed_leaves_the_figures_and_needs_attention(fleet: Fleet) -> None:
    one, gone, ended = fleet.all[0], fleet.start("data", "--workers", "1"), fleet.start("data", "--workers", "1")
    names = {gone.started().process.pid, ended.started().process.pid}
    with busy(gone):
        seen(one, lambda answer: rates_of(answer).keys() >= names, "they report")
        gone.signal(signal.SIGKILL)
    ended.signal(signal.SIGTERM)
    seen(one, lambda answer: not rates_of(answer).keys() & names, "they are not in the figures")
    answer = seen(one, lambda answer: "node_gone" in kinds(answer), "attention")
    states = {each["process"]: each["state"] for each in answer["nodes"]["items"]}
    assert states[gone.process.pid] == "gone"
    assert ended.process.pid not in states, "one that was stopped is not missed"


def test_a_store_that_is_down_is_shown_and_figures_go_on(fleet: Fleet, redis: RedisServer) -> None:
    one, other = fleet.all[:2]
    with busy(one, other):
        redis.stop()
        try:
            answer = seen(one, lambda answer: "store" in kinds(answer) and answer["rates"]["degraded"], "the outage")
            first = answer["attention"][0]
            assert (first["severity"], first["kind"]) == ("critical", "store")
            assert str(redis.port) in first["what"]
            states = {each["process"]: each["store"]["state"] for each in answer["nodes"]["items"]}
            assert "down" in {states[one.process.pid], states[other.process.pid]}
        finally:
            redis.start()
        seen(one, lambda answer: "store" not in kinds(answer), "the end of the outage")


def test_without_its_database_a_node_shows_itself(fleet: Fleet, postgres: PostgresServer) -> None:
    one = fleet.all[0]
    with busy(one):
        seen(one, lambda answer: answer["scope"] == "fleet", "the fleet")
        postgres.stop(signal.SIGQUIT)
        try:
            answer = seen(one, lambda answer: answer["scope"] == "node" and answer["rates"]["refused"], "itself")
            assert answer["reason"]
            assert kinds(answer) >= {"database"}
            assert [each["is_this"] for each in answer["nodes"]["items"]] == [True]
        finally:
            postgres.start()
        seen(one, lambda answer: answer["scope"] == "fleet" and "database" not in kinds(answer), "the fleet again")
