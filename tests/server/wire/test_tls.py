from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from headgate.server.wire.grpc.calls import Methods, UnaryCall
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import HttpRequest, HttpResponse
from headgate.server.wire.tls import Tls, TlsFiles
from tests.servers import until

from .certificates import Authority
from .http1.conversation import request
from .serving import PATIENCE, connect, curl, read_all, read_responses, serving


def with_authority(files: TlsFiles, authority: Authority) -> TlsFiles:
    return TlsFiles(files.certificate, files.key, authority.file)


async def names(asked: HttpRequest) -> HttpResponse:
    return HttpResponse(200, ", ".join(asked.peer.names).encode())


def ask_over(context: ssl.SSLContext, client: socket.socket) -> bytes:
    """Send a request over TLS; return the answer, or raise if there is none."""
    with context.wrap_socket(client, server_hostname="127.0.0.1") as tls:
        tls.sendall(request(line="GET / HTTP/1.1"))
        if not (answer := tls.recv(1000)):
            raise ConnectionResetError
        return answer


def shown(port: int, authority: Authority) -> str:
    """Return the name in the certificate that a server shows."""
    context = ssl.create_default_context(cafile=authority.file)
    with connect(port) as client, context.wrap_socket(client, server_hostname="127.0.0.1") as tls:
        certificate = tls.getpeercert()
        assert certificate is not None
        return str(certificate["subject"][0][0][1])


def test_alpn_chooses_the_version(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serving() as server:
        url = f"https://127.0.0.1:{server.http(tls=Tls(authority.issue('server')))}/"
        trusting = ("--cacert", str(authority.file), "--include")
        assert "HTTP/2 200" in curl(*trusting, url)
        assert "HTTP/2 200" in curl(*trusting, "--data", "x" * 100_000, url)
        assert "HTTP/1.1 200" in curl(*trusting, "--http1.1", url)
        assert "HTTP/1.1 200" in curl(*trusting, "--no-alpn", url)


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with serving() as server:
        port = server.http(tls=Tls(authority.issue("server")))
        context = ssl.create_default_context(cafile=authority.file)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with connect(port) as client, pytest.raises((ssl.SSLError, ConnectionResetError)):
            context.wrap_socket(client, server_hostname="127.0.0.1")


def test_a_handshake_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    with serving(WireLimits(header_time=0.1)) as server:
        port = server.http(tls=Tls(Authority(tmp_path).issue("server")))
        with connect(port) as silent:
            assert read_all(silent) == b""


def test_the_last_response_and_the_end_arrive_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=authority.file)
    with serving() as server:
        port = server.http(tls=Tls(authority.issue("server")))
        with connect(port) as client, context.wrap_socket(client, server_hostname="127.0.0.1") as tls:
            tls.sendall(request("Connection: close", line="GET /last HTTP/1.1"))
            assert read_all(tls).endswith(b"GET /last  ")


class TestClientCertificates:
    def test_the_names_of_a_client_are_told(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        client = authority.issue("client", x509.DNSName("envoy"), x509.UniformResourceIdentifier("spiffe://a/b"))
        with serving() as server:
            tls = Tls(with_authority(authority.issue("server"), authority))
            url = f"https://127.0.0.1:{server.http(names, tls)}/"
            trusting = ("--cacert", str(authority.file), "--cert", str(client.certificate), "--key", str(client.key))
            assert curl(*trusting, url) == "DNS:envoy, URI:spiffe://a/b"
            assert curl(*trusting, "--http1.1", url) == "DNS:envoy, URI:spiffe://a/b"

    @pytest.mark.parametrize("shows", ["nothing", "another authority's"])
    def test_who_shows_no_good_certificate_is_not_served(self, tmp_path: Path, shows: str) -> None:
        authority = Authority(tmp_path)
        other = Authority(tmp_path, "other").issue("client", x509.DNSName("envoy"))
        context = ssl.create_default_context(cafile=authority.file)
        if shows != "nothing":
            context.load_cert_chain(other.certificate, other.key)
        served = 0

        async def count(_: HttpRequest) -> HttpResponse:
            nonlocal served
            served += 1
            return HttpResponse(200)

        with serving() as server:
            port = server.http(count, Tls(with_authority(authority.issue("server"), authority)))
            with connect(port) as client, pytest.raises((ssl.SSLError, ConnectionError)):
                ask_over(context, client)
            assert served == 0

    def test_grpc_with_certificates_on_both_sides(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        client = authority.issue("client", x509.DNSName("envoy"))

        async def who(call: UnaryCall) -> bytes:
            return ", ".join(call.peer.names).encode()

        with serving() as server:
            tls = Tls(with_authority(authority.issue("server"), authority))
            port = server.grpc(Methods({b"/t.T/Who": who}), tls)
            credentials = grpc.ssl_channel_credentials(
                authority.file.read_bytes(), client.key.read_bytes(), client.certificate.read_bytes()
            )
            with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                call: Any = channel.unary_unary("/t.T/Who")
                assert call(b"", timeout=PATIENCE) == b"DNS:envoy"


class TestNewFiles:
    def test_new_handshakes_use_new_files_and_old_connections_go_on(self, tmp_path: Path) -> None:
        authority = Authority(tmp_path)
        tls = Tls(authority.issue("old", file="server"))
        context = ssl.create_default_context(cafile=authority.file)
        with serving() as server:
            port = server.http(tls=tls)
            with connect(port) as client, context.wrap_socket(client, server_hostname="127.0.0.1") as before:
                assert shown(port, authority) == "old"
                assert not tls.live.refresh()
                authority.issue("new", file="server")
                tls.live.start()
                until(lambda: shown(port, authority) == "new", "the new one is in use")
                before.sendall(request(line="GET / HTTP/1.1"))
                assert read_responses(before).endswith(b"GET /  ")
            assert "HTTP/2 200" in curl("--include", "--cacert", str(authority.file), f"https://127.0.0.1:{port}/")

    def test_another_authority_of_clients_counts_at_once(self, tmp_path: Path) -> None:
        authority, other = Authority(tmp_path), Authority(tmp_path, "other")
        client = other.issue("client", x509.DNSName("envoy"))
        accepted = tmp_path / "accepted.pem"
        accepted.write_bytes(authority.file.read_bytes())
        files = authority.issue("server")
        tls = Tls(TlsFiles(files.certificate, files.key, accepted))
        context = ssl.create_default_context(cafile=authority.file)
        context.load_cert_chain(client.certificate, client.key)

        def served() -> bool:
            with connect(port) as plain:
                try:
                    return b"DNS:envoy" in ask_over(context, plain)
                except (ssl.SSLError, ConnectionError):
                    return False

        with serving() as server:
            port = server.http(names, tls)
            assert not served()
            accepted.write_bytes(other.file.read_bytes())
            assert tls.live.reload()
            assert served()
            accepted.write_bytes(authority.file.read_bytes() + b"\n")
            assert tls.live.reload()
            assert not served()

    @pytest.mark.parametrize("broken", ["certificate", "key", "missing"])
    def test_bad_new_files_leave_the_old_ones_in_use_and_are_reported(
        self, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        authority = Authority(tmp_path)
        files = authority.issue("old", file="server")
        tls = Tls(files)
        if broken == "certificate":
            files.certificate.write_text("nonsense")
        elif broken == "key":
            files.key.write_bytes(authority.issue("another").key.read_bytes())
        else:
            files.certificate.unlink()
        with serving() as server, caplog.at_level(logging.ERROR):
            port = server.http(tls=tls)
            assert not tls.live.reload()
            assert shown(port, authority) == "old"
        assert "the certificates in force stay" in caplog.text
        authority.issue("new", file="server")
        assert tls.live.reload()

    def test_files_that_are_bad_from_the_start_are_an_error(self, tmp_path: Path) -> None:
        files = Authority(tmp_path).issue("server")
        files.key.write_text("nonsense")
        with pytest.raises(ssl.SSLError):
            Tls(files)
        with pytest.raises(FileNotFoundError):
            Tls(TlsFiles(tmp_path / "nowhere", files.key))


def test_a_client_that_speaks_no_tls_is_dropped(tmp_path: Path) -> None:
    with serving() as server:
        port = server.http(tls=Tls(Authority(tmp_path).issue("server")))
        with connect(port) as plain:
            plain.sendall(request(line="GET / HTTP/1.1"))
            assert b"HTTP" not in read_all(plain)
        until(lambda: server.listener.connections == 0, "it is gone")
