"""What Envoy tells about a request, as it is asked here.

==============================  ====================================================================================
in Envoy's message              what it is here
==============================  ====================================================================================
``request.http``                method, path, query and header lines; with ``encode_raw_headers`` each line as it came,
                                else those of one name joined by commas. Bytes that are not UTF-8 are an exclamation
                                mark there, and in the path, so that one is read as it came or not at all
``source.address``              the client: whoever opened the connection to Envoy
``metadata_context``            claims of a token that Envoy's filter jwt_authn has verified
``context_extensions``          the settings of the route: see `RouteSettings`
==============================  ====================================================================================

Behind proxies that Envoy trusts, the client is who they say it is. Envoy knows, but ``source.address`` is not it: it is
told in metadata of the call, ``x-headgate-client-address``, which no client can write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from headgate.cache import BoundedCache
from headgate.core.address import IpAddress
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import MAX_COST
from headgate.policy.facts import IDENTITIES
from headgate.policy.request import InvalidRequest, principal_name
from headgate.protos import message_class
from headgate.server.wire.messages import Headers
from headgate.web.address import parse
from headgate.web.identity import Identifier, Payloads

CLIENT_ADDRESS = b"x-headgate-client-address"
"""Metadata of the call: the client's address, as Envoy has found it out."""
PREFIX = "headgate."
"""Of the names of settings of a route."""
REQUIREMENTS = ("none", "any", "user", "apikey")
CREDENTIALS = ("keep", "remove")
JWT_AUTHN = "envoy.filters.http.jwt_authn"
"""The filter whose metadata has the claims of verified tokens."""
_MOST_ROUTES = 1024
_CheckRequest = message_class("envoy.service.auth.v3.CheckRequest")
_ATTRIBUTE = re.compile("[a-z][a-z0-9_-]{0,31}")
_EXACT = 2**53
"""Numbers of JSON are exact up to here in a `google.protobuf.Struct`."""


class InvalidRoute(UsageError):
    """The settings of a route, or what else Envoy was configured to tell, cannot work: nothing of it may pass."""


class RouteSettings(msgspec.Struct, frozen=True):
    """What the settings of a route say, its ``context_extensions``."""

    require: str = "none"
    """``headgate.require``: who may pass: anybody (none), who has proved anything (any), a user, an apikey."""
    cost: int = 1
    """``headgate.cost``: what a request takes."""
    removes_credentials: bool = False
    """``headgate.credentials``: whether the upstream does not get (remove) or gets (keep) the credentials."""
    attributes: dict[str, str] = {}
    """``headgate.service`` and ``headgate.attribute.NAME``: what rules may look at."""


class AuthzQuestion(msgspec.Struct, frozen=True, gc=False):
    """A request that Envoy asks about."""

    method: str
    target: str
    """The path and the query."""
    query: bytes
    lines: Headers
    """Of the header, pseudo-headers included."""
    address: IpAddress | None
    """Of the client, as Envoy tells it; None if it has none, as on a Unix socket."""
    route: RouteSettings
    metadata: Any
    """What filters before ours told, by their names."""

    def payloads(self, identifier: Identifier) -> Payloads:
        """Return the claims that an identifier asks for, of tokens that Envoy has verified."""
        metadata = self.metadata
        if not identifier.verified or JWT_AUTHN not in metadata:
            return {}
        fields, told = metadata[JWT_AUTHN].fields, {}
        for verified in identifier.verified:
            if verified.key in fields:
                claims = fields[verified.key].struct_value.fields
                told[verified.key] = {name: _plain(claims[name]) for name in verified.claims.values() if name in claims}
        return told


class Questions:
    """Reads questions; settings of routes that were read before are remembered."""

    def __init__(self) -> None:
        self._routes = BoundedCache[tuple[tuple[str, str], ...], RouteSettings](_MOST_ROUTES)

    def read(self, message: bytes, metadata: Headers) -> AuthzQuestion:
        """Return what a `CheckRequest` asks, in a call with this metadata.

        Raises:
            InvalidRequest: it cannot be read, or does not say what is asked for.
            InvalidRoute: Envoy is not configured as it should be.
        """
        try:
            attributes = _CheckRequest.FromString(message).attributes
        except DecodeError:
            raise InvalidRequest("the request cannot be read: it is not UTF-8, or not a message") from None
        http, said = attributes.request.http, attributes.context_extensions
        method, path = http.method, http.path
        if not path or not method:
            raise InvalidRequest("the request has no path, or no method")
        if method != method.upper():  # Envoy's routes tell post from POST; not all services do
            raise InvalidRequest("the method is not written in capital letters")
        key = tuple([(name, said[name]) for name in said])  # items() takes three times as long
        route = self._routes.get(key)
        if route is None:
            route = self._routes.keep(key, route_settings(dict(key)))
        lines: Headers = []
        if http.HasField("header_map"):
            lines = [(line.key.encode(), line.raw_value) for line in http.header_map.headers]
        elif http.headers:
            merged = http.headers.items()
            lines = [(name.encode(), value.encode()) for name, value in merged if name[0] != ":"]  # not as they came
        target = _target(path, lines)
        if ";" in target.partition("?")[0]:  # rules cut off what follows, routes of Envoy do not
            raise InvalidRequest("the path has a semicolon, which servers read differently")
        return AuthzQuestion(
            method,
            target,
            target.partition("?")[2].encode() if "?" in target else b"",
            lines,
            _client(metadata, attributes.source.address),
            route,
            attributes.metadata_context.filter_metadata,
        )


def _target(path: str, lines: Headers) -> str:
    """Return the path and the query as the client sent them: of the path, Envoy tells what it has made of it."""
    for name, value in lines:
        if name == b":path":
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("the path is not UTF-8") from None
    if "!" in path:
        raise InvalidRequest("the path has a '!', which may stand for bytes that are not UTF-8: Envoy does not show it")
    return path


def _client(metadata: Headers, source: Any) -> IpAddress | None:
    """Return the address of the client: as metadata of the call has it, or else the one that connected to Envoy."""
    told = [value for name, value in metadata if name == CLIENT_ADDRESS]
    text = source.socket_address.address if not told else told[0].decode("latin-1") if len(told) == 1 else ""
    address = parse(text)
    if address is None and (told or source.WhichOneof("address") != "pipe"):
        raise InvalidRoute(f"the address of the client is one IP address, not {short(text)}")
    return address


def route_settings(said: Mapping[str, str]) -> RouteSettings:
    """Return what the ``context_extensions`` of a route say. Others may have extensions there, too.

    Raises:
        InvalidRoute: a name with our prefix is not known, or a value not acceptable.
    """
    require, cost, credentials, attributes = "none", "1", "keep", dict[str, str]()
    for name, value in said.items():
        if not name.startswith(PREFIX):
            continue
        what = name.removeprefix(PREFIX)
        if what == "require":
            require = _one_of(name, value, REQUIREMENTS)
        elif what == "credentials":
            credentials = _one_of(name, value, CREDENTIALS)
        elif what == "cost":
            cost = value
        else:
            attribute = what if what == "service" else what.removeprefix("attribute.")
            is_other = attribute == what != "service"
            if is_other or not _ATTRIBUTE.fullmatch(attribute) or principal_name(attribute) in IDENTITIES:
                raise InvalidRoute(f"the route has a setting {short(name)}, which is not known")
            if attribute in attributes:
                raise InvalidRoute(f"the route says twice what {attribute} is")
            attributes[attribute] = value
    if not (cost.isascii() and cost.isdigit() and len(cost) <= 6 and int(cost) <= MAX_COST):
        raise InvalidRoute(f"{PREFIX}cost is a whole number from 0 to {MAX_COST}, not {short(cost)}")
    return RouteSettings(require, int(cost), credentials == "remove", attributes)


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise InvalidRoute(f"{name} is one of {', '.join(accepted)}, not {short(value)}")
    return value


def _plain(value: Any) -> object:
    """Return the value of a claim: text or a number; what is neither is returned as it is, and names nobody."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    return None if kind == "null_value" else value
