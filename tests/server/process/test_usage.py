"""What a running service decides is in its database: of all workers, also of those that were killed, to the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from headgate.admin import usage
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.cli import admin_client
from headgate.cli.__main__ import main
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
    """Return what is in the database, over all minutes."""

    async def work() -> list[dict[str, Any]]:
        database = await Database.open(url)
        async with database.reading() as connection:
            rows, _ = await usage.page(connection, {}, "minute", 0, 1000)
        await database.close()
        return rows

    found: dict[tuple[str, str], int] = {}
    for row in asyncio.run(work()):
        key = row["rule_id"], row["outcome"]
        found[key] = found.get(key, 0) + row["count"]
    return found


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
        asked = [two.check("ada")["allowed"] for _ in range(8)]
        killed = min(two.workers())
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in two.workers() and len(two.workers()) == 2, "another takes its place", SECONDS)
        asked += [two.check("ada")["allowed"] for _ in range(4)]
        assert asked == [True] * 10 + [False] * 2
        end(two)
    first = {("orders", "allowed"): 10, ("orders", "denied"): 2, ("seen", "shadow_allowed"): 5}
    assert totals(url) == {**first, ("seen", "shadow_denied"): 7}
    with service(*options, environment=KEY) as one:
        one.started()
        port = re.search(r"admin +http://\S+:(\d+)", one.said)
        assert port, one.said
        monkeypatch.setenv("HEADGATE_ADMIN_URL", f"http://127.0.0.1:{port[1]}")
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
        told = capsys.readouterr().out.splitlines()
        units = found["units"]
        refused = f"3 instead of 10 would have refused {units - 3} of {units} units"
        assert told[0] == f"{refused}, in 1 of 1 windows of single principals"
        assert told[1:] == ["assumption: clients send the same requests, even after refusals"]
        assert main(["rules", "what-if", "orders", "--limit", "3", "--window", "often"]) == 2
        assert "--window must be a duration" in capsys.readouterr().err
        assert one.check("bob")["allowed"]
        end(one)
    assert totals(url)["orders", "allowed"] == 11
