"""What a gateway is, as plain values: what its file says, checked, with all that it leaves out filled in.

Each field of a file is declared here once: its type, its default, its form and what it means. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.config.problems import Finding
from headgate.config.records import declared, needed
from headgate.config.schema import ListOf, MapOf, Scalar
from headgate.core.mode import Mode
from headgate.gateway.scalars import (
    ADDRESS,
    ENDPOINT,
    FILE,
    HEADER,
    HOST,
    ORIGIN,
    PATH,
    PORT,
    Seconds,
    UpstreamEndpoint,
)
from headgate.policy.model import METHODS
from headgate.server.settings import MAX_WORKERS

ANYWHERE = "*"
"""The host of routes that name none."""
_ATTRIBUTE = (
    "(?!(?:user|user_id|ip|ip_address|apikey|api_key|tenant|tier|endpoint|global|method|service)$)[a-z][a-z0-9_-]{0,31}"
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its private key, both as PEM."""

    chain: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayListener:
    """An address that clients connect to."""

    address: str = declared(
        ADDRESS, "The address to listen on; default: 127.0.0.1. 0.0.0.0 or '::' for all.", "127.0.0.1"
    )
    port: int = field(metadata=needed(PORT, "The port."))
    certificates: tuple[Certificate, ...] = declared(
        None, "A certificate and its key, or a list of them for several names.", (), key="tls"
    )
    redirect_to: int = declared(PORT, "Answer only with a redirect to HTTPS on this port, 443 for the usual one.", 0)

    @property
    def name(self) -> str:
        """What Envoy calls it: a listener at another address is another listener."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How it is found out which servers of a service are healthy."""

    path: str = field(metadata=needed(PATH, "The path of the health check; a server that answers 200 is healthy."))
    interval: float = declared(Seconds(0.1, 3600), "How often; default: 5s.", 5.0)
    timeout: float = declared(Seconds(0.01, 60), "How long an answer may take; default: 1s.", 1.0)
    healthy_after: int = declared(
        Scalar.whole(1, 100), "Good answers before a server gets requests again; default: 2.", 2
    )
    unhealthy_after: int = declared(Scalar.whole(1, 100), "Bad ones before it gets none; default: 2.", 2)


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS towards servers: their certificates are verified."""

    authorities: str
    """PEM of those who may have signed the certificate."""
    name: str
    """Whom the certificate is for."""
    certificate: Certificate | None = None
    """What is shown to servers that ask who connects."""


@dataclass(frozen=True, slots=True)
class UpstreamService:
    """What routes lead to: one server, or several that are alike."""

    name: str
    endpoints: tuple[UpstreamEndpoint, ...] = field(
        metadata=needed(
            ListOf(ENDPOINT, 'a list such as ["10.0.0.5:8000", "10.0.0.6:8000"]'),
            "Where its servers are, host and port.",
        )
    )
    is_http2: bool = declared(
        Scalar.choice({"http1": False, "http2": True}),
        "What it speaks; gRPC needs http2. Default: http1.",
        False,
        key="protocol",
    )
    health_check: HealthCheck | None = declared(
        None, "How it is found out which servers can be asked; default: none.", None
    )
    connect_timeout: float = declared(Seconds(0.01, 60), "How long a connection may take; default: 1s.", 1.0)
    timeout: float = declared(Seconds(0.01, 86_400, none=True), "How long a response may take; default: 15s.", 15.0)
    """0 for any time."""
    retries: int = declared(
        Scalar.whole(0, 10),
        "How often another server is tried, if the request has not reached the first; default: 1.",
        1,
    )
    tls: UpstreamTls | None = declared(None, "Speak TLS to it; its certificate is verified.", None)


@dataclass(frozen=True, slots=True)
class Cors:
    """Which pages of other origins may call a route from browsers."""

    origins: tuple[str, ...] = field(
        metadata=needed(ListOf(ORIGIN, "a list such as [https://app.example.com]"), "Whose pages may call it.")
    )
    headers: tuple[str, ...] = declared(
        ListOf(HEADER, "a list such as [x-api-key]"), "Request headers that scripts may send.", ()
    )
    credentials: bool = declared(Scalar.flag(), "Whether browsers send cookies; default: false.", False)
    max_age: float = declared(Seconds(0, 86_400), "How long browsers remember the answer; default: 10m.", 600)


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """Which requests go where, who may send them, and what they cost."""

    path: str = field(metadata=needed(PATH, "This path and all below it; the longest that fits wins."))
    service: str = field(metadata=needed(Scalar.text("the name of a service", most=64), "Where requests go."))
    hosts: tuple[str, ...] = declared(
        ListOf(HOST, "a list such as [api.example.com]"), "For these hosts alone; default: any.", ()
    )
    methods: tuple[str, ...] = declared(
        ListOf(Scalar.choice(METHODS), "a list such as [GET, POST]"), "Default: any.", ()
    )
    require: str = declared(
        Scalar.choice(("none", "any", "user", "apikey")),
        "Who may call: none (the default), any credential, a user, an apikey.",
        "none",
    )
    cost: int = declared(Scalar.whole(0, 100_000), "What a request takes of its limits; default: 1.", 1)
    cost_from_response: str = declared(
        HEADER, "A response header that says what it has cost besides, once it is known.", ""
    )
    """It does not reach the client."""
    attributes: Mapping[str, str] = declared(
        MapOf(Scalar.text("text", most=200, flags=True), "names and values, such as {kind: write}", keys=_ATTRIBUTE),
        "For the `when` and `dimension` of rules.",
        factory=dict,
    )
    remove_credentials: bool = declared(
        Scalar.choice({"keep": False, "remove": True}),
        "Whether the service sees API key and token; default: keep.",
        False,
        key="credentials",
    )
    cors: Cors | None = declared(None, "Which pages of other origins may call it.", None)
    websocket: bool = declared(Scalar.flag(), "Whether clients may upgrade to WebSocket; default: false.", False)
    timeout: float | None = declared(Seconds(0.01, 86_400, none=True), "Instead of that of the service.", None)
    rewrite: str = declared(PATH, "What the service sees in place of the path of the route.", "")


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """Whose tokens (JWT) callers may have. Envoy verifies them."""

    name: str
    """Of Envoy's provider, and of what it passes on to Headgate."""
    issuer: str
    """The claim iss; empty for any."""
    audience: tuple[str, ...]
    """One of these is in the claim aud; none for any."""
    claims: Mapping[str, str]
    """Which claim has the user, the tenant, the tier."""
    realm: str = ""
    """Put before the names of its users."""
    leeway: int = 60
    jwks: str = field(default="", repr=False)
    """The keys, as the text of a JWK set; shared secrets are among them."""
    jwks_url: str = ""
    """Or where Envoy fetches them."""
    authorities: str = ""
    """PEM of those who may have signed the certificate of that place."""


@dataclass(frozen=True, slots=True)
class DecisionService:
    """Who decides: processes of this command, or a service elsewhere."""

    rules: str = field(default="", repr=False)
    """The text of a file of rules."""
    store: str = declared(
        Scalar.text("memory, or an address such as redis://HOST:6379/0", most=4096, numbers=False),
        "Where the state is; default: HEADGATE_STORE in the environment, or else memory.",
        "memory",
        is_secret=True,
    )
    on_store_failure: str = declared(
        Scalar.choice([str(mode) for mode in Mode]),
        "The mode while the store is unavailable, where a rule has none.",
        Mode.LOCAL,
    )
    remote: UpstreamEndpoint | None = declared(
        ENDPOINT,
        "The gRPC port of a decision service elsewhere, which has rules, keys and store.",
        None,
        key="decisions.address",
    )
    remote_tls: UpstreamTls | None = declared(
        None, "Speak TLS to it; its certificate is verified.", None, key="decisions.tls"
    )
    caller_key: str = declared(
        FILE,
        "A file with the key that it wants to hear from its callers.",
        "",
        key="decisions.caller_key_file",
        is_secret=True,
    )
    timeout: float = declared(
        Seconds(0.01, 10), "How long a request waits for its decision; default: 250ms.", 0.25, key="decisions.timeout"
    )
    workers: int = declared(
        Scalar.whole(1, MAX_WORKERS), "Processes that decide, here; default: 1.", 1, key="decisions.workers"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """All of it."""

    listeners: tuple[GatewayListener, ...]
    services: Mapping[str, UpstreamService]
    routes: tuple[GatewayRoute, ...]
    decisions: DecisionService
    api_keys: Mapping[str, Any] | None = declared(
        None, "The API keys that callers may have.", None, key="identity.api_keys", is_secret=True
    )
    """As an identity file has them."""
    issuers: tuple[TokenIssuer, ...] = declared(None, "Whose tokens (JWT) callers may have.", (), key="identity.tokens")
    trusted_hops: int = declared(
        Scalar.whole(0, 20), "Proxies of your own before this one; default: 0.", 0, key="identity.trusted_hops"
    )
    ipv6_prefix: int = declared(
        Scalar.whole(32, 128),
        "Bits of an IPv6 address that make one client; default: 64.",
        64,
        key="identity.ipv6_prefix",
    )
    ignore_case: bool = declared(
        Scalar.flag(),
        "Whether paths of routes that differ only in capitals are the same; default: as in the rules.",
        False,
    )
    on_headgate_failure: str = declared(
        Scalar.choice(("deny", "allow")),
        "What happens to requests that nobody decides about: deny (503, the default) or allow.",
        "deny",
    )
    admin: GatewayListener | None = None
    max_connections: int = declared(
        Scalar.whole(1, 1_000_000), "Of clients, at once; default: 10000.", 10_000, key="limits.connections"
    )
    max_header_kb: int = declared(
        Scalar.whole(1, 96), "All headers of a request, in KiB; default: 16.", 16, key="limits.header_kb"
    )
    max_body_mb: int = declared(
        Scalar.whole(1, 4000), "The body of a request, in MiB; default: 10.", 10, key="limits.body_mb"
    )
    idle_timeout: float = declared(
        Seconds(1, 86_400),
        "After so long a request on which nothing moves is ended; default: 5m.",
        300.0,
        key="limits.idle",
    )
    """Upgraded connections too."""
    threads: int = declared(Scalar.whole(1, 256), "Of Envoy; default: one for each processor.", 0)
    access_log: bool = declared(
        Scalar.choice({"json": True, "off": False}), "A line for each request; default: json.", True
    )
    drain_delay: float = declared(
        Seconds(0, 3600),
        "After SIGTERM, in which health checks fail and everything is still served; default: 5s.",
        5.0,
    )
    drain_seconds: float = declared(
        Seconds(0, 3600), "After that, for requests in progress to end; default: 25s.", 25.0, key="drain"
    )
    warnings: tuple[Finding, ...] = field(default=(), compare=False)
    """What of the file is odd without being wrong."""

    @property
    def consumers(self) -> str:
        """The URL of the database with the consumers; empty for none."""
        return str((self.api_keys or {}).get("consumers", ""))
