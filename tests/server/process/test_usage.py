"""Decisions and refusals of all workers and nodes are in the database, including those of killed workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.admin import usage
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.cli import admin_client
from headgate.cli.__main__ import main
from headgate.observe.logs import Principals
from headgate.observe.refusals import EACH
from tests.server.process.service import SECONDS, Service, service
from tests.servers import redis_server, until

KEY = {"HEADGATE_ADMIN_KEY": "hg_" + "k" * 40}
RULES = {
    "version": 1,
    "rules": [
        {"id": "orders", "limit": 10, "window": "30d", "algorithm": "fixed_window"},
        {"id": "seen", "limit": 5, "window": "30d", "algorithm": "fixed_window", "shadow": True},
    ],
}


def prepared(folder: Path) -> str:
    url = f"sqlite:///{folder}/headgate.db"

    async def work() -> None:
        database = await Database.open(url)
        await Catalog(database).apply(RULES, Actor("me"))
        await database.close()

    asyncio.run(work())
    return url


def totals(url: str) -> dict[tuple[str, str], int]:
    async def work() -> list[dict[str, Any]]:
        database = await Database.open(url)
        async with database.reading() as connection:
            rows, _ = await usage.page(connection, {}, "minute", 0, 1000)
        await database.close()
        return rows

    counts = Counter[tuple[str, str]]()
    for row in asyncio.run(work()):
        counts[row["rule_id"], row["outcome"]] += row["count"]
    return counts


def end(running: Service) -> None:
    running.process.send_signal(signal.SIGTERM)
    assert running.ended() == 0, running.complained


def test_nothing_that_was_decided_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = prepared(tmp_path)
    options = "--database", url, "--data-dir", str(tmp_path)
    with redis_server() as redis, service("--workers", "2", "--store", redis.address, *options, environment=KEY) as two:
        two.started()
        ask = [two.check("ada")["allowed"] for _ in range(8)]
        killed = min(two.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in two.workers() and len(two.workers()) == 2, "another takes its place", SECONDS)
        ask += [two.check("ada")["allowed"] for _ in range(4)]
        assert ask == [True] * 10 + [False] * 2
        end(two)
    first = {("orders", "allowed"): 10, ("orders", "denied"): 2, ("seen", "shadow_allowed"): 5}
    assert totals(url) == {**first, ("seen", "shadow_denied"): 7}
    with service(*options, environment=KEY) as one:
        one.started()
        monkeypatch.setenv("HEADGATE_ADMIN_URL", f"http://127.0.0.1:{one.admin_port}")
        monkeypatch.setenv(*next(iter(KEY.items())))
        assert main(["usage", "orders", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert sum(each["count"] for each in shown if each["outcome"] == "denied") == 2
        assert main(["usage", "--step", "minute"]) == 0
        table = capsys.readouterr().out.splitlines()
        assert table[0].split("  ")[0] == "SINCE"
        assert {line.split()[1] for line in table[1:]} == {"orders", "seen"}
        monkeypatch.setattr(admin_client, "_PAGE", 1)
        assert main(["rules", "get", "--json"]) == 0
        assert [rule["id"] for rule in json.loads(capsys.readouterr().out)] == ["orders", "seen"]
        assert main(["rules", "what-if", "orders", "--limit", "3", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert 4 <= found["units"] <= 12  # what the worker that was killed had not handed on is lost
        assert (found["refused"], found["touched"], found["principals"]) == (found["units"] - 3, 1, 1)
        assert main(["rules", "what-if", "orders", "--limit", "3", "--window", "30d", "--in-force", "10"]) == 0
        entry = capsys.readouterr().out.splitlines()
        units = found["units"]
        refused = f"3 instead of 10 would have refused {units - 3} of {units} units"
        assert entry[0] == f"{refused}, in 1 of 1 windows of single principals"
        assert entry[1:] == ["assumption: clients send the same requests, even after refusals"]
        assert main(["rules", "what-if", "orders", "--limit", "3", "--window", "often"]) == 2
        assert "--window must be a duration" in capsys.readouterr().err
        assert one.check("bob")["allowed"]
        end(one)
    assert totals(url)["orders", "allowed"] == 11


Asking = Callable[..., list[dict[str, Any]]]
FLOOD = 200
DESCRIPTORS = """
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 1}
"""


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asking:
    monkeypatch.setenv(*next(iter(KEY.items())))

    def ask(running: Service, *words: str) -> list[dict[str, Any]]:
        monkeypatch.setenv("HEADGATE_ADMIN_URL", f"http://127.0.0.1:{running.admin_port}")
        assert main(["refusals", *words, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return ask


def total(rows: list[dict[str, Any]]) -> int:
    return sum(row["count"] for row in rows)


def test_a_customer_s_refusals_by_two_workers_are_found_beside_a_flood(
    tmp_path: Path, asking: Asking, capsys: pytest.CaptureFixture[str]
) -> None:
    url = prepared(tmp_path)
    options = "--database", url, "--data-dir", str(tmp_path)
    with redis_server() as redis, service("--workers", "2", "--store", redis.address, *options, environment=KEY) as two:
        two.started()
        for _ in range(12):
            two.check("42")
        for _ in range(10 + FLOOD):
            two.check("flood")
        until(lambda: total(asking(two, "--user", "42")) == 2, "the customer's refusals are there", SECONDS)
        until(lambda: total(asking(two, "--user", "flood")) == FLOOD, "every refusal is counted", SECONDS)
        (first, *_) = found = asking(two, "--user", "42", "--rule", "orders", "--since", "1h")
        shown = Principals().shown("42")
        entry: dict[str, Any] = {
            "rule_id": "orders",
            "principal": shown,
            "user": shown,
            "apikey": "",
            "ip": "",
            "reason": "",
        }
        entry |= {"endpoint": "**", "method": "POST"}  # the path may name a client, as the principal would
        entry |= {"api": "check", "used": 10, "limit": 10}
        assert first == entry | {name: first[name] for name in ("at", "count", "retry_after")}
        assert first["retry_after"] > 0
        assert asking(two, "--principal", first["principal"]) == found
        assert asking(two, "--user", "42", "--rule", "seen") == []
        assert len(asking(two, "--user", "flood", "--limit", "1000")) < FLOOD
        assert total(asking(two, "--user", "flood", "--hours")) == FLOOD
        assert main(["refusals", "--user", "42"]) == 0
        table = capsys.readouterr().out.splitlines()
        assert "orders" in table[1]
        assert "10 of 10" in table[1]
        assert main(["refusals", "--user", "42", "--since", "often"]) == 2
        assert "--since" in capsys.readouterr().err


def test_without_a_database_a_node_shows_its_own_refusals(tmp_path: Path, asking: Asking) -> None:
    rules, trees = tmp_path / "rules.yaml", tmp_path / "descriptors"
    rules.write_text("version: 1\ndeny: [{user: eve}]\nrules: [{id: orders, limit: 1, window: 1d}]\n")
    trees.mkdir()
    (trees / "shop.yaml").write_text(DESCRIPTORS)
    options = "--rules", str(rules), "--envoy-config", str(trees), "--log-principals", "plain"
    with service(*options, environment=KEY) as alone:
        alone.started()
        for user in ("eve", *["42"] * 6):
            alone.check(user, "/api/v1/orders/17?card=4111")
        entries = [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]
        for expected in (200, 429):
            assert alone.post("/json", {"domain": "shop", "descriptors": entries})[0] == expected
        found = asking(alone, "--user", "42")
        assert total(found) == 5
        assert len(found) >= EACH
        assert {(row["user"], row["endpoint"]) for row in found} == {("42", "/api/v1/orders/17")}
        assert [(row["rule_id"], row["reason"]) for row in asking(alone, "--user", "eve")] == [("", "deny list")]
        (by_address,) = asking(alone, "--ip", "192.0.2.7")
        assert (by_address["rule_id"], by_address["api"]) == ("shop.remote_address", "rls")
        assert (by_address["used"], by_address["limit"]) == (1, 1)
        assert asking(alone, "--principal", "remote_address=192.0.2.7") == [by_address]
