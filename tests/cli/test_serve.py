from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.greeting import trial
from headgate.cli.serve import add_options, options, settings_of
from headgate.core.errors import UsageError
from headgate.server.configuration import EXAMPLE
from headgate.server.settings import Settings
from headgate.web.apikey import digest
from tests.cli.conftest import Cli
from tests.servers import free_port, redis_server


def settings(*words: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return settings_of(parser.parse_args(words), environment)


def test_settings_come_from_arguments_and_variables() -> None:
    assert settings() == Settings()
    assert {option.setting for option in options()} == {*Settings.__dataclass_fields__} - {"consumers"}
    found = settings("--http-port", "9000", HEADGATE_HTTP_PORT="9001", HEADGATE_GRPC_PORT="9002", HEADGATE_NODES="")
    assert (found.http_port, found.grpc_port, found.nodes) == (9000, 9002, 0), "an empty variable is unset"
    for text, value in (("on", True), ("ON", True), ("1", True), ("off", False), ("false", False)):
        assert settings("--log-access", text).log_access is value
    assert settings(HEADGATE_TRUSTED_PROXIES="10.0.0.0/8, ::1").trusted_proxies == ("10.0.0.0/8", "::1")
    assert settings("--drain-seconds", "0.5").drain_seconds == 0.5


def test_errors_name_the_option_or_the_variable() -> None:
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (["--http-port", "x"], {}, "--http-port must be a number"),
        ([], {"HEADGATE_HTTP_PORT": "tcp://10.0.0.1:80"}, "HEADGATE_HTTP_PORT must be a number"),
        (["--http-port", "-1"], {}, "--http-port: must be a whole number from 0"),
        ([], {"HEADGATE_WORKERS": "2"}, "HEADGATE_WORKERS: 2 workers need a shared store"),
        (["--log-access", "maybe"], {}, "--log-access must be on or off"),
        (["--drain-seconds", "soon"], {}, "--drain-seconds must be a number"),
        (["--drain-seconds", "1_0"], {}, "--drain-seconds must be a number"),
        (["--http-port", "7"], {"HEADGATE_GRPC_PORT": "7"}, "HEADGATE_GRPC_PORT: port 7 is already the HTTP port"),
    ]
    numbers = "8_0", "\u0668\u0660", "\uff18\uff10", " 80", "80 ", "+80", "0x50", "8e1", "", "80.0"
    cases += [(["--http-port", number], {}, "--http-port must be a number") for number in numbers]
    for words, environment, message in cases:
        with pytest.raises(UsageError, match=message):
            settings(*words, **environment)


PORTS = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
CHECK = ["serve", "--check", *PORTS, "--rules", str(EXAMPLE)]


def test_check_reports_that_it_could_start(tmp_path: Path, cli: Cli) -> None:
    keys = tmp_path / "callers"
    keys.write_text(f"edge {digest('k')}")
    with redis_server("requirepass secret") as redis:
        store = f"redis://:secret@127.0.0.1:{redis.port}/0"
        output = cli(*CHECK, "--caller-keys", str(keys), "--store", f"{store}?timeout=30").out
        assert output == f"it could start: 2 rules, redis://127.0.0.1:{redis.port}/0\n"


def test_a_check_counts_the_descriptors_that_have_limits(tmp_path: Path, cli: Cli) -> None:
    limit = "rate_limit: {unit: hour, requests_per_unit: 2}"
    (tmp_path / "edge.yaml").write_text(f"domain: edge\ndescriptors: [{{key: user, {limit}}}, {{key: ip, {limit}}}]\n")
    output = cli("serve --check --envoy-config", str(tmp_path), *PORTS).out
    assert output == "it could start: 2 descriptors with limits, memory\n"


def test_check_finds_a_store_that_cannot_decide(cli: Cli) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    output = cli(*CHECK, "--store", away, code=1)
    assert output.out == ""
    assert away in output.err
    assert "decide without the store" in output.err
    with redis_server("maxmemory-policy allkeys-lru") as evicting:
        assert "maxmemory-policy" in cli(*CHECK, "--store", evicting.address, code=1).err


def test_check_reports_wrong_addresses_and_files(tmp_path: Path, cli: Cli) -> None:
    bad = tmp_path / "file"
    bad.write_text("nothing: good")
    for option, value, message in (
        ("--host", "256.1.1.1", "--host '256.1.1.1' for http"),
        ("--host", "192.0.2.1", "cannot listen on 192.0.2.1 port 0 for http"),
        ("--host", "\udcff", "for http"),
        ("--rules", str(bad), str(bad)),
        ("--caller-keys", str(bad), str(bad)),
    ):
        assert message in cli(*CHECK, option, value, code=2).err


def test_check_reports_a_port_in_use(cli: Cli) -> None:
    """It may be the port of the service to replace, so the settings are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = cli(*CHECK, "--http-port", str(port)).out
    assert f"port {port} is in use" in output
    assert f"it could start once port {port} is free: 2 rules" in output


def test_check_refuses_a_key_that_the_start_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "too short")
    for rules in ((), ("--rules", str(EXAMPLE))):
        (line,) = {cli("serve", *check, *PORTS, *rules, code=2).err for check in (("--check",), ())}
        assert "HEADGATE_ADMIN_KEY must have 16 to 256 characters" in line, rules


def test_the_request_to_try_is_complete() -> None:
    tls = {"tls_cert": __file__, "tls_key": __file__}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:80/"),  # noqa: S104  it is only shown
        ({"host": "::"}, "'http://[::1]:80/"),
        ({"host": "example.com"}, "http://example.com:80/"),
        ({"caller_keys": __file__}, '-H "Authorization: Bearer $KEY"'),
        (tls, "-k https://127.0.0.1:80/"),
        ({**tls, "client_ca": __file__}, "--cert CLIENT.pem"),
    ]
    for given, words in cases:
        assert words in trial(Settings(**given), 80), given


def test_the_help_has_every_option_and_its_default(cli: Cli) -> None:
    text = " ".join(cli("serve --help").out.split())
    assert all(f"{option.argument} {option.metavar}" in text for option in options())
    assert "[127.0.0.1]" in text


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['httptools'] = None"
    script = f"{hidden}; from headgate.cli.__main__ import main; sys.exit(main(['serve', *{PORTS}]))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert "httptools is not installed: pip install httptools, or in a checkout" in ended.stderr


def test_unknown_variables_cause_a_warning(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("HEADGATE_WORKER", "4")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:8080")  # of other commands
    (line,) = cli("serve --check").err.splitlines()
    assert "HEADGATE_WORKER in the environment is not an option" in line
    assert line.endswith(": did you mean HEADGATE_WORKERS?")
