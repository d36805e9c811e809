"""Rules and caller keys change without a restart; what is wrong with them changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headgate.web.apikey import digest
from tests.observe.readings import value
from tests.server.process.service import SECONDS, Service, service, written
from tests.servers import RedisServer, until

RULES = "version: 1\nrules:\n  - {{id: orders, dimension: user, limit: {}, window: 1h}}\n"


def complaining(found: Service) -> list[str]:
    """Which workers say that the rules in force stay."""
    lines = [line for line in found.complained.splitlines() if "the rules in force stay" in line]
    return sorted(line.rpartition(" ")[2] for line in lines)


def test_changed_rules_are_in_force_in_all_workers_and_wrong_ones_are_not(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    written(rules, RULES.format(100))
    with service("--workers", "2", "--store", own_redis.address, "--rules", str(rules)) as found:
        found.started()
        assert found.check("u1")["limit"] == 100
        written(rules, RULES.format(200))
        until(lambda: all(found.check("u1")["limit"] == 200 for _ in range(20)), "all have the new rules", SECONDS)
        written(rules, "version: 1\nrules: [{id: x}]\n")
        until(lambda: complaining(found) == ["worker=0", "worker=1"], "both complain, and say who they are", SECONDS)
        assert all(found.check("u1")["limit"] == 200 for _ in range(20))
        written(rules, RULES.format(300))
        found.signal(signal.SIGHUP)
        until(lambda: all(found.check("u1")["limit"] == 300 for _ in range(20)), "all have the new rules", SECONDS)


@pytest.mark.parametrize("told", [False, True])
def test_caller_keys_are_looked_at_again_also_when_told(tmp_path: Path, *, told: bool) -> None:
    keys = tmp_path / "callers"
    written(keys, f"edge {digest('first')}\n")
    with service("--caller-keys", str(keys)) as found:
        found.started()
        assert found.check("u1")["status"] == 401
        assert found.check("u1", authorization="Bearer first")["allowed"]
        assert found.get("/healthz")[0] == found.get("/readyz")[0] == found.get("/metrics")[0] == 200
        written(keys, f"edge {digest('second')}\n")
        if told:
            found.signal(signal.SIGHUP)
        until(lambda: "allowed" in found.check("u1", **{"x-api-key": "second"}), "the new key counts", SECONDS)
        assert found.check("u1", authorization="Bearer first")["status"] == 401
        written(keys, "edge\n")
        if told:
            found.signal(signal.SIGHUP)
        until(lambda: "the caller keys in force stay" in found.complained, "it complains", SECONDS)
        assert found.check("u1", authorization="Bearer second")["allowed"]
        until(
            lambda: value(found.get("/metrics")[1], "headgate_config_broken", config="caller_keys") == 1,
            "it is shown",
            SECONDS,
        )

        def counts_loads() -> bool:
            loads = value(found.get("/metrics")[1], "headgate_config_loads_total", config="caller_keys")
            told_of = found.complained.count("of the caller keys is in force")  # once more if the signal comes late
            return told_of > 0 and loads == 1 + told_of

        until(counts_loads, "the good ones are counted, and no other", SECONDS)
        assert value(found.get("/metrics")[1], "headgate_config_broken", config="rules") == 0
