"""Two services of two workers each, on one PostgreSQL and one Redis, which also keep their rules in the same place."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.admin.conftest import PATIENCE
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Clients, Service, altered
from tests.servers import redis_server, until

KEY = "hg_an-operators-own-key-of-some-length"
ORDERS = {"id": "orders-user", "endpoint": "/api/v1/orders/**", "window": "1h"}
RULES = {
    "version": 1,
    "rules": [{**ORDERS, "limit": 5}, {"id": "all-ip", "dimension": "ip", "limit": 1000, "window": "1m"}],
    "tiers": {"gold": {"orders-user": {"limit": 50}}},
}


class FleetService(Service):
    """A service with an admin plane."""

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request to the admin plane."""
        return self.admin(KEY, method, path, body)

    def metric(self, name: str) -> float:
        """What it shows of all workers together."""
        found = re.search(rf"^headgate_{name} (\S+)$", self.get("/metrics")[1].decode(), re.MULTILINE)
        assert found, name
        return float(found[1])

    def limit_of(self, user: str) -> int:
        """The limit of a user, by the worker that takes this connection."""
        _, body = self.post(
            "/api/v1/rate-limit/check",
            {"principal": {"user": user}, "endpoint": "/api/v1/orders", "method": "GET", "consume": False},
        )
        limit: int = msgspec.json.decode(body)["limits"][0]["limit"]
        return limit

    def comes_to(self, revision: int) -> None:
        """Wait until all workers are at a revision."""
        until(lambda: self.metric("rules_revision") >= revision, f"revision {revision}", SECONDS)


class Fleet:
    """The services, and what starts more of them."""

    def __init__(self, folder: Path, url: str, store: str) -> None:
        self.folder, self.url, self.store = folder, url, store
        self.all: list[FleetService] = []

    def start(self, data_dir: str = "data", *options: str) -> FleetService:
        own = self.folder / f"service{len(self.all)}"
        own.mkdir()
        common = ("--database", self.url, "--store", self.store, "--data-dir", str(self.folder / data_dir))
        environment = {"HEADGATE_ADMIN_KEY": KEY}
        options = (*common, "--workers", "2", *options)
        service = FleetService(own, *options, environment=environment, program=altered(PATIENCE))
        self.all.append(service)
        return service


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with redis_server() as redis:
        found = Fleet(tmp_path_factory.mktemp("fleet"), postgres.database(), redis.address)
        try:
            for service in (found.start(), found.start()):
                service.started()
            status, answer = found.all[0].ask("POST", "/apply", RULES)
            assert status == 200, answer
            for service in found.all:
                service.comes_to(1)
            yield found
        finally:
            for service in found.all:
                service.stop()


def test_a_changed_rule_is_enforced_by_all_workers_and_by_those_that_take_their_place(fleet: Fleet) -> None:
    one, other = fleet.all[:2]
    status, answer = one.ask("PUT", "/rules/orders-user", {**ORDERS, "limit": 7})
    assert status == 200, answer
    revision = one.ask("GET", "/nodes")[1]["revision"]
    for service in (one, other):
        service.comes_to(revision)
        assert {service.limit_of("somebody") for _ in range(20)} == {7}

    def known() -> list[int]:
        return [node["revision"] for node in one.ask("GET", "/nodes")[1]["items"]]

    until(lambda: known() == [revision, revision], "nodes", SECONDS)
    before = other.workers()
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len(other.workers()) == 2 and other.workers() != before, "another worker", SECONDS)
    until(lambda: other.metric("workers") == 2, "it serves", SECONDS)
    other.comes_to(revision)
    assert {other.limit_of("somebody") for _ in range(20)} == {7}


def test_services_that_were_given_the_same_folder_keep_their_rules_apart_and_for_themselves(fleet: Fleet) -> None:
    warned = ["another service uses" in service.complained for service in fleet.all[:2]]
    assert sorted(warned) == [False, True]
    assert len(list((fleet.folder / "data").glob("*/rules.jsonl"))) == 1
    assert len(list((fleet.folder / "data").glob("service-2/*/rules.jsonl"))) == 1
    folders = [path.parent for path in (fleet.folder / "data").rglob("rules.jsonl")]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}


def test_a_user_is_moved_to_a_tier_given_an_override_that_ends_and_reset(fleet: Fleet) -> None:
    one, other = fleet.all[:2]
    assert one.ask("PUT", "/rules/orders-user", {**ORDERS, "limit": 3})[0] == 200
    other.comes_to(one.ask("GET", "/nodes")[1]["revision"])
    while other.check("ann")["allowed"]:
        pass
    assert one.ask("POST", "/users/ann/reset")[0] == 200
    until(lambda: other.check("ann")["allowed"], "she may again", SECONDS)
    assert other.ask("PUT", "/users/ann/tier", {"tier": "gold"})[0] == 200
    until(lambda: one.limit_of("ann") == 50, "tier", SECONDS)

    def limits() -> set[int]:
        return {other.limit_of("ann") for _ in range(10)}

    def is_seen(seconds: int) -> bool:
        """Whether an override that ends after so long is in force before."""
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        override = {"rule_id": "orders-user", "limit": 99, "until": end.isoformat()}
        status, answer = one.ask("POST", "/users/ann/override", override)
        assert status in {200, 201} or datetime.now(UTC) > end, answer
        while datetime.now(UTC) < end:
            if limits() == {99}:
                return True
        return False

    assert any(map(is_seen, (5, 15, 60))), "the override"  # the first is long enough but on a busy machine
    until(lambda: limits() == {50}, "the end of the override", SECONDS)
    assert other.limit_of("bob") == 3


class Editor(threading.Thread):
    """Changes a rule again and again, and keeps the responses."""

    def __init__(self, service: FleetService) -> None:
        super().__init__(daemon=True)
        self._service, self._end = service, threading.Event()
        self.responses: list[tuple[int, int, Any]] = []

    def run(self) -> None:
        for limit in count(100):
            status, answer = self._service.ask("PUT", "/rules/orders-user", {**ORDERS, "limit": limit})
            self.responses.append((limit, status, answer))
            if self._end.wait(0.6):  # a key may write a hundred times a minute
                return

    def end(self) -> None:
        self._end.set()
        self.join(SECONDS)
        assert not self.is_alive()

    def has(self, status: int) -> bool:
        return any(each == status for _, each, _ in self.responses)


def test_a_database_that_dies_stops_no_decision_and_everything_heals(fleet: Fleet, postgres: PostgresServer) -> None:
    one, other = fleet.all[:2]
    with Clients(one.http_port, ["a", "b"]) as at_one, Clients(other.http_port, ["c"]) as at_other:
        editor = Editor(one)
        editor.start()
        until(lambda: other.limit_of("somebody") >= 100, "an edit", SECONDS)
        postgres.stop(signal.SIGQUIT)
        try:
            until(lambda: editor.has(503), "an edit that fails", SECONDS)
            editor.end()
            until(lambda: one.metric("rules_stale") == other.metric("rules_stale") == 1, "it is noticed", SECONDS)
            until(lambda: b'"rules":"last_good"' in other.get("/readyz")[1], "it is shown", SECONDS)
            for clients in (at_one, at_other):
                clients.until_answered(20)
            without_rules = fleet.start("nothing")
            other.signal(signal.SIGTERM)
            assert other.ended() == 0
            meanwhile = fleet.start().started()
            assert "the rules are the last valid ones" in meanwhile.said
            assert "stays in force" in meanwhile.complained
            assert meanwhile.metric("rules_stale") == 1
            assert meanwhile.limit_of("somebody") in {limit for limit, status, _ in editor.responses if status == 200}
            assert without_rules.ended() == 1
            assert "there are no rules to start with" in without_rules.complained
            assert "Traceback" not in without_rules.complained
        finally:
            postgres.start()
        until(lambda: one.ask("PUT", "/rules/orders-user", {**ORDERS, "limit": 500})[0] == 200, "an edit", SECONDS)
        for service in (one, meanwhile):
            service.comes_to(one.ask("GET", "/nodes")[1]["revision"])
            assert {service.limit_of("somebody") for _ in range(10)} == {500}
            until(lambda service=service: service.metric("rules_stale") == 0, "it is well", SECONDS)  # type: ignore[misc]
        assert one.metric("rules_follow_failures_total") > 0
    assert not at_one.failures
    assert not at_other.failures
    assert {answer.get("degraded") for client in at_one.all for answer in client.answers} == {False}
    refused = [answer for _, status, answer in editor.responses if status != 200]
    assert {answer["status"] for answer in refused} == {503}
    public = {"the database cannot be reached", "keys cannot be looked up: the database cannot be reached"}
    assert {answer["detail"] for answer in refused} <= public, "no text of the driver, and no name of a host"
    kept = {item["body"]["limit"] for item in one.ask("GET", "/rules/orders-user/versions")[1]["items"]}
    assert kept >= {limit for limit, status, _ in editor.responses if status == 200}
    assert one.ask("GET", "/audit/verify")[1]["intact"]
    assert "Traceback" not in one.complained + meanwhile.complained


def test_a_damaged_journal_is_repaired(fleet: Fleet) -> None:
    one = fleet.all[0]
    (journal,) = (fleet.folder / "data").glob("*/rules.jsonl")
    with journal.open("ab") as file:
        file.write(b"rubbish\n")
    until(lambda: b"rubbish" not in journal.read_bytes(), "it is written anew", SECONDS)
    assert one.ask("PUT", "/rules/orders-user", {**ORDERS, "limit": 11})[0] == 200
    one.comes_to(one.ask("GET", "/nodes")[1]["revision"])
    assert {one.limit_of("somebody") for _ in range(10)} == {11}


def test_a_port_in_use_is_reported(fleet: Fleet) -> None:
    one = fleet.all[0]
    port = one._port(r"admin +http://\S+:(\d+)")
    found = fleet.start("data", "--admin-port", str(port))
    assert found.ended() == 2
    assert f"port {port}" in found.complained
    assert "admin" in found.complained


def test_signals_reload_and_end_both_planes(fleet: Fleet) -> None:
    one = fleet.all[0]
    loads = one.metric("rules_loads_total")
    one.signal(signal.SIGHUP)
    until(lambda: one.metric("rules_loads_total") >= loads + 2, "both workers load", SECONDS)
    connection = HTTPConnection("127.0.0.1", one._port(r"admin +http://\S+:(\d+)"), timeout=SECONDS)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()  # and it stays open: it is no reason to wait
    one.signal(signal.SIGTERM)
    assert one.ended() == 0
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        one.ask("GET", "/rules")


def test_limits_of_a_key_hold_for_all_nodes_together(fleet: Fleet) -> None:
    nodes = [fleet.start("data", "--admin-reads", "3/day") for _ in range(2)]
    for node in nodes:
        node.started()
    assert [node.ask("GET", "/tiers")[0] for node in (*nodes, *nodes)] == [200, 200, 200, 429]
