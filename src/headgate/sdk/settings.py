"""Settings of a client: addresses, credentials, and behaviour while the service is unavailable."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TypedDict
from urllib.parse import urlsplit

import msgspec

from headgate.clock import Clock, SystemClock
from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.core.numbers import short, whole
from headgate.engine.verbs import checked_mode
from headgate.stores.failover import MAX_NODES

TIMEOUT = 0.5
"""Seconds for a call: twice the service's timeout for its store, so that its fallback answers still arrive."""
RULES_EVERY = 30.0
EXAMPLE = "http://localhost:8080 or grpc://localhost:8081"
_LONGEST_KEY = 2048
"""Characters of a caller key."""
_PORTS = {"http": 8080, "https": 443, "grpc": 8081, "grpcs": 443}
"""Schemes and default ports."""


class ClientOptions(TypedDict, total=False):
    timeout: float
    """Seconds for a whole call, up to 3600; 0.5 by default. Then the mode of the rules decides."""
    caller_key: str
    """The caller's key, if the service requires one; sent as ``Authorization: Bearer``."""
    ca: str
    """A PEM file of the authorities to trust instead of the system's; for https and grpcs."""
    cert: str
    """A client certificate (PEM), if the service requires one."""
    key: str
    """Its private key (PEM), if in a separate file."""
    on_service_failure: str
    """The decision while the service is unavailable, unless a rule has a mode: "local" (the default), "allow" or
    "deny"."""
    without_rules: str
    """The decision of "local" until the rules were first fetched: "deny" (the default) or "allow"."""
    nodes: int
    """How many processes, including this one, share the limits in mode "local"; 1 by default."""
    rules_every: float
    """Seconds between fetches of the rules for "local"; 30 by default."""
    clock: Clock
    """The source of time for local decisions, for tests."""


class NodeAddress(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int

    @property
    def place(self) -> str:
        """``host:port``, with brackets around IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_grpc(self) -> bool:
        return self.scheme.startswith("grpc")

    @property
    def is_tls(self) -> bool:
        return self.scheme in {"https", "grpcs"}

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"


class Credentials(msgspec.Struct, frozen=True):
    """The authorities that a client trusts, and its own identity."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    caller_key: str = ""

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise UsageError("key requires a certificate: set cert=FILE")
        caller = self.caller_key
        if caller and not (len(caller) <= _LONGEST_KEY and caller.isascii() and caller.isprintable()):
            raise UsageError(f"the caller key must be printable ASCII, up to {_LONGEST_KEY} characters")

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.caller_key}"} if self.caller_key else {}

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings. Raises UsageError."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = " or ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise UsageError(f"{files} cannot be used for TLS: {error.strerror or error}") from None
        return context


class ClientSettings(msgspec.Struct, frozen=True):
    endpoints: tuple[NodeAddress, ...]
    identity: Credentials
    timeout: float
    mode: Mode
    without_rules: Mode
    nodes: int
    rules_every: float
    clock: Clock


def parse_settings(addresses: Sequence[str], options: ClientOptions) -> ClientSettings:
    """Validate addresses and options. Raises UsageError."""
    if unknown := set(options) - set(ClientOptions.__annotations__):
        known = ", ".join(ClientOptions.__annotations__)
        raise UsageError(f"unknown option {short(min(unknown))}; the options are {known}")
    endpoints = tuple([endpoint_of(text) for text in addresses])
    if not endpoints:
        raise UsageError(f"a client needs the address of a service, such as {EXAMPLE}")
    if len({each.scheme for each in endpoints}) > 1:
        raise UsageError(f"all addresses must have the same scheme, got {', '.join(map(str, endpoints))}")
    if len(set(endpoints)) < len(endpoints):
        raise UsageError(f"duplicate address: {', '.join(map(str, endpoints))}")
    identity = Credentials(*[_text(name, options.get(name, "")) for name in ("ca", "cert", "key", "caller_key")])
    if (identity.ca or identity.cert) and not endpoints[0].is_tls:
        raise UsageError(f"ca, cert and key require TLS: {endpoints[0]} must be https:// or grpcs://")
    without_rules = checked_mode(options.get("without_rules", Mode.DENY), "without_rules")
    if without_rules is Mode.LOCAL:
        raise UsageError("without_rules must be deny or allow: there are no rules for a local decision")
    return ClientSettings(
        endpoints,
        identity,
        _seconds("timeout", options.get("timeout", TIMEOUT)),
        checked_mode(options.get("on_service_failure", Mode.LOCAL), "on_service_failure"),
        without_rules,
        whole("nodes", options.get("nodes", 1), 1, MAX_NODES, UsageError),
        _seconds("rules_every", options.get("rules_every", RULES_EVERY)),
        options.get("clock") or SystemClock(),
    )


def endpoint_of(text: str, ports: Mapping[str, int] = _PORTS, example: str = EXAMPLE) -> NodeAddress:
    """Parse an address; `ports` are the defaults of the accepted schemes. Raises UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"the address of a service must be text, such as {example}, not {short(text)}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{short(text)} is not an address of a service: {error}") from None
    host = parts.hostname or ""
    if parts.scheme not in ports or not host:
        raise UsageError(f"{short(text)} is not an address of a service, such as {example} ({', '.join(ports)})")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{short(text)} must have only a scheme, a host and a port, such as {example}")
    if not (host.isascii() and host.isprintable() and " " not in host):
        raise UsageError(f"{short(text)} has an invalid host")
    return NodeAddress(parts.scheme, host, port or ports[parts.scheme])


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} must be text, not {short(value)}")
    return value


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 3600:
        return value
    raise UsageError(f"{name} must be a number of seconds above 0 and up to 3600, not {short(value)}")
