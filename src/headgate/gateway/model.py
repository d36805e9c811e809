"""What a gateway is, as plain values: what its file says, checked, with all that it leaves out filled in.

Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from headgate.config.problems import Finding
from headgate.core.mode import Mode

ANYWHERE = "*"
"""The host of routes that name none."""
REQUIREMENTS = ("none", "any", "user", "apikey")
"""What a route may ask of its callers: nothing, any credential, a known user, an API key."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its private key, both as PEM."""

    chain: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class GatewayListener:
    """An address that clients connect to."""

    address: str
    port: int
    certificates: tuple[Certificate, ...] = ()
    """With TLS if there are any; which one is shown depends on the name that the client asks for."""
    redirect_to: int = 0
    """If it is not 0: all that is answered is a redirect to HTTPS on this port."""

    @property
    def name(self) -> str:
        """What Envoy calls it: a listener at another address is another listener."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class UpstreamEndpoint:
    """One server of a service."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """Whether nothing has to be looked up."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How it is found out which servers of a service can be asked."""

    path: str
    interval: float = 5.0
    timeout: float = 1.0
    healthy_after: int = 2
    unhealthy_after: int = 2


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
    endpoints: tuple[UpstreamEndpoint, ...]
    is_http2: bool = False
    health_check: HealthCheck | None = None
    connect_timeout: float = 1.0
    timeout: float = 15.0
    """For a whole response; 0 for any time."""
    retries: int = 1
    """How often another server is tried where the request has not reached the first."""
    tls: UpstreamTls | None = None


@dataclass(frozen=True, slots=True)
class Cors:
    """Which pages of other origins may call a route from browsers."""

    origins: tuple[str, ...]
    """Such as ``https://app.example.com``; ``*`` for all."""
    headers: tuple[str, ...] = ()
    """Request headers that scripts may send, beyond the usual."""
    credentials: bool = False
    max_age: int = 600
    """Seconds for which browsers remember the answer."""


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """Which requests go where, who may send them, and what they cost."""

    path: str
    """This path, and all below it."""
    service: str
    hosts: tuple[str, ...] = ()
    """Names such as ``api.example.com`` and ``*.example.com``; none for any."""
    methods: tuple[str, ...] = ()
    """None for any."""
    require: str = "none"
    """One of `REQUIREMENTS`."""
    cost: int = 1
    cost_from_response: str = ""
    """The response header that says what the request has cost besides; it does not reach the client."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """For the `when` and `dimension` of rules."""
    remove_credentials: bool = False
    """Whether the service does not see API key and token."""
    cors: Cors | None = None
    websocket: bool = False
    timeout: float | None = None
    """None for that of the service."""
    rewrite: str = ""
    """What the service sees in place of `path`; empty for the path as it is."""


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
    """Which claim tells the user, the tenant, the tier."""
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
    store: str = field(default="memory", repr=False)
    on_store_failure: str = Mode.LOCAL
    workers: int = 1
    remote: UpstreamEndpoint | None = None
    """If it is elsewhere."""
    remote_tls: UpstreamTls | None = None
    caller_key: str = field(default="", repr=False)
    """What it wants to hear from its callers."""
    timeout: float = 0.25
    """How long a request waits for its decision."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """All of it."""

    listeners: tuple[GatewayListener, ...]
    services: Mapping[str, UpstreamService]
    routes: tuple[GatewayRoute, ...]
    decisions: DecisionService
    api_keys: Mapping[str, Any] | None = field(default=None, repr=False)
    """As an identity file has them."""
    issuers: tuple[TokenIssuer, ...] = ()
    trusted_hops: int = 0
    """Proxies of one's own before this one."""
    ipv6_prefix: int = 64
    """Bits of an IPv6 address that make one client."""
    ignore_case: bool = False
    """Whether paths of routes match in capitals and small letters alike, as those of rules do."""
    on_headgate_failure: str = "deny"
    """``deny`` or ``allow``: what happens to requests that nobody decides about."""
    admin: GatewayListener | None = None
    """Where metrics and health are told."""
    max_connections: int = 10_000
    max_header_kb: int = 16
    max_body_mb: int = 10
    idle_timeout: float = 300.0
    """Seconds after which a request, or an upgraded connection, on which nothing moves is ended."""
    threads: int = 0
    """Of Envoy; 0 for one for each processor."""
    access_log: bool = True
    drain_delay: float = 5.0
    drain_seconds: float = 25.0
    warnings: tuple[Finding, ...] = field(default=(), compare=False)
    """What of the file is odd without being wrong."""

    @property
    def consumers(self) -> str:
        """The URL of the database with the consumers; empty for none."""
        return str((self.api_keys or {}).get("consumers", ""))
