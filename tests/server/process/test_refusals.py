"""The last refusals can be asked for: of all workers and nodes, by user, key or address; one client fills no table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.__main__ import main
from headgate.observe.logs import Principals
from headgate.observe.refusals import EACH
from tests.postgres import postgres_server
from tests.server.process.service import SECONDS, Service, service
from tests.server.process.test_usage import KEY, prepared
from tests.servers import redis_server, until

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
    """Return what asks a service, as an operator does."""
    monkeypatch.setenv(*next(iter(KEY.items())))

    def asked(running: Service, *words: str) -> list[dict[str, Any]]:
        port = re.search(r"admin +http://\S+:(\d+)", running.said)
        assert port, running.said
        monkeypatch.setenv("HEADGATE_ADMIN_URL", f"http://127.0.0.1:{port[1]}")
        assert main(["refusals", *words, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return asked


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
        assert first | {"at": "", "count": 1} == {
            "at": "",
            "rule_id": "orders",
            "principal": Principals().shown("42"),
            "user": Principals().shown("42"),
            "apikey": "",
            "ip": "",
            "endpoint": "**",  # the path may name somebody, as the principal would
            "method": "POST",
            "api": "check",
            "used": 10,
            "limit": 10,
            "retry_after": first["retry_after"],
            "reason": "",
            "count": 1,
        }
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


def test_nodes_on_one_postgresql_answer_for_each_other_also_after_it_was_away(asking: Asking) -> None:
    with postgres_server() as postgres:
        url = postgres.database()
        with service("--database", url, environment=KEY) as one, service("--database", url, environment=KEY) as other:
            for node in (one, other):
                node.started()
            apply_rule(one, "limited", 1)
            until(lambda: not one.check("42")["allowed"], "the rule is in force", SECONDS)
            until(lambda: not other.check("43")["allowed"], "the rule is in force", SECONDS)
            until(lambda: total(asking(other, "--user", "42")) == 1, "of the first node", SECONDS)
            until(lambda: total(asking(one, "--user", "43")) == 1, "of the second node", SECONDS)
            postgres.stop()
            assert not one.check("42")["allowed"]
            until(lambda: "refusals wait for the database" in one.complained, "it says so", SECONDS)
            postgres.start()
            until(lambda: settled(asking, other) == 2, "what waited is written", SECONDS)


def settled(asking: Asking, node: Service) -> int:
    try:
        return total(asking(node, "--user", "42"))
    except AssertionError:  # the database is not there yet
        return 0


def apply_rule(node: Service, name: str, limit: int) -> None:
    port = re.search(r"admin +http://\S+:(\d+)", node.said)
    assert port
    connection = HTTPConnection("127.0.0.1", int(port[1]), timeout=SECONDS)
    body = json.dumps({"id": name, "limit": limit, "window": "1d", "algorithm": "fixed_window"})
    headers = {"authorization": f"Bearer {KEY['HEADGATE_ADMIN_KEY']}", "content-type": "application/json"}
    connection.request("POST", "/api/v1/rules", body, headers)
    assert connection.getresponse().status == 201
    connection.close()


def test_without_a_database_a_node_answers_for_itself_lists_and_descriptors_included(
    tmp_path: Path, asking: Asking
) -> None:
    rules, trees = tmp_path / "rules.yaml", tmp_path / "descriptors"
    rules.write_text("version: 1\ndeny: [{user: eve}]\nrules: [{id: orders, limit: 1, window: 1d}]\n")
    trees.mkdir()
    (trees / "shop.yaml").write_text(DESCRIPTORS)
    options = "--rules", str(rules), "--envoy-config", str(trees), "--log-principals", "plain"
    with service(*options, environment=KEY) as alone:
        alone.started()
        for user in ("eve", *["42"] * 6):
            alone.check(user, "/api/v1/orders/17?card=4111")
        connection = HTTPConnection("127.0.0.1", alone.http_port, timeout=SECONDS)
        entries = [{"entries": [{"key": "remote_address", "value": "192.0.2.7"}]}]
        for expected in (200, 429):
            connection.request("POST", "/json", json.dumps({"domain": "shop", "descriptors": entries}))
            response = connection.getresponse()
            assert response.status == expected, response.read()
            response.read()
        connection.close()
        found = asking(alone, "--user", "42")
        assert total(found) == 5
        assert len(found) >= EACH
        assert {(row["user"], row["endpoint"]) for row in found} == {("42", "/api/v1/orders/17")}
        assert [(row["rule_id"], row["reason"]) for row in asking(alone, "--user", "eve")] == [("", "deny list")]
        (by_address,) = asking(alone, "--ip", "192.0.2.7")
        assert (by_address["rule_id"], by_address["api"]) == ("shop.remote_address", "rls")
        assert (by_address["used"], by_address["limit"]) == (1, 1)
        assert asking(alone, "--principal", "remote_address=192.0.2.7") == [by_address]
