"""TLS: contexts from files, and new files without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from headgate.live import FileSource, Live


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """In PEM."""

    certificate: Path
    """With the chain up to, and without, the root."""
    key: Path
    client_authority: Path | None = None
    """Mutual TLS: clients must show a certificate that these authorities signed."""

    def context(self) -> ssl.SSLContext:
        """Return a context for a server.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: it is not what it should be, or the key does not belong to the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2", "http/1.1"])
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0  # no session outlives what the authorities say
        return context


class Tls:
    """A context that follows its files. `context` is for a listening socket, and stays the same.

    Raises what `TlsFiles.context` raises.
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
