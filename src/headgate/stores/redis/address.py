"""Addresses of Redis and Valkey servers.

::

    redis://[[user]:password@]host[:port][/database][?option=value&...]
    redis+unix:///path/to/socket[?database=1&...]
    redis+sentinel://[[user]:password@]host[:port],host[:port],.../service[/database][?...]
    redis+cluster://[[user]:password@]host[:port],host[:port],...[?...]
    rediss://... rediss+sentinel://... rediss+cluster://...     the same, with TLS

``redis+sentinel`` is followed by Sentinels (default port: 26379), which know the primary of the service;
``redis+cluster`` by some nodes of the cluster, which know the others. Special characters in a password
(``@ : / ? # % ,``) are written as ``%40`` and so on.

Options: `timeout` (seconds for a whole call, default 0.25), `connect_timeout` (seconds, 1; added to a blocking call
that must connect first), `connections` (to each server: 2 for an event loop, 16 for threads), `replicas` (an answer
waits until so many replicas have its writes, or reports that they have not), `ca`, `cert`, `key` (PEM files for TLS,
which may be replaced at any time), `evicting` (``allow`` to accept a server that may evict state), `sentinel_user` and
`sentinel_password` (for the Sentinels themselves).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.core.errors import InvalidStore
from headgate.stores.redis.dialing import Certificates, Names

ACCEPTED = (
    '"redis://[user:password@]host:6379/0", "redis+unix:///path/to/socket", '
    '"redis+sentinel://host:26379,host:26379/service/0", "redis+cluster://host:6379,host:6379"; rediss for TLS'
)
_PORTS = {"redis": 6379, "redis+unix": 6379, "redis+sentinel": 26379, "redis+cluster": 6379}
_FILES = ("ca", "cert", "key")
OPTIONS = (
    *("timeout", "connect_timeout", "connections", "replicas", "evicting", *_FILES),
    *("sentinel_user", "sentinel_password", "database"),
)


class Role(Enum):
    ALONE = "a standalone server"
    SENTINEL = "a Sentinel, which knows the primary of a service"
    PRIMARY = "the primary that a Sentinel named"
    NODE = "a node of a cluster"


@dataclass(frozen=True, slots=True)
class Address:
    """The location of a server, and the parameters of its connections."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    """A Unix socket, instead of host and port."""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Certificates | None = field(default=None, repr=False, compare=False)
    timeout: float = 0.25
    connect_timeout: float = 1.0
    connections: int | None = None
    may_evict: bool = False
    replicas: int = 0
    """How many replicas must have the writes of an answer."""
    role: Role = Role.ALONE
    label: str = ""
    """Its name while its location is unknown."""
    names: Names = field(default_factory=Names, repr=False, compare=False)
    """Resolves host names; shared by all servers of a store."""

    def __hash__(self) -> int:
        return hash((self.host, self.port, self.path))  # computed in every call, and sufficient to tell servers apart

    def at(self, host: str, port: int) -> Address:
        """Return the address of another server with the same parameters."""
        return replace(self, host=host, port=port, label="")

    def __str__(self) -> str:
        """Return the address without its secrets."""
        if self.label:
            return self.label
        if self.path:
            return f"redis+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    sentinels: tuple[Address, ...]
    primary: Address
    """The parameters of connections to the primary, wherever it is."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Redis Cluster, by some of its nodes."""

    seeds: tuple[Address, ...]


Location: TypeAlias = Address | Service | Cluster


def parse(text: str) -> Location:
    """Parse an address. Raises InvalidStore, without showing a password."""
    if "://" not in text:
        raise InvalidStore(f"a store address must contain ://: use {ACCEPTED}")
    try:
        scheme, tls, netloc, location, query, fragment = _split(text)
        credentials, _, hosts = netloc.rpartition("@")
        servers = [_host_and_port(host, _PORTS.get(scheme, 0)) for host in hosts.split(",")]
    except ValueError:  # it would show a part of an unescaped password
        raise InvalidStore(
            f"bad host or port in a store address: use {ACCEPTED}, with / ? # , in a password escaped"
        ) from None
    if "@" in location + query + fragment:
        raise InvalidStore(f"bad store address: use {ACCEPTED}, with @ / ? # escaped where they are not delimiters")
    options = _options(query)
    path = location.removeprefix("/").rstrip("/")
    wanted = {"redis": len(servers) == 1, "redis+unix": not netloc and bool(path)}
    if scheme not in _PORTS or not wanted.get(scheme, True) or fragment:
        raise InvalidStore(f"bad store address beginning with {scheme[:20]!r}: use {ACCEPTED}")
    service, database = "", path
    if scheme == "redis+sentinel":
        service, _, database = path.partition("/")
        if not service:
            raise InvalidStore(f"an address with Sentinels must end with the name of the service, as in {ACCEPTED}")
    elif scheme == "redis+unix":
        database = options.pop("database", "")
    elif scheme == "redis+cluster" and path not in {"", "0"}:
        raise InvalidStore("a cluster has only database 0: leave it out of the store address")
    user, _, password = credentials.partition(":")
    sentinel_login = options.pop("sentinel_user", ""), options.pop("sentinel_password", "")
    address = Address(
        host=servers[0][0],
        port=servers[0][1],
        path=unquote(location) if scheme == "redis+unix" else "",
        database=_number("database", database or "0", 0, 1_000_000),
        user=unquote(user),
        password=unquote(password),
        tls=_certificates(options) if tls else None,
        timeout=_seconds("timeout", options.pop("timeout", "0.25")),
        connect_timeout=_seconds("connect_timeout", options.pop("connect_timeout", "1")),
        connections=_number("connections", options.pop("connections"), 1, 1000) if "connections" in options else None,
        may_evict=_flag("evicting", options.pop("evicting", "refuse")),
        replicas=_number("replicas", options.pop("replicas", "0"), 0, 100),
    )
    if options or (any(sentinel_login) and not service):
        name = min(options, default="sentinel_password")
        near = get_close_matches(name, OPTIONS, 1)
        right = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(OPTIONS)}"
        raise InvalidStore(f"unknown option {name!r} in a store address: {right}")
    return _locate(scheme, address, servers, unquote(service), sentinel_login)


def _split(text: str) -> tuple[str, bool, str, str, str, str]:
    """Return scheme (without TLS), TLS, network location, path, query and fragment of an address.

    The standard library refuses lists of IPv6 addresses.
    """
    scheme, _, rest = text.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    first, plus, topology = scheme.lower().partition("+")
    tls = first == "rediss" and topology != "unix"
    return "redis" + plus + topology if tls else scheme.lower(), tls, netloc, slash + path, query, fragment


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    port = default if parts.port is None else parts.port
    if (not port and default) or parts.path or parts.query or parts.fragment:
        raise ValueError(text)
    return parts.hostname or "localhost", port


def _options(query: str) -> dict[str, str]:
    named = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True)  # a plus is not a space
    options = dict(named)
    if len(options) < len(named):
        raise InvalidStore("an option is repeated in a store address")
    return options


def _locate(
    scheme: str, address: Address, servers: list[tuple[str, int]], service: str, sentinel_login: tuple[str, str]
) -> Location:
    if scheme == "redis+cluster":
        return Cluster(tuple([replace(address, role=Role.NODE, host=host, port=port) for host, port in servers]))
    if scheme == "redis+sentinel":
        user, password = sentinel_login
        sentinel = replace(address, role=Role.SENTINEL, user=user, password=password, database=0)
        sentinels = tuple([sentinel.at(host, port) for host, port in servers])
        return Service(service, sentinels, replace(address, role=Role.PRIMARY, label=f"the service {service!r}"))
    return address


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise InvalidStore(f"{name} in a store address must be a whole number from {low} to {high}, not {text!r}")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= 3600:
        raise InvalidStore(f"{name} in a store address must be a number of seconds up to 3600, not {text!r}")
    return seconds


def _flag(name: str, text: str) -> bool:
    if text not in {"allow", "refuse"}:
        raise InvalidStore(f"{name} in a store address must be allow or refuse, not {text!r}")
    return text == "allow"


def _certificates(options: dict[str, str]) -> Certificates:
    try:
        return Certificates(*[options.pop(name, None) for name in _FILES])
    except (OSError, ValueError) as error:
        raise InvalidStore(f"the certificates of a store address cannot be read: {error}") from None
