"""The bodies of checks over HTTP: one of three forms, which differ in their members.

==========  ===================================================================================================
canonical   principal, endpoint, method, cost, consume, idempotency_key, timestamp, attributes, tier, rule_id
by rule     key_type, key_value, rule_id, request_count; also endpoint, consume, idempotency_key, timestamp, tier
by name     identifier and dimension (USER, IP, API_KEY ...) instead of principal; the rest is canonical.
            With rule_id, the dimension may be omitted: it is that of the rule
==========  ===================================================================================================

All forms may have `refundable`: the response then has a charge, which a refund sends as `charge`. With `exact`, the
response has the ruling as well (`headgate.engine.ruling_json`), for the verbs of the SDK.

Unknown members, members of two forms, and repeated members are refused, with a message that says what is accepted. All
members are fields of one struct, and those present determine the form. (Parsers differ in which of two repeated members
counts. Each member has a colon: if there are as many colons as members, none is repeated. If there are more, as in
texts, the body is parsed again to be sure.)

Idempotency keys (`key_in`) and timestamps of clients (`Timestamps`) are the same over gRPC.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headgate.core.errors import UsageError
from headgate.core.numbers import whole
from headgate.core.quota import SECOND
from headgate.policy.request import ENDPOINT, GLOBAL, InvalidRequest, Request, principal_name
from headgate.server.wire.messages import Headers
from headgate.web.errors import InvalidSettings
from headgate.web.problem import shown

LONGEST = 131_072
"""Bytes of one body."""
_LONGEST_NAME = 64
_FORMS = "principal {...}, or key_type, key_value and rule_id, or identifier and dimension"
_ACCEPTED = {
    "principal": 'an object of text, such as {"user": "u1", "ip": "203.0.113.9"}',
    "endpoint": 'text: the path of the request, such as "/api/v1/orders"',
    "method": 'text: an HTTP method, such as "POST"',
    "cost": "a whole number from 0 to 100000",
    "consume": "true, or false to check without taking anything",
    "idempotency_key": "text of 1 to 512 characters, or null",
    "timestamp": "Unix time, in seconds or milliseconds, or null",
    "attributes": 'an object of text, such as {"region": "eu"}',
    "tier": "text: the name of a tier",
    "rule_id": "text: the id of a rule",
    "identifier": "text: a user's id, an address or an API key's name",
    "dimension": "USER, IP, API_KEY, or another dimension that rules count by",
    "key_type": "user, ip, api_key, or another dimension that rules count by",
    "key_value": "text: a user's id, an address or an API key's name",
    "request_count": "a whole number from 0 to 100000",
    "refundable": "true, for a response with a charge, or false",
    "charge": "text: the charge in the response to a check, for a refund",
    "exact": "true, for a response that has the ruling to the microsecond as well, or false",
    "address": "text: the client's full address, if the principal ip is only its network",
}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_ACCEPTED, (str,)),
    **dict.fromkeys(("principal", "attributes"), (dict,)),
    **dict.fromkeys(("cost", "request_count"), (int,)),
    **dict.fromkeys(("consume", "refundable", "exact"), (bool,)),
    "idempotency_key": (str, type(None)),
    "timestamp": (int, float, type(None)),
}
_IN_JSON = {
    **dict.fromkeys((int, float), "a number"),
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
"""The names of types in messages."""
_MEMBERS = len(_ACCEPTED)
_NOTHING: dict[str, str] = {}
_UNSET = (UNSET,) * 6
_FORM_1 = ("key_type", "key_value", "request_count")
_FORM_2 = ("identifier", "dimension")
_NOT_WITH_KEY = ("principal", "method", "cost", "attributes", "address", *_FORM_2)
_KEY_HEADERS = frozenset({b"idempotency-key", b"x-idempotency-key"})
_MILLISECONDS_FROM = 100_000_000_000
"""As seconds, the year 5138; as milliseconds, 1973."""
_LARGEST = _MILLISECONDS_FROM * 1000


class InvalidBody(UsageError):
    """An invalid body.

    Attributes:
        errors: pairs of a JSON pointer and a text.
        code: of the error that an engine would raise, if any; see `headgate.engine.ruling_json`.
    """

    def __init__(self, message: str, *errors: tuple[str, str], code: str = "") -> None:
        super().__init__(message)
        self.errors, self.code = errors, code


class CheckBody(Request, frozen=True, gc=False):
    """A parsed body: a request, and how to check it."""

    consume: bool = True
    idempotency_key: str = ""
    timestamp: float | None = None
    cost_member: str = "cost"
    """The name of the cost in this form."""
    refundable: bool = False
    """Whether the response has the charge."""
    charge: str = ""
    """The charge to refund."""
    has_endpoint: bool = True
    """Whether the body has an endpoint."""
    exact: bool = False
    """Whether the response has the ruling as well; then an unknown rule is an error, as for engines."""
    client_id: str = ""
    """An identifier without a dimension, which is that of the rule."""


class Members(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The members of all forms, in an order that `_with_more` relies on."""

    principal: dict[str, str] | UnsetType = UNSET
    endpoint: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    cost: int | UnsetType = UNSET
    attributes: dict[str, str] | UnsetType = UNSET
    address: str | UnsetType = UNSET
    identifier: str | UnsetType = UNSET
    dimension: str | UnsetType = UNSET
    key_type: str | UnsetType = UNSET
    key_value: str | UnsetType = UNSET
    request_count: int | UnsetType = UNSET
    rule_id: str | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    consume: bool | UnsetType = UNSET
    idempotency_key: str | UnsetType | None = UNSET
    timestamp: int | float | UnsetType | None = UNSET
    refundable: bool | UnsetType = UNSET
    charge: str | UnsetType = UNSET
    exact: bool | UnsetType = UNSET


_decode = msgspec.json.Decoder(Members).decode
_members = msgspec.structs.astuple


def parse_body(body: bytes) -> CheckBody:
    """Parse a body. Raises InvalidBody."""
    if len(body) > LONGEST:
        raise InvalidBody(f"the body has {len(body)} bytes", ("", f"at most {LONGEST} are accepted"))
    try:
        sent = _decode(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, _ACCEPTED, _TYPES) from None
    principal, endpoint, method = sent.principal, sent.endpoint, sent.method
    if principal is not UNSET and endpoint is not UNSET and method is not UNSET:
        more = body.count(b":") - 3 - len(principal)
        if not more:  # there are no other members
            return CheckBody(principal, endpoint, method)
        if more == 1 and sent.cost is not UNSET:
            return CheckBody(principal, endpoint, method, _NOTHING, sent.cost)
    return _with_more(sent, body)


def _with_more(sent: Members, body: bytes) -> CheckBody:
    """Parse a less common body: one with other members, or with colons in texts."""
    members = _members(sent)
    principal, endpoint, method, cost, attributes, address, identifier, dimension = members[:8]
    key_type, key_value, count, rule_id, tier, consume, key, timestamp, refundable, charge, exact = members[8:]
    there = _MEMBERS - members.count(UNSET)
    if principal is not UNSET:
        there += len(principal)
    if attributes is not UNSET:
        there += len(attributes)
    if body.count(b":") != there:
        refuse_repeated(body, there)
    has_endpoint, cost_member, client_id = endpoint is not UNSET, "cost", ""
    if principal is not UNSET:
        if members[6:11] != _UNSET[:5]:
            raise _not_of_a_form(sent)
    elif members[2:8] == _UNSET[:6] and UNSET not in (key_type, key_value, rule_id):
        principal, endpoint = _by_rule(key_type, key_value, endpoint)
        cost, cost_member = count, "request_count"
    elif members[8:11] == _UNSET[:3] and identifier is not UNSET and (dimension, rule_id) != _UNSET[:2]:
        principal = {}
        if dimension is UNSET:
            client_id = identifier
        else:
            principal[principal_name(dimension or _empty("dimension"))] = identifier or _empty("identifier")
    else:
        raise _not_of_a_form(sent)
    return CheckBody(
        principal,
        "/" if endpoint is UNSET else endpoint,
        "" if method is UNSET else method,
        _NOTHING if attributes is UNSET else attributes,
        1 if cost is UNSET else cost,
        "" if tier is UNSET else tier,
        "" if address is UNSET else address,
        "" if rule_id is UNSET else rule_id or _empty("rule_id"),
        consume is not False,
        "" if key is UNSET or key is None else key or _empty("idempotency_key"),
        None if timestamp is UNSET else timestamp,
        cost_member,
        refundable is True,
        "" if charge is UNSET else charge or _empty("charge"),
        has_endpoint,
        exact is True,
        client_id,
    )


def _by_rule(key_type: str, key_value: str, endpoint: str | UnsetType) -> tuple[dict[str, str], str | UnsetType]:
    """Return the principal and the endpoint of the form by rule."""
    dimension, value = principal_name(key_type or _empty("key_type")), key_value or _empty("key_value")
    if dimension == ENDPOINT:
        if endpoint is not UNSET:
            raise InvalidBody("the body has two endpoints", ("/endpoint", "cannot be combined with key_type endpoint"))
        return {}, value
    return {} if dimension == GLOBAL else {dimension: value}, endpoint


def _not_of_a_form(sent: Members) -> InvalidBody:
    """Return an error with the members that are missing, or that belong to another form."""
    own: tuple[str, ...] = _FORM_2
    foreign: tuple[str, ...] = ("principal", *_FORM_1)
    needed = own
    if not _present(sent, _FORM_2):
        if not _present(sent, (*_FORM_1, "rule_id")):
            return InvalidBody("the body names no client", ("", f"send one of {_FORMS}"))
        own, needed, foreign = (*_FORM_1, "rule_id"), ("key_type", "key_value", "rule_id"), _NOT_WITH_KEY
    if found := _present(sent, foreign):
        wrong = f"cannot be combined with {', '.join(_present(sent, own))}"
        return InvalidBody("the body has members of two forms", *[(f"/{name}", wrong) for name in found])
    missing = [name for name in needed if getattr(sent, name) is UNSET]
    wanted = [(f"/{name}", f"is missing: {_ACCEPTED[name]}") for name in missing]
    return InvalidBody("the body is incomplete", *wanted)


def _present(sent: Members, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(sent, name) is not UNSET]


def _empty(name: str) -> str:
    raise InvalidBody(f"{name} is empty", (f"/{name}", f"must be {_ACCEPTED[name]}"))


def unreadable(
    error: Exception, body: bytes, accepted: dict[str, str], types: dict[str, tuple[type, ...]]
) -> InvalidBody:
    """Explain a decoder's error; `accepted` and `types` describe the valid members, in words and as Python's types."""
    if not isinstance(error, msgspec.ValidationError):
        wrong = f"is not JSON: {error}" if body.strip() else "is empty"
        if isinstance(error, RecursionError):
            wrong = "has objects or lists that are nested too deeply"
        return InvalidBody(f"the body {wrong}", ("", "must be one JSON object, in UTF-8"))
    try:
        found = json.loads(body, object_pairs_hook=_once)
    except InvalidBody as repeated:
        return repeated
    except (ValueError, RecursionError) as malformed:
        return unreadable(malformed, body, accepted, types)
    what = f"it is {_kind(found)}, not an object"
    if isinstance(found, dict):
        for name, value in found.items():
            if name not in accepted:
                return _unknown(name, accepted)
            if (unlike := _unlike(name, value, accepted, types)) is not None:
                return unlike
        what = str(error)
    return InvalidBody(f"the body is invalid: {what}", ("", f"must be a JSON object with {_FORMS}"))


def refuse_repeated(body: bytes, members: int) -> None:
    """Refuse a body with a repeated member; `members` were parsed, including those of inner objects.

    The colon of a member follows a quotation mark; if the counts still differ, the body is parsed again.
    """
    if body.count(b":") != members and b"".join(body.split()).count(b'":') != members:
        json.loads(body, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidBody(f"the body has {shown(name)} twice", (_pointer(name), "is repeated"))
        found[name] = value
    return found


def _unknown(name: str, accepted: dict[str, str]) -> InvalidBody:
    near = get_close_matches(name[:_LONGEST_NAME].lower(), accepted, 1)
    meant = f"did you mean {near[0]}? It must be {accepted[near[0]]}" if near else ""
    right = meant or f"the members are: {', '.join(accepted)}"
    return InvalidBody(f"the body has an unknown member {shown(name)}", (_pointer(name), f"is unknown; {right}"))


def _unlike(
    name: str, value: object, accepted: dict[str, str], types: dict[str, tuple[type, ...]]
) -> InvalidBody | None:
    """Return the error of a member's value; None if it is valid."""
    pointer, right = _pointer(name), accepted[name]
    if type(value) in types[name]:
        inner = value.items() if isinstance(value, dict) else ()
        wrong = next(((name, text) for name, text in inner if not isinstance(text, str)), None)
        if wrong is None:
            return None
        pointer, right, value = pointer + _pointer(wrong[0]), "text", wrong[1]
    return InvalidBody(f"{pointer} is invalid", (pointer, f"must be {right}, not {_kind(value)}"))


def _kind(value: object) -> str:
    return _IN_JSON[type(value)]


def _pointer(name: str) -> str:
    return f"/{name.replace('~', '~0').replace('/', '~1')}"


def key_in(headers: Headers) -> str:
    """Return the key in ``Idempotency-Key``, or ``X-Idempotency-Key``; empty without either.

    The standard's quotation marks (``"8e03978e"``) are optional. Raises InvalidBody if the key is not printable ASCII,
    or empty, or if there are different ones.
    """
    found = b""
    for name, value in headers:
        if name in _KEY_HEADERS:
            key = _bare(value)
            if found not in {b"", key}:
                raise InvalidBody("the request has several idempotency keys", (name.decode(), "must be sent once"))
            found = key
    return found.decode("ascii") if found else ""


def _bare(value: bytes) -> bytes:
    value = value.strip(b" \t")
    if len(value) >= 2 and value[:1] == value[-1:] == b'"':
        value = value[1:-1].replace(b'\\"', b'"').replace(b"\\\\", b"\\")
    if not value or not value.isascii() or not value.decode("ascii").isprintable():
        raise InvalidBody(
            "the idempotency key of the header is invalid",
            ("idempotency-key", "must be 1 to 512 printable characters of ASCII, with quotation marks or without"),
        )
    return value


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The timestamps that clients may send: they are compared with our clock, and otherwise not used.

    They are Unix time, in seconds or, from 100 000 000 000 on, in milliseconds.
    """

    skew: int = 60
    """The most seconds by which they may differ from our clock."""
    ignored: bool = False
    """Whether timestamps are ignored."""

    def __post_init__(self) -> None:
        whole("skew", self.skew, 1, 86_400 * 365, InvalidSettings)

    def check(self, timestamp: float, now: int) -> None:
        """Refuse a timestamp that is too far from `now`, in microseconds since the epoch. Raises InvalidRequest."""
        if self.ignored:
            return
        if not -_LARGEST < timestamp < _LARGEST:
            raise InvalidRequest("the timestamp is not a Unix time in seconds or milliseconds")
        off = (timestamp / 1000 if abs(timestamp) >= _MILLISECONDS_FROM else timestamp) - now / SECOND
        if abs(off) > self.skew:
            raise InvalidRequest(
                f"the timestamp is {abs(off):.0f} s {'behind' if off < 0 else 'ahead of'} the service's clock, "
                f"which shows {now // SECOND}; {self.skew} s are accepted: set the other clock, or omit the timestamp"
            )
