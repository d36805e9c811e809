"""``headgate serve`` as its users meet it: what it prints, what it refuses, what it answers."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.server.process.service import SECONDS, Service, service
from tests.servers import redis_server, until

ROOT = Path(__file__).parents[3]


def ran(*options: str, environment: dict[str, str] | None = None) -> Service:
    """A service that has ended by itself."""
    with service(*options, environment=environment) as found:
        until(lambda: found.has_ended, "it gives up", SECONDS)
        found.kept = found.said, found.complained
    return found


def test_it_says_where_it_listens_and_what_it_has_and_what_it_suggests_works_verbatim() -> None:
    with service() as found:
        found.started()
        assert f"http://127.0.0.1:{found.http_port}" in found.said
        assert "rules  2, from " in found.said
        assert "memory, for this process alone" in found.said
        answer = json.loads(subprocess.run(found.trial, capture_output=True, check=True).stdout)
        assert answer["allowed"]
        assert answer["rule_id"] == "orders-user"
        told = subprocess.run(found.own_trial, capture_output=True, check=True, text=True).stdout
        assert told.startswith("allowed: rule orders-user")
        found.signal(signal.SIGINT)
        assert found.ended() == 0
        assert "Traceback" not in found.complained


@pytest.mark.parametrize(
    "rule",
    [
        "{id: found, dimension: ip, limit: 9, window: 1h, when: {domain: edge}}",
        "{id: found, dimension: [apikey, tenant], endpoint: '/a/{name}/**', methods: [PUT], limit: 9, window: 1h}",
        "{id: found, dimension: global, endpoint: /login, tier: free, limit: 9, window: 1h}",
    ],
)
def test_what_it_suggests_is_a_request_that_its_own_rules_limit(rule: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(f"{{version: 1, tiers: {{free: {{}}}}, rules: [{rule}]}}")
    with service("--rules", str(tmp_path / "rules.yaml")) as found:
        found.started()
        answer = json.loads(subprocess.run(found.trial, capture_output=True, check=True).stdout)
        assert (answer["rule_id"], answer["remaining"]) == ("found", 8)
        told = subprocess.run(found.own_trial, capture_output=True, check=True, text=True).stdout
        assert told.startswith("allowed: rule found")


def test_who_answers_envoy_alone_gets_no_example_rules(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
    )
    with service("--envoy-config", str(tmp_path)) as found:
        found.started()
        assert "rules  0, for Envoy only" in found.said
        assert " check " not in found.said
        assert "edge.user" in subprocess.run(found.trial, capture_output=True, check=True, text=True).stdout
        assert found.check("u1")["matched"] is False


def test_the_request_of_the_readme_is_answered_as_it_says() -> None:
    readme = (ROOT / "README.md").read_text()
    command, answer = re.findall(
        r"^\$ (curl http://127\.0\.0\.1:8080.*?)\n(\{.*\})$", readme, re.DOTALL | re.MULTILINE
    )[0]
    with service("--rules", str(ROOT / "docs" / "examples" / "rules.yaml")) as found:
        words = shlex.split(command.replace(":8080", f":{found.started().http_port}").replace("\\\n", " "))
        told = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        assert told.startswith(answer.removesuffix(",...}"))


def test_settings_come_from_the_environment_and_arguments_win(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - {id: one, dimension: user, limit: 1, window: 1h}\n")
    environment = {"HEADGATE_RULES": str(rules), "HEADGATE_HTTP_PORT": "not a port", "HEADGATE_WORKERS": ""}
    with service(environment=environment) as found:
        found.started()
        assert f"1, from {rules}" in found.said
        assert [found.check("u1")["allowed"] for _ in range(2)] == [True, False]


def test_json_logs_and_nothing_else() -> None:
    with service("--log-format", "json") as found:
        until(lambda: '"message":"serving"' in found.complained, "it serves", SECONDS)
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        lines = [json.loads(line) for line in found.complained.splitlines()]
        assert lines[0]["rules"] == 2
        assert lines[0]["store"] == "memory"
        assert found.said == ""


def test_a_password_of_the_store_is_shown_nowhere() -> None:
    with (
        redis_server("requirepass hidden-password") as server,
        service("--store", f"redis://:hidden-password@127.0.0.1:{server.port}/0?timeout=5") as found,
    ):
        found.started()
        assert f"redis://127.0.0.1:{server.port}/0" in found.said
        assert found.check("u1")["degraded"] is False
        found.signal(signal.SIGTERM)
        found.ended()
        assert "hidden-password" not in found.said + found.complained


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "2"], "--workers: 2 workers need a shared store"),
        (["--workers", "many"], "--workers must be a number, not 'many'"),
        (["--http-port", "70000"], "--http-port: must be a whole number from 0 to 65535"),
        (["--rules", "no/such.yaml"], "--rules: there is no file"),
        (["--store", "sqlite:///x"], "unknown store"),
        (["--store", "redis://host?tiemout=1"], "tiemout"),
        (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid'"),
        (["--log-access", "perhaps"], "--log-access must be on or off"),
        (["--tls-cert", __file__, "--tls-key", __file__], "the certificates cannot be used"),
        (["--caller-keys", __file__], "each line must be NAME"),
        (["--rules", __file__], "test_serve.py"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_what_cannot_work_ends_it_with_2_and_says_why(options: list[str], said: str) -> None:
    found = ran(*options)
    assert found.process.returncode == 2
    assert said in found.kept[1]
    assert "Traceback" not in found.kept[1]


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        found = ran("--grpc-port", str(other.getsockname()[1]))
    assert found.process.returncode == 2
    assert "another program listens" in found.kept[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_although_it_cannot_say_so(workers: int) -> None:
    with redis_server() as server:
        options = ("--workers", str(workers), "--store", server.address)
        with service(*options, out=Path("/dev/full")) as found:
            until(lambda: "cannot write to standard output" in found.complained, "it complains", SECONDS)
            assert not found.has_ended
            found.signal(signal.SIGTERM)
            assert found.ended() == 0
            assert "Traceback" not in found.complained


def test_a_signal_while_it_starts_ends_it_as_one_that_comes_later() -> None:
    """A store that is away is waited for; by then it heeds signals."""
    with service("--store", "redis://127.0.0.1:1") as found:
        until(lambda: found.has_ended or _catches(found.process.pid, signal.SIGTERM), "it heeds signals", SECONDS)
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert "Traceback" not in found.complained


def test_workers_that_cannot_start_end_the_service_with_their_reason(tmp_path: Path) -> None:
    """The supervisor does not read the rules: its workers do, and it passes on what they say."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: x}]\n")
    found = ran("--workers", "2", "--store", "redis://127.0.0.1:1", "--rules", str(rules))
    assert found.process.returncode == 2
    assert "rules.yaml" in found.kept[1]
    assert "Traceback" not in found.kept[1]


def test_a_worker_that_is_started_by_hand_says_that_it_is_not_meant_to_be() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        ended = subprocess.run(
            [sys.executable, "-m", "headgate.server.worker"], stdin=theirs.fileno(), capture_output=True, check=False
        )
    assert ended.returncode == 1
    assert b"headgate serve --workers N" in ended.stderr


def _catches(pid: int, number: signal.Signals) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(("form", "is_time"), [("", True), ("epoch", True), ("seconds", False)])
def test_all_apis_tell_the_reset_in_the_same_form(form: str, *, is_time: bool, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: all, dimension: global, limit: 9, window: 1h}]")
    proxied = {"X-Original-URI": "/a", "X-Original-Method": "GET", "X-Forwarded-For": "192.0.2.1"}
    envoys = json.dumps({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "u"}]}]})
    told = []
    with service("--rules", str(rules), environment={"HEADGATE_RESET_FORMAT": form}) as found:
        connection = HTTPConnection("127.0.0.1", found.started().http_port, timeout=SECONDS)
        for method, path, body in [
            ("POST", "/api/v1/rate-limit/check", '{"principal": {"user": "u"}, "endpoint": "/a"}'),
            ("GET", "/api/v1/forward-auth", None),
            ("POST", "/json", envoys),
        ]:
            connection.request(method, path, body, proxied)
            response = connection.getresponse()
            fields, answer = dict(response.getheaders()), response.read()
            if path == "/json":
                fields = {each["key"]: each["value"] for each in json.loads(answer)["responseHeadersToAdd"]}
            told.append(int({name.lower(): value for name, value in fields.items()}["x-ratelimit-reset"]))
        connection.close()
    assert [reset > 1_000_000_000 for reset in told] == [is_time] * 3
