"""Addresses of services, and the credentials that they are asked with."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from headgate.cli.service import Target, Unreachable, caller_headers, client_tls, parse_target
from headgate.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "target", "place"),
    [
        ("http://127.0.0.1:8080", Target("127.0.0.1", 8080), "127.0.0.1:8080"),
        ("http://LOCALHOST/", Target("localhost", 80), "localhost:80"),
        ("https://limits.example.com", Target("limits.example.com", 443, tls=True), "limits.example.com:443"),
        ("http://[::1]:9", Target("::1", 9), "[::1]:9"),
    ],
)
def test_what_an_address_says(text: str, target: Target, place: str) -> None:
    assert parse_target(text) == target
    assert target.place == place


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
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert text in str(caught.value) or repr(text) in str(caught.value)


def test_only_http_will_do() -> None:
    with pytest.raises(UsageError, match="http, https"):
        parse_target("grpc://127.0.0.1:8081")


@pytest.mark.parametrize("key", ["", "a\r\nb", "\u00e9", "x" * 3000])
def test_a_caller_key_cannot_smuggle_headers(key: str) -> None:
    with pytest.raises(UsageError, match="caller key"):
        caller_headers(key)


def test_files_that_cannot_be_used_for_tls_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for arguments in [(str(wrong),), ("/no/such/file",), (None, str(wrong)), (None, str(wrong), "/no/such/key")]:
        with pytest.raises(UsageError, match="cannot be used for TLS"):
            client_tls(*arguments)
    with pytest.raises(UsageError, match="--cert"):
        client_tls(key=str(wrong))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConnectionRefusedError(111, "refused"),
            "nothing listens at h:1 (connection refused): start one with headgate serve",
        ),
        (TimeoutError(), "h:1 does not answer in time"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"), "h:1 does not speak TLS as it should: [SSL: W"),
        (socket.gaierror(-2, "Name or service not known"), "h:1 cannot be reached: Name or service not known"),
        (OSError("Multiple exceptions"), "h:1 cannot be reached: Multiple exceptions"),
    ],
)
def test_why_there_is_no_connection(error: OSError, said: str) -> None:
    assert str(Unreachable(Target("h", 1), error)).startswith(said)
