"""Loading of gateway files.

All problems of a file are reported at once, each with its place. Files that it names are relative to its folder, and
are read here: a `Gateway` refers to no file.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headgate.config.problems import Finding, Findings, InvalidRules, Locator, ProblemKind, in_order, render, shown
from headgate.config.problems import Path as Place
from headgate.config.records import values_of
from headgate.config.schema import Record, Values
from headgate.config.yaml_text import Document, text_of
from headgate.files import UnreadableFile, content_of
from headgate.gateway.bypasses import bypasses
from headgate.gateway.model import (
    GATEWAY,
    ISSUER,
    LISTENER,
    ROUTE,
    SERVICE,
    TLS,
    Certificate,
    Cors,
    DecisionService,
    Gateway,
    GatewayListener,
    GatewayRoute,
    TokenIssuer,
    UpstreamService,
    UpstreamTls,
)
from headgate.gateway.scalars import UpstreamEndpoint
from headgate.policy.loading import from_data, load
from headgate.server.identity import MAX_KEY_FILE, without_secrets
from headgate.server.wire.tls import mismatch
from headgate.stores import open_store
from headgate.web.errors import InvalidSettings
from headgate.web.jwk import FAMILIES, VerificationKey

_SHARED_SECRETS = tuple(name for name, family in FAMILIES.items() if family == "oct")
_SOURCES = ("jwks", "jwks_url", "secret_file")
_SECRET = ("identity.api_keys", "store")
"""Lines about these are not shown: they may contain a password, or a key in place of its digest."""


def load_gateway(
    path: str | PathLike[str], *, store: str = "memory", reading: Callable[[Path], object] = lambda _: None
) -> Gateway:
    """Return the gateway that a YAML file describes. Raises InvalidRules, with all problems.

    `reading` is called with each file that it names, before that is read. `store` is the default.
    """
    name = fspath(path)
    document = Document(text_of(path), name, "a gateway file", has_secrets=True)
    findings = Findings(document)
    read = GATEWAY.read(document.data, (), findings)
    others: list[Finding] = []
    gateway = None
    if read is not None:
        building = _Building(Path(name).parent, findings, reading)
        rules, ignore_case, others = building.rules(document, read.get("rules"))
        gateway = building.gateway(document.data, read, store, rules, ignore_case=ignore_case)
        if gateway is not None:
            for number, message, hint in bypasses(gateway, by_case="ignore_case" not in read):
                findings.warn(("routes", number), message, hint=hint)
            gateway = replace(gateway, warnings=tuple(findings.warnings()))
    if gateway is None or findings.count or document.problems or others:
        raise InvalidRules(in_order([*without_secrets(findings, *_SECRET), *others]))
    return gateway


class _Part(Locator):
    """Locates values in a part of a document."""

    __slots__ = ("_place", "_whole")

    def __init__(self, whole: Locator, *place: str) -> None:
        super().__init__(whole.name)
        self._whole, self._place = whole, place

    def locate(self, path: Place, *, at_key: bool) -> tuple[int, int]:
        return self._whole.locate((*self._place, *path), at_key=at_key)

    def source(self, line: int) -> str:
        return self._whole.source(line)


def _complete(form: Record, read: Values, kind: str) -> Iterator[tuple[Place, Values]]:
    """Yield the complete parts of a kind, each with its place; problems with the others are noted already."""
    given = read.get(kind, ())
    for key, part in given.items() if isinstance(given, dict) else enumerate(given):
        if _has_all(form, part):
            yield (kind, key), {name: _without_gaps(value) for name, value in part.items()}


def _has_all(form: Record, part: Values | None) -> bool:
    return part is not None and part.keys() >= {*form.required}


def _is_limited(written: Values, read: Values) -> bool:
    """Return whether a route has valid hosts and methods, if any were written: with none, it would match all."""
    named = [name for name in ("hosts", "methods") if name in written]
    return all(name in read and {*read[name]} != {None} for name in named)


def _without_gaps(value: Any) -> Any:
    """Return a list without its invalid items; other values unchanged."""
    return [item for item in value if item is not None] if type(value) is list else value


class _Building:
    """Makes the well-formed parts of a file, and notes semantic errors. Files that it names are in a folder."""

    def __init__(self, folder: Path, findings: Findings, reading: Callable[[Path], object]) -> None:
        self._folder, self._findings, self._reading = folder, findings, reading
        self._reject = findings.reject

    def rules(self, document: Document, given: object) -> tuple[str, bool | None, list[Finding]]:
        """Return the rules in this file, or in a named one, whether they ignore case, if known, and their problems."""
        try:
            if isinstance(given, dict):
                ruleset = from_data({"version": 1, **given}, where=_Part(document, "rules"))
                return msgspec.json.encode({"version": 1, **given}).decode(), ruleset.ignore_case, []
            if isinstance(given, str):
                file = self._file(given)
                text = text_of(file)
                return text, load(text, name=str(file)).ignore_case, []
        except InvalidRules as error:
            if error.problems[0].kind is not ProblemKind.FILE:
                inside = "rules." if isinstance(given, dict) else ""
                return "", None, [replace(problem, path=f"{inside}{problem.path}") for problem in error.problems]
            self._reject(("rules",), f"{shown(given)} {error.problems[0].message}")
        return "", None, []

    def gateway(
        self, data: Values, read: Values, store: str, rules: str, *, ignore_case: bool | None
    ) -> Gateway | None:
        listeners = {path: self._listener(path, each) for path, each in _complete(LISTENER, read, "listeners")}
        services = {str(path[1]): self._service(path, each) for path, each in _complete(SERVICE, read, "services")}
        names = data["services"] if "services" in read else None  # including invalid ones
        routes = {path: self._route(path, each, names) for path, each in _complete(ROUTE, read, "routes")}
        identity, limits = read.get("identity", {}), read.get("limits", {})
        self._check_unique(listeners, read.get("admin", {}).get("port"))
        wanted = read.get("ignore_case")
        if wanted is not None and ignore_case is not None and wanted != ignore_case:
            message = "the rules are case-sensitive" if wanted else "the rules ignore case"
            hint = f"Write ignore_case: {shown(wanted)} in the rules, too: paths are counted as they are routed."
            self._reject(("ignore_case",), message, hint)
        ignore_case = bool(ignore_case if wanted is None else wanted)
        parts = {path: [of["routes"][path[1]] for of in (data, read)] for path in routes}
        limited = {path: each for path, each in routes.items() if _is_limited(*parts[path])}
        self._check_routes(limited, ignore_case=ignore_case)
        tokens = data["identity"]["tokens"] if "tokens" in identity else ()
        issuers = self._issuers(tokens, identity.get("tokens", ()))
        self._check_keys(identity)
        opened = self._findings.attempt(("store",), open_store, read["store"]) if "store" in read else None
        if opened is not None:
            opened.close()  # it has not connected
        decisions = self._decisions(data, read, rules, store)
        if self._findings.count:
            return None
        admin = read.get("admin")
        found = {
            "listeners": tuple(listeners.values()),
            "services": services,
            "routes": tuple(routes.values()),
            "decisions": decisions,
            "issuers": issuers,
            "ignore_case": ignore_case,
            "admin": self._listener(("admin",), admin) if admin else None,
        }
        given = values_of(Gateway, identity, "identity") | values_of(Gateway, limits, "limits")
        return Gateway(**values_of(Gateway, read) | given | found)

    def _listener(self, path: Place, read: Values) -> GatewayListener:
        given = read.get("tls", [])
        if given and "redirect_to" in read:
            self._reject((*path, "redirect_to"), "cannot be combined with tls", "Remove one of the two.")
        certificates = [self._certificate((*path, "tls"), each) for each in given if _has_all(TLS, each)]
        found = {"certificates": tuple([each for each in certificates if each])}
        return GatewayListener(**values_of(GatewayListener, read) | found)

    def _certificate(self, path: Place, read: Mapping[str, str]) -> Certificate | None:
        chain, key = (self._text((*path, name), read[name]) for name in ("certificate", "key"))
        if chain is None or key is None:
            return None
        files = self._folder / read["certificate"], self._folder / read["key"]
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files, lambda: b"")  # so that OpenSSL does not prompt
        except (OSError, ValueError) as error:
            why = mismatch(error, *files)
            hint = "" if why else "Two PEM files are needed, not encrypted."
            self._reject(path, f"certificate and key cannot be used: {why or error}", hint)
            return None
        return Certificate(chain, key)

    def _service(self, path: Place, read: Values) -> UpstreamService:
        tls = self._upstream_tls((*path, "tls"), read["tls"], read["endpoints"]) if "tls" in read else None
        return UpstreamService(str(path[1]), **values_of(UpstreamService, read) | {"tls": tls})

    def _upstream_tls(
        self, path: Place, read: Mapping[str, str], endpoints: Iterable[UpstreamEndpoint]
    ) -> UpstreamTls | None:
        hosts = {endpoint.host for endpoint in endpoints}
        if "name" not in read and len(hosts) != 1:
            self._reject(path, "its endpoints have several names", "Name the host of the certificate: name: HOST.")
        authorities, own = self._authorities(path, read.get("ca", "")), None
        if "certificate" in read and "key" in read:
            own = self._certificate(path, read)
        elif "certificate" in read or "key" in read:
            self._reject(path, "a certificate needs its key, and a key its certificate")
        name = read.get("name") or min(hosts, default="")
        return None if authorities is None else UpstreamTls(authorities, name, own)

    def _route(self, path: Place, read: Values, services: Iterable[str] | None) -> GatewayRoute:
        if services is not None and read["service"] not in services:
            hint = self._findings.near(read["service"], services)
            known = ", ".join(services)
            self._reject(
                (*path, "service"), f"service {read['service']!r} does not exist", hint or f"The services are: {known}."
            )
        cors = read.get("cors")
        found: Values = {
            "hosts": tuple(self._host((*path, "hosts"), host) for host in read.get("hosts", ())),
            "methods": tuple(sorted(set(read.get("methods", ())))),
            "cors": None,
        }
        if cors is not None:
            given = {"origins": (), **values_of(Cors, cors)}
            if "*" in given["origins"] and cors.get("credentials"):
                message = "cookies for every origin would let any page act as its visitor"
                self._reject((*path, "cors", "credentials"), message)
            found["cors"] = Cors(**given)
        return GatewayRoute(**values_of(GatewayRoute, read) | found)

    def _host(self, path: Place, host: str) -> str:
        """Return a host as Envoy compares it."""
        if ":" not in host:
            return host.lower().removesuffix(".")
        try:
            return f"[{IPv6Address(host)}]"
        except ValueError:
            self._reject(path, f"{host} is not an IPv6 address")
            return host

    def _check_unique(self, listeners: Mapping[Place, GatewayListener], admin: int | None) -> None:
        seen: set[int] = set()
        for path, each in listeners.items():
            if each.port in seen:
                self._reject((*path, "port"), f"{each.port} is already the port of another listener")
            seen.add(each.port)
        if admin in seen:
            self._reject(("admin", "port"), f"{admin} is already the port of a listener", "Metrics need another one.")

    def _check_routes(self, routes: Mapping[Place, GatewayRoute], *, ignore_case: bool) -> None:
        seen: dict[tuple[str, str, str], Place] = {}
        for path, route in routes.items():
            for host in route.hosts or ("*",):
                for method in route.methods or ("*",):
                    spelt = route.path.lower() if ignore_case else route.path
                    first = seen.setdefault((host, spelt, method), path)
                    if first != path:
                        self._reject(path, f"is for the same requests as {render(first)}", "Remove one of the two.")
                        break

    def _check_keys(self, identity: Mapping[str, Any]) -> None:
        keys = identity.get("api_keys", {"consumers": ""})
        if not self._findings.count and "consumers" not in keys and not keys.get("keys"):
            hint = "List keys, or name the database of consumers: {consumers: sqlite:///headgate.db}."
            self._reject(("identity", "api_keys"), "accepts no key", hint)
        if keys.get("header", "").lower() == "authorization" and identity.get("tokens"):
            self._reject(("identity", "api_keys", "header"), "Authorization has the tokens: use another header")

    def _decisions(self, data: Values, read: Values, rules: str, store: str) -> DecisionService:
        given = read.get("decisions", {})
        if "address" in given:
            return self._remote_decisions(read, given)
        for name in ("tls", "caller_key_file"):
            if name in given:
                self._reject(("decisions", name), "is for a remote service", "Give its address, too.", at_key=True)
        if "rules" not in {*data, *GATEWAY.misspelt(data, self._findings)}:
            self._reject((), "there are no rules", "Write rules: FILE, or the rules themselves.")
        settings: Values = {"store": store, **values_of(DecisionService, read)}
        service = DecisionService(rules, **settings | values_of(DecisionService, given, "decisions"))
        if service.workers > 1 and not service.store.lower().startswith("redis"):
            message = f"{service.workers} workers need a store that they share"
            self._reject(("decisions", "workers"), message, "Write store: redis://HOST.")
        return service

    def _remote_decisions(self, read: Values, given: Values) -> DecisionService:
        for path in (("rules",), ("store",), ("on_store_failure",), ("identity", "api_keys")):
            if path[-1] in {**read, **read.get("identity", {})}:
                self._reject(path, "the remote decision service has its own", "Set it there.", at_key=True)
        tls, key = None, None
        if "tls" in given:
            tls = self._upstream_tls(("decisions", "tls"), given["tls"], [given["address"]])
        if "caller_key_file" in given:
            key = self._text(("decisions", "caller_key_file"), given["caller_key_file"])
        found = {"remote_tls": tls, "caller_key": (key or "").strip(), "workers": 1}
        return DecisionService(**values_of(DecisionService, given, "decisions") | found)

    def _issuers(self, written: Sequence[Any], given: Sequence[Values | None]) -> tuple[TokenIssuer, ...]:
        """Return the well-formed issuers of a file; those that are not are None in `given`."""
        issuers = []
        for index, read in enumerate(given):
            path: Place = ("identity", "tokens", index)
            if read is None or ("algorithms" in written[index] and None in read.get("algorithms", (None,))):
                continue
            if len(given) > 1 and "realm" not in read:
                hint = "Write realm: NAME, the prefix of its users' names."
                self._reject(path, "has no realm: another issuer could name the same users", hint)
            misspelt = ISSUER.misspelt(written[index], self._findings)
            named = [source for source in _SOURCES if source in {*written[index], *misspelt}]
            if len(named) != 1:
                self._reject(path, "must have exactly one source of keys", f"Give one of {', '.join(_SOURCES)}.")
                continue
            (source,) = named
            if source not in read:  # reported already
                continue
            jwks, authorities = "", ""
            if source == "jwks_url":
                self._check_url(read, path)
                if read["jwks_url"].startswith("https:"):
                    authorities = self._authorities(path, read.get("ca", "")) or ""
            else:
                jwks = self._key_set(read, source, path)
            found = {"jwks": jwks, "authorities": authorities, "claims": {"user": "sub"} | read.get("claims", {})}
            issuers.append(
                TokenIssuer(name=f"issuer-{index}", **{"audience": ()} | values_of(TokenIssuer, read) | found)
            )
        return tuple(issuers)

    def _check_url(self, read: Values, path: Place) -> None:
        if "algorithms" in read:
            self._reject((*path, "algorithms"), "fetched keys name their own algorithms", "Remove algorithms.")
        try:
            parts = urlsplit(read["jwks_url"])
            is_good = bool(parts.hostname) and (parts.port or 443) > 0 and not (parts.username or parts.fragment)
        except ValueError:
            is_good = False
        if not is_good:
            self._reject((*path, "jwks_url"), "has no host, or contains a user name", "Write https://HOST/PATH.")

    def _key_set(self, read: Values, source: str, path: Place) -> str:
        """Return the keys of an issuer, each with its algorithm, as the text of a JWK set."""
        text = self._text((*path, source), read[source])
        if text is None:
            return ""
        algorithms = read.get("algorithms", ["HS256"] if source == "secret_file" else [])
        read_keys = _secret if source == "secret_file" else _bound
        keys = self._findings.attempt((*path, source), read_keys, text, algorithms)
        return msgspec.json.encode({"keys": keys}).decode()

    def _file(self, name: str) -> Path:
        """Return the path of a file that is about to be read."""
        file = self._folder / name
        self._reading(file)
        return file

    def _text(self, place: Place, name: str) -> str | None:
        """Return the text of a file; None if it is invalid."""
        file = self._file(name)
        try:
            return content_of(file, MAX_KEY_FILE).decode()
        except (UnreadableFile, UnicodeDecodeError) as error:
            why = error if isinstance(error, UnreadableFile) else f"is not text: {error}"
            self._reject(place, f"{shown(str(file))} {why}")
            return None

    def _authorities(self, place: Place, name: str) -> str | None:
        """Return the certificates of authorities (PEM) in a file, or by default, those of the system."""
        usual = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        text = self._text((*place, "ca") if name else place, name or usual)
        if text is not None and "BEGIN CERTIFICATE" not in text:
            self._reject((*place, "ca"), "has no certificate", accepted="a PEM file")
            return None
        return text


def _secret(text: str, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    if len(algorithms) != 1 or algorithms[0] not in _SHARED_SECRETS:
        raise InvalidSettings(f"a shared secret is for one algorithm of {', '.join(_SHARED_SECRETS)}")
    secret = text.strip().encode()
    VerificationKey.load(algorithms[0], secret)
    encoded = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return [{"kty": "oct", "alg": algorithms[0], "k": encoded}]


def _bound(text: str, algorithms: Sequence[str]) -> list[dict[str, Any]]:
    if not algorithms:
        raise InvalidSettings("name the algorithms that sign its tokens: algorithms: [RS256]")
    try:
        found = msgspec.convert(msgspec.json.decode(text)["keys"], list[dict[str, Any]])
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        raise InvalidSettings('a JWK set is JSON such as {"keys": [{"kty": "RSA", ...}]}') from None
    verifying = [(entry, VerificationKey.from_jwk(entry, algorithms)) for entry in found]
    keys = [entry | {"alg": key.algorithm} for entry, key in verifying if key is not None]
    if not keys:
        raise InvalidSettings(f"none of the {len(found)} keys is for {' or '.join(algorithms)}")
    return keys
