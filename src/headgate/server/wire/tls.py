"""TLS: contexts from files, and new files without a restart."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """In PEM."""

    certificate: Path
    """With the chain up to, and without, the root."""
    key: Path
    client_authority: Path | None = None
    """Mutual TLS: clients must show a certificate that these authorities signed."""

    def context(self, protocols: tuple[str, ...]) -> ssl.SSLContext:
        """Return a context for a server that speaks these protocols.

        Raises:
            OSError: a file cannot be read.
            ssl.SSLError: it is not what it should be, or the key does not belong to the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(list(protocols))
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0  # no session outlives what the authorities say
        return context

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file does."""
        files = [self.certificate, self.key, *([self.client_authority] if self.client_authority else [])]
        seen = [file.stat() for file in files]
        return tuple([(each.st_mtime_ns, each.st_size, each.st_ino) for each in seen])


class Tls:
    """A context that follows its files. `context` is for a listening socket, and stays the same."""

    __slots__ = ("_current", "_files", "_protocols", "_state", "context")

    def __init__(self, files: TlsFiles, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> None:
        self._files, self._protocols = files, protocols
        self._state = files._state()  # noqa: SLF001  of the same module
        self.context = self._current = files.context(protocols)
        self.context.sni_callback = self._choose

    def refresh(self) -> bool:
        """Read the files anew if they have changed; say whether new handshakes use others than before.

        Files that are not good are reported, and the old ones stay in use.
        """
        try:
            state = self._files._state()  # noqa: SLF001  of the same module
            if state == self._state:
                return False
            self._state = state
            self._current = self._files.context(self._protocols)
        except (OSError, ssl.SSLError) as error:
            _log.error("The new certificate is not used, the old one stays: %s: %s", self._files.certificate, error)
            return False
        _log.info("New handshakes use the new certificate: %s", self._files.certificate)
        return True

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, before a certificate is chosen."""
        tls.context = self._current
