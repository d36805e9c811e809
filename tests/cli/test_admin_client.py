"""Addresses of admin planes, and the credentials that they are asked with."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.cli.admin_client import PORTS, unreachable
from headgate.sdk.settings import NodeAddress, endpoint_of


@pytest.mark.parametrize(
    ("text", "address", "place"),
    [
        ("http://127.0.0.1:8080", NodeAddress("http", "127.0.0.1", 8080), "127.0.0.1:8080"),
        ("http://LOCALHOST/", NodeAddress("http", "localhost", 80), "localhost:80"),
        ("https://limits.example.com", NodeAddress("https", "limits.example.com", 443), "limits.example.com:443"),
        ("http://[::1]:9", NodeAddress("http", "::1", 9), "[::1]:9"),
    ],
)
def test_what_an_address_says(text: str, address: NodeAddress, place: str) -> None:
    assert endpoint_of(text, PORTS) == address
    assert address.place == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:8080",
        "localhost:8080",
        "ftp://host",
        "http://",
        "http://host:http",
        "http://host:99999",
        "http://host/path",
        "http://host?query",
        "http://host#part",
        "http://user:secret@host",
        "http://[::1",
        "http://ho st",
        "http://h\u00f6st",
        "grpc://127.0.0.1:8081",
    ],
)
def test_what_is_not_an_address_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--url", text]) == 2
    said = capsys.readouterr().err
    assert text in said or repr(text) in said


def test_only_http_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--url", "grpc://127.0.0.1:8081"]) == 2
    assert "not an address of a service, such as http://127.0.0.1:8082 (http, https)" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["", "a\r\nb", "\u00e9", "x" * 3000])
def test_a_key_cannot_smuggle_headers(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", key)
    assert main(["usage", "--url", "http://127.0.0.1:1"]) == 2
    assert ("the caller key must be printable" if key else "requires a key") in capsys.readouterr().err


def test_files_that_cannot_be_used_for_tls_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "k")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for file in (str(wrong), "/no/such/file"):
        assert main(["usage", "--url", "https://127.0.0.1:1", "--ca", file]) == 2
        assert f"{file} cannot be used for TLS" in capsys.readouterr().err
    assert main(["usage", "--url", "http://127.0.0.1:1", "--ca", str(wrong)]) == 2
    assert "--ca requires TLS: the address should be https://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConnectionRefusedError(111, "refused"),
            "nothing listens at h:1 (connection refused): start one with headgate serve",
        ),
        (TimeoutError(), "h:1 does not answer in time"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"), "h:1 failed the TLS handshake: [SSL: W"),
        (socket.gaierror(-2, "Name or service not known"), "h:1 cannot be reached: Name or service not known"),
        (OSError("Multiple exceptions"), "h:1 cannot be reached: Multiple exceptions"),
    ],
)
def test_why_there_is_no_connection(error: OSError, said: str) -> None:
    assert unreachable(NodeAddress("http", "h", 1), error).startswith(said)
