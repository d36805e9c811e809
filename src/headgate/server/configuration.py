"""The files of a service: rules, descriptors, identity, caller keys and certificates.

Each is followed while the service runs, and read again immediately on `reload`: see `headgate.live`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from headgate.config.yaml_text import text_of
from headgate.core.errors import UsageError
from headgate.live import EVERY, FileSource, Live, Source
from headgate.policy.envoy import LiveDescriptors
from headgate.policy.key_file import CONSUMER_PREFIX, CONSUMERS, KeySource, SharedKey
from headgate.policy.live import LivePolicy, NoRules, rules_file
from headgate.policy.model import Ruleset
from headgate.policy.snapshot import SnapshotSource, snapshot_folder
from headgate.server.caller_keys import CallerKeys
from headgate.server.deprecations import load_deprecations
from headgate.server.identity import FORWARDED_FOR, load_identity
from headgate.server.proxied_clients import LOOPBACK
from headgate.server.settings import KEYS_OF_DATABASE, Settings
from headgate.server.wire.tls import Tls, mismatch
from headgate.web.address import AddressReader
from headgate.web.apikey import NO_KEYS, ApiKeys, Holder
from headgate.web.deprecation import Deprecations
from headgate.web.identity import Identifier

_KEYS_EVERY = 0.2
"""Seconds between reads of the database's keys: a revoked key is refused within a second."""
F = TypeVar("F")
T = TypeVar("T")
EXAMPLE = Path(__file__).with_name("example-rules.yaml")
"""Rules for a first start without any."""


class Configuration:
    """All files of a service, and their contents in force. Raises UsageError, which names the file and the reason."""

    def __init__(self, settings: Settings) -> None:
        self.tls = _tls(settings)
        self._identity = live_identity(settings)
        self._usual = usual_identifier(settings)
        self.deprecations = deprecations_of(settings)
        """Deprecated paths; read once."""
        rules = rules_of(settings)
        self.rules = LivePolicy(rules, enforcing=settings.enforcement)
        self.snapshot = rules if isinstance(rules, SnapshotSource) else None
        """The local copy of a database's rules, if they come from one."""
        self.descriptors: LiveDescriptors | None = None
        """The descriptor trees for Envoy, if any."""
        if settings.envoy_config:
            self.descriptors = LiveDescriptors(settings.envoy_config, merge_domains=settings.envoy_merge_domains)
        self.callers: Live[CallerKeys] | None = None
        """The keys of callers; None if none are required."""
        if settings.caller_keys:
            every = _keys_every(settings)
            self.callers = Live(caller_source(settings), lambda keys, _: keys, what="caller keys", every=every)
        found: dict[str, Live[Any] | None] = {
            "rules": self.rules,
            "descriptors": self.descriptors,
            "identity": self._identity,
            "caller_keys": self.callers,
            "certificates": None if self.tls is None else self.tls.live,
        }
        self.lives = {name: live for name, live in found.items() if live is not None}
        """Everything that can change, by its name in metrics."""

    def identifier(self) -> Identifier:
        return self._usual if self._identity is None else self._identity.value

    def start(self) -> None:
        for live in self.lives.values():
            live.start()

    def reload(self) -> None:
        """Read all files now; it may block. Errors are logged, and the previous contents stay in force."""
        for live in self.lives.values():
            live.reload()

    def close(self) -> None:
        for live in self.lives.values():
            live.close()


def rules_of(settings: Settings) -> Source[Ruleset]:
    """Return the source of the rules: the example only if there are neither rules nor descriptors."""
    if settings.rules:
        return rules_file(settings.rules)
    if settings.database:
        return SnapshotSource(snapshot_folder(settings.database, settings.data_dir))
    return NoRules() if settings.envoy_config else rules_file(EXAMPLE)


class WithKeys(Generic[F, T]):
    """A file and the keys of a database, either or both, followed as one source; `combine` makes one value of both."""

    def __init__(
        self,
        file: FileSource[F] | None,
        shared: KeySource | None,
        combine: Callable[[F | None, tuple[SharedKey, ...]], T],
    ) -> None:
        self._file, self._shared, self._combine = file, shared, combine
        self.name = " and ".join(source.name for source in (file, shared) if source) or KEYS_OF_DATABASE
        self._of_file: F | None = None
        self._keys: tuple[SharedKey, ...] = ()
        self._is_new = False
        """Whether there is a change to return: an invalid file must not keep revoked keys in force."""

    def read(self) -> T:
        if self._shared:
            self._keys, self._is_new = self._shared.read(), True
        if self._file:
            self._of_file = self._file.read()
        return self._merge()

    def changed(self) -> T | None:
        shared = self._shared.changed() if self._shared else None
        if shared is not None:
            self._keys, self._is_new = shared, True
        file = self._file.changed() if self._file else None
        if file is not None:
            self._of_file, self._is_new = file, True
        return self._merge() if self._is_new else None

    def _merge(self) -> T:
        self._is_new = False
        return self._combine(self._of_file, self._keys)


def caller_source(settings: Settings) -> WithKeys[CallerKeys, CallerKeys]:
    file: FileSource[CallerKeys] | None = None
    if settings.caller_keys != KEYS_OF_DATABASE:
        file = FileSource(settings.caller_keys, lambda path: CallerKeys.parse(text_of(path), str(path)))

    def combine(of_file: CallerKeys | None, shared: tuple[SharedKey, ...]) -> CallerKeys:
        return CallerKeys({key.digest: Holder(key.id) for key in shared} | dict(of_file.known if of_file else {}))

    return WithKeys(file, _key_source(settings), combine)


def _key_source(settings: Settings, *file: str) -> KeySource | None:
    folder = snapshot_folder(settings.database, settings.data_dir) if settings.database else None
    return None if folder is None else KeySource(folder, None, *file)


def _keys_every(settings: Settings) -> float:
    return _KEYS_EVERY if settings.database or settings.consumers else EVERY


def deprecations_of(settings: Settings) -> Deprecations:
    return load_deprecations(settings.deprecations) if settings.deprecations else Deprecations()


def usual_identifier(settings: Settings) -> Identifier:
    """Return the identifier without a file: by address, and by keys of the database's consumers.

    If callers must send keys, which come in the same headers, only a file can say where clients send theirs.
    """
    addresses = AddressReader(FORWARDED_FOR, trusted=settings.trusted_proxies or LOOPBACK)
    has_consumers = settings.database and not settings.caller_keys
    return Identifier(addresses, ApiKeys(NO_KEYS, prefix=CONSUMER_PREFIX) if has_consumers else None)


def live_identity(settings: Settings) -> Live[Identifier] | None:
    """Return the changing identifier of proxies' clients: from a file, the key files that it names, and consumers.

    None if there is neither a file nor a consumer's key.
    """
    file: FileSource[Identifier] | None = None
    usual = usual_identifier(settings)
    if settings.identity:
        has_consumers = bool(settings.database or settings.consumers) or not (settings.rules or settings.envoy_config)

        def load(path: Path) -> Identifier:
            return load_identity(path, settings.trusted_proxies, source.also, has_consumers=has_consumers)

        file = source = FileSource(settings.identity, load)
    elif usual.api_keys is None:
        return None

    held: dict[str, Holder] = {}  # reused: few of very many consumers are new

    def combine(of_file: Identifier | None, shared: tuple[SharedKey, ...]) -> Identifier:
        found = of_file or usual
        if found.api_keys is None or not shared:
            return found
        consumers = {
            key.digest: held.get(key.digest) or Holder(key.consumer, key.consumer, key.tenant) for key in shared
        }
        held.clear()
        held.update(consumers)
        return replace(found, api_keys=replace(found.api_keys, known=consumers | dict(found.api_keys.known)))

    shared = KeySource(Path(settings.consumers), None, CONSUMERS) if settings.consumers else None
    both = WithKeys(file, shared or _key_source(settings, CONSUMERS), combine)
    return Live(both, lambda identifier, _: identifier, what="identity settings", every=_keys_every(settings))


def _tls(settings: Settings) -> Tls | None:
    if not settings.tls_cert:
        return None
    certificate, key = Path(settings.tls_cert), Path(settings.tls_key)
    try:
        return Tls(certificate, key, Path(settings.client_ca) if settings.client_ca else None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.client_ca)))
        hint = mismatch(error, certificate, key) or "they must be PEM files"
        raise UsageError(f"the certificates cannot be used ({files}): {error}: {hint}") from None
