"""Gateway files: every field, declared once. What a field means is noted beside it, for editors and `--schema`."""

from __future__ import annotations

from headgate.config.problems import Findings
from headgate.config.problems import Path as Place
from headgate.config.schema import DIALECT, Field, ListOf, MapOf, Record, Scalar, Schema
from headgate.core.mode import Mode
from headgate.gateway.identity import API_KEYS, ISSUERS
from headgate.gateway.model import REQUIREMENTS, HealthCheck
from headgate.gateway.scalars import (
    ADDRESS,
    ENDPOINT,
    FILE,
    HEADER,
    HOST,
    ORIGIN,
    PATH,
    PORT,
    OneOrMore,
    Seconds,
)
from headgate.policy.model import METHODS
from headgate.server.settings import MAX_WORKERS

_ATTRIBUTE = (
    "(?!(?:user|user_id|ip|ip_address|apikey|api_key|tenant|tier|endpoint|global|method|service)$)[a-z][a-z0-9_-]{0,31}"
)

TLS = Record(
    "tls",
    {
        "certificate": Field(FILE, "The certificate and those that lead to its authority (PEM).", required=True),
        "key": Field(FILE, "Its private key (PEM), not encrypted.", required=True),
    },
)
LISTENER = Record(
    "a listener",
    {
        "address": Field(ADDRESS, "The address to listen on; default: 127.0.0.1. 0.0.0.0 or '::' for all."),
        "port": Field(PORT, "The port.", required=True),
        "tls": Field(OneOrMore(TLS), "A certificate and its key, or a list of them for several names."),
        "redirect_to": Field(PORT, "Answer only with a redirect to HTTPS on this port, 443 for the usual one."),
    },
)
UPSTREAM_TLS = Record(
    "tls of a service",
    {
        "ca": Field(FILE, "Authorities of its certificate (PEM); default: those that this system trusts."),
        "name": Field(HOST, "Whom the certificate is for; default: the host of the endpoints."),
        "certificate": Field(FILE, "A certificate of our own (PEM), for a service that asks for one."),
        "key": Field(FILE, "Its private key (PEM), not encrypted."),
    },
)
HEALTH_CHECK = Record(
    "a health check",
    {
        "path": Field(PATH, "What is asked for; a server that answers 200 is healthy.", required=True),
        "interval": Field(Seconds(0.1, 3600), "How often; default: 5s."),
        "timeout": Field(Seconds(0.01, 60), "How long an answer may take; default: 1s."),
        "healthy_after": Field(Scalar.whole(1, 100), "Good answers before a server gets requests again; default: 2."),
        "unhealthy_after": Field(Scalar.whole(1, 100), "Bad ones before it gets none; default: 2."),
    },
    make=lambda read, _path, _findings: HealthCheck(**read) if "path" in read else None,
)
SERVICE = Record(
    "a service",
    {
        "endpoints": Field(
            ListOf(ENDPOINT, 'a list such as ["10.0.0.5:8000", "10.0.0.6:8000"]'),
            "Where its servers are, host and port.",
            required=True,
        ),
        "protocol": Field(
            Scalar.choice({"http1": False, "http2": True}), "What it speaks; gRPC needs http2. Default: http1."
        ),
        "health_check": Field(HEALTH_CHECK, "How it is found out which servers can be asked; default: none."),
        "connect_timeout": Field(Seconds(0.01, 60), "How long a connection may take; default: 1s."),
        "timeout": Field(Seconds(0.01, 86_400, none=True), "How long a response may take; default: 15s."),
        "retries": Field(
            Scalar.whole(0, 10),
            "How often another server is tried, if the request has not reached the first; default: 1.",
        ),
        "tls": Field(UPSTREAM_TLS, "Speak TLS to it; its certificate is verified."),
    },
)
CORS = Record(
    "cors",
    {
        "origins": Field(
            ListOf(ORIGIN, "a list such as [https://app.example.com]"), "Whose pages may call it.", required=True
        ),
        "headers": Field(ListOf(HEADER, "a list such as [x-api-key]"), "Request headers that scripts may send."),
        "credentials": Field(Scalar.flag(), "Whether browsers send cookies; default: false."),
        "max_age": Field(Seconds(0, 86_400), "How long browsers remember the answer; default: 10m."),
    },
)
ROUTE = Record(
    "a route",
    {
        "path": Field(PATH, "This path and all below it; the longest that fits wins.", required=True),
        "service": Field(Scalar.text("the name of a service", most=64), "Where requests go.", required=True),
        "hosts": Field(ListOf(HOST, "a list such as [api.example.com]"), "For these hosts alone; default: any."),
        "methods": Field(ListOf(Scalar.choice(METHODS), "a list such as [GET, POST]"), "Default: any."),
        "require": Field(
            Scalar.choice(REQUIREMENTS), "Who may call: none (the default), any credential, a user, an apikey."
        ),
        "cost": Field(Scalar.whole(0, 100_000), "What a request takes of its limits; default: 1."),
        "cost_from_response": Field(HEADER, "A response header that says what it has cost besides, once it is known."),
        "attributes": Field(
            MapOf(
                Scalar.text("text", most=200, flags=True), "names and values, such as {kind: write}", keys=_ATTRIBUTE
            ),
            "For the `when` and `dimension` of rules.",
        ),
        "credentials": Field(
            Scalar.choice({"keep": False, "remove": True}), "Whether the service sees API key and token; default: keep."
        ),
        "cors": Field(CORS, "Which pages of other origins may call it."),
        "websocket": Field(Scalar.flag(), "Whether clients may upgrade to WebSocket; default: false."),
        "timeout": Field(Seconds(0.01, 86_400, none=True), "Instead of that of the service."),
        "rewrite": Field(PATH, "What the service sees in place of the path of the route."),
    },
)
IDENTITY = Record(
    "identity",
    {
        "api_keys": Field(API_KEYS, "The API keys that callers may have."),
        "tokens": Field(ISSUERS, "Whose tokens (JWT) callers may have."),
        "trusted_hops": Field(Scalar.whole(0, 20), "Proxies of your own before this one; default: 0."),
        "ipv6_prefix": Field(Scalar.whole(32, 128), "Bits of an IPv6 address that make one client; default: 64."),
    },
)
DECISIONS = Record(
    "decisions",
    {
        "address": Field(ENDPOINT, "The gRPC port of a decision service elsewhere, which has rules, keys and store."),
        "tls": Field(UPSTREAM_TLS, "Speak TLS to it; its certificate is verified."),
        "caller_key_file": Field(FILE, "A file with the key that it wants to hear from its callers."),
        "timeout": Field(Seconds(0.01, 10), "How long a request waits for its decision; default: 250ms."),
        "workers": Field(Scalar.whole(1, MAX_WORKERS), "Processes that decide, here; default: 1."),
    },
)
LIMITS = Record(
    "limits",
    {
        "connections": Field(Scalar.whole(1, 1_000_000), "Of clients, at once; default: 10000."),
        "header_kb": Field(Scalar.whole(1, 96), "All headers of a request, in KiB; default: 16."),
        "body_mb": Field(Scalar.whole(1, 4000), "The body of a request, in MiB; default: 10."),
        "idle": Field(Seconds(1, 86_400), "After so long a request on which nothing moves is ended; default: 5m."),
    },
)
ADMIN = Record(
    "admin",
    {
        "address": Field(ADDRESS, "The address to listen on; default: 127.0.0.1."),
        "port": Field(PORT, "The port of /metrics, /healthz and /readyz.", required=True),
    },
)


class Rules:
    """The name of a file of rules, or what would be in it."""

    def read(self, value: object, path: Place, findings: Findings) -> object:
        return value if type(value) is dict else FILE.read(value, path, findings)

    def schema(self) -> Schema:
        return {"anyOf": [FILE.schema(), {"type": "object"}]}


GATEWAY = Record(
    "a gateway file",
    {
        "version": Field(Scalar.version(1), "The version of this form: write version: 1.", required=True),
        "listeners": Field(ListOf(LISTENER, "a list such as [{port: 8080}]"), "Where clients connect.", required=True),
        "services": Field(MapOf(SERVICE, "services by name"), "What routes lead to.", required=True),
        "routes": Field(
            ListOf(ROUTE, "a list such as [{path: /orders, service: orders}]"), "What goes where.", required=True
        ),
        "identity": Field(IDENTITY, "Who callers are."),
        "rules": Field(Rules(), "The rules: the name of a file, or what would be in it."),
        "ignore_case": Field(
            Scalar.flag(),
            "Whether paths of routes that differ only in capitals are the same; default: as in the rules.",
        ),
        "store": Field(
            Scalar.text("memory, or an address such as redis://HOST:6379/0", most=4096, numbers=False),
            "Where the state is; default: HEADGATE_STORE in the environment, or else memory.",
        ),
        "on_store_failure": Field(
            Scalar.choice([str(mode) for mode in Mode]), "While the store is away, where a rule does not say."
        ),
        "on_headgate_failure": Field(
            Scalar.choice(("deny", "allow")),
            "What happens to requests that nobody decides about: deny (503, the default) or allow.",
        ),
        "decisions": Field(DECISIONS, "Who decides; default: a service that runs beside this gateway."),
        "limits": Field(LIMITS, "What the gateway bears."),
        "admin": Field(ADMIN, "Where metrics and health are told; default: nowhere."),
        "threads": Field(Scalar.whole(1, 256), "Of Envoy; default: one for each processor."),
        "access_log": Field(Scalar.choice({"json": True, "off": False}), "A line for each request; default: json."),
        "drain_delay": Field(
            Seconds(0, 3600),
            "After SIGTERM, in which health checks fail and everything is still served; default: 5s.",
        ),
        "drain": Field(Seconds(0, 3600), "After that, for requests in progress to end; default: 25s."),
    },
    extensions=True,
)


def gateway_schema() -> Schema:
    """Return the JSON Schema of a gateway file."""
    return {"$schema": DIALECT, "title": "A gateway of Headgate", **GATEWAY.schema()}
