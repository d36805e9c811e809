"""What can be said about settings without serving: whether their files are good, and what their store is called."""

from __future__ import annotations

import ssl
from pathlib import Path

from headgate.core.errors import StoreError, UsageError
from headgate.observe.tracing import Tracing
from headgate.policy.envoy.live import LiveDescriptors
from headgate.policy.model import Ruleset
from headgate.policy.source import NoRules, RuleSource, rules_file
from headgate.server.api.forward_auth import LOOPBACK
from headgate.server.callers import HEADERS, CallerKeys
from headgate.server.identity.loading import FORWARDED_FOR, load_identity
from headgate.server.settings import Settings
from headgate.server.wire.tls import Tls, TlsFiles
from headgate.stores import open_store
from headgate.web.address import AddressReader
from headgate.web.identity import Identifier

_TRIES = 3
EXAMPLE = Path(__file__).with_name("example-rules.yaml")
"""Rules for those who have none yet."""


def rules_of(settings: Settings) -> RuleSource[Ruleset]:
    """Return the rules: the example only where there is nothing else to decide by."""
    if settings.rules:
        return rules_file(settings.rules)
    return NoRules() if settings.envoy_config else rules_file(EXAMPLE)


def tls_of(settings: Settings) -> Tls | None:
    """Return the TLS of the service, if any. Raises UsageError."""
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


def callers_of(settings: Settings) -> CallerKeys | None:
    """Return who may ask; None for everybody. Raises UsageError."""
    return CallerKeys.read(settings.caller_keys) if settings.caller_keys else None


def identifier_of(settings: Settings) -> Identifier:
    """Return what finds out who the clients of proxies are. Raises UsageError."""
    if not settings.identity:
        return Identifier(AddressReader(FORWARDED_FOR, trusted=settings.trusted_proxies or LOOPBACK))
    identifier = load_identity(settings.identity, settings.trusted_proxies)
    taken = HEADERS & identifier.credentials
    if settings.caller_keys and taken:
        raise UsageError(
            f"{settings.identity}: with caller keys, {' and '.join(sorted(name.decode() for name in taken))} of a "
            "request is the proxy's, and cannot be its client's: let clients send API keys in another header and no "
            "tokens, or know proxies by their certificates (--client-ca) instead of caller keys"
        )
    return identifier


def descriptors_of(settings: Settings) -> LiveDescriptors | None:
    """Return the trees that answer Envoy, if any. Raises UsageError."""
    if not settings.envoy_config:
        return None
    return LiveDescriptors(settings.envoy_config, merge_domains=settings.envoy_merge_domains)


def examined(settings: Settings) -> int:
    """Read all files, and return the number of rules. Raises UsageError, which says what is wrong with one of them."""
    rules = len(rules_of(settings).read().rules)
    descriptors_of(settings)
    tls_of(settings)
    callers_of(settings)
    identifier_of(settings)
    described_store(settings)
    if settings.tracing:
        Tracing().close()
    return rules


def meet_store(settings: Settings) -> None:
    """Ask the store whether it can decide. Raises StoreError, which says why it cannot.

    It gets more time than a decision has: this is about whether it can, not about how busy either side is now.
    """
    store = open_store(settings.store)
    try:
        for tries_left in reversed(range(_TRIES)):
            try:
                store.ready()
            except StoreError:
                if not tries_left:
                    raise
            else:
                return
    finally:
        store.close()


def described_store(settings: Settings) -> str:
    """Return what the store is called, without its password. Raises UsageError if there is no such store."""
    open_store(settings.store_address).close()  # nothing is connected
    if not settings.is_shared:
        return "memory"
    address = settings.store.partition("?")[0]
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
