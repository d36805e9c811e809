from __future__ import annotations

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
from headgate.server.wire.tls import Tls
from tests.server.process.certificates import Authority
from tests.servers import until

from .http1.conversation import request
from .serving import PATIENCE, connect, curl, read_all, read_responses, serving

GET = request(line="GET / HTTP/1.1")
ENVOY = x509.DNSName("envoy"), x509.UniformResourceIdentifier("spiffe://a/b")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_of(authority: Authority, clients: Path | None = None) -> Tls:
    return Tls(*authority.signed("server"), clients)


async def names(received: HttpRequest) -> HttpResponse:
    return HttpResponse(200, ", ".join(received.peer.names).encode())


def context_of(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if certificate:
        context.load_cert_chain(*certificate)
    return context


def ask_over(context: ssl.SSLContext, port: int) -> bytes:
    """Send a request over TLS; return the response. Raises an error without one."""
    with connect(port) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
        tls.sendall(GET)
        if not (answer := tls.recv(1000)):
            raise ConnectionResetError
        return answer


def shown(port: int, authority: Authority) -> str:
    with connect(port) as client, context_of(authority).wrap_socket(client, server_hostname="127.0.0.1") as tls:
        certificate = tls.getpeercert()
        assert certificate is not None
        return str(certificate["subject"][0][0][1])


def test_alpn_chooses_the_version_and_old_versions_of_tls_are_refused(authority: Authority) -> None:
    with serving() as server:
        port = server.http(tls=tls_of(authority))
        trusting = ("--cacert", str(authority.path), "--include", f"https://127.0.0.1:{port}/")
        assert "HTTP/2 200" in curl(*trusting)
        assert "HTTP/2 200" in curl(*trusting, "--data", "x" * 100_000)
        assert "HTTP/1.1 200" in curl(*trusting, "--http1.1")
        assert "HTTP/1.1 200" in curl(*trusting, "--no-alpn")
        context = context_of(authority)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            ask_over(context, port)


def test_slow_and_invalid_handshakes_are_cut_off(authority: Authority) -> None:
    with serving(WireLimits(header_time=0.1)) as server:
        port = server.http(tls=tls_of(authority))
        for sent in (b"", GET):
            with connect(port) as plain:
                plain.sendall(sent)
                assert b"HTTP" not in read_all(plain)
        until(lambda: server.listener.connections == 0, "it is gone")


def test_the_last_response_and_the_end_arrive_over_tls(authority: Authority) -> None:
    with (
        serving() as server,
        connect(server.http(tls=tls_of(authority))) as client,
        context_of(authority).wrap_socket(client, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(request("Connection: close", line="GET /last HTTP/1.1"))
        assert read_all(tls).endswith(b"GET /last  ")


class TestClientCertificates:
    def test_handlers_get_the_names_of_a_client_certificate(self, authority: Authority) -> None:
        certificate, key = authority.signed("client", *ENVOY)

        async def who(call: UnaryCall) -> bytes:
            return ", ".join(call.peer.names).encode()

        with serving() as server:
            tls = tls_of(authority, authority.path)
            trusting = ["--cacert", str(authority.path), "--cert", str(certificate), "--key", str(key)]
            trusting.append(f"https://127.0.0.1:{server.http(names, tls)}/")
            assert curl(*trusting) == curl(*trusting, "--http1.1") == "DNS:envoy, URI:spiffe://a/b"
            port = server.grpc(Methods({b"/t.T/Who": who}), tls)
            credentials = grpc.ssl_channel_credentials(*(f.read_bytes() for f in (authority.path, key, certificate)))
            with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                call: Any = channel.unary_unary("/t.T/Who")
                assert call(b"", timeout=PATIENCE) == b"DNS:envoy, URI:spiffe://a/b"

    def test_clients_without_a_valid_certificate_are_not_served(self, authority: Authority, tmp_path: Path) -> None:
        served: list[HttpRequest] = []

        async def count(received: HttpRequest) -> HttpResponse:
            served.append(received)
            return HttpResponse(200)

        with serving() as server:
            port = server.http(count, tls_of(authority, authority.path))
            for certificate in (None, Authority(tmp_path, "other").signed("client", *ENVOY)):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    ask_over(context_of(authority, certificate), port)
        assert served == []


class TestNewFiles:
    def test_new_handshakes_use_new_files_and_old_connections_go_on(self, authority: Authority) -> None:
        tls = Tls(*authority.signed("old", file="server"))
        with serving() as server:
            port = server.http(tls=tls)
            with (
                socket.create_connection(("127.0.0.1", port), PATIENCE) as client,
                context_of(authority).wrap_socket(client, server_hostname="127.0.0.1") as before,
            ):
                assert shown(port, authority) == "old"
                assert not tls.live.refresh()
                authority.signed("new", file="server")
                tls.live.start()
                until(lambda: shown(port, authority) == "new", "the new one is in use")
                before.sendall(GET)
                assert read_responses(before).endswith(b"GET /  ")
            assert "HTTP/2 200" in curl("--include", "--cacert", str(authority.path), f"https://127.0.0.1:{port}/")

    def test_another_authority_of_clients_counts_at_once(self, authority: Authority, tmp_path: Path) -> None:
        other, accepted = Authority(tmp_path, "other"), tmp_path / "accepted.pem"
        accepted.write_bytes(authority.path.read_bytes())
        tls, context = tls_of(authority, accepted), context_of(authority, other.signed("client", *ENVOY))

        def served() -> bool:
            try:
                return b"DNS:envoy" in ask_over(context, port)
            except (ssl.SSLError, ConnectionError):
                return False

        with serving() as server:
            port = server.http(names, tls)
            seen = [served()]
            for text in (other.path.read_bytes(), authority.path.read_bytes() + b"\n"):
                accepted.write_bytes(text)
                assert tls.live.reload()
                seen.append(served())
        assert seen == [False, True, False]
