"""Addresses of admin planes, credentials, and wrong values of options."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from headgate.cli.admin_client import PORTS, unreachable
from headgate.sdk.settings import NodeAddress, endpoint_of
from tests.cli.conftest import Cli


def test_addresses_are_parsed() -> None:
    for text, address, place in (
        ("http://127.0.0.1:8080", NodeAddress("http", "127.0.0.1", 8080), "127.0.0.1:8080"),
        ("http://LOCALHOST/", NodeAddress("http", "localhost", 80), "localhost:80"),
        ("https://limits.example.com", NodeAddress("https", "limits.example.com", 443), "limits.example.com:443"),
        ("http://[::1]:9", NodeAddress("http", "::1", 9), "[::1]:9"),
    ):
        assert endpoint_of(text, PORTS) == address
        assert address.place == place


WRONG = """127.0.0.1:8080 localhost:8080 ftp://host http:// http://host:http http://host:99999 http://host/path
http://host?query http://host#part http://user:secret@host http://[::1 http://h\u00f6st grpc://127.0.0.1:8081"""


def test_wrong_addresses_are_refused_with_an_example(cli: Cli) -> None:
    for text in ("", "http://ho st", *WRONG.split()):
        output = cli("usage --url", text, code=2).err
        assert text in output or repr(text) in output
        if text.startswith("grpc"):
            assert "not an address of a service, such as http://127.0.0.1:8082 (http, https)" in output


def test_a_key_cannot_smuggle_headers(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for key in ("", "a\r\nb", "\u00e9", "x" * 3000):
        monkeypatch.setenv("HEADGATE_ADMIN_KEY", key)
        output = cli("usage --url http://127.0.0.1:1", code=2).err
        assert ("the caller key must be printable" if key else "requires a key") in output, key


def test_files_that_cannot_be_used_for_tls_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "k")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for file in (str(wrong), "/no/such/file"):
        output = cli("usage --url https://127.0.0.1:1 --ca", file, code=2).err
        assert f"{file} cannot be used for TLS" in output
    output = cli("usage --url http://127.0.0.1:1 --ca", str(wrong), code=2).err
    assert "--ca requires TLS: the address should be https://127.0.0.1:1" in output


def test_failures_to_connect_have_reasons() -> None:
    refused = "no service listens at h:1 (connection refused): start one with headgate serve"
    for error, message in (
        (ConnectionRefusedError(111, "refused"), refused),
        (TimeoutError(), "h:1 did not respond in time"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong"), "h:1 failed the TLS handshake: [SSL: W"),
        (socket.gaierror(-2, "Name or service not known"), "h:1 cannot be reached: Name or service not known"),
        (OSError("Multiple exceptions"), "h:1 cannot be reached: Multiple exceptions"),
    ):
        assert unreachable(NodeAddress("http", "h", 1), error).startswith(message)


def test_impossible_numbers_are_wrong_usage(cli: Cli) -> None:
    for text in ("0", "-1", "nan", "inf", "soon"):
        for words in ("users list", "explain --url http://127.0.0.1:1 --domain a --entry b=c"):
            assert "--timeout: must be a number of seconds above 0" in cli(f"{words} --timeout={text}", code=2).err
    for words in (
        *("keys create mine --days=99999999999999999", "consumers create me --days=0", "keys rotate k --overlap=-1"),
        *("consumers rotate me --overlap=99999999999999999999", f"keys create mine --days={'9' * 5000}"),
    ):
        assert "must be a whole number from " in cli(words, code=2).err
    for words in ("refusals --since=99999999999999999999999d", "users override u r --for=soon"):
        assert "must be a duration, such as 30m, 1h or 7d, not " in cli(words, code=2).err


def test_an_empty_name_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """The path without it would be that of the list."""
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "k")
    for words in ("consumers show", "keys revoke", "rules versions", "users show"):
        assert "a name or an id must not be empty" in cli(f"{words} --url http://127.0.0.1:1", "", code=2).err
