"""A gateway as plain values, and the form of its file.

Each field is declared once: type, default, form and meaning. Parts of the file that have no values of their own, such
as names of files, are records between them. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.config.problems import Finding
from headgate.config.records import declared, fields_of, needed
from headgate.config.schema import DIALECT, Field, Form, ListOf, MapOf, OrWord, Record, Scalar, Schema
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
    RESPONSE_TIME,
    OneOrMore,
    Seconds,
    UpstreamEndpoint,
)
from headgate.policy.model import METHODS
from headgate.server import identity
from headgate.server.settings import MAX_WORKERS

ANYWHERE = "*"
"""The host of routes without hosts."""
_ATTRIBUTE = (
    "(?!(?:user|user_id|ip|ip_address|apikey|api_key|tenant|tier|endpoint|global|method|service)$)[a-z][a-z0-9_-]{0,31}"
)
_ENDPOINTS = ListOf(ENDPOINT, 'a list such as ["10.0.0.5:8000", "10.0.0.6:8000"]', empty="has no server")
_HOSTS = ListOf(HOST, "a list such as [api.example.com]")
_METHODS = ListOf(Scalar.choice(METHODS), "a list such as [GET, POST]")
_ORIGINS = ListOf(ORIGIN, "a list such as [https://app.example.com]")
_HEADERS = ListOf(HEADER, "a list such as [x-api-key]")
_ATTRIBUTES = MapOf(
    Scalar.text("text", most=200, flags=True), "names and values, such as {kind: write}", keys=_ATTRIBUTE
)
_REQUIRE = Scalar.choice(("none", "any", "user", "apikey"))
_AUDIENCE = OrWord(
    "any",
    (),
    ListOf(Scalar.text("text, as in the claim aud", most=512), "a list such as [api], or any", empty="is empty"),
)
_STORE = Scalar.text("memory, or an address such as redis://HOST:6379/0", most=4096, numbers=False)


@dataclass(frozen=True, slots=True)
class Certificate:
    chain: str
    key: str = field(repr=False)


TLS = Record(
    "tls",
    {
        "certificate": Field(FILE, "The certificate and those that lead to its authority (PEM).", required=True),
        "key": Field(FILE, "Its private key (PEM), not encrypted.", required=True),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayListener:
    address: str = declared(
        ADDRESS, "The address to listen on; default: 127.0.0.1. 0.0.0.0 or '::' for all.", "127.0.0.1"
    )
    port: int = field(metadata=needed(PORT, "The port."))
    certificates: tuple[Certificate, ...] = declared(
        OneOrMore(TLS), "A certificate and its key, or a list of them for several names.", (), key="tls"
    )
    redirect_to: int = declared(PORT, "Only redirect to HTTPS on this port, such as 443.", 0)

    @property
    def name(self) -> str:
        """Its name in Envoy: another address is another listener."""
        return f"{self.address}:{self.port}"


LISTENER = Record("a listener", fields_of(GatewayListener))
ADMIN = Record(
    "admin",
    {
        "address": Field(ADDRESS, "The address to listen on; default: 127.0.0.1."),
        "port": Field(PORT, "The port of /metrics, /healthz and /readyz.", required=True),
    },
)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    path: str = field(metadata=needed(PATH, "The path of the health check; a server that answers 200 is healthy."))
    interval: float = declared(Seconds(0.1, 3600), "The interval of checks; default: 5s.", 5.0)
    timeout: float = declared(Seconds(0.01, 60), "The longest wait for a response; default: 1s.", 1.0)
    healthy_after: int = declared(
        Scalar.whole(1, 100), "Consecutive successes after which a server gets requests; default: 2.", 2
    )
    unhealthy_after: int = declared(
        Scalar.whole(1, 100), "Consecutive failures after which it gets none; default: 2.", 2
    )


HEALTH_CHECK = Record("a health check", fields_of(HealthCheck), make=lambda read, *_: HealthCheck(**read))


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    authorities: str
    """PEM of the authorities that are trusted."""
    name: str
    certificate: Certificate | None = None
    """The client certificate, for servers that require one."""


UPSTREAM_TLS = Record(
    "tls of a service",
    {
        "ca": Field(FILE, "Authorities of its certificate (PEM); default: the system's."),
        "name": Field(HOST, "The name in its certificate; default: the host of the endpoints."),
        "certificate": Field(FILE, "The client certificate (PEM), for a service that requires one."),
        "key": Field(FILE, "Its private key (PEM), not encrypted."),
    },
)


@dataclass(frozen=True, slots=True)
class UpstreamService:
    """The target of routes: one server, or several interchangeable ones."""

    name: str
    endpoints: tuple[UpstreamEndpoint, ...] = field(metadata=needed(_ENDPOINTS, "Host and port of its servers."))
    is_http2: bool = declared(
        Scalar.choice({"http1": False, "http2": True}),
        "Its protocol; gRPC needs http2. Default: http1.",
        False,
        key="protocol",
    )
    health_check: HealthCheck | None = declared(HEALTH_CHECK, "The health check of its servers; default: none.", None)
    connect_timeout: float = declared(Seconds(0.01, 60), "The longest wait for a connection; default: 1s.", 1.0)
    timeout: float = declared(RESPONSE_TIME, "The longest wait for a response; default: 15s.", 15.0)
    """0 for no limit."""
    retries: int = declared(Scalar.whole(0, 10), "Retries of requests that have reached no server; default: 1.", 1)
    tls: UpstreamTls | None = declared(UPSTREAM_TLS, "Use TLS; its certificate is verified.", None)


SERVICE = Record("a service", fields_of(UpstreamService))


@dataclass(frozen=True, slots=True)
class Cors:
    """The pages of other origins that may call a route from browsers."""

    origins: tuple[str, ...] = field(metadata=needed(_ORIGINS, "The origins of the pages."))
    headers: tuple[str, ...] = declared(_HEADERS, "Request headers that scripts may send.", ())
    credentials: bool = declared(Scalar.flag(), "Whether browsers send cookies; default: false.", False)
    max_age: float = declared(Seconds(0, 86_400), "How long browsers cache the permission; default: 10m.", 600)


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """Requests for a path: their service, requirements and cost."""

    path: str = field(metadata=needed(PATH, "This path and all paths below it; the longest match wins."))
    service: str = field(
        metadata=needed(Scalar.text("the name of a service", most=64), "The service that gets the requests.")
    )
    hosts: tuple[str, ...] = declared(_HOSTS, "Only for these hosts; default: any.", ())
    methods: tuple[str, ...] = declared(_METHODS, "Only for these methods; default: any.", ())
    require: str = declared(_REQUIRE, "The caller: none (the default), any credential, a user, or an apikey.", "none")
    cost: int = declared(Scalar.whole(0, 100_000), "The cost of a request; default: 1.", 1)
    cost_from_response: str = declared(HEADER, "A response header with an additional cost.", "")
    """It is removed from the response."""
    attributes: Mapping[str, str] = declared(
        _ATTRIBUTES, "Attributes for the `when` and `dimension` of rules.", factory=dict
    )
    remove_credentials: bool = declared(
        Scalar.choice({"keep": False, "remove": True}),
        "Whether the service gets the API key and the token; default: keep.",
        False,
        key="credentials",
    )
    cors: Cors | None = declared(
        Record("cors", fields_of(Cors)), "The pages of other origins that may call the route.", None
    )
    websocket: bool = declared(Scalar.flag(), "Whether clients may upgrade to WebSocket; default: false.", False)
    timeout: float | None = declared(
        RESPONSE_TIME, "The longest wait for a response, instead of that of the service.", None
    )
    rewrite: str = declared(PATH, "The path for the service, instead of that of the route.", "")


ROUTE = Record("a route", fields_of(GatewayRoute))


def _identity(name: str) -> tuple[Form, str]:
    """Return the form and the description of a field that issuers have in identity files, too."""
    known = identity.ISSUER.fields[name]
    return known.form, known.about


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIssuer:
    """An issuer of callers' tokens (JWT), which Envoy verifies."""

    name: str
    """Of Envoy's provider, and of its metadata for Headgate."""
    issuer: str = declared(*_identity("issuer"), "")
    audience: tuple[str, ...] = field(
        metadata=needed(_AUDIENCE, "The accepted values of the claim aud; any, if tokens have none.")
    )
    jwks: str = declared(FILE, "A file with its keys, as a JWK set.", "", is_secret=True)
    """The text of the JWK set, including shared secrets."""
    jwks_url: str = declared(
        Scalar.text("an address such as https://id.example.com/keys", r"https?://[!-~]+", 2000, numbers=False),
        "The URL from which Envoy fetches the keys, instead of a file.",
        "",
    )
    authorities: str = declared(
        FILE, "The authorities (PEM) of that server's certificate; default: the system's.", "", key="ca"
    )
    """Their certificates."""
    claims: Mapping[str, str] = declared(*_identity("claims"))
    realm: str = declared(*_identity("realm"), "")
    leeway: int = declared(*_identity("leeway_s"), 60, key="leeway_s")


ISSUER = Record(
    "an issuer",
    {
        **fields_of(TokenIssuer),
        "secret_file": Field(FILE, "A file with the secret that is shared with the issuer, instead of keys."),
        "algorithms": Field(
            identity.ALGORITHMS,
            "The algorithms that tokens may be signed with, such as [RS256]; not for fetched keys, which name theirs.",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class DecisionService:
    """The decision service: processes of this command, or a service elsewhere."""

    rules: str = field(default="", repr=False)
    store: str = declared(
        _STORE, "The address of the store; default: HEADGATE_STORE, or memory.", "memory", is_secret=True
    )
    on_store_failure: str = declared(
        Scalar.choice([str(mode) for mode in Mode]),
        "The mode while the store is unavailable, for rules without one.",
        Mode.LOCAL,
    )
    remote: UpstreamEndpoint | None = declared(
        ENDPOINT,
        "The gRPC port of a remote decision service, which has the rules, keys and store.",
        None,
        key="decisions.address",
    )
    remote_tls: UpstreamTls | None = declared(
        UPSTREAM_TLS, "Use TLS; its certificate is verified.", None, key="decisions.tls"
    )
    caller_key: str = declared(
        FILE, "A file with the caller key for that service.", "", key="decisions.caller_key_file", is_secret=True
    )
    timeout: float = declared(
        Seconds(0.01, 10), "The longest wait for a decision; default: 250ms.", 0.25, key="decisions.timeout"
    )
    workers: int = declared(
        Scalar.whole(1, MAX_WORKERS), "The number of decision processes; default: 1.", 1, key="decisions.workers"
    )


_LISTENERS = ListOf(LISTENER, "a list such as [{port: 8080}]", empty="has no listener")
_ROUTES = ListOf(ROUTE, "a list such as [{path: /orders, service: orders}]", empty="has no route")
_API_KEYS = Record(
    "api_keys",
    {
        **identity.API_KEYS.fields,
        "keys": Field(identity.HOLDERS, "The accepted keys, by digest."),
        "consumers": Field(
            Scalar.text("sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE", most=2000, numbers=False),
            "In place of them, or in addition: the database with the consumers whose keys are accepted.",
        ),
    },
)
_ISSUERS = ListOf(ISSUER, "a list of issuers, each with audience and jwks, jwks_url or secret_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    listeners: tuple[GatewayListener, ...] = field(metadata=needed(_LISTENERS, "Where clients connect."))
    services: Mapping[str, UpstreamService] = field(
        metadata=needed(MapOf(SERVICE, "services by name"), "The targets of routes.")
    )
    routes: tuple[GatewayRoute, ...] = field(metadata=needed(_ROUTES, "Which requests go where."))
    decisions: DecisionService
    api_keys: Mapping[str, Any] | None = declared(
        _API_KEYS, "The API keys of callers.", None, key="identity.api_keys", is_secret=True
    )
    """In the form of an identity file."""
    issuers: tuple[TokenIssuer, ...] = declared(
        _ISSUERS, "The issuers of callers' tokens (JWT).", (), key="identity.tokens"
    )
    trusted_hops: int = declared(
        Scalar.whole(0, 20),
        "The number of your own proxies before the gateway; default: 0.",
        0,
        key="identity.trusted_hops",
    )
    ipv6_prefix: int = declared(
        Scalar.whole(32, 128),
        "Bits of an IPv6 address that identify a client; default: 64.",
        64,
        key="identity.ipv6_prefix",
    )
    ignore_case: bool = declared(Scalar.flag(), "Whether paths ignore case; default: as in the rules.", False)
    on_headgate_failure: str = declared(
        Scalar.choice(("deny", "allow")),
        "The outcome while Headgate is unavailable: deny (503, the default) or allow.",
        "deny",
    )
    admin: GatewayListener | None = declared(ADMIN, "The port of metrics and health; default: none.", None)
    max_connections: int = declared(
        Scalar.whole(1, 1_000_000),
        "The maximum number of client connections; default: 10000.",
        10_000,
        key="limits.connections",
    )
    max_header_kb: int = declared(
        Scalar.whole(1, 96),
        "The maximum size of all headers of a request, in KiB; default: 16.",
        16,
        key="limits.header_kb",
    )
    max_body_mb: int = declared(
        Scalar.whole(1, 4000),
        "The maximum size of the body of a request, in MiB; default: 10.",
        10,
        key="limits.body_mb",
    )
    idle_timeout: float = declared(
        Seconds(1, 86_400),
        "The longest time without data before a request is ended; default: 5m.",
        300.0,
        key="limits.idle",
    )
    """It applies to upgraded connections, too."""
    threads: int = declared(Scalar.whole(1, 256), "The threads of Envoy; default: one for each processor.", 0)
    access_log: bool = declared(
        Scalar.choice({"json": True, "off": False}), "The access log, a line for each request; default: json.", True
    )
    drain_delay: float = declared(
        Seconds(0, 3600),
        "The time after SIGTERM in which health checks fail and requests are served; default: 5s.",
        5.0,
    )
    drain_seconds: float = declared(
        Seconds(0, 3600), "The time after that for requests in progress to end; default: 25s.", 25.0, key="drain"
    )
    warnings: tuple[Finding, ...] = field(default=(), compare=False)

    @property
    def consumers(self) -> str:
        """The URL of the database of consumers; empty for none."""
        return str((self.api_keys or {}).get("consumers", ""))


GATEWAY = Record(
    "a gateway file",
    {
        "version": Field(Scalar.version(1), "The version of this format: write version: 1.", required=True),
        **fields_of(Gateway),
        "identity": Field(Record("identity", fields_of(Gateway, "identity")), "How callers are identified."),
        "rules": Field(
            replace(FILE, json={**FILE.json, "type": ["string", "object"]}),
            "The rules: the name of a file, or its content.",
        ),
        **fields_of(DecisionService),
        "decisions": Field(
            Record("decisions", fields_of(DecisionService, "decisions")),
            "The decision service; default: processes of this command.",
        ),
        "limits": Field(Record("limits", fields_of(Gateway, "limits")), "Limits that protect the gateway."),
    },
    extensions=True,
)


def gateway_schema() -> Schema:
    return {"$schema": DIALECT, "title": "A gateway of Headgate", **GATEWAY.schema()}
