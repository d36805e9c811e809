"""Gateway files: the records of `headgate.gateway.model`, and those that only files have."""

from __future__ import annotations

from headgate.config.problems import Findings
from headgate.config.problems import Path as Place
from headgate.config.records import fields_of
from headgate.config.schema import DIALECT, Field, ListOf, MapOf, Record, Scalar, Schema
from headgate.gateway.identity import API_KEYS, ISSUERS
from headgate.gateway.model import (
    Cors,
    DecisionService,
    Gateway,
    GatewayListener,
    GatewayRoute,
    HealthCheck,
    UpstreamService,
)
from headgate.gateway.scalars import ADDRESS, FILE, HOST, PORT, OneOrMore

TLS = Record(
    "tls",
    {
        "certificate": Field(FILE, "The certificate and those that lead to its authority (PEM).", required=True),
        "key": Field(FILE, "Its private key (PEM), not encrypted.", required=True),
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
    fields_of(HealthCheck),
    make=lambda read, _path, _findings: HealthCheck(**read) if "path" in read else None,
)
LISTENER = Record("a listener", fields_of(GatewayListener, tls=OneOrMore(TLS)))
SERVICE = Record("a service", fields_of(UpstreamService, health_check=HEALTH_CHECK, tls=UPSTREAM_TLS))
ROUTE = Record("a route", fields_of(GatewayRoute, cors=Record("cors", fields_of(Cors))))
_IDENTITY = Record("identity", fields_of(Gateway, "identity", api_keys=API_KEYS, tokens=ISSUERS))
_DECISIONS = Record("decisions", fields_of(DecisionService, "decisions", tls=UPSTREAM_TLS))
_LIMITS = Record("limits", fields_of(Gateway, "limits"))
_ADMIN = Record(
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
        "identity": Field(_IDENTITY, "Who callers are."),
        "rules": Field(Rules(), "The rules: the name of a file, or what would be in it."),
        **fields_of(DecisionService),
        "decisions": Field(_DECISIONS, "Who decides; default: a service that runs beside this gateway."),
        **fields_of(Gateway),
        "limits": Field(_LIMITS, "What the gateway bears."),
        "admin": Field(_ADMIN, "Where metrics and health are served; default: nowhere."),
    },
    extensions=True,
)


def gateway_schema() -> Schema:
    """Return the JSON Schema of a gateway file."""
    return {"$schema": DIALECT, "title": "A gateway of Headgate", **GATEWAY.schema()}
