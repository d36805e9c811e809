"""TLS on both ports: the command that is printed works, client certificates are demanded, new ones need no restart."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from tests.server.process.certificates import Authority
from tests.server.process.service import CHECK, SECONDS, service
from tests.servers import until

QUESTION = '{"principal": {"user": "u1"}, "endpoint": "/api/v1/orders", "method": "POST"}'


def shown(port: int, authority: Path) -> bytes:
    """The certificate that a server shows."""
    context = ssl.create_default_context(cafile=str(authority))
    address = ("127.0.0.1", port)
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
        found = secure.getpeercert(binary_form=True)
        assert found
        return found


@pytest.mark.parametrize("told", [False, True])
def test_both_ports_speak_tls_and_a_new_certificate_needs_no_restart(tmp_path: Path, *, told: bool) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.signed("server")
    with service("--tls-cert", str(cert), "--tls-key", str(key)) as found:
        found.started()
        assert json.loads(subprocess.run(found.trial, capture_output=True, check=True).stdout)["allowed"]
        before = [shown(port, authority.path) for port in (found.http_port, found.grpc_port)]
        authority.signed("server")
        if told:
            found.signal(signal.SIGHUP)
        until(lambda: shown(found.http_port, authority.path) != before[0], "HTTP has the new one", SECONDS)
        until(lambda: shown(found.grpc_port, authority.path) != before[1], "gRPC has the new one", SECONDS)
        cert.write_text("no certificate")
        if told:
            found.signal(signal.SIGHUP)
        until(lambda: "the certificates in force stay" in found.complained, "it complains", SECONDS)
        assert shown(found.http_port, authority.path)


def test_client_certificates_are_demanded(tmp_path: Path) -> None:
    servers, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    cert, key = servers.signed("server")
    mine, my_key = clients.signed("client")
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(clients.path)]
    with service(*options) as found:
        url = f"https://127.0.0.1:{found.started().http_port}{CHECK}"
        curl = ["curl", "-s", "--cacert", str(servers.path), url, "-d", QUESTION]
        known = subprocess.run([*curl, "--cert", str(mine), "--key", str(my_key)], capture_output=True, check=True)
        assert json.loads(known.stdout)["allowed"]
        assert subprocess.run(curl, capture_output=True, check=False).returncode != 0


def test_a_certificate_and_a_key_that_do_not_fit_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = Authority(tmp_path, "authority").signed("server")
    assert main(["serve", "--check", "--tls-cert", str(key), "--tls-key", str(cert)]) == 2
    assert "they are swapped" in capsys.readouterr().err
    assert main(["serve", "--check", "--tls-cert", str(key), "--tls-key", str(key)]) == 2
    assert "they must be PEM files" in capsys.readouterr().err
    another = Authority(tmp_path, "another").signed("other")[1]
    assert main(["serve", "--check", "--tls-cert", str(cert), "--tls-key", str(another)]) == 2
    assert "the key belongs to another certificate" in capsys.readouterr().err
