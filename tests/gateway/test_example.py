"""examples/microservices: what it prints to try goes as it says, for each kind of caller, and it ends cleanly."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.gateway.gateways import SECONDS, Reply
from tests.servers import _LAUNCHER, RedisServer, free_port, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "microservices"


class Example:
    """The example in a process, from a copy of its folder."""

    def __init__(self, folder: Path, ports: list[int], *options: str, store: str = "") -> None:
        self.folder, self.ports = folder / "microservices", ports
        if not self.folder.exists():
            shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
            rules = self.folder / "rules.yaml"  # in which no minute ends while a test runs
            rules.write_text(rules.read_text().replace("/minute", "/hour"))
            gateway = self.folder / "gateway.yaml"  # a machine may be busier than a laptop
            gateway.write_text(gateway.read_text().replace("{timeout: 5s}", "{timeout: 10s}"))
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-W", "error", str(self.folder), "--ports", *map(str, ports), *options]
        if protector := shutil.which("setpriv"):
            command = [protector, "--pdeathsig", "TERM", *command]
        environment = {**os.environ, "HEADGATE_STORE": store}
        with self.out.open("wb") as said, self.err.open("wb") as complained:
            self.process: subprocess.Popen[bytes] = _LAUNCHER.submit(
                subprocess.Popen, command, stdout=said, stderr=complained, env=environment
            ).result()

    @property
    def said(self) -> str:
        return self.out.read_text()

    def serves(self) -> bool:
        until(lambda: "Ctrl-C" in self.said or self.process.poll() is not None, "it says what to try", 2 * SECONDS)
        return self.process.poll() is None

    def tried(self, about: str) -> list[str]:
        """Run what is printed about a caller, line by line, and return what each prints."""
        (token,) = re.findall(r"^  (TOKEN=\S+)$", self.said, re.MULTILINE)
        (part,) = [each for each in self.said.split("\n\n") if each.startswith(about)]
        lines = re.findall(r"^  ((?:curl|for) .*)$", part, re.MULTILINE)
        assert lines, part
        return [run(f"{token}; {line}") for line in lines]

    def get(self, path: str, *, source: str = "127.0.0.1", **headers: str) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.ports[0], timeout=SECONDS, source_address=(source, 0))
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return Reply(response.status, {name.lower(): text for name, text in response.getheaders()}, response.read())
        finally:
            connection.close()

    def processes(self) -> set[int]:
        """It, and all that are under it."""
        found, new = set[int](), {self.process.pid}
        while new:
            found |= new
            new = {
                child for pid in new for file in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(file)
            }
            new -= found
        return found


def _read(children: Path) -> list[int]:
    """The processes that a thread has started; none if it has ended meanwhile."""
    try:
        return [int(pid) for pid in children.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def run(line: str) -> str:
    ended = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, timeout=SECONDS, check=True)
    return ended.stdout


def reply(said: str) -> Reply:
    """What curl -i has printed."""
    head, _, body = said.replace("\r", "").partition("\n\n")
    status, *fields = head.splitlines()
    headers = dict(field.lower().split(": ", 1) for field in fields)
    return Reply(int(status.split()[1]), headers, body.encode())


@contextmanager
def example(*options: str, store: str = "") -> Iterator[Example]:
    with TemporaryDirectory(prefix="headgate-examples-") as folder:
        found = Example(Path(folder), [free_port() for _ in range(4)], *options, store=store)
        try:
            assert found.serves(), found.err.read_text()
            yield found
        finally:
            found.process.terminate()
            found.process.wait(SECONDS)
        assert found.process.returncode == 0
        assert "Traceback" not in found.err.read_text()


@pytest.fixture(scope="module")
def running() -> Iterator[Example]:
    with example() as found:
        assert "counted in memory" in found.said
        yield found


def test_anybody_may_search_and_pays_for_what_is_found(running: Example) -> None:
    first, loop = running.tried("Anybody may search")
    shown = reply(first)
    assert shown.status == 200
    assert shown.headers["x-ratelimit-limit"] == "30"
    assert "x-cost" not in shown.headers
    assert (shown.json["service"], shown.json["caller"], len(shown.json["found"])) == ("search", "anybody", 5)
    assert re.fullmatch(r"(200 ){5,}(429 )*\n", loop), "five more, and one for each that is not counted yet"
    until(lambda: running.get("/search?q=tea").status == 429, "all of it is counted", SECONDS)


def test_six_searches_of_five_rows_are_thirty(running: Example) -> None:
    """From another address, which has limits of its own; a search that finds nothing costs nothing."""

    def remaining() -> str:
        return running.get("/search?q=coffee", source="127.0.0.2").headers["x-ratelimit-remaining"]

    assert remaining() == "30"
    for left in ("25", "20", "15", "10", "5", "0"):
        assert running.get("/search?q=tea", source="127.0.0.2").status == 200
        until(lambda left=left: remaining() == left, f"{left} are left", SECONDS)  # type: ignore[misc]
    refused = running.get("/search?q=tea", source="127.0.0.2")
    assert (refused.status, refused.json["status"], refused.headers["x-ratelimit-remaining"]) == (429, 429, "0")


def test_orders_need_a_user(running: Example) -> None:
    for said in running.tried("Orders need a user"):
        assert (reply(said).status, reply(said).json["status"]) == (401, 401)


def test_bob_has_five_orders_by_his_token(running: Example) -> None:
    first, loop = running.tried("Bob has a token")
    shown = reply(first)
    assert (shown.status, shown.headers["x-ratelimit-limit"], shown.headers["x-ratelimit-remaining"]) == (200, "5", "4")
    assert (shown.json["service"], shown.json["caller"]) == ("orders", {"user": "bob"})
    assert loop == "200 " * 4 + "429 " * 2 + "\n"


def test_ada_has_twenty_orders_by_her_tier(running: Example) -> None:
    first, loop = running.tried("Ada has an API key")
    shown = reply(first)
    assert (shown.status, shown.headers["x-ratelimit-limit"], shown.headers["x-ratelimit-remaining"]) == (
        200,
        "20",
        "19",
    )
    assert shown.json["caller"] == {"user": "ada", "apikey": "laptop", "tier": "pro"}
    assert loop == "200 " * 19 + "429 " * 2 + "\n"


def test_a_key_that_is_nobodys_may_see_users_and_no_orders(running: Example) -> None:
    first, loop, order = running.tried("A nightly job")
    shown = reply(first)
    assert (shown.status, shown.headers["x-ratelimit-limit"], shown.headers["x-ratelimit-remaining"]) == (200, "8", "7")
    assert (shown.json["service"], shown.json["caller"]) == ("users", {"apikey": "nightly"})
    assert loop == "200 " * 7 + "429 " * 2 + "\n"
    assert reply(order).status == 401
    assert running.get("/users/bob").status == 401, "without any credential"


def test_what_was_decided_is_printed_for_each_request(running: Example) -> None:
    """And what is refused reaches no service."""
    assert running.get("/orders/8").status == 401
    until(lambda: '"path":"/orders/8"' in running.said, "it is printed", SECONDS)
    (line,) = [json.loads(line) for line in running.said.splitlines() if '"path":"/orders/8"' in line]
    assert (line["status"], line["outcome"], line["details"]) == (401, "denied", "ext_authz_denied")


def test_a_limit_is_changed_while_it_serves(running: Example) -> None:
    (token,) = re.findall(r"TOKEN=(\S+)", running.said)

    def limit() -> str:
        return running.get("/users/ada", authorization=f"Bearer {token}").headers["x-ratelimit-limit"]

    assert limit() == "10"
    (named,) = re.findall(r"Change a number in (\S+),", running.said)
    rules = Path(named)
    text = rules.read_text()
    assert "quota: 10/hour" in text
    new = rules.with_suffix(".new")
    new.write_text(text.replace("quota: 10/hour", "quota: 11/hour"))
    new.replace(rules)
    until(lambda: limit() == "11", "the other limit is in force", SECONDS)


def test_it_counts_in_redis_and_ends_without_a_trace(redis: RedisServer) -> None:
    """Ctrl-C is for all that it has started: no process is left, and no port is taken."""
    with example(store=redis.address) as found:
        assert "counted in Redis" in found.said
        _, loop = found.tried("Bob has a token")
        assert loop == "200 " * 4 + "429 " * 2 + "\n"
        assert int(redis.ask("DBSIZE")) > 0
        processes = found.processes()
        assert len(processes) > 2, "the gateway, Envoy and what decides are under it"
        found.process.send_signal(signal.SIGINT)
        assert found.process.wait(SECONDS) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "all have ended", SECONDS)
        for port in found.ports:
            socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("index", [0, 2])
def test_a_port_that_is_taken_is_named(tmp_path: Path, index: int) -> None:
    ports = [free_port() for _ in range(4)]
    with socket.create_server(("127.0.0.1", ports[index])):
        found = Example(tmp_path, ports)
        assert found.process.wait(SECONDS) == 1
    who = ("gateway", "orders", "users", "search")[index]
    assert found.err.read_text() == f"port {ports[index]}, for {who}: Address already in use; --ports takes others\n"
    assert found.said == ""


def test_what_is_not_a_port_is_told(tmp_path: Path) -> None:
    found = Example(tmp_path, [0, 1, 2, 70000])
    assert found.process.wait(SECONDS) == 2
    assert "'0' is not a port: 1 to 65535" in found.err.read_text()
