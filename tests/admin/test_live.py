"""Live figures: any node shows the rates of all, their problems, and what to do about them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import select, text

from headgate.admin import live
from headgate.admin import overview as overviews
from headgate.admin.database import Database
from headgate.admin.follower import this_node
from headgate.admin.live import LiveFigures
from headgate.admin.overview import NodeFigures, overview
from headgate.admin.tables import WATCHED, figures
from headgate.observe.rates import LOOK_US, Figures, Rates
from headgate.observe.recorder import Recorder
from tests.admin.test_fleet import Fleet, FleetService
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Clients
from tests.servers import RedisServer, until

RULES = {
    "version": 1,
    "rules": [
        {"id": "orders-user", "endpoint": "/api/v1/orders/**", "limit": 2, "window": "1h"},
        {"id": "tried", "endpoint": "/api/v1/orders/**", "limit": 1, "window": "1h", "shadow": True},
    ],
}


def seen(service: FleetService, found: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """Request figures until they show something."""
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


class Nodes:
    """Services in this process, with the figures that they write and show."""

    def __init__(self, database: Database | None, count: int) -> None:
        self.now = 1_800_000_000_000_000
        self.database, self.recorders = database, [Recorder() for _ in range(count)]
        self.all = [
            LiveFigures(database, recorder.worker_counts, recorder.hot_keys, clock=lambda: self.now)
            for recorder in self.recorders
        ]

    async def looks(self) -> None:
        """Let all services read their counters, and write figures if due."""
        self.now += LOOK_US
        for each in self.all:
            await each.look()
            if self.database is not None:
                await each.write(self.database)

    async def rows(self) -> int:
        assert self.database is not None
        async with self.database.reading() as connection:
            return len((await connection.execute(select(figures).where(figures.c.id != WATCHED))).all())


async def test_services_write_only_during_views(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CACHED", 0.0)
    monkeypatch.setattr(live, "SLOW", SECONDS)
    database = await Database.open(url)
    nodes = Nodes(database, 2)
    await nodes.looks()
    assert await nodes.rows() == 0
    await nodes.all[0].fleet()
    await nodes.looks()
    assert await nodes.rows() == 2
    for recorder in nodes.recorders:
        recorder.record_peek(1000)  # takes nothing, and is no request
        recorder._time("orders", 1000)
    await nodes.looks()
    for each in nodes.all:
        shown = overview(await each.fleet())
        assert (shown["scope"], shown["nodes"]["reporting"]) == ("fleet", 1)  # that reports itself: none follows
        assert shown["rates"]["allowed"] == pytest.approx(1 / 5)
    nodes.now += live.WATCHED_US + 1
    for each in nodes.all:
        await each.look()
        await each.write(database)
    async with database.reading() as connection:
        newest = (await connection.execute(select(figures.c.at).where(figures.c.id != WATCHED))).scalars()
        assert max(newest) < nodes.now - live.WATCHED_US, "there are no more views"
    for each in nodes.all:
        await each.finish()
    await database.close()


async def test_without_a_database_a_node_shows_itself_and_the_reason() -> None:
    nodes = Nodes(None, 1)
    await nodes.looks()
    nodes.recorders[0]._time("orders", 1000)
    await nodes.looks()
    shown = overview(await nodes.all[0].fleet())
    assert (shown["scope"], shown["rates"]["allowed"]) == ("node", 0.4)
    assert "rules come from a file" in shown["reason"]
    assert shown["attention"] == []


async def test_a_database_that_hangs_delays_no_view(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SLOW", 0.2)
    monkeypatch.setattr(live, "CACHED", 0.0)
    database = await Database.open(postgres.database())
    nodes = Nodes(database, 1)
    async with database.writing() as connection:
        await connection.execute(text("LOCK TABLE figures"))
        shown = overview(await nodes.all[0].fleet())
        assert (shown["scope"], shown["reason"]) == ("node", "the database does not respond in time")
        assert kinds(shown) == {"database"}
    monkeypatch.setattr(live, "SLOW", SECONDS)
    assert overview(await nodes.all[0].fleet())["scope"] == "fleet"
    await nodes.all[0].finish()
    await database.close()


def test_nodes_that_count_in_memory_or_differ_need_attention() -> None:
    now = 1_800_000_000_000_000
    me = this_node()._replace(seen_at=now, revision=7)
    nodes = [
        NodeFigures(me, Figures(now, store="memory", version="1.0", workers=1)),
        NodeFigures(
            me._replace(id="other", revision=6, error="rule orders: limit is missing"),
            Figures(now, Rates(shed=3), store="redis://r", version="1.1", enforcing=False, broken=("identity",)),
        ),
    ]
    shown = overview(overviews.Fleet(now, me.id, nodes, 7, now - 60_000_000))
    assert [each["kind"] for each in shown["attention"]] == [
        "overload",
        "node_behind",
        "store_not_shared",
        "enforcement",
        "configuration",
        "versions",
    ]
    assert "limit is missing" in shown["attention"][1]["why"]
    assert [each["state"] for each in shown["nodes"]["items"]] == ["ok", "behind"]


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
    """Send requests to each service continuously."""
    with ExitStack() as stack:
        for service in services:
            stack.enter_context(Clients(service.http_port, ["ann"]))
        yield


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
        answer = seen(
            one,
            lambda answer: len(points := answer["history"]["points"]) > 2 and points[-1]["refused"] > 0,
            "a history",
        )
        assert [each["rule_id"] for each in answer["refusing_rules"]] == ["orders-user"]
        assert answer["refusing_rules"][0]["refused_share"] > 0.5
        assert [each["rule_id"] for each in answer["shadow_rules"]] == ["tried"]
        assert {each["rule_id"] for each in answer["busiest_rules"]} == {"orders-user", "tried"}
        answer = seen(one, lambda answer: answer["refused_keys"] and answer["shadow_refused_keys"], "hot keys")
        assert answer["refused_keys"][0]["rule_id"] == "orders-user"
        assert {each["rule_id"] for each in answer["shadow_refused_keys"]} == {"tried"}
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
    (lost,) = [each for each in answer["nodes"]["items"] if each["state"] == "gone"]
    assert (lost["store"]["state"], lost["rates"]) == ("unknown", None)
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
