"""Gateway files, read: the `Gateway` that a file describes.

All problems of a file are told at once, each with its place. Files that it names are looked for in its folder and read
here: whoever has a `Gateway` needs no file any more.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv6Address
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headgate.config.problems import Finding, Findings, InvalidRules, Locator, ProblemKind, in_order, render, shown
from headgate.config.problems import Path as Place
from headgate.config.records import values_of
from headgate.config.schema import Record, Values
from headgate.config.yaml_text import Document, text_of
from headgate.core.errors import UsageError
from headgate.gateway.bypasses import bypasses
from headgate.gateway.forms import GATEWAY, LISTENER, ROUTE, SERVICE, TLS
from headgate.gateway.identity import issuers_of
from headgate.gateway.model import (
    Certificate,
    Cors,
    DecisionService,
    Gateway,
    GatewayListener,
    GatewayRoute,
    UpstreamService,
    UpstreamTls,
)
from headgate.gateway.scalars import Folder, UpstreamEndpoint
from headgate.policy.loading import from_data, load
from headgate.server.identity.loading import HOLDER, without_secrets
from headgate.stores import open_store

_MEANING = ProblemKind.MEANING
_SECRET = ("identity.api_keys", "store")
"""Lines about these are not repeated: somebody may have written a key in place of its digest, or a password."""


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
    document = Document(text_of(path), name, "a gateway file", has_secrets=True)
    findings = Findings(document)
    read = GATEWAY.read(document.data, (), findings)
    others: list[Finding] = []
    gateway = None
    if read is not None:
        building = _Building(Folder(Path(name).parent, findings, reading), findings)
        rules, others = building.rules(document, read.get("rules"))
        gateway = building.gateway(document.data, read, rules, store)
        if gateway is not None:
            for number, message, hint in bypasses(gateway, by_case="ignore_case" not in read):
                findings.warn(("routes", number), message, hint=hint)
            gateway = replace(gateway, warnings=tuple(findings.warnings()))
    if gateway is None or findings.count or document.problems or others:
        raise InvalidRules(in_order([*without_secrets(findings, *_SECRET), *others]))
    return gateway


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


def _complete(form: Record, read: Values, kind: str) -> Iterator[tuple[Place, Values]]:
    """Yield the parts of a kind that can be made, each with its place; what is wrong with others is noted already."""
    given = read.get(kind, ())
    for key, part in given.items() if isinstance(given, dict) else enumerate(given):
        if _has_all(form, part):
            yield (kind, key), {name: _without_gaps(value) for name, value in part.items()}


def _has_all(form: Record, part: Values | None) -> bool:
    return part is not None and part.keys() >= {*form.required}


def _is_whole(written: Values, read: Values) -> bool:
    """Whether hosts and methods of a route are right, or some of them: without any it would be for all."""
    named = [name for name in ("hosts", "methods") if name in written]
    return all(name in read and {*read[name]} != {None} for name in named)


def _without_gaps(value: Any) -> Any:
    """Return a list without what is wrong in it, and all else as it is."""
    return [item for item in value if item is not None] if type(value) is list else value


class Rules(NamedTuple):
    """The rules of a gateway."""

    text: str = ""
    ignore_case: bool | None = None
    """None if they are not known."""


class _Building:
    """Makes the parts of a file that are well formed, and notes what makes no sense."""

    def __init__(self, folder: Folder, findings: Findings) -> None:
        self._folder, self._findings = folder, findings

    def rules(self, document: Document, given: object) -> tuple[Rules, list[Finding]]:
        """Return the rules, in this file or in the one that is named, and what is wrong with them."""
        try:
            if isinstance(given, dict):
                ruleset = from_data({"version": 1, **given}, where=Part(document, "rules"))
                text = msgspec.json.encode({"version": 1, **given}).decode()
                return Rules(text, ignore_case=ruleset.ignore_case), []
            if isinstance(given, str):
                file = self._folder.named(given)
                text = text_of(file)
                return Rules(text, ignore_case=load(text, name=str(file)).ignore_case), []
        except InvalidRules as error:
            if error.problems[0].kind is ProblemKind.FILE:
                self._note(("rules",), f"{shown(given)} {error.problems[0].message}")
                return Rules(), []
            inside = "rules." if isinstance(given, dict) else ""
            return Rules(), [replace(problem, path=f"{inside}{problem.path}") for problem in error.problems]
        return Rules(), []

    def gateway(self, data: Values, read: Values, rules: Rules, store: str) -> Gateway | None:
        listeners = {path: self._listener(path, each) for path, each in _complete(LISTENER, read, "listeners")}
        services = {str(path[1]): self._service(path, each) for path, each in _complete(SERVICE, read, "services")}
        names = data["services"] if "services" in read else None  # a route may lead to one that has a fault
        routes = {path: self._route(path, each, names) for path, each in _complete(ROUTE, read, "routes")}
        identity, limits = read.get("identity", {}), read.get("limits", {})
        if read.get("listeners") == []:
            self._note(("listeners",), "names no port", "Write one: [{port: 8080}].")
        if read.get("routes") == []:
            self._note(("routes",), "leads nowhere", "Write one: [{path: /, service: NAME}].")
        self._check_unique(listeners, read.get("admin", {}).get("port"))
        ignore_case = self._ignore_case(read, rules)
        parts = {path: [of["routes"][path[1]] for of in (data, read)] for path in routes}
        whole = {path: each for path, each in routes.items() if _is_whole(*parts[path])}
        self._check_routes(whole, ignore_case=ignore_case)
        tokens = data["identity"]["tokens"] if "tokens" in identity else ()
        issuers = issuers_of(tokens, identity.get("tokens", ()), self._folder, self._findings)
        self._check_keys(identity)
        self._check_store(read)
        decisions = self._decisions(data, read, rules.text, store)
        if self._findings.count:
            return None
        admin = read.get("admin")
        return Gateway(
            listeners=tuple(listeners.values()),
            services=services,
            routes=tuple(routes.values()),
            decisions=decisions,
            admin=self._listener(("admin",), admin) if admin else None,
            **values_of(Gateway, read)
            | values_of(Gateway, identity, "identity")
            | values_of(Gateway, limits, "limits")
            | {"issuers": issuers, "ignore_case": ignore_case},
        )

    def _listener(self, path: Place, read: Values) -> GatewayListener:
        given = read.get("tls", [])
        if given and "redirect_to" in read:
            self._note((*path, "redirect_to"), "what has TLS needs no redirect to it", "Remove tls or redirect_to.")
        certificates = [self._certificate((*path, "tls"), each) for each in given if _has_all(TLS, each)]
        found = {"certificates": tuple([each for each in certificates if each])}
        return GatewayListener(**values_of(GatewayListener, read) | found)

    def _certificate(self, path: Place, read: Mapping[str, str]) -> Certificate | None:
        chain, key = (self._folder.text((*path, name), read[name]) for name in ("certificate", "key"))
        if chain is None or key is None:
            return None
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            files = [self._folder.path / read[name] for name in ("certificate", "key")]
            context.load_cert_chain(files[0], files[1], lambda: b"")  # else OpenSSL would ask at the terminal
        except (OSError, ValueError) as error:
            why, hint = str(error), "Two PEM files are needed, not encrypted."
            if "PRIVATE KEY-" in chain and "PRIVATE KEY-" not in key:
                why = "they are swapped"
            elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                why, hint = "the key is that of another certificate", ""
            self._note(path, f"certificate and key cannot be used: {why}", hint)
            return None
        return Certificate(chain, key)

    def _service(self, path: Place, read: Values) -> UpstreamService:
        if not read["endpoints"]:
            self._note((*path, "endpoints"), "names no server", 'Write where it is: ["10.0.0.5:8000"].')
        tls = self._upstream_tls((*path, "tls"), read["tls"], read["endpoints"]) if "tls" in read else None
        return UpstreamService(str(path[1]), **values_of(UpstreamService, read) | {"tls": tls})

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

    def _route(self, path: Place, read: Values, services: Iterable[str] | None) -> GatewayRoute:
        if services is not None and read["service"] not in services:
            hint = self._findings.near(read["service"], services)
            known = ", ".join(services)
            self._note((*path, "service"), f"there is no service {read['service']!r}", hint or f"There are: {known}.")
        cors = read.get("cors")
        found = {
            "hosts": tuple(self._host((*path, "hosts"), host) for host in read.get("hosts", ())),
            "methods": tuple(sorted(set(read.get("methods", ())))),
            "cors": None if cors is None else self._cors((*path, "cors"), cors),
        }
        return GatewayRoute(**values_of(GatewayRoute, read) | found)

    def _host(self, path: Place, host: str) -> str:
        """Return a host as Envoy compares it."""
        if ":" not in host:
            return host.lower().removesuffix(".")
        try:
            return f"[{IPv6Address(host)}]"
        except ValueError:
            self._note(path, f"{host} is not an IPv6 address")
            return host

    def _ignore_case(self, read: Values, rules: Rules) -> bool:
        wanted, known = read.get("ignore_case"), rules.ignore_case
        if wanted is not None and known is not None and wanted != known:
            message = "the rules tell capitals from small letters" if wanted else "the rules ignore case"
            hint = f"Write ignore_case: {shown(wanted)} in the rules, too: paths are counted as they are routed."
            self._note(("ignore_case",), message, hint)
        return bool(known if wanted is None else wanted)

    def _cors(self, path: Place, read: Values) -> Cors:
        given = {"origins": (), **values_of(Cors, {name: _without_gaps(value) for name, value in read.items()})}
        if "*" in given["origins"] and read.get("credentials"):
            self._note((*path, "credentials"), "cookies for every origin would let any page act as its visitor")
        return Cors(**given)

    def _check_unique(self, listeners: Mapping[Place, GatewayListener], admin: int | None) -> None:
        seen: set[int] = set()
        for path, each in listeners.items():
            if each.port in seen:
                self._note((*path, "port"), f"{each.port} is the port of another listener, too")
            seen.add(each.port)
        if admin in seen:
            self._note(("admin", "port"), f"{admin} is the port of a listener, too", "Metrics need another one.")

    def _check_routes(self, routes: Mapping[Place, GatewayRoute], *, ignore_case: bool) -> None:
        seen: dict[tuple[str, str, str], Place] = {}
        for path, route in routes.items():
            for host in route.hosts or ("*",):
                for method in route.methods or ("*",):
                    spelt = route.path.lower() if ignore_case else route.path
                    first = seen.setdefault((host, spelt, method), path)
                    if first != path:
                        self._note(path, f"is for the same requests as {render(first)}", "Remove one of the two.")
                        break

    def _check_keys(self, identity: Mapping[str, Any]) -> None:
        seen: dict[str, int] = {}
        keys = identity.get("api_keys", {"consumers": ""})
        if not self._findings.count and "consumers" not in keys and not keys.get("keys"):
            hint = "List keys, or name the database of consumers: {consumers: sqlite:///headgate.db}."
            self._note(("identity", "api_keys"), "accepts no key", hint)
        for index, key in enumerate(identity.get("api_keys", {}).get("keys", ())):
            if not _has_all(HOLDER, key):
                continue
            first = seen.setdefault(key["sha256"], index)
            if first != index:
                place: Place = ("identity", "api_keys", "keys", index, "sha256")
                self._note(place, f"is that of {render((*place[:3], first))}, too", "Remove one of the two.")
        if identity.get("api_keys", {}).get("header", "").lower() == "authorization" and identity.get("tokens"):
            self._note(("identity", "api_keys", "header"), "tokens come in Authorization: let keys have another header")

    def _check_store(self, read: Values) -> None:
        if "store" in read:
            try:
                open_store(read["store"]).close()  # nothing is connected
            except UsageError as error:
                self._note(("store",), str(error))

    def _decisions(self, data: Values, read: Values, rules: str, store: str) -> DecisionService:
        given = read.get("decisions", {})
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
            found = {"remote_tls": tls, "caller_key": (key or "").strip(), "workers": 1}
            return DecisionService(**values_of(DecisionService, given, "decisions") | found)
        for name in ("tls", "caller_key_file"):
            if name in given:
                self._note(("decisions", name), "is for a service elsewhere", "Give its address, too.", at_key=True)
        if "rules" not in {*data, *GATEWAY.misspelt(data, self._findings)}:
            self._note((), "there are no rules", "Write rules: FILE, or the rules themselves.")
        settings: Values = {"store": store, **values_of(DecisionService, read)}
        service = DecisionService(rules, **settings | values_of(DecisionService, given, "decisions"))
        if service.workers > 1 and not service.store.lower().startswith("redis"):
            message = f"{service.workers} workers need a store that they share"
            self._note(("decisions", "workers"), message, "Say store: redis://HOST.")
        return service

    def _note(self, path: Place, message: str, hint: str = "", *, at_key: bool = False) -> None:
        self._findings.add(path, message, hint=hint, kind=_MEANING, at_key=at_key)
