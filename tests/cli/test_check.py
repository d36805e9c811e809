"""``headgate check`` with a real service, and with other servers."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from headgate.cli.check import _write
from headgate.cli.command import Terminal
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from tests.cli.conftest import Cli
from tests.server.process.certificates import Authority
from tests.server.process.service import Service, service
from tests.servers import free_port

RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, methods: [POST], limit: 2, window: 1h}
  - {id: watched, dimension: user, endpoint: /orders/**, methods: [POST], limit: 1, window: 1h, shadow: true}
  - {id: per-tenant, dimension: tenant, endpoint: /tenant, limit: 1, window: 1h}
deny: [{ip: 192.0.2.1}]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    rules = tmp_path_factory.mktemp("check") / "rules.yaml"
    rules.write_text(RULES)
    with service("--rules", str(rules)) as found:
        yield found.started()


@pytest.fixture
def url(running: Service) -> str:
    return f"http://127.0.0.1:{running.http_port}"


@contextmanager
def responding(answer: bytes) -> Iterator[str]:
    """A server that reads one request, sends `answer` and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                request = b""
                while not request.endswith(b"}]}"):  # unread bytes would reset the connection
                    request += connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join(60)
            assert not thread.is_alive()


def response(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def test_admissions_and_refusals(url: str, cli: Cli) -> None:
    words = f"check --url {url} --user a --method post /orders/1"
    steps = (words, 0), (f"{words} --peek", 0), (words, 0), (words, 1), (f"{words} --peek", 1)
    out = [line for each, code in steps for line in cli(each, code=code).out.splitlines()]
    assert out[0] == "allowed: rule orders-user is the most restrictive"
    assert out[1].startswith("  orders-user: 1 of 2 left, normal, all of it at 20")
    assert out[2].startswith("  watched: 0 of 1 left, ")
    assert out[2].endswith("a shadow that refuses nothing")
    assert [line.partition(":")[0] for line in out[3::3]] == ["would pass", "allowed", "refused", "would be refused"]
    assert out[9].startswith("refused: rule orders-user, for another ")
    assert "0 of 2 left, throttled, refused for another" in out[10]


def test_over_grpc(running: Service, cli: Cli) -> None:
    words = f"--url grpc://127.0.0.1:{running.grpc_port} --user over-grpc --method post /orders/1"
    for code in (0, 0, 1):
        cli(f"check {words}", code=code)
    assert '"rules": [' in cli(f"reset {words} --json").out
    cli(f"check {words} --peek")


def test_json(url: str, cli: Cli) -> None:
    data = json.loads(cli(f"check --url {url} --user b --method POST --cost 2 --json /orders").out)
    assert (data["allowed"], data["remaining"], data["rule_id"]) == (True, 0, "orders-user")


def test_a_repeated_key_is_counted_once(url: str, cli: Cli) -> None:
    for _ in range(2):
        output = cli(f"check --url {url} --user c --method POST --idempotency-key k1 --json /orders").out
        assert json.loads(output)["remaining"] == 1


def test_one_rule_by_its_id(url: str, cli: Cli) -> None:
    words = f"check --url {url} --rule per-tenant --attribute tenant=acme"
    cli(words)
    assert "refused: rule per-tenant" in cli(words, code=1).out
    missing = cli(f"check --url {url} --rule no-such --user 1").out
    assert "allowed: rule 'no-such' does not exist; the rules are: orders-user" in missing
    shadow = cli(f"check --url {url} --rule watched --user z").out
    assert shadow.startswith("allowed: only shadows apply, which refuse nothing\n  watched: ")


def test_lists_no_rules_and_costs_above_the_capacity(url: str, cli: Cli) -> None:
    assert "deny list" in cli(f"check --url {url} --ip 192.0.2.1 /", code=1).out
    assert cli(f"check --url {url} --user 1").out == "allowed: no rule applies\n"
    above = cli(f"check --url {url} --user 1 --cost 9 --rule orders-user", code=2).err
    assert "cost 9 is above the capacity of 2/hour" in above


def test_wrong_usage(cli: Cli) -> None:
    for words, message in (
        ("--url localhost:8080 /", "http://localhost:8080"),
        ("--url ftp://127.0.0.1:8081 /", "http, https, grpc, grpcs"),
        ("--attribute region", "NAME=VALUE"),
        ("", "name the caller and the path: headgate check --user 42"),
        ("--peek", "name the caller and the path"),
        ("--rule r --user 1 /path", "leave out the path"),
        ("--rule r", "--user 42"),
        ("--rule r --user 1 --ip ::1", "takes one principal"),
        ("--ca ca.pem /", "https://"),
        ("--timeout 0 /", "must be a number of seconds above 0"),
        ("--timeout nan /", "must be a number of seconds above 0"),
        ("--cost much", "--cost"),
    ):
        assert message in cli(f"check {words}", code=2).err, words
    assert "caller key" in cli("check / --caller-key", "a\nb", code=2).err


def test_a_missing_service_is_an_error_with_the_command_that_starts_one(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    port = free_port()
    monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{port}")
    assert cli("check /", code=2).err == (
        f"headgate: http://127.0.0.1:{port} cannot be reached: All connection attempts failed\n"
        "  start a service with headgate serve\n"
    )


def test_other_servers_are_errors(cli: Cli) -> None:
    for answer, message in (
        (b"", "did not answer: Server disconnected"),
        (response(b"no", "401 Unauthorized"), "put the key into HEADGATE_CALLER_KEY"),
        (b"SSH-2.0-OpenSSH\r\n", "did not answer: "),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "did not answer: peer closed connection"),
        (response(b"<html>"), "is not a Headgate service"),
        (response(b"\xff"), "is not a Headgate service"),
        (response(b'{"results": "yes"}'), "is not a Headgate service"),
        (response(b'{"results": [{"allowed": true}]}'), "sent no `exact`"),
        (response(b'{"results": []}'), "answered 0 of 1 checks"),
        (response(b"[" * 100_000), "is not a Headgate service"),
        (response(b"nothing", "404 Not Found"), "answered 404: Not Found; is it a Headgate service?"),
        (response(b'{"title": "Gone \\u001b[31m"}', "500 Oh"), "answered 500: Gone \\x1b[31m"),
        (response(b"x", "503 Busy"), "answered 503: Service Unavailable\n"),
    ):
        with responding(answer) as url:
            shown = cli(f"check --url {url} --user 1", code=2)
        assert message in shown.err
        assert shown.out == ""


def test_a_silent_server_is_a_timeout(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        output = cli(f"check --url http://127.0.0.1:{server.getsockname()[1]} --timeout 1 /", code=2).err
    assert "did not answer in 1 s" in output


def test_callers_keys_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    authority = Authority(tmp_path, "authority")
    (cert, key), (client, client_key) = authority.signed("server"), authority.signed("client")
    callers = tmp_path / "callers"
    callers.write_text(f"me {sha256(b'my-secret').hexdigest()}\n")
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(authority.path)]
    with service(*options, "--caller-keys", str(callers)) as found:
        words = f"check --url https://localhost:{found.started().http_port} --user 1"
        output = cli(words, code=2).err
        assert "has a certificate that is not trusted: " in output
        assert "set --ca" in output
        assert "headgate serve" not in output
        words += f" --ca {authority.path}"
        cli(words, code=2)
        words += f" --cert {client} --key {client_key}"
        assert "answered 401" in cli(words, code=2).err
        monkeypatch.setenv("HEADGATE_CALLER_KEY", "my-secret")
        cli(words)


def test_a_service_without_tls_is_reported(url: str, cli: Cli) -> None:
    first, second = cli(f"check --url {url.replace('http', 'https')} /", code=2).err.splitlines()
    assert "failed the TLS handshake: " in first
    assert second == "  for a service without TLS, use http://"


def test_degraded_and_delayed_decisions_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal.of(sys.stdout, sys.stderr)
    decision = Decision(True, 1, 0, 0, 0, Pressure.NORMAL, Quota(1, SECOND), 1_500_000, degraded="storage_unavailable")
    _write(Ruling(True, Verdict.LIMITED, decision, "r", ("r",), matched=True), 0, terminal, peeked=False)
    out = capsys.readouterr().out
    assert "degraded: the store did not decide (storage_unavailable), so the usage recorded there is unknown" in out
    assert "delayed by 1.5 s" in out
