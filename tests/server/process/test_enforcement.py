"""The emergency switch: all workers of a running service refuse nothing, and then refuse again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from tests.server.process.service import SECONDS, Service, service
from tests.servers import RedisServer, until

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, limit: 2, window: 1h}
deny: [{user: mallory}]
"""
QUESTION = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}
TREE = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]\n"


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


def answers(found: Service, user: str = "ada") -> set[bool]:
    """Return the decisions on many connections, so of every worker."""
    return {found.check(user)["allowed"] for _ in range(20)}


def shown(found: Service) -> tuple[dict[str, str], float]:
    metrics = found.get("/metrics")[1].decode()
    value = re.search(r"^headgate_enforcement (\S+)$", metrics, re.MULTILINE)
    assert value
    ready = json.loads(found.get("/readyz")[1])
    del ready["nodes"]
    return ready, float(value[1])


def test_all_workers_follow_the_switch_even_later_ones(
    redis: RedisServer, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = redis.address.replace("://", "://default:not-to-be-listed@")
    with service("--workers", "2", "--store", store, "--rules", rules) as found:
        assert_services_are_distinguished(found.started(), rules, capsys)
        until(lambda: answers(found) == {False}, "the limit is used up", SECONDS)
        until(lambda: shown(found) == ({"status": "ready"}, 1), "it is shown", SECONDS)

        assert main(["enforcement", "off", "--pid", str(found.process.pid)]) == 0
        until(lambda: answers(found) == {True}, "all workers let pass", SECONDS)
        until(lambda: shown(found) == ({"status": "ready", "enforcement": "off"}, 0), "it is shown", SECONDS)
        assert found.complained.count("enforcement is off") == 1
        (reported,) = found.check("ada")["shadow"]
        assert (reported["rule_id"], reported["allowed"]) == ("orders", False)
        assert answers(found, "mallory") == {False}

        before = found.workers()
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        until(lambda: len(found.workers() - before) == 2, "they are replaced", SECONDS)
        until(lambda: found.get("/healthz")[0] == 200, "they serve", SECONDS)
        assert answers(found) == {True}

        assert main(["enforcement", "on", "--pid", str(found.process.pid)]) == 0
        until(lambda: answers(found) == {False}, "all workers refuse again", SECONDS)
        until(lambda: shown(found) == ({"status": "ready"}, 1), "it is shown", SECONDS)
        assert found.complained.count("enforcement is on") == 1

        for worker in found.workers():  # those that have to wait for their turn do as was said last
            os.kill(worker, signal.SIGSTOP)
        for number, text in ((signal.SIGUSR1, "enforcement is off"), (signal.SIGUSR2, "enforcement is on")):
            found.signal(number)
            until(lambda: found.complained.count(text) == 2, "it is switched", SECONDS)  # noqa: B023
        for worker in found.workers():
            os.kill(worker, signal.SIGCONT)
        until(lambda: answers(found) == {False}, "all workers refuse", SECONDS)


def test_a_service_may_start_with_it_off_and_files_of_envoy_and_changed_rules_are_switched_too(
    rules: str, tmp_path: Path
) -> None:
    folder = tmp_path / "ratelimit"
    folder.mkdir()
    (folder / "edge.yaml").write_text(TREE)
    with service("--rules", rules, "--envoy-config", str(folder), "--enforcement", "off") as found:
        assert answers(found.started()) == {True}
        assert "enforcement is off" in found.complained
        found.signal(signal.SIGUSR2)

        def over() -> bool:
            return found.post("/json", QUESTION)[0] == 429

        until(over, "the limit is used up", SECONDS)
        found.signal(signal.SIGUSR1)
        until(lambda: not over(), "it is off", SECONDS)
        Path(rules).write_text(RULES.replace("limit: 2", "limit: 1"))
        until(lambda: "version 2 of the rules" in found.complained, "the rules change", SECONDS)
        assert answers(found) == {True}
        found.signal(signal.SIGUSR2)
        until(over, "it is on", SECONDS)


def test_no_other_process_gets_the_signal(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be the end of one that does not know the signal."""
    for pid in (1, 0, -1, 999_999_999):
        assert main(["enforcement", "off", "--pid", str(pid)]) == 2
        what = "is not a service" if pid == 1 else "does not exist"
        assert f"process {pid} {what}. Select a service with --pid PID" in capsys.readouterr().err


def assert_services_are_distinguished(found: Service, rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Services are listed with their options; workers are not listed."""
    worker = min(found.workers())
    assert main(["enforcement", "off", "--pid", str(worker)]) == 2
    reported = capsys.readouterr().err
    assert f"process {worker} is a worker of process {found.process.pid}. Select a service" in reported
    (line,) = [line for line in reported.splitlines() if f" {found.process.pid}: " in line]
    assert f"--rules {rules}" in line
    assert "not-to-be-listed" not in reported
    assert f" {worker}: " not in reported


def test_a_program_with_our_command_as_an_argument_is_not_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["timeout", "60", sys.executable, "-c", "import time; time.sleep(60)", "headgate", "serve"]
    with subprocess.Popen(command) as wrapper:
        try:
            assert main(["enforcement", "off", "--pid", str(wrapper.pid)]) == 2
            assert f"process {wrapper.pid} is not a service" in capsys.readouterr().err
        finally:
            wrapper.terminate()
