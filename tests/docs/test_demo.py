"""``make demo``: a fleet with its traffic and events, seen through the REST API."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.servers import until

ROOT = Path(__file__).parents[2]
SECONDS = 300
"""Timeout of tests."""
WITHOUT_REDIS = {"PATH": "/nowhere"}
COMMAND = [sys.executable, "-W", "error", "-m", "examples.demo", "--any-port"]


class Running:
    """A running demo."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self._folder, self._process, self._output = folder, process, output

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def known(self) -> dict[str, Any]:
        file = self._folder / "demo.json"
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        assert self._process.poll() is None, self.said
        return known

    def ask(self, path: str) -> Any:
        known = self.known
        headers = {"authorization": f"Bearer {known['keys']['viewer']}"}
        return httpx.get(f"{known['console']}api/v1/{path}", headers=headers, timeout=SECONDS).raise_for_status().json()

    def count(self, metric: str) -> float:
        """Return the sum of a metric over all nodes."""
        total = 0.0
        for node in self.known["nodes"]:
            text = httpx.get(f"{node['http']}/metrics", timeout=SECONDS).raise_for_status().text
            total += sum(map(float, re.findall(rf"^{metric}.* (\S+)$", text, re.MULTILINE)))
        return total

    def check(self) -> Any:
        url = f"{self.known['nodes'][0]['http']}/api/v1/rate-limit/check"
        body = {"principal": {"user": "a.guest"}, "endpoint": "/api/v1/orders", "method": "GET"}
        return httpx.post(url, json=body, timeout=SECONDS).raise_for_status().json()


@contextmanager
def demo(folder: Path, *options: str, **environment: str) -> Iterator[Running]:
    output = folder.with_suffix(".output")
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "--folder", str(folder), *options],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    try:
        running = Running(folder, process, output)
        until(lambda: running.known.get("ready"), "the demo is ready", SECONDS)
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
    assert process.returncode == 0, running.said
    assert running.said.endswith("\nending ...\nended\n")
    assert processes_in(folder) == []


def processes_in(folder: Path) -> list[str]:
    """Return the command lines that contain a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_all_events_can_be_seen(tmp_path: Path) -> None:
    with demo(tmp_path / "demo", "--speed", "10", "--days", "0") as running:
        until(lambda: f"ready {running.known['console']}\n" in running.said, "it says that it is ready")
        assert (tmp_path / "demo" / "demo.json").stat().st_mode & 0o777 == 0o600
        until(lambda: len(running.ask("nodes")["items"]) == 2, "both nodes are listed")
        until(lambda: "so Ada has undone revision" in running.said, "the bad publish is undone", SECONDS)

        people = {item["actor"].partition(" ")[0] for item in running.ask("revisions?limit=100")["items"]}
        assert people >= {"Ada", "Grace", "Linus", "Mei"}
        limits = [item["body"]["limit"] for item in running.ask("rules/orders-user/versions")["items"]]
        assert limits[-3:] == [600, 6, 600]
        until(lambda: running.ask("refusals?ip=203.0.113.66&rule_id=login-address")["total"], "the abuser is refused")
        until(lambda: running.ask("refusals?rule_id=orders-user")["total"], "the bad publish refuses customers")
        assert running.count(r"headgate_rule_decisions_total\{.*shadow_denied") > 0
        assert running.count(r"headgate_rule_degraded_total\{") > 0
        assert "decisions were made without it" in running.said
        until(lambda: not running.check()["degraded"], "Redis decides again")


def test_it_runs_without_redis_and_continues_with_kept_data(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder, "--days", "1", **WITHOUT_REDIS) as running:
        assert "redis-server is not installed (apt-get install redis-server)" in running.said
        refused = running.ask("usage?rule_id=search-address&outcome=shadow_denied&step=hour")
        assert refused["total"] >= 24
        week = running.ask("rules/orders-user/what-if?limit=6")
        assert week["units"] > week["refused"] > 0
        keys = running.known["keys"]
    with demo(folder, "--keep", **WITHOUT_REDIS) as running:
        assert running.known["keys"] == keys
        assert "writing the history" not in running.said
        assert running.ask("rules")["total"] == 8


def test_it_ends_in_time_and_refuses_other_folders(tmp_path: Path) -> None:
    def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        command, environment = [*COMMAND, "--folder", str(folder), *options], os.environ | WITHOUT_REDIS
        pipes: Any = {"capture_output": True, "text": True, "timeout": SECONDS}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False, **pipes)

    for _ in range(2):
        done = run(tmp_path / "demo", "--seconds", "0.1", "--days", "0")
        assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "mine").touch()
    done = run(tmp_path)
    assert done.returncode == 1
    assert "has files that are not the demo's: choose another --folder" in done.stderr
    assert (tmp_path / "mine").exists()
