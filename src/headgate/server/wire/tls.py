"""TLS contexts from files, which may be replaced without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from headgate.live import FileSource, Live


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path
    """Includes the chain up to the root, but not the root."""
    key: Path
    client_authority: Path | None = None
    """For mutual TLS: clients must present a certificate signed by one of these authorities."""

    def context(self) -> ssl.SSLContext:
        """Return a server context. Raises OSError, or ssl.SSLError for an invalid file or a key that does not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2", "http/1.1"])
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0  # no session outlives a change of the authorities
        return context


class Tls:
    """A context that follows its files; `context`, for a listening socket, stays the same object.

    Raises like `TlsFiles.context`.
    """

    __slots__ = ("context", "live")

    def __init__(self, files: TlsFiles) -> None:
        watched = [file for file in (files.certificate, files.key, files.client_authority) if file is not None]
        source = FileSource(files.certificate, lambda _: files.context(), lambda _: watched)
        self.live = Live(source, lambda context, _: context, what="certificates")
        """The context of new handshakes."""
        self.context = self.live.value
        self.context.sni_callback = self._choose

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, before a certificate is chosen."""
        tls.context = self.live.value
