"""Gateway files: every field, declared once, and the `Gateway` that a file describes.

All problems of a file are told at once, each with its place. Files that it names are looked for in its folder and read
here: whoever has a `Gateway` needs no file any more.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec

from headgate.core.mode import Mode
from headgate.gateway.identity import API_KEYS, ISSUERS, issuers_of
from headgate.gateway.model import (
    REQUIREMENTS,
    Certificate,
    Cors,
    DecisionService,
    Gateway,
    GatewayListener,
    GatewayRoute,
    HealthCheck,
    UpstreamEndpoint,
    UpstreamService,
    UpstreamTls,
)
from headgate.gateway.scalars import (
    ADDRESS,
    ENDPOINT,
    FILE,
    HEADER,
    HOST,
    ORIGIN,
    PATH,
    PORT,
    Folder,
    OneOrMore,
    seconds,
)
from headgate.policy.forms import METHODS
from headgate.policy.loading import from_data, load
from headgate.policy.problems import Findings, InvalidRules, Locator, Problem, ProblemKind, in_order, render
from headgate.policy.problems import Path as Place
from headgate.policy.schema import DIALECT, Field, ListOf, MapOf, Record, Scalar, Schema, Values
from headgate.policy.yaml_text import Document, text_of
from headgate.server.settings import MAX_WORKERS

_MEANING = ProblemKind.MEANING
_SECRET = ("identity.api_keys", "store")
"""Lines about these are not repeated: somebody may have written a key in place of its digest, or a password."""
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
        "interval": Field(seconds(0.1, 3600), "How often; default: 5s."),
        "timeout": Field(seconds(0.01, 60), "How long an answer may take; default: 1s."),
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
        "connect_timeout": Field(seconds(0.01, 60), "How long a connection may take; default: 1s."),
        "timeout": Field(seconds(0.01, 86_400, none=True), "How long a response may take; default: 15s."),
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
        "max_age": Field(seconds(0, 86_400), "How long browsers remember the answer; default: 10m."),
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
        "timeout": Field(seconds(0.01, 86_400, none=True), "Instead of that of the service."),
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
        "timeout": Field(seconds(0.01, 10), "How long a request waits for its decision; default: 250ms."),
        "workers": Field(Scalar.whole(1, MAX_WORKERS), "Processes that decide, here; default: 1."),
    },
)
LIMITS = Record(
    "limits",
    {
        "connections": Field(Scalar.whole(1, 1_000_000), "Of clients, at once; default: 10000."),
        "header_kb": Field(Scalar.whole(1, 96), "All headers of a request, in KiB; default: 16."),
        "idle": Field(seconds(1, 86_400), "After so long a request on which nothing moves is ended; default: 5m."),
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
        "drain": Field(seconds(0, 3600), "For requests in progress to end after SIGTERM; default: 25s."),
    },
    extensions=True,
)


def gateway_schema() -> Schema:
    """Return the JSON Schema of a gateway file."""
    return {"$schema": DIALECT, "title": "A gateway of Headgate", **GATEWAY.schema()}


def load_gateway(
    path: str | PathLike[str], *, store: str = "memory", reading: Callable[[Path], object] = lambda _: None
) -> Gateway:
    """Return the gateway that a file describes.

    Args:
        path: of the YAML file.
        store: where the file names none.
        reading: called with each file that it names, before that is read.

    Raises:
        InvalidRules: with all the problems.
    """
    name = fspath(path)
    document = Document(text_of(path), name, "a gateway file")
    findings = Findings(document)
    read = GATEWAY.read(document.data, (), findings)
    others: list[Problem] = []
    gateway = None
    if read is not None:
        building = _Building(Folder(Path(name).parent, findings, reading), findings)
        rules, others = building.rules(document, read.get("rules"))
        if not findings.count:
            gateway = building.gateway(read, rules, store)
    if gateway is None or findings.count or document.problems or others:
        problems = [_without_secrets(problem) for problem in findings.problems()]
        raise InvalidRules(in_order([*document.problems, *problems, *others]))
    return gateway


def _without_secrets(problem: Problem) -> Problem:
    return replace(problem, source="") if problem.path.startswith(_SECRET) else problem


class Part(Locator):
    """Knows where values are written that are a part of a larger whole."""

    __slots__ = ("_place", "_whole")

    def __init__(self, whole: Locator, *place: str) -> None:
        super().__init__(whole.name)
        self._whole, self._place = whole, place

    def locate(self, path: Place, *, at_key: bool) -> tuple[int, int]:
        return self._whole.locate((*self._place, *path), at_key=at_key)

    def source(self, line: int) -> str:
        return self._whole.source(line)


class _Building:
    """Makes the parts of a file that is well formed, and notes what makes no sense."""

    def __init__(self, folder: Folder, findings: Findings) -> None:
        self._folder, self._findings = folder, findings

    def rules(self, document: Document, given: object) -> tuple[str, list[Problem]]:
        """Return the text of the rules, in this file or in the one that is named, and what is wrong with them."""
        try:
            if isinstance(given, dict):
                from_data({"version": 1, **given}, where=Part(document, "rules"))
                return msgspec.json.encode({"version": 1, **given}).decode(), []
            if isinstance(given, str):
                file = self._folder.named(given)
                text = text_of(file)
                load(text, name=str(file))
                return text, []
        except InvalidRules as error:
            inside = "rules." if isinstance(given, dict) else ""
            return "", [replace(problem, path=f"{inside}{problem.path}") for problem in error.problems]
        return "", []

    def gateway(self, read: Values, rules: str, store: str) -> Gateway | None:
        listeners = [self._listener(("listeners", index), each) for index, each in enumerate(read["listeners"])]
        services = {name: self._service(("services", name), name, each) for name, each in read["services"].items()}
        routes = [self._route(("routes", index), each, services) for index, each in enumerate(read["routes"])]
        identity, limits = read.get("identity", {}), read.get("limits", {})
        self._check_unique(listeners)
        self._check_routes(routes)
        issuers = issuers_of(identity.get("tokens", ()), self._folder, self._findings)
        self._check_keys(identity)
        decisions = self._decisions(read, rules, store)
        if self._findings.count:
            return None
        admin = read.get("admin")
        return Gateway(
            tuple(listeners),
            services,
            tuple(routes),
            decisions,
            identity.get("api_keys"),
            issuers,
            identity.get("trusted_hops", 0),
            identity.get("ipv6_prefix", 64),
            read.get("on_headgate_failure", "deny"),
            GatewayListener(admin.get("address", "127.0.0.1"), admin["port"]) if admin else None,
            limits.get("connections", 10_000),
            limits.get("header_kb", 16),
            limits.get("idle", 300.0),
            read.get("threads", 0),
            read.get("access_log", True),
            read.get("drain", 25.0),
        )

    def _listener(self, path: Place, read: Values) -> GatewayListener:
        given = read.get("tls", [])
        if given and "redirect_to" in read:
            self._note((*path, "redirect_to"), "what has TLS needs no redirect to it", "Remove tls or redirect_to.")
        certificates = [self._certificate((*path, "tls"), each) for each in given]
        address = read.get("address", "127.0.0.1")
        return GatewayListener(
            address, read["port"], tuple([each for each in certificates if each]), read.get("redirect_to", 0)
        )

    def _certificate(self, path: Place, read: Mapping[str, str]) -> Certificate | None:
        chain, key = (self._folder.text((*path, name), read[name]) for name in ("certificate", "key"))
        if chain is None or key is None:
            return None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            files = [self._folder.path / read[name] for name in ("certificate", "key")]
            context.load_cert_chain(files[0], files[1], lambda: b"")  # else OpenSSL would ask at the terminal
        except (OSError, ValueError) as error:
            why = "they are swapped" if "PRIVATE KEY-" in chain and "PRIVATE KEY-" not in key else str(error)
            self._note(path, f"certificate and key cannot be used: {why}", "Two PEM files are needed, not encrypted.")
            return None
        return Certificate(chain, key)

    def _service(self, path: Place, name: str, read: Values) -> UpstreamService:
        if not read["endpoints"]:
            self._note((*path, "endpoints"), "names no server", 'Write where it is: ["10.0.0.5:8000"].')
        tls = self._upstream_tls((*path, "tls"), read["tls"], read["endpoints"]) if "tls" in read else None
        plain = ("health_check", "connect_timeout", "timeout", "retries")
        given = {field: read[field] for field in plain if field in read}
        return UpstreamService(name, tuple(read["endpoints"]), read.get("protocol", False), tls=tls, **given)

    def _upstream_tls(
        self, path: Place, read: Mapping[str, str], endpoints: Iterable[UpstreamEndpoint]
    ) -> UpstreamTls | None:
        hosts = {endpoint.host for endpoint in endpoints}
        if "name" not in read and len(hosts) != 1:
            self._note(path, "its endpoints have several names", "Say whom the certificate is for: name: HOST.")
        authorities, own = self._folder.authorities(path, read.get("ca", "")), None
        if "certificate" in read and "key" in read:
            own = self._certificate(path, read)
        elif "certificate" in read or "key" in read:
            self._note(path, "a certificate and its key are given together, or neither")
        name = read.get("name") or min(hosts, default="")
        return None if authorities is None else UpstreamTls(authorities, name, own)

    def _route(self, path: Place, read: Values, services: Mapping[str, UpstreamService]) -> GatewayRoute:
        if read["service"] not in services:
            hint = self._findings.near(read["service"], services)
            known = ", ".join(services)
            self._note((*path, "service"), f"there is no service {read['service']!r}", hint or f"There are: {known}.")
        cors = read.get("cors")
        given = {
            name: read[name]
            for name in ("require", "cost", "cost_from_response", "attributes", "websocket", "timeout", "rewrite")
            if name in read
        }
        return GatewayRoute(
            read["path"],
            read["service"],
            tuple(host.lower() for host in read.get("hosts", ())),
            tuple(sorted(set(read.get("methods", ())))),
            remove_credentials=read.get("credentials", False),
            cors=None if cors is None else self._cors((*path, "cors"), cors),
            **given,
        )

    def _cors(self, path: Place, read: Values) -> Cors:
        if "*" in read["origins"] and read.get("credentials"):
            self._note((*path, "credentials"), "cookies for every origin would let any page act as its visitor")
        max_age = int(read.get("max_age", 600))
        return Cors(tuple(read["origins"]), tuple(read.get("headers", ())), read.get("credentials", False), max_age)

    def _check_unique(self, listeners: Sequence[GatewayListener]) -> None:
        seen: set[int] = set()
        for index, each in enumerate(listeners):
            if each.port in seen:
                self._note(("listeners", index, "port"), f"{each.port} is the port of another listener, too")
            seen.add(each.port)
        if not listeners:
            self._note(("listeners",), "names no port", "Write one: [{port: 8080}].")

    def _check_routes(self, routes: Sequence[GatewayRoute]) -> None:
        seen: dict[tuple[str, str, str], int] = {}
        for index, route in enumerate(routes):
            for host in route.hosts or ("*",):
                for method in route.methods or ("*",):
                    first = seen.setdefault((host, route.path, method), index)
                    if first != index:
                        which = render(("routes", first))
                        self._note(("routes", index), f"is for the same requests as {which}", "Remove one of the two.")
                        break
        if not routes:
            self._note(("routes",), "leads nowhere", "Write one: [{path: /, service: NAME}].")

    def _check_keys(self, identity: Mapping[str, Any]) -> None:
        seen: dict[str, int] = {}
        for index, key in enumerate(identity.get("api_keys", {}).get("keys", ())):
            first = seen.setdefault(key["sha256"], index)
            if first != index:
                place: Place = ("identity", "api_keys", "keys", index, "sha256")
                self._note(place, f"is that of {render((*place[:3], first))}, too", "Remove one of the two.")
        if identity.get("api_keys", {}).get("header", "").lower() == "authorization" and identity.get("tokens"):
            self._note(("identity", "api_keys", "header"), "tokens come in Authorization: let keys have another header")

    def _decisions(self, read: Values, rules: str, store: str) -> DecisionService:
        given = read.get("decisions", {})
        timeout, workers = given.get("timeout", 0.25), given.get("workers", 1)
        if "address" in given:
            for name in ("rules", "store", "on_store_failure"):
                if name in read:
                    self._note((name,), "a decision service elsewhere has its own", "Say it there.", at_key=True)
            if "api_keys" in read.get("identity", {}):
                where = ("identity", "api_keys")
                self._note(where, "a decision service elsewhere has its own", "Say it there, with --identity.")
            place: Place = ("decisions", "tls")
            tls = self._upstream_tls(place, given["tls"], [given["address"]]) if "tls" in given else None
            place = ("decisions", "caller_key_file")
            key = self._folder.text(place, given[place[1]]) if place[1] in given else ""
            return DecisionService(
                remote=given["address"], remote_tls=tls, caller_key=(key or "").strip(), timeout=timeout
            )
        for name in ("tls", "caller_key_file"):
            if name in given:
                self._note(("decisions", name), "is for a service elsewhere", "Give its address, too.", at_key=True)
        if "rules" not in read:
            self._note((), "there are no rules", "Write rules: FILE, or the rules themselves.")
        store = read.get("store", store)
        if workers > 1 and not store.lower().startswith("redis"):
            self._note(
                ("decisions", "workers"), f"{workers} workers need a store that they share", "Say store: redis://HOST."
            )
        return DecisionService(rules, store, read.get("on_store_failure", Mode.LOCAL), workers, timeout=timeout)

    def _note(self, path: Place, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self._findings.add(path, message, hint=hint, kind=_MEANING, at_key=at_key)
