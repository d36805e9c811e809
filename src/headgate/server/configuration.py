"""What a service reads from files, by its settings: rules, descriptors, identity, caller keys and certificates.

Each of them follows its files while the service runs, by itself and, at once, when it is told to look again: see
`headgate.live`.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headgate.core.errors import UsageError
from headgate.live import FileSource, Live, Source
from headgate.policy.envoy import LiveDescriptors
from headgate.policy.live import LivePolicy, NoRules, rules_file
from headgate.policy.loading import text_of
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import SnapshotSource, snapshot_folder
from headgate.server.admission import CALLER_HEADERS, CallerKeys
from headgate.server.api.forward_auth import LOOPBACK, Identifies
from headgate.server.identity.loading import FORWARDED_FOR, load_identity
from headgate.server.settings import Settings
from headgate.server.wire.tls import Tls, TlsFiles
from headgate.web.address import AddressReader
from headgate.web.identity import Identifier, Identity
from headgate.web.lines import Lines

_LOG = logging.getLogger("headgate.server")
_UNREMARKABLE = {"not configured", "absent", "known key", "verified"}
EXAMPLE = Path(__file__).with_name("example-rules.yaml")
"""Rules for those who have none yet."""


class Configuration:
    """All files of a service, and what is in force of them.

    Raises:
        UsageError: one of them cannot be used; it says which, and why.
    """

    def __init__(self, settings: Settings) -> None:
        self.tls = _tls(settings)
        self.identifier = identifier_of(settings)
        """Finds out who the clients of proxies are."""
        rules = rules_of(settings)
        self.rules = LivePolicy(rules, enforcing=settings.enforcement)
        self.snapshot = rules if isinstance(rules, SnapshotSource) else None
        """Where the rules of a database are kept, if they come from one."""
        self.descriptors: LiveDescriptors | None = None
        """The trees that answer Envoy, if any."""
        if settings.envoy_config:
            self.descriptors = LiveDescriptors(settings.envoy_config, merge_domains=settings.envoy_merge_domains)
        self.callers: Live[CallerKeys] | None = None
        """Who may ask; None for everybody."""
        if settings.caller_keys:
            source = FileSource(settings.caller_keys, lambda path: CallerKeys.parse(text_of(path), str(path)))
            self.callers = Live(source, lambda keys, _: keys, what="caller keys")

    def lives(self) -> Mapping[str, Live[Any]]:
        """Return all that may change, by what it is called in metrics."""
        return dict(self._lives())

    def _lives(self) -> Iterator[tuple[str, Live[Any]]]:
        yield "rules", self.rules
        if self.descriptors is not None:
            yield "descriptors", self.descriptors
        if isinstance(self.identifier, LiveIdentifier):
            yield "identity", self.identifier
        if self.callers is not None:
            yield "caller_keys", self.callers
        if self.tls is not None:
            yield "certificates", self.tls.live

    def start(self) -> None:
        """Follow all files from now on."""
        for _, live in self._lives():
            live.start()

    def reload(self) -> None:
        """Read all files now. What is wrong is logged, and what was in force stays. It may block."""
        for _, live in self._lives():
            live.reload()

    def close(self) -> None:
        """Stop following the files."""
        for _, live in self._lives():
            live.close()


class LiveIdentifier(Live[Identifier]):
    """Finds out who asks, as an `Identifier` does, by a file that may change, as may the files of keys it names."""

    def __init__(self, settings: Settings) -> None:
        def load(path: Path) -> Identifier:
            return _checked(load_identity(path, settings.trusted_proxies, source.also), settings)

        source = FileSource(settings.identity, load)
        super().__init__(source, lambda identifier, _: identifier, what="identity settings")

    @property
    def addresses(self) -> AddressReader:
        """What finds the address of a client."""
        return self.value.addresses

    def identify(self, peer: str | None, lines: Lines, now: int) -> Identity:
        """Return who sent a request; see `Identifier.identify`. Why a credential proved nothing is in the debug log."""
        identity = self.value.identify(peer, lines, now)
        if _LOG.isEnabledFor(logging.DEBUG):
            for credential in ("apikey", "jwt"):
                if (reason := identity.reasons[credential]) not in _UNREMARKABLE:
                    _LOG.debug("a client's %s proves nothing: %s", credential, reason)
        return identity


def rules_of(settings: Settings) -> Source[Ruleset]:
    """Return where the rules come from: the example only where there is nothing else to decide by."""
    if settings.rules:
        return rules_file(settings.rules)
    if settings.database:
        return SnapshotSource(snapshot_folder(settings.database, settings.data_dir))
    return NoRules() if settings.envoy_config else rules_file(EXAMPLE)


def identifier_of(settings: Settings) -> Identifies:
    """Return what finds out who the clients of proxies are. Raises UsageError."""
    if settings.identity:
        return LiveIdentifier(settings)
    return Identifier(AddressReader(FORWARDED_FOR, trusted=settings.trusted_proxies or LOOPBACK))


def _checked(identifier: Identifier, settings: Settings) -> Identifier:
    """Return it, unless it takes from clients what callers send. Raises UsageError."""
    taken = CALLER_HEADERS & identifier.credentials
    if settings.caller_keys and taken:
        raise UsageError(
            f"{settings.identity}: with caller keys, {' and '.join(sorted(name.decode() for name in taken))} of a "
            "request is the proxy's, and cannot be its client's: let clients send API keys in another header and no "
            "tokens, or know proxies by their certificates (--client-ca) instead of caller keys"
        )
    return identifier


def _tls(settings: Settings) -> Tls | None:
    if not settings.tls_cert:
        return None
    authority = Path(settings.client_ca) if settings.client_ca else None
    try:
        return Tls(TlsFiles(Path(settings.tls_cert), Path(settings.tls_key), authority))
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        hint = "they are swapped" if _is_swapped(settings) else "PEM files are needed"
        raise UsageError(f"the certificates cannot be used ({files}): {error}: {hint}") from None


def _is_swapped(settings: Settings) -> bool:
    """Whether the certificate is where the key should be, and the key where the certificate should."""
    try:
        certificate, key = (Path(file).read_bytes() for file in (settings.tls_cert, settings.tls_key))
    except OSError:
        return False
    return b"PRIVATE KEY-" in certificate and b"PRIVATE KEY-" not in key and b"BEGIN CERTIFICATE-" in key
