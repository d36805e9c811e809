"""TLS contexts from files, which may be replaced without a restart."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

from headgate.live import FileSource, Live


class Tls:
    """A server context that follows its files; `context`, for a listening socket, stays the same object.

    The certificate's file includes the chain up to the root. With `client_authority`, clients must present a
    certificate signed by one of these authorities. Raises OSError, or ssl.SSLError for an invalid file or another key.
    """

    __slots__ = ("context", "live")

    def __init__(self, certificate: Path, key: Path, client_authority: Path | None = None) -> None:
        watched = [file for file in (certificate, key, client_authority) if file is not None]
        source = FileSource(certificate, lambda _: _context(certificate, key, client_authority), lambda _: watched)
        self.live = Live(source, lambda context, _: context, what="certificates")
        """The context of new handshakes."""
        self.context = self.live.value
        self.context.sni_callback = self._choose

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, before a certificate is chosen."""
        tls.context = self.live.value


def mismatch(error: Exception, certificate: Path, key: Path) -> str:
    """Return why a certificate and a key do not fit, given the error of loading them; empty if that is the reason."""
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    with suppress(OSError):
        if b"PRIVATE KEY-" in certificate.read_bytes() and b"PRIVATE KEY-" not in key.read_bytes():
            return "they are swapped"
    return ""


def _context(certificate: Path, key: Path, client_authority: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.load_cert_chain(certificate, key)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0  # no session outlives a change of the authorities
    return context
