"""The values of Envoy's messages, and their meaning here.

==============================  ====================================================================================
in Envoy's message              meaning
==============================  ====================================================================================
``request.http``                method, path, query and header lines; with ``encode_raw_headers`` each line as received,
                                otherwise those of one name joined by commas. Envoy replaces bytes that are not UTF-8
                                by exclamation marks there, and in the path: such a path is refused unless it is raw
``source.address``              the client: the peer of the connection to Envoy
``metadata_context``            claims of a token that Envoy's filter jwt_authn has verified
``context_extensions``          the settings of the route: see `RouteSettings`
==============================  ====================================================================================

Behind proxies that Envoy trusts, the client's address is another one. Envoy sends it in metadata of the call,
``x-headgate-client-address``, which no client can write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from headgate.cache import BoundedCache
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import MAX_COST
from headgate.networks import IpAddress
from headgate.policy.request import InvalidRequest, principal_name
from headgate.policy.request_facts import IDENTITIES
from headgate.protos import message_class
from headgate.server.wire.messages import Headers
from headgate.web.address import parse
from headgate.web.identity import Identifier, Payloads

CLIENT_ADDRESS = b"x-headgate-client-address"
"""Metadata of the call: the client's address, as determined by Envoy."""
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
    """Envoy's configuration is invalid, for example the settings of a route: its requests are refused."""


class RouteSettings(msgspec.Struct, frozen=True):
    """The settings of a route, its ``context_extensions``."""

    require: str = "none"
    """``headgate.require``: the credential that requests need: none, any, that of a user, or an apikey."""
    cost: int = 1
    """``headgate.cost``: the cost of a request."""
    removes_credentials: bool = False
    """``headgate.credentials``: whether credentials are removed before the upstream (remove) or not (keep)."""
    attributes: dict[str, str] = {}
    """``headgate.service`` and ``headgate.attribute.NAME``: for rules."""


class AuthzRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed request of Envoy."""

    method: str
    target: str
    """The path and the query."""
    query: bytes
    lines: Headers
    """Of the header, pseudo-headers included."""
    address: IpAddress | None
    """Of the client; None on a Unix socket."""
    route: RouteSettings
    metadata: Any
    """The metadata of earlier filters, by their names."""

    def payloads(self, identifier: Identifier) -> Payloads:
        """Return the claims that an identifier uses, of tokens that Envoy has verified."""
        metadata = self.metadata
        if not identifier.verified or JWT_AUTHN not in metadata:
            return {}
        fields = metadata[JWT_AUTHN].fields
        payloads: dict[str, dict[str, object]] = {}
        for verified in identifier.verified:
            if verified.key in fields:
                claims = fields[verified.key].struct_value.fields
                names = verified.claims.values()
                payloads[verified.key] = {name: _plain(claims[name]) for name in names if name in claims}
        return payloads


class RequestReader:
    """Parses requests, and caches the settings of routes."""

    def __init__(self) -> None:
        self._routes = BoundedCache[tuple[tuple[str, str], ...], RouteSettings](_MOST_ROUTES)

    def read(self, message: bytes, metadata: Headers) -> AuthzRequest:
        """Parse a `CheckRequest`, sent with this metadata. Raises InvalidRequest, InvalidRoute."""
        try:
            attributes = _CheckRequest.FromString(message).attributes
        except DecodeError:
            raise InvalidRequest("the request cannot be read: it is not UTF-8, or not a CheckRequest") from None
        http, said = attributes.request.http, attributes.context_extensions
        method, path = http.method, http.path
        if not path or not method:
            raise InvalidRequest("the request has no path, or no method")
        if method != method.upper():  # Envoy's routes distinguish post from POST; not all services do
            raise InvalidRequest("the method must be in capital letters")
        key = tuple([(name, said[name]) for name in said])  # items() takes three times as long
        route = self._routes.get(key)
        if route is None:
            route = self._routes.keep(key, route_settings(dict(key)))
        lines: Headers = []
        if http.HasField("header_map"):
            lines = [(line.key.encode(), line.raw_value) for line in http.header_map.headers[:]]
        elif http.headers:
            merged = http.headers.items()
            lines = [(name.encode(), value.encode()) for name, value in merged if name[0] != ":"]  # merged by Envoy
        target = _target(path, lines)
        path, _, query = target.partition("?")
        if ";" in path:  # rules cut off what follows, routes of Envoy do not
            raise InvalidRequest("the path has a semicolon, which servers interpret differently")
        return AuthzRequest(
            method,
            target,
            query.encode(),
            lines,
            _client(metadata, attributes.source.address),
            route,
            attributes.metadata_context.filter_metadata,
        )


def _target(path: str, lines: Headers) -> str:
    """Return the path and the query as the client sent them: Envoy's `path` is normalized."""
    for name, value in lines:
        if name == b":path":
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("the path is not UTF-8") from None
    if "!" in path:
        raise InvalidRequest("the path has a '!', with which Envoy may have replaced bytes that are not UTF-8")
    return path


def _client(metadata: Headers, source: Any) -> IpAddress | None:
    """Return the address of the client: that in metadata of the call, or else the peer of Envoy."""
    sent = [value for name, value in metadata if name == CLIENT_ADDRESS]
    text = source.socket_address.address if not sent else sent[0].decode("latin-1") if len(sent) == 1 else ""
    address = parse(text)
    if address is None and (sent or source.WhichOneof("address") != "pipe"):
        raise InvalidRoute(f"the address of the client must be one IP address, not {short(text)}")
    return address


def route_settings(said: Mapping[str, str]) -> RouteSettings:
    """Parse the ``context_extensions`` of a route; those without our prefix are ignored. Raises InvalidRoute."""
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
                raise InvalidRoute(f"the route has an unknown setting {short(name)}")
            if attribute in attributes:
                raise InvalidRoute(f"the route sets the attribute {attribute} twice")
            attributes[attribute] = value
    if not (cost.isascii() and cost.isdigit() and len(cost) <= 6 and int(cost) <= MAX_COST):
        raise InvalidRoute(f"{PREFIX}cost must be a whole number from 0 to {MAX_COST}, not {short(cost)}")
    return RouteSettings(require, int(cost), credentials == "remove", attributes)


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise InvalidRoute(f"{name} must be one of {', '.join(accepted)}, not {short(value)}")
    return value


def _plain(value: Any) -> object:
    """Return the value of a claim: text or a number; others are returned unchanged, and identify no one."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < _EXACT else number
    return None if kind == "null_value" else value
