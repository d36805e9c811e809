"""What a service reads from files, by its settings: rules, descriptors, identity, caller keys and certificates.

Each of them follows its files while the service runs, by itself and, at once, when it is told to look again: see
`headgate.live`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headgate.core.errors import UsageError
from headgate.live import EVERY, FileSource, Live, Source
from headgate.policy.envoy import LiveDescriptors
from headgate.policy.key_file import KeySource, SharedKey
from headgate.policy.live import LivePolicy, NoRules, rules_file
from headgate.policy.loading import text_of
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import SnapshotSource, snapshot_folder
from headgate.server.admission import CallerKeys
from headgate.server.clients import LOOPBACK
from headgate.server.deprecations import load_deprecations
from headgate.server.identity.loading import FORWARDED_FOR, load_identity
from headgate.server.settings import KEYS_OF_DATABASE, Settings
from headgate.server.wire.tls import Tls, TlsFiles
from headgate.web.address import AddressReader
from headgate.web.apikey import Holder
from headgate.web.deprecation import Deprecations
from headgate.web.identity import Identifier

_KEYS_EVERY = 0.2
"""Seconds between two looks at the keys of a database: what is revoked there is refused within a second."""
EXAMPLE = Path(__file__).with_name("example-rules.yaml")
"""Rules for those who have none yet."""


class Configuration:
    """All files of a service, and what is in force of them.

    Raises:
        UsageError: one of them cannot be used; it says which, and why.
    """

    def __init__(self, settings: Settings) -> None:
        self.tls = _tls(settings)
        self._identity = live_identity(settings)
        self._by_address = Identifier(AddressReader(FORWARDED_FOR, trusted=settings.trusted_proxies or LOOPBACK))
        self.deprecations = deprecations_of(settings)
        """Paths that are going to go; read once."""
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
            every = _KEYS_EVERY if settings.database else EVERY
            self.callers = Live(CallerSource(settings), lambda keys, _: keys, what="caller keys", every=every)
        found: dict[str, Live[Any] | None] = {
            "rules": self.rules,
            "descriptors": self.descriptors,
            "identity": self._identity,
            "caller_keys": self.callers,
            "certificates": None if self.tls is None else self.tls.live,
        }
        self.lives = {name: live for name, live in found.items() if live is not None}
        """All that may change, by what it is called in metrics."""

    def identifier(self) -> Identifier:
        """Return what finds out now who the clients of proxies are: by address alone, where no file says more."""
        return self._by_address if self._identity is None else self._identity.value

    def start(self) -> None:
        """Follow all files from now on."""
        for live in self.lives.values():
            live.start()

    def reload(self) -> None:
        """Read all files now. What is wrong is logged, and what was in force stays. It may block."""
        for live in self.lives.values():
            live.reload()

    def close(self) -> None:
        """Stop following the files."""
        for live in self.lives.values():
            live.close()


def rules_of(settings: Settings) -> Source[Ruleset]:
    """Return where the rules come from: the example only where there is nothing else to decide by."""
    if settings.rules:
        return rules_file(settings.rules)
    if settings.database:
        return SnapshotSource(snapshot_folder(settings.database, settings.data_dir))
    return NoRules() if settings.envoy_config else rules_file(EXAMPLE)


class CallerSource:
    """The keys of callers, of a file, of the database, or of both, as a source that is followed."""

    def __init__(self, settings: Settings) -> None:
        self._file: FileSource[CallerKeys] | None = None
        if settings.caller_keys != KEYS_OF_DATABASE:
            self._file = FileSource(settings.caller_keys, lambda path: CallerKeys.parse(text_of(path), str(path)))
        self._shared = KeySource(snapshot_folder(settings.database, settings.data_dir)) if settings.database else None
        self.name = " and ".join(source.name for source in (self._file, self._shared) if source) or KEYS_OF_DATABASE
        self._of_file: Mapping[str, Holder] = {}
        self._of_database: Mapping[str, Holder] = {}
        self._is_new = False
        """Whether there are keys that were not returned yet: a file that is wrong keeps nobody else's key in force."""

    def read(self) -> CallerKeys:
        """Return all that are good now. Raises UsageError, OSError."""
        if self._shared:
            self._of_database = _holders(self._shared.read())
        if self._file:
            self._of_file = self._file.read().known
        return self._together()

    def changed(self) -> CallerKeys | None:
        """Return them if they are others. Raises UsageError, OSError."""
        shared = self._shared.changed() if self._shared else None
        if shared is not None:
            self._of_database, self._is_new = _holders(shared), True
        file = self._file.changed() if self._file else None
        if file is not None:
            self._of_file, self._is_new = file.known, True
        return self._together() if self._is_new else None

    def _together(self) -> CallerKeys:
        self._is_new = False
        return CallerKeys({**self._of_database, **self._of_file})


def _holders(keys: Iterable[SharedKey]) -> dict[str, Holder]:
    return {key.digest: Holder(key.id) for key in keys}


def deprecations_of(settings: Settings) -> Deprecations:
    """Return which paths of the HTTP APIs are going to go. Raises InvalidRules."""
    return load_deprecations(settings.deprecations) if settings.deprecations else Deprecations()


def live_identity(settings: Settings) -> Live[Identifier] | None:
    """Return who the clients of proxies are, by a file that may change, as may the files of keys that it names."""
    if not settings.identity:
        return None

    def load(path: Path) -> Identifier:
        return load_identity(path, settings.trusted_proxies, source.also)

    source = FileSource(settings.identity, load)
    return Live(source, lambda identifier, _: identifier, what="identity settings")


def _tls(settings: Settings) -> Tls | None:
    if not settings.tls_cert:
        return None
    authority = Path(settings.client_ca) if settings.client_ca else None
    try:
        return Tls(TlsFiles(Path(settings.tls_cert), Path(settings.tls_key), authority))
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        hint = "they are swapped" if _is_swapped(settings) else "PEM files are needed"
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            hint = "the key is that of another certificate"
        raise UsageError(f"the certificates cannot be used ({files}): {error}: {hint}") from None


def _is_swapped(settings: Settings) -> bool:
    """Whether the certificate is where the key should be, and the key where the certificate should."""
    try:
        certificate, key = (Path(file).read_bytes() for file in (settings.tls_cert, settings.tls_key))
    except OSError:
        return False
    return b"PRIVATE KEY-" in certificate and b"PRIVATE KEY-" not in key and b"BEGIN CERTIFICATE-" in key
