"""The output, the errors, the settings and the start of ``headgate serve``."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.cli.greeting import sample_request, trial
from headgate.server.settings import Settings
from tests.observe.readings import value
from tests.server.process.service import SECONDS, service
from tests.server.serving import serving as in_process
from tests.servers import RedisServer, fetched, redis_server, until

ROOT = Path(__file__).parents[3]


def test_it_prints_its_ports_and_rules_and_suggestions_that_work_verbatim() -> None:
    with service() as found:
        found.started()
        assert f"http://127.0.0.1:{found.http_port}" in found.said
        assert "rules  2, from " in found.said
        assert "memory, for this process alone" in found.said
        answer = json.loads(subprocess.run(found.suggested(), capture_output=True, check=True).stdout)
        assert answer["allowed"]
        assert answer["rule_id"] == "orders-user"
        output = subprocess.run(found.suggested(" check "), capture_output=True, check=True, text=True).stdout
        assert output.startswith("allowed: rule orders-user")
        found.signal(signal.SIGINT)
        assert found.ended() == 0
        assert "Traceback" not in found.complained


def test_the_suggested_request_is_one_that_the_rules_limit(tmp_path: Path) -> None:
    rule = "{id: found, dimension: [apikey, tenant], endpoint: '/a/{name}/**', methods: [PUT], limit: 9, window: 1h}"
    (tmp_path / "rules.yaml").write_text(rules := f"{{version: 1, rules: [{rule}]}}")
    settings = Settings(rules=str(tmp_path / "rules.yaml"))
    *_, body = shlex.split(trial(settings, 8080, sample_request(settings)))
    with in_process(rules) as found:
        answer = found.check(json.loads(body))
    assert (answer["rule_id"], answer["remaining"]) == ("found", 8)


def test_a_service_for_envoy_only_has_no_example_rules(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
    )
    with service("--envoy-config", str(tmp_path)) as found:
        found.started()
        assert "rules  0, for Envoy only" in found.said
        assert " check " not in found.said
        assert "edge.user" in subprocess.run(found.suggested(), capture_output=True, check=True, text=True).stdout
        assert found.check("u1")["matched"] is False


def test_settings_come_from_the_environment_and_logs_may_be_json_and_nothing_else(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - {id: one, dimension: user, limit: 1, window: 1h}\n")
    environment = {"HEADGATE_RULES": str(rules), "HEADGATE_HTTP_PORT": "not a port", "HEADGATE_WORKERS": ""}
    with service("--log-format", "json", environment=environment) as found:
        until(lambda: '"message":"serving"' in found.complained, "it serves", SECONDS)
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        lines = [json.loads(line) for line in found.complained.splitlines()]
        assert (lines[0]["rules"], lines[0]["store"], found.said) == (1, "memory", "")


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


def test_wrong_settings_end_it_with_2_and_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The supervisor passes on the errors of its workers, which read the rules."""
    for options, message in (
        (["--store", "sqlite:///x"], "unknown store"),
        (["--store", "redis://host?tiemout=1"], "tiemout"),
        (["--tls-cert", __file__, "--tls-key", __file__], "the certificates cannot be used"),
        (["--caller-keys", __file__], "each line must be NAME"),
    ):
        assert main(["serve", "--check", *options]) == 2
        assert message in capsys.readouterr().err
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: x}]\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        for started, message in (
            (("--rules", str(rules)), "rules.yaml"),
            (("--rules", str(rules), "--workers", "2", "--store", "redis://127.0.0.1:1"), "rules.yaml"),
            (("--grpc-port", str(other.getsockname()[1])), "another program listens"),
        ):
            with service(*started) as found:
                assert found.ended() == 2
                assert message in found.complained
                assert "Traceback" not in found.complained


def test_it_serves_without_standard_output(redis: RedisServer) -> None:
    with service("--workers", "2", "--store", redis.address, out=Path("/dev/full")) as found:
        until(lambda: "cannot write to standard output" in found.complained, "it logs the error", SECONDS)
        assert not found.has_ended
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert "Traceback" not in found.complained


def test_a_signal_during_the_start_ends_it_like_a_later_one() -> None:
    """While it waits for a store that is down, it handles signals."""
    with service("--store", "redis://127.0.0.1:1") as found:
        until(lambda: found.has_ended or _catches(found.process.pid, signal.SIGTERM), "it heeds signals", SECONDS)
        found.signal(signal.SIGTERM)
        assert found.ended() == 0
        assert "Traceback" not in found.complained


def test_a_worker_refuses_to_be_started_by_hand() -> None:
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


def test_all_apis_return_the_reset_in_the_form_of_the_settings(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: all, dimension: global, limit: 9, window: 1h}]")
    proxied = {"X-Original-URI": "/a", "X-Original-Method": "GET", "X-Forwarded-For": "192.0.2.1"}
    envoys = {"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "u"}]}]}
    output = []
    with service("--rules", str(rules), environment={"HEADGATE_RESET_FORMAT": "seconds"}) as found:
        port = found.started().http_port
        for method, path, body in [
            ("POST", "/api/v1/rate-limit/check", {"principal": {"user": "u"}, "endpoint": "/a"}),
            ("GET", "/api/v1/forward-auth", None),
            ("POST", "/json", envoys),
        ]:
            reply = fetched(port, path, method, body=body, **proxied)
            fields = reply.headers
            if path == "/json":
                fields = {each["key"].lower(): each["value"] for each in reply.json["responseHeadersToAdd"]}
            output.append(int(fields["x-ratelimit-reset"]))
    assert all(reset <= 3600 for reset in output)


RULES = "version: 1\nrules:\n  - {id: orders, dimension: user, limit: 100, window: 1h}\n"
RECORDED = """
import gc, sys
from headgate.cli import greeting
from headgate.cli.__main__ import main
from headgate.server.node import Node
from headgate.server.wire.listener import Listener


def recorded(owner, name):
    original = getattr(owner, name)

    def recording(*args, **options):
        print("did", name, file=sys.stderr, flush=True)
        return original(*args, **options)

    setattr(owner, name, recording)


recorded(gc, "collect")
recorded(greeting, "sample_request")
for name in ("_meet_stores", "_http", "_grpc"):
    recorded(Node, name)
recorded(Listener, "serve_http")
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return str(file)


def test_slow_work_is_done_before_requests_are_accepted(rules: str) -> None:
    with service("--rules", rules, program=("-c", RECORDED)) as found:
        found.started()
        assert found.check("u1")["allowed"]
        did = [line.removeprefix("did ") for line in found.complained.splitlines() if line.startswith("did ")]
    assert did[-1] == "serve_http"
    assert {*did} == {"collect", "sample_request", "_meet_stores", "_http", "_grpc", "serve_http"}


def test_a_store_that_does_not_reply_counts_as_down_before_the_first_request(rules: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        service("--rules", rules, "--store", f"redis://127.0.0.1:{silent.getsockname()[1]}/0") as found,
    ):
        found.started()
        until(lambda: b"headgate_store_circuit_state" in found.get("/metrics")[1], "the circuit is shown", SECONDS)
        shown = found.get("/metrics")[1]
        assert value(shown, "headgate_store_circuit_openings_total") == 1
        assert value(shown, "headgate_store_calls_total") == 0
        assert "no response within 0.25 s" in found.complained
        answers = [found.check("u1") for _ in range(5)]
        assert all(answer["allowed"] and answer["degraded"] for answer in answers)
        assert "the store is unavailable" in found.complained


def test_settings_control_the_cache_of_refusals_and_the_circuit_breaker(own_redis: RedisServer, tmp_path: Path) -> None:
    rules = tmp_path / "once.yaml"
    rules.write_text(RULES.replace("limit: 100, window: 1h", "limit: 1, window: 365d, on_store_failure: allow"))
    options = ["--cache-peeks", "0", "--cache-denials", "60", "--breaker-failures", "2", "--breaker-pause", "60"]
    with service("--rules", str(rules), "--store", own_redis.address, *options) as found:
        assert [found.started().check("ada")["allowed"] for _ in range(5)] == [True, *[False] * 4]
        cached = [line for line in found.get("/metrics")[1].decode().splitlines() if "_store_cached_total{" in line]
        assert any(not line.endswith(" 0.0") for line in cached)
        own_redis.stop()
        reasons = [found.check("bob")["reason"] for _ in range(8)]
    assert "circuit_open" in reasons[2:]
