"""examples/microservices: the printed commands work for each kind of caller, and it ends cleanly."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.gateway.gateways import SECONDS
from tests.servers import RedisServer, Reply, fetched, free_port, launched, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "microservices"


class Example:
    """The example in a process, from a copy of its folder."""

    def __init__(self, folder: Path, ports: list[int], store: str = "") -> None:
        self.folder, self.ports = folder / "microservices", ports
        shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name, usual, ours in (
            ("rules.yaml", "/minute", "/hour"),  # no minute ends while a test runs
            ("gateway.yaml", "{timeout: 5s}", "{timeout: 10s}"),  # a machine may be busier than a laptop
        ):
            file = self.folder / name
            file.write_text(file.read_text().replace(usual, ours))
        self.out, self.err = folder / "out", folder / "err"
        command = [sys.executable, "-W", "error", str(self.folder), "--ports", *map(str, ports)]
        self.process = launched(command, folder, {"HEADGATE_STORE": store})

    @property
    def output(self) -> str:
        return self.out.read_text()

    def serves(self) -> bool:
        until(lambda: "Ctrl-C" in self.output or self.process.poll() is not None, "it prints the commands", 2 * SECONDS)
        return self.process.poll() is None

    def tried(self, about: str) -> list[str]:
        """Run the printed commands for a caller, and return their output."""
        (token,) = re.findall(r"^  (TOKEN=\S+)$", self.output, re.MULTILINE)
        (part,) = [each for each in self.output.split("\n\n") if each.startswith(about)]
        lines = re.findall(r"^  ((?:curl|for) .*)$", part, re.MULTILINE)
        assert lines, part
        return [run(f"{token}; {line}") for line in lines]

    def get(self, path: str, **headers: str) -> Reply:
        return fetched(self.ports[0], path, **headers)

    def processes(self) -> set[int]:
        """Its process, and all child processes."""
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


def reply(printed: str) -> Reply:
    """Parse the output of curl -i."""
    head, _, body = printed.replace("\r", "").partition("\n\n")
    status, *fields = head.splitlines()
    headers = dict(field.lower().split(": ", 1) for field in fields)
    return Reply(int(status.split()[1]), headers, body.encode())


@contextmanager
def example(store: str = "") -> Iterator[Example]:
    with TemporaryDirectory(prefix="headgate-examples-") as folder:
        found = Example(Path(folder), [free_port() for _ in range(4)], store)
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
        assert "counted in memory" in found.output
        yield found


def test_anonymous_searches_cost_the_number_of_results(running: Example) -> None:
    first, loop = running.tried("Anybody may search")
    shown = reply(first)
    assert shown.status == 200
    assert shown.headers["x-ratelimit-limit"] == "30"
    assert "x-cost" not in shown.headers
    assert (shown.json["service"], shown.json["caller"], len(shown.json["found"])) == ("search", "anybody", 5)
    assert re.fullmatch(r"(200 ){5,}(429 )*\n", loop), "five more, and one for each that is not counted yet"
    until(lambda: running.get("/search?q=tea").status == 429, "all of it is counted", SECONDS)


def test_orders_need_a_user(running: Example) -> None:
    for printed in running.tried("Orders need a user"):
        assert (reply(printed).status, reply(printed).json["status"]) == (401, 401)


def test_each_caller_has_the_limits_that_are_printed(running: Example) -> None:
    ada = {"user": "ada", "apikey": "laptop", "tier": "pro"}
    for about, service, caller, limit in (
        ("Bob has a token", "orders", {"user": "bob"}, 5),
        ("Ada has an API key", "orders", ada, 20),
        ("A nightly job", "users", {"apikey": "nightly"}, 8),
    ):
        first, loop, *others = running.tried(about)
        shown = reply(first)
        left = shown.headers["x-ratelimit-limit"], shown.headers["x-ratelimit-remaining"]
        assert (shown.status, *left) == (200, str(limit), str(limit - 1))
        assert (shown.json["service"], shown.json["caller"]) == (service, caller)
        assert loop == "200 " * (limit - 1) + "429 " * 2 + "\n"
        assert [reply(other).status for other in others] == [401] * len(others), "an unknown key is refused"
    assert running.get("/users/bob").status == 401, "without any credential"


def test_a_limit_is_changed_while_it_serves(running: Example) -> None:
    (token,) = re.findall(r"TOKEN=(\S+)", running.output)

    def limit() -> str:
        return running.get("/users/ada", authorization=f"Bearer {token}").headers["x-ratelimit-limit"]

    assert limit() == "10"
    (named,) = re.findall(r"Change a number in (\S+),", running.output)
    rules = Path(named)
    text = rules.read_text()
    assert "quota: 10/hour" in text
    new = rules.with_suffix(".new")
    new.write_text(text.replace("quota: 10/hour", "quota: 11/hour"))
    new.replace(rules)
    until(lambda: limit() == "11", "the other limit is in force", SECONDS)


def test_it_counts_in_redis_and_leaves_no_process(redis: RedisServer) -> None:
    """Ctrl-C ends all its processes, and frees its ports."""
    with example(redis.address) as found:
        assert "counted in Redis" in found.output
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
def test_a_taken_port_is_named(tmp_path: Path, index: int) -> None:
    ports = [free_port() for _ in range(4)]
    with socket.create_server(("127.0.0.1", ports[index])):
        found = Example(tmp_path, ports)
        assert found.process.wait(SECONDS) == 1
    who = ("gateway", "orders", "users", "search")[index]
    assert found.err.read_text() == f"port {ports[index]}, for {who}: Address already in use; --ports takes others\n"
    assert found.output == ""


def test_an_invalid_port_is_reported(tmp_path: Path) -> None:
    found = Example(tmp_path, [0, 1, 2, 70000])
    assert found.process.wait(SECONDS) == 2
    assert "'0' is not a port: 1 to 65535" in found.err.read_text()
