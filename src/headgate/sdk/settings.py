"""What a client is told: where the service is, who calls, and what is answered while it is away."""

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
"""Seconds for a call: twice what the service gives its store, so that what it answers without one still arrives."""
RULES_EVERY = 30.0
EXAMPLE = "http://localhost:8080 or grpc://localhost:8081"
_LONGEST_KEY = 2048
"""Characters of a caller key."""
_PORTS = {"http": 8080, "https": 443, "grpc": 8081, "grpcs": 443}
"""The schemes, and where a service is where an address does not say."""


class ClientOptions(TypedDict, total=False):
    """What both clients accept besides the addresses of the service."""

    timeout: float
    """Seconds for a whole call, up to 3600; 0.5 by default. What has no answer by then is answered by the mode."""
    caller_key: str
    """Who calls, where the service wants to know; sent as ``Authorization: Bearer``."""
    ca: str
    """A file (PEM) of the authorities to trust, rather than the system's; for https and grpcs."""
    cert: str
    """A client certificate (PEM), where the service wants one."""
    key: str
    """Its private key (PEM), if that is in a file of its own."""
    on_service_failure: str
    """What to answer while the service is away, where a rule does not say: "local" (the default), "allow" or "deny"."""
    without_rules: str
    """What "local" answers while the service has been away since the client began, so that there are no rules to decide
    by: "deny" (the default) or "allow"."""
    nodes: int
    """How many processes share the limits while the service is away, this one included, for "local"; 1 by default."""
    rules_every: float
    """Seconds between two looks at the rules of the service, for "local"; 30 by default."""
    clock: Clock
    """Where time comes from while the service is away, for tests."""


class NodeAddress(msgspec.Struct, frozen=True):
    """Where one node of a service is."""

    scheme: str
    host: str
    port: int

    @property
    def place(self) -> str:
        """The host and port, as in an address."""
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
    """Whom a client trusts, and who it says it is."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    caller_key: str = ""

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise UsageError("a key needs its certificate: cert=FILE")
        caller = self.caller_key
        if caller and not (len(caller) <= _LONGEST_KEY and caller.isascii() and caller.isprintable()):
            raise UsageError(f"a caller key is printable ASCII, up to {_LONGEST_KEY} characters")

    @property
    def headers(self) -> dict[str, str]:
        """What says who calls."""
        return {"authorization": f"Bearer {self.caller_key}"} if self.caller_key else {}

    def context(self) -> ssl.SSLContext:
        """Return how TLS is spoken. Raises UsageError."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = " or ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise UsageError(f"{files} cannot be used for TLS: {error.strerror or error}") from None
        return context


class ClientSettings(msgspec.Struct, frozen=True):
    """All of it, checked."""

    endpoints: tuple[NodeAddress, ...]
    identity: Credentials
    timeout: float
    mode: Mode
    without_rules: Mode
    nodes: int
    rules_every: float
    clock: Clock


def settings_of(addresses: Sequence[str], options: ClientOptions) -> ClientSettings:
    """Return what a client is told. Raises UsageError."""
    if unknown := set(options) - set(ClientOptions.__annotations__):
        known = ", ".join(ClientOptions.__annotations__)
        raise UsageError(f"a client has no option {short(min(unknown))}; there are {known}")
    endpoints = tuple([endpoint_of(text) for text in addresses])
    if not endpoints:
        raise UsageError(f"a client needs the address of a service, such as {EXAMPLE}")
    if len({each.scheme for each in endpoints}) > 1:
        raise UsageError(f"all addresses have one scheme, not {', '.join(map(str, endpoints))}")
    if len(set(endpoints)) < len(endpoints):
        raise UsageError(f"an address is there twice: {', '.join(map(str, endpoints))}")
    identity = Credentials(*[_text(name, options.get(name, "")) for name in ("ca", "cert", "key", "caller_key")])
    if (identity.ca or identity.cert) and not endpoints[0].is_tls:
        raise UsageError(f"ca, cert and key are for TLS: {endpoints[0]} should be https:// or grpcs://")
    without_rules = checked_mode(options.get("without_rules", Mode.DENY), "without_rules")
    if without_rules is Mode.LOCAL:
        raise UsageError("without_rules is deny or allow: without rules there is nothing to decide by")
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
    """Return where an address says that a service is; `ports` are of the schemes it may have. Raises UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"the address of a service is text, such as {example}, not {short(text)}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{short(text)} is not an address of a service: {error}") from None
    host = parts.hostname or ""
    if parts.scheme not in ports or not host:
        raise UsageError(f"{short(text)} is not an address of a service; one is like {example} ({', '.join(ports)})")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{short(text)} has more than scheme, host and port; it should be like {example}")
    if not (host.isascii() and host.isprintable() and " " not in host):
        raise UsageError(f"{short(text)} has no host that can be asked")
    return NodeAddress(parts.scheme, host, port or ports[parts.scheme])


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is text, not {short(value)}")
    return value


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 3600:
        return value
    raise UsageError(f"{name} is a number of seconds above 0 and up to 3600, not {short(value)}")
