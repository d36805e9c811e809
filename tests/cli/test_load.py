"""``headgate load`` against a real service."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.__main__ import main
from headgate.cli.load_summary import tell_progress, tell_summary
from headgate.cli.terminal import Terminal
from headgate.load_generator.running import Progress
from headgate.load_generator.statistics import Latency, Summary
from tests.server.process.certificates import Authority
from tests.server.process.service import SECONDS, Service, service
from tests.servers import free_port, redis_server

RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, limit: 3, window: 1h}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("load") / "rules.yaml"
    path.write_text(RULES)
    return str(path)


@pytest.fixture(scope="module")
def served(rules: str) -> Iterator[Service]:
    with service("--rules", rules) as found:
        yield found.started()


def loaded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["load", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("http", ()), ("grpc", ("--service", "rls")), ("grpc", ("--service", "headgate"))],
    ids=["http", "rls", "headgate"],
)
def test_every_user_gets_what_the_rule_admits(
    scheme: str, options: tuple[str, ...], served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never more: 20 users with 3 each, asked 200 times."""
    port = served.http_port if scheme == "http" else served.grpc_port
    path = "/orders/" + "-".join([scheme, *options[1:]])
    more = ["--requests", "200", "--users", "20", "--connections", "4", "--path", path, *options]
    served_by = f"{scheme}://127.0.0.1:{port}"
    before = main(["load", served_by, "--requests", "1", "--path", "/free", *options])
    assert before == 0
    capsys.readouterr()
    code, data = loaded(capsys, served_by, *more)
    assert code == 0
    assert (data["sent"], data["shed"], data["errors"], data["degraded"]) == (200, 0, {}, 0)
    assert data["allowed"] + data["denied"] == 200
    assert data["allowed"] <= 60
    assert data["latency_us"]["min"] <= data["latency_us"]["p50"] <= data["latency_us"]["p99.9"]
    assert sum(row["count"] for row in data["latency_us"]["histogram"]) == 200


def test_for_people(served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://127.0.0.1:{served.http_port}"
    assert main(["load", address, "--requests", "50", "--rate", "500", "--path", "/free"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("50 requests in ")
    assert lines[1].split() == ["allowed", "50"]
    assert any(line.startswith("latency of decisions: min ") for line in lines)
    assert lines[-1].endswith("%")
    assert shown.err == ""


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("http", ()), ("grpc", ("--service", "rls")), ("grpc", ("--service", "headgate"))],
    ids=["http", "rls", "headgate"],
)
def test_a_warning_says_that_no_rule_was_for_what_was_asked(
    scheme: str, options: tuple[str, ...], served: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    port = served.grpc_port if scheme == "grpc" else served.http_port
    target = f"{scheme}://127.0.0.1:{port}"
    for path, warned in (("/orders", False), ("/news", True)):
        assert main(["load", target, "--requests", "20", "--path", path, *options]) == 0
        assert ("warning: no rule was for these requests" in capsys.readouterr().out) is warned
    found = loaded(capsys, target, "--requests", "20", "--path", "/news", *options)[1]
    assert (found["allowed"], found["unmatched"]) == (20, 20)


def test_what_the_service_does_not_accept_is_an_error(served: Service, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = loaded(capsys, f"http://127.0.0.1:{served.http_port}", "--requests", "10", "--path", "/../etc")
    assert (code, data["errors"], data["allowed"], data["latency_us"]) == (1, {"HTTP 400": 10}, 0, None)


def test_shedding_is_told_apart(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    with service("--rules", rules, "--max-checks-per-second", "10") as found:
        for scheme, port in (("http", found.started().http_port), ("grpc", found.grpc_port)):
            options = ["--service", "rls", "--requests", "300", "--path", "/free"]
            code, data = loaded(capsys, f"{scheme}://127.0.0.1:{port}", *options)
            assert (code, data["errors"], data["sent"]) == (0, {}, 300)
            assert data["shed"] > 200


def test_decisions_without_the_store_are_degraded(rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    with redis_server() as store, service("--rules", rules, "--store", store.address) as found:
        addresses = [f"http://127.0.0.1:{found.started().http_port}", *[f"grpc://127.0.0.1:{found.grpc_port}"] * 2]
        store.stop()
        for address, asked in zip(addresses, ("rls", "rls", "headgate"), strict=True):
            options = ["--service", asked, "--requests", "20", "--path", "/orders"]
            code, data = loaded(capsys, address, *options)
            assert (code, data["errors"], data["degraded"]) == (0, {}, 20), asked


def told(command: list[str], act: Callable[[subprocess.Popen[bytes]], object]) -> tuple[int, dict[str, Any]]:
    """Run it on a terminal, where there is a line every second, and act after the first one."""
    terminal, other_end = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other_end) as process:
        os.close(other_end)
        seen = b""
        while b"decided" not in seen:
            seen += os.read(terminal, 4096)
        act(process)
        out, _ = process.communicate(timeout=SECONDS)
    os.close(terminal)
    return process.returncode, json.loads(out)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_service_that_drains_loses_nothing(scheme: str, rules: str) -> None:
    """It goes away between two answers, and that is told apart from errors."""
    with service("--rules", rules) as found:
        found.started()
        port = found.http_port if scheme == "http" else found.grpc_port
        options = ["--service", "rls", "--seconds", "300", "--connections", "4", "--json", "--path", "/free"]
        command = [sys.executable, "-m", "headgate.cli", "load", f"{scheme}://127.0.0.1:{port}", *options]
        code, data = told([*command, "--timeout", "2"], lambda _: found.signal(signal.SIGTERM))
        assert (code, data["gone"], data["errors"]) == (1, True, {})
        assert data["sent"] == data["allowed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost:8080"], "http://127.0.0.1:8080"),
        (["http://192.0.2.1:8080"], "--yes-remote"),
        (["grpc://limits.example.com"], "--yes-remote"),
        (["--requests", "0"], "requests should be 1 to 10,000,000"),
        (["--requests", "99999999999"], "requests should be"),
        (["--seconds", "7200"], "seconds should be"),
        (["--connections", "5000"], "connections should be"),
        (["--rate", "-1"], "rate should be"),
        (["--users", "0"], "--users should be"),
        (["--cost", "0"], "--cost should be"),
        (["grpc://127.0.0.1:1", "--streams", "0"], "--streams should be"),
        (["--path", ""], "path"),
        (["--cert", "me.pem"], "https://127.0.0.1:8080"),
        (["grpc://127.0.0.1:1", "--ca", "ca.pem"], "grpcs://127.0.0.1:1"),
        (["--service", "other"], "--service"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_where_nothing_listens_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{free_port()}")
    assert main(["load"]) == 2
    assert "start one with headgate serve" in capsys.readouterr().err


def test_over_tls(rules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.signed("server")
    options = ["--requests", "50", "--connections", "2", "--ca", str(authority.path), "--path", "/free"]
    with service("--rules", rules, "--tls-cert", str(cert), "--tls-key", str(key)) as found:
        for address in (f"https://localhost:{found.started().http_port}", f"grpcs://localhost:{found.grpc_port}"):
            code, data = loaded(capsys, address, "--service", "rls", *options)
            assert (code, data["allowed"]) == (0, 50)
        assert main(["load", f"https://localhost:{found.http_port}"]) == 2
        assert "has a certificate that is not trusted: " in capsys.readouterr().err


def test_ctrl_c_prints_what_was_found_and_a_terminal_sees_progress(served: Service) -> None:
    address = f"http://127.0.0.1:{served.http_port}"
    command = [sys.executable, "-m", "headgate.cli", "load", address, "--seconds", "300", "--path", "/free", "--json"]
    code, data = told(command, lambda process: process.send_signal(signal.SIGINT))
    assert code == 130
    assert data["interrupted"]
    assert data["allowed"] > 0


def shown(summary: Summary) -> list[str]:
    out = io.StringIO()
    tell_summary(summary, Terminal(out, out))
    return out.getvalue().splitlines()


def test_what_a_summary_looks_like() -> None:
    latency = Latency(800, 1500.0, {"p50": 1000, "p99": 12_345}, 2_500_000, [(1000, 75), (2000, 0), (5_000_000, 25)])
    errors = {"connection lost": 3, "HTTP 500": 1}
    summary = Summary(2.0, 1104, 90, 10, 5, 1000, errors, 7, 16, 2, 3, latency, interrupted=True, gone=True)
    assert shown(summary) == [
        "1,104 requests in 2.00 s: 50 decisions/s, stopped by Ctrl-C",
        "  allowed              90",
        "  denied               10",
        "  degraded              5",
        "  shed              1,000",
        "  errors                4",
        "  never sent            7",
        "             3  connection lost",
        "             1  HTTP 500",
        "  never sent: due, but all connections were busy; more of them may help",
        "connections: 16 made, 3 lost while waiting for an answer, 2 attempts failed",
        "the service went away, and did not come back in time",
        "latency of decisions: min 800 us, p50 1 ms, p99 12.3 ms, max 2.5 s",
        "  <=     1 ms  ########################################           75  75.0 %",
        "  <=     2 ms                                                      0   0.0 %",
        "  <=      5 s  ##############                                     25  25.0 %",
    ]


def test_what_progress_looks_like() -> None:
    err = io.StringIO()
    for progress in (Progress(1.0, 1000, 1000.4, 0, 0), Progress(2.0, 3000, 2000, 5, 1)):
        tell_progress(progress, Terminal(err, err))
    assert err.getvalue().splitlines() == [
        "   1 s        1,000 decided      1,000/s",
        "   2 s        3,000 decided      2,000/s, 5 shed, 1 errors",
    ]
