"""``headgate check`` against a real service, and against what is none."""

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

from headgate.cli.__main__ import main
from headgate.cli.check import _write
from headgate.cli.command import Terminal
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from tests.server.process.certificates import Authority
from tests.server.process.service import service
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
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = tmp_path_factory.mktemp("check") / "rules.yaml"
    rules.write_text(RULES)
    with service("--rules", str(rules)) as found:
        yield f"http://127.0.0.1:{found.started().http_port}"


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """A server that reads one request, says `answer` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                asked = b""
                while not asked.endswith(b"}]}"):  # what is not read would have the connection reset
                    asked += connection.recv(65_536)
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


def test_what_passes_and_what_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["check", "--url", url, "--user", "a", "--method", "post", "/orders/1"]
    assert [main(asked), main([*asked, "--peek"]), main(asked), main(asked), main([*asked, "--peek"])] == [
        0,
        0,
        0,
        1,
        1,
    ]
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "allowed: rule orders-user is the most restrictive"
    assert out[1].startswith("  orders-user: 1 of 2 left, normal, all of it at 20")
    assert out[2].startswith("  watched: 0 of 1 left, ")
    assert out[2].endswith("a shadow that refuses nothing")
    assert [line.partition(":")[0] for line in out[3::3]] == ["would pass", "allowed", "refused", "would be refused"]
    assert out[9].startswith("refused: rule orders-user, for another ")
    assert "0 of 2 left, throttled, refused for another" in out[10]


def test_over_grpc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    with service("--rules", str(rules)) as found:
        asked = [
            "--url",
            f"grpc://127.0.0.1:{found.started().grpc_port}",
            "--user",
            "a",
            "--method",
            "post",
            "/orders/1",
        ]
        assert [main(["check", *asked]) for _ in range(3)] == [0, 0, 1]
        assert main(["reset", *asked, "--json"]) == 0
        told = capsys.readouterr().out
        assert '"rules": [' in told
        assert main(["check", *asked, "--peek"]) == 0


def test_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--url", url, "--user", "b", "--method", "POST", "--cost", "2", "--json", "/orders"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["allowed"], data["remaining"], data["rule_id"]) == (True, 0, "orders-user")


def test_a_repeated_key_is_counted_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["check", "--url", url, "--user", "c", "--method", "POST", "--idempotency-key", "k1", "--json", "/orders"]
    for _ in range(2):
        assert main(asked) == 0
        assert json.loads(capsys.readouterr().out)["remaining"] == 1


def test_one_rule_by_its_id(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["check", "--url", url, "--rule", "per-tenant", "--attribute", "tenant=acme"]
    assert [main(asked), main(asked)] == [0, 1]
    assert "refused: rule per-tenant" in capsys.readouterr().out
    assert main(["check", "--url", url, "--rule", "no-such", "--user", "1"]) == 0
    assert "allowed: rule 'no-such' does not exist; there are: orders-user" in capsys.readouterr().out


def test_a_shadow_that_is_asked_by_its_id_is_called_one(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--url", url, "--rule", "watched", "--user", "z"]) == 0
    assert capsys.readouterr().out.startswith("allowed: only shadows apply, which refuse nothing\n  watched: ")


def test_lists_and_nothing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--url", url, "--ip", "192.0.2.1", "/"]) == 1
    assert "deny list" in capsys.readouterr().out
    assert main(["check", "--url", url, "--user", "1"]) == 0
    assert capsys.readouterr().out == "allowed: no rule applies\n"


def test_what_the_service_does_not_accept_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--url", url, "--user", "1", "--cost", "9", "--rule", "orders-user"]) == 2
    assert "cost 9 is above the capacity of 2/hour" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "localhost:8080", "/"], "http://localhost:8080"),
        (["--url", "ftp://127.0.0.1:8081", "/"], "http, https, grpc, grpcs"),
        (["--attribute", "region"], "NAME=VALUE"),
        ([], "name the caller and the path: headgate check --user 42"),
        (["--peek"], "name the caller and the path"),
        (["--rule", "r", "--user", "1", "/path"], "leave out the path"),
        (["--rule", "r"], "--user 42"),
        (["--rule", "r", "--user", "1", "--ip", "::1"], "takes one principal"),
        (["--ca", "ca.pem", "/"], "https://"),
        (["--timeout", "0", "/"], "timeout must be a number of seconds"),
        (["--timeout", "nan", "/"], "timeout must be a number of seconds"),
        (["--caller-key", "a\nb", "/"], "caller key"),
        (["--cost", "much"], "--cost"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err


def test_where_nothing_listens_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("HEADGATE_URL", f"http://127.0.0.1:{port}")
    assert main(["check", "/"]) == 2
    assert capsys.readouterr().err == (
        f"headgate: http://127.0.0.1:{port} cannot be reached: All connection attempts failed\n"
        "  start one with headgate serve\n"
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "did not answer: Server disconnected"),
        (response(b"no", "401 Unauthorized"), "put the key into HEADGATE_CALLER_KEY"),
        (b"SSH-2.0-OpenSSH\r\n", "did not answer: "),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "did not answer: peer closed connection"),
        (response(b"<html>"), "not like Headgate"),
        (response(b"\xff"), "not like Headgate"),
        (response(b'{"results": "yes"}'), "not like Headgate"),
        (response(b'{"results": [{"allowed": true}]}'), "without `exact`"),
        (response(b'{"results": []}'), "answers 0 of 1 checks"),
        (response(b"[" * 100_000), "not like Headgate"),
        (response(b"nothing", "404 Not Found"), "answers 404: Not Found; is it Headgate?"),
        (response(b'{"title": "Gone \\u001b[31m"}', "500 Oh"), "answers 500: Gone \\x1b[31m"),
        (response(b"x", "503 Busy"), "answers 503"),
    ],
)
def test_what_is_no_answer(answer: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with saying(answer) as url:
        assert main(["check", "--url", url, "--user", "1"]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["check", "--url", f"http://127.0.0.1:{port}", "--timeout", "2", "/"]) == 2
    assert "did not answer in 2 s" in capsys.readouterr().err


def test_callers_keys_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path, "authority")
    (cert, key), (client, client_key) = authority.signed("server"), authority.signed("client")
    callers = tmp_path / "callers"
    callers.write_text(f"me {sha256(b'my-secret').hexdigest()}\n")
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(authority.path)]
    with service(*options, "--caller-keys", str(callers)) as found:
        asked = ["check", "--url", f"https://localhost:{found.started().http_port}", "--user", "1"]
        assert main(asked) == 2
        said = capsys.readouterr().err
        assert "has a certificate that is not trusted: " in said
        assert "with --ca" in said
        assert "headgate serve" not in said
        asked += ["--ca", str(authority.path)]
        assert main(asked) == 2
        capsys.readouterr()
        asked += ["--cert", str(client), "--key", str(client_key)]
        assert main(asked) == 2
        assert "answers 401" in capsys.readouterr().err
        monkeypatch.setenv("HEADGATE_CALLER_KEY", "my-secret")
        assert main(asked) == 0


def test_a_service_without_tls_is_said_to_be_at_http(capsys: pytest.CaptureFixture[str]) -> None:
    with service() as found:
        assert main(["check", "--url", f"https://localhost:{found.started().http_port}", "/"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "failed the TLS handshake: " in first
    assert second == "  a service without TLS is at http://"


def test_what_is_degraded_or_has_to_wait_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal.of(sys.stdout, sys.stderr)
    decision = Decision(True, 1, 0, 0, 0, Pressure.NORMAL, Quota(1, SECOND), 1_500_000, degraded="storage_unavailable")
    _write(Ruling(True, Verdict.LIMITED, decision, "r", ("r",), matched=True), 0, terminal, peeked=False)
    out = capsys.readouterr().out
    assert "degraded: the store did not decide (storage_unavailable), so the usage recorded there is unknown" in out
    assert "delayed by 1.5 s" in out
