from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.__main__ import main
from headgate.cli.greeting import trial
from headgate.cli.serve import add_options, options, settings_of
from headgate.core.errors import UsageError
from headgate.server.configuration import EXAMPLE
from headgate.server.settings import Settings
from headgate.web.apikey import digest
from tests.servers import free_port, redis_server


def settings(*words: str, **environment: str) -> Settings:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return settings_of(parser.parse_args(words), environment)


def test_nothing_given_is_every_default() -> None:
    assert settings() == Settings()


def test_every_setting_is_an_option_but_the_one_that_only_a_gateway_says() -> None:
    assert {option.setting for option in options()} == {*Settings.__dataclass_fields__} - {"consumers"}


def test_arguments_win_over_the_environment_and_empty_variables_are_none() -> None:
    found = settings("--http-port", "9000", HEADGATE_HTTP_PORT="9001", HEADGATE_GRPC_PORT="9002", HEADGATE_NODES="")
    assert (found.http_port, found.grpc_port, found.nodes) == (9000, 9002, 0)


@pytest.mark.parametrize(("text", "value"), [("on", True), ("ON", True), ("1", True), ("off", False), ("false", False)])
def test_switches_are_on_or_off(text: str, value: bool) -> None:  # noqa: FBT001  a table
    assert settings("--log-access", text).log_access is value


def test_lists_are_separated_by_commas() -> None:
    assert settings(HEADGATE_TRUSTED_PROXIES="10.0.0.0/8, ::1").trusted_proxies == ("10.0.0.0/8", "::1")


def test_seconds_may_have_fractions() -> None:
    assert settings("--drain-seconds", "0.5").drain_seconds == 0.5


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["--http-port", "x"], {}, "--http-port must be a number"),
        ([], {"HEADGATE_HTTP_PORT": "tcp://10.0.0.1:80"}, "HEADGATE_HTTP_PORT must be a number"),
        (["--http-port", "-1"], {}, "--http-port: must be a whole number from 0"),
        ([], {"HEADGATE_WORKERS": "2"}, "HEADGATE_WORKERS: 2 workers need a shared store"),
        (["--log-access", "maybe"], {}, "--log-access must be on or off"),
        (["--drain-seconds", "soon"], {}, "--drain-seconds must be a number"),
        (["--http-port", "7"], {"HEADGATE_GRPC_PORT": "7"}, "HEADGATE_GRPC_PORT: port 7 is that of HTTP"),
    ],
)
def test_what_is_wrong_is_told_by_the_name_it_was_given_by(
    words: list[str], environment: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        settings(*words, **environment)


@pytest.mark.parametrize(
    "number", ["8_0", "\u0668\u0660", "\uff18\uff10", " 80", "80 ", "+80", "0x50", "8e1", "", "80.0"]
)
def test_numbers_are_written_in_plain_digits(number: str) -> None:
    with pytest.raises(UsageError, match="--http-port must be a number"):
        settings("--http-port", number)
    with pytest.raises(UsageError, match="--drain-seconds must be a number"):
        settings("--drain-seconds", "1_0")


PORTS = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
CHECK = ["serve", "--check", *PORTS, "--rules", str(EXAMPLE)]


def test_check_says_that_it_could_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "callers"
    keys.write_text(f"edge {digest('k')}")
    with redis_server("requirepass secret") as redis:
        store = f"redis://:secret@127.0.0.1:{redis.port}/0"
        assert main([*CHECK, "--caller-keys", str(keys), "--store", f"{store}?timeout=30"]) == 0
        assert capsys.readouterr().out == f"it could start: 2 rules, redis://127.0.0.1:{redis.port}/0\n"


def test_a_check_counts_the_descriptors_that_have_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = "rate_limit: {unit: hour, requests_per_unit: 2}"
    (tmp_path / "edge.yaml").write_text(f"domain: edge\ndescriptors: [{{key: user, {limit}}}, {{key: ip, {limit}}}]\n")
    assert main(["serve", "--check", "--envoy-config", str(tmp_path), *PORTS]) == 0
    assert capsys.readouterr().out == "it could start: 2 descriptors with limits, memory\n"


def test_check_finds_a_store_that_cannot_decide(capsys: pytest.CaptureFixture[str]) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    assert main([*CHECK, "--store", away]) == 1
    with redis_server("maxmemory-policy allkeys-lru") as evicting:
        assert main([*CHECK, "--store", evicting.address]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    first, second = told.err.splitlines()
    assert away in first
    assert "decide without its store" in first
    assert "maxmemory-policy" in second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "256.1.1.1"], "--host '256.1.1.1' for http"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1 port 0 for http"),
        (["--host", "\udcff"], "for http"),
    ],
)
def test_check_finds_an_address_that_cannot_be_listened_on(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CHECK, *words]) == 2
    assert said in capsys.readouterr().err


def test_check_says_which_port_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """By the service that runs, most of the time: so that is not a reason to refuse the settings of its successor."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*CHECK, "--http-port", str(port)]) == 0
    told = capsys.readouterr().out
    assert f"port {port} is in use now" in told
    assert f"it could start once port {port} is free: 2 rules" in told


@pytest.mark.parametrize("name", ["rules", "caller-keys"])
def test_check_finds_what_is_wrong_with_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("nothing: good")
    assert main(["serve", "--check", f"--{name}", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("rules", [(), ("--rules", str(EXAMPLE))])
def test_check_refuses_a_key_that_the_start_refuses(
    rules: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "too short")
    said = set()
    for check in (("--check",), ()):
        assert main(["serve", *check, *PORTS, *rules]) == 2
        said.add(capsys.readouterr().err)
    (line,) = said
    assert "HEADGATE_ADMIN_KEY must have 16 to 256 characters" in line


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:80/"),  # noqa: S104  it is only shown
        ({"host": "::"}, "'http://[::1]:80/"),
        ({"host": "example.com"}, "http://example.com:80/"),
        ({"caller_keys": __file__}, '-H "Authorization: Bearer $KEY"'),
        ({"tls_cert": __file__, "tls_key": __file__}, "-k https://127.0.0.1:80/"),
        ({"tls_cert": __file__, "tls_key": __file__, "client_ca": __file__}, "--cert CLIENT.pem"),
    ],
)
def test_the_request_to_try_has_all_that_it_needs(given: dict[str, Any], words: str) -> None:
    assert words in trial(Settings(**given), 80)


def test_the_help_has_every_option_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{option.argument} {option.metavar}" in text for option in options())
    assert "[127.0.0.1]" in text


@pytest.mark.parametrize(("module", "package"), [("httptools", "httptools"), ("google.protobuf", "protobuf")])
def test_what_is_not_installed_is_told(module: str, package: str, tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules['{module}'] = None"
    script = f"{hidden}; from headgate.cli.__main__ import main; sys.exit(main(['serve', *{PORTS}]))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    assert f"{package} is not installed: pip install {package}, or in a checkout" in ended.stderr


def test_variables_that_are_not_options_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_WORKER", "4")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:8080")  # of other commands
    assert main(["serve", "--check"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "HEADGATE_WORKER in the environment is not an option" in line
    assert line.endswith(": did you mean HEADGATE_WORKERS?")
