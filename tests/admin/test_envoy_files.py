"""Rules in a database and files of Envoy in one service: each decides its own, and what both did is usage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGTERM
from typing import Any

import msgspec

from tests.admin.conftest import PATIENCE
from tests.server.process.service import SECONDS, Service, altered, service
from tests.servers import until

KEY = "hg_an-operators-own-key-of-some-length"
LIMITS = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: %d}}]\n"
RULES = "version: 1\nrules:\n  - {id: mine, dimension: user, limit: %d, window: 1h}\n"


def asked(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    sent = body if body is None or isinstance(body, str) else msgspec.json.encode(body)
    try:
        connection.request(method, path, sent, {"authorization": f"Bearer {KEY}"})
        response = connection.getresponse()
        content = response.read()
        return response.status, msgspec.json.decode(content) if content else None
    finally:
        connection.close()


def limited(running: Service, domain: str, user: str) -> int:
    """Ask as Envoy does; returns the status."""
    entries = [{"key": "user", "value": user}]
    return asked(running.http_port, "POST", "/json", {"domain": domain, "descriptors": [{"entries": entries}]})[0]


def test_rules_of_a_database_and_files_of_envoy_go_together(tmp_path: Path) -> None:
    files, database = tmp_path / "envoy", tmp_path / "headgate.db"
    files.mkdir()
    (files / "edge.yaml").write_text(LIMITS % 2)
    options = ("--database", f"sqlite:///{database}", "--data-dir", str(tmp_path / "data"))
    how: dict[str, Any] = {"environment": {"HEADGATE_ADMIN_KEY": KEY}, "program": altered(PATIENCE)}
    with service(*options, "--envoy-config", str(files), **how) as running:
        running.started()
        assert asked(running.admin_port, "POST", "/api/v1/apply", RULES % 3)[0] == 200

        def limit() -> int:
            question = {"principal": {"user": "ann"}, "consume": False}
            answer = asked(running.http_port, "POST", "/api/v1/rate-limit/check", question)[1]
            return answer["limit"] or 0

        until(lambda: limit() == 3, "the rules are in force", SECONDS)
        assert [limited(running, "edge", "ann") for _ in range(3)] == [200, 200, 429]  # by the file
        assert [limited(running, "other", "ann") for _ in range(4)] == [200, 200, 200, 429]  # by the rule
        assert asked(running.admin_port, "PUT", "/api/v1/rules/mine", {"limit": 5, "window": "1h"})[0] == 200
        until(lambda: limit() == 5, "the rule is changed", SECONDS)
        (files / "edge.yaml").write_text(LIMITS % 4)
        until(lambda: limited(running, "edge", "bob") == 429, "bob has asked often enough", SECONDS)
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
