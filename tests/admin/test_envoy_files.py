"""Rules in a database and files of Envoy in one service: each decides its own, and what both did is usage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec

from tests.admin.conftest import PATIENCE
from tests.server.process.service import SECONDS, Service, altered, service
from tests.servers import until

KEY = "hg_an-operators-own-key-of-some-length"
LIMITS = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: %d}}]\n"


def limited(running: Service, domain: str, user: str) -> int:
    """Ask as Envoy does; returns the status."""
    entries = [{"key": "user", "value": user}]
    return running.post("/json", {"domain": domain, "descriptors": [{"entries": entries}]})[0]


def test_rules_of_a_database_and_files_of_envoy_go_together(tmp_path: Path) -> None:
    files, database = tmp_path / "envoy", tmp_path / "headgate.db"
    files.mkdir()
    (files / "edge.yaml").write_text(LIMITS % 2)
    options = ("--database", f"sqlite:///{database}", "--data-dir", str(tmp_path / "data"))
    how: dict[str, Any] = {"environment": {"HEADGATE_ADMIN_KEY": KEY}, "program": altered(PATIENCE)}
    with service(*options, "--envoy-config", str(files), **how) as running:
        running.started()
        rule = {"id": "mine", "dimension": "user", "window": "1h"}
        assert running.admin(KEY, "PUT", "/rules/mine", {**rule, "limit": 3})[0] == 201

        def limit() -> int:
            request = {"principal": {"user": "ann"}, "consume": False}
            return msgspec.json.decode(running.post("/api/v1/rate-limit/check", request)[1])["limit"] or 0

        until(lambda: limit() == 3, "the rules are in force", SECONDS)
        assert [limited(running, "edge", "ann") for _ in range(3)] == [200, 200, 429]  # by the file
        assert [limited(running, "other", "ann") for _ in range(4)] == [200, 200, 200, 429]  # by the rule
        assert running.admin(KEY, "PUT", "/rules/mine", {**rule, "limit": 5})[0] == 200
        until(lambda: limit() == 5, "the rule is changed", SECONDS)
        (files / "edge.yaml").write_text(LIMITS % 4)
        until(lambda: limited(running, "edge", "bob") == 429, "bob is limited", SECONDS)
        until(lambda: limited(running, "edge", "ann") == 200, "the file is changed", SECONDS)
        running.signal(SIGTERM)
        assert running.ended() == 0
        assert "Traceback" not in running.complained
    with closing(sqlite3.connect(database)) as opened:
        counted = dict(opened.execute("SELECT rule_id || ' ' || outcome, sum(count) FROM usage_minutes GROUP BY 1"))
    assert counted["mine allowed"] == 3
    assert counted["mine denied"] == 1
    assert counted["edge.user allowed"] >= 3
    assert counted["edge.user denied"] >= 1
