"""What a body asks: three forms, told apart by their members.

==========  ===================================================================================================
canonical   principal, endpoint, method, cost, consume, idempotency_key, timestamp, attributes, tier, rule_id
by rule     key_type, key_value, rule_id, request_count; also endpoint, consume, idempotency_key, timestamp, tier
by name     identifier and dimension (USER, IP, API_KEY ...) in the place of principal; the rest is canonical
==========  ===================================================================================================

All forms may have `refundable`, so that the answer names its charge; a refund has that as `charge`.

A member that no form has, members of two forms, a member that is there twice: each is refused, and the refusal says
what would be right. One reads as fast as a single form: all members are in one struct, and which of them are there says
which form it is.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headgate.core.errors import UsageError
from headgate.policy.request import ENDPOINT, GLOBAL, Request, principal_name
from headgate.web.problem import shown


class InvalidBody(UsageError):
    """The body cannot be understood.

    Attributes:
        errors: where and what: pairs of a JSON pointer and a text.
    """

    def __init__(self, message: str, *errors: tuple[str, str]) -> None:
        super().__init__(message)
        self.errors = errors


class Asked(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """All members of all forms, in an order that `question` relies on."""

    principal: dict[str, str] | UnsetType = UNSET
    endpoint: str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    cost: int | UnsetType = UNSET
    consume: bool | UnsetType = UNSET
    idempotency_key: str | UnsetType | None = UNSET
    timestamp: int | float | UnsetType | None = UNSET
    attributes: dict[str, str] | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    rule_id: str | UnsetType = UNSET
    identifier: str | UnsetType = UNSET
    dimension: str | UnsetType = UNSET
    key_type: str | UnsetType = UNSET
    key_value: str | UnsetType = UNSET
    request_count: int | UnsetType = UNSET
    refundable: bool | UnsetType = UNSET
    charge: str | UnsetType = UNSET


class Question(msgspec.Struct, frozen=True, gc=False):
    """What is asked, whatever form it had."""

    request: Request
    consume: bool = True
    idempotency_key: str = ""
    timestamp: float | None = None
    cost_member: str = "cost"
    """How this form calls the cost."""
    refundable: bool = False
    """Whether the answer is to name what was taken."""
    charge: str = ""
    """What is to be given back."""


LONGEST = 131_072
"""Bytes of one question: more than any that makes sense."""
_LONGEST_NAME = 64
_FORMS = "principal {...}, or key_type, key_value and rule_id, or identifier and dimension"
_ACCEPTED = {
    "principal": 'an object of text, such as {"user": "u1", "ip": "203.0.113.9"}',
    "endpoint": 'text: the path that is asked for, such as "/api/v1/orders"',
    "method": 'text: an HTTP method, such as "POST"',
    "cost": "a whole number from 0 to 100000",
    "consume": "true, or false to take nothing and only ask",
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
    "refundable": "true, for an answer that names its charge, or false",
    "charge": "text: the charge that the answer to a check named, for a refund",
}
_IN_JSON = {
    **dict.fromkeys(("int", "float"), "a number"),
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
"""What msgspec calls by names of Python."""
_MEMBERS = len(_ACCEPTED)
_NOTHING: dict[str, str] = {}
_NO_SHORT_FORM = (UNSET,) * 5
_FORM_1 = ("key_type", "key_value", "request_count")
_FORM_2 = ("identifier", "dimension")
_NOT_WITH_KEY = ("principal", "method", "cost", "attributes", *_FORM_2)
_decode = msgspec.json.Decoder(Asked).decode
_members = msgspec.structs.astuple


def question(body: bytes) -> Request | Question:
    """Return what a body asks: a request that is to be checked, or a question with more to it. Raises InvalidBody."""
    if len(body) > LONGEST:
        raise InvalidBody(f"the question has {len(body)} bytes", ("", f"it has at most {LONGEST}"))
    try:
        asked = _decode(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(error, body, _ACCEPTED) from None
    principal, endpoint, method, cost = asked.principal, asked.endpoint, asked.method, asked.cost
    if principal is not UNSET and endpoint is not UNSET and method is not UNSET:
        more = body.count(b":") - 3 - len(principal)  # each member has a colon: these are all there are, and once
        if not more:
            return Request(principal, endpoint, method)
        if more == 1 and cost is not UNSET:
            return Request(principal, endpoint, method, _NOTHING, cost)
    return _with_more(asked, body)


def _with_more(asked: Asked, body: bytes) -> Request | Question:
    """Do the same for what is not the most usual body: other members, or colons in texts."""
    members = _members(asked)
    principal, endpoint, method, cost, consume, key, timestamp, attributes, tier, rule_id = members[:10]
    told = _MEMBERS - members.count(UNSET)
    if principal is not UNSET:
        told += len(principal)
    if attributes is not UNSET:
        told += len(attributes)
    if body.count(b":") != told:
        refuse_repeated(body, told)
    if members[10:15] != _NO_SHORT_FORM:
        if asked.identifier is UNSET and asked.dimension is UNSET:
            return _by_rule(asked)
        principal = _named(asked)
    elif principal is UNSET and rule_id is not UNSET:
        return _by_rule(asked)
    elif principal is UNSET:
        raise InvalidBody("the body does not say who asks", ("", f"it has one of {_FORMS}"))
    request = Request(
        principal,
        "/" if endpoint is UNSET else endpoint,
        "" if method is UNSET else method,
        _NOTHING if attributes is UNSET else attributes,
        1 if cost is UNSET else cost,
        "" if tier is UNSET else tier,
        rule_id="" if rule_id is UNSET else rule_id or _empty("rule_id"),
    )
    timestamp = None if timestamp is UNSET else timestamp
    is_plain = consume is not False and (key is UNSET or key is None) and timestamp is None
    if is_plain and asked.refundable is not True and asked.charge is UNSET:
        return request
    return Question(request, consume is not False, _key(key), timestamp, "cost", *_about_refunds(asked))


def _by_rule(asked: Asked) -> Question:
    present = ", ".join(_present(asked, (*_FORM_1, "rule_id")))
    foreign = _present(asked, _NOT_WITH_KEY)
    if foreign:
        told = [(f"/{name}", f"does not go with {present}") for name in foreign]
        raise InvalidBody("the body has members of two forms", *told)
    missing = [name for name in ("key_type", "key_value", "rule_id") if getattr(asked, name) is UNSET]
    if missing:
        raise _incomplete(missing)
    dimension, value = principal_name(str(asked.key_type) or _empty("key_type")), str(asked.key_value)
    principal, endpoint = {dimension: value or _empty("key_value")}, asked.endpoint
    if dimension in {ENDPOINT, GLOBAL}:
        principal = {}
        if dimension == ENDPOINT:
            if endpoint is not UNSET:
                raise InvalidBody("the endpoint is there twice", ("/endpoint", "does not go with key_type endpoint"))
            endpoint = value
    request = Request(
        principal,
        "/" if endpoint is UNSET else endpoint,
        cost=1 if asked.request_count is UNSET else asked.request_count,
        tier="" if asked.tier is UNSET else asked.tier,
        rule_id=str(asked.rule_id) or _empty("rule_id"),
    )
    timestamp = None if asked.timestamp is UNSET else asked.timestamp
    key, more = _key(asked.idempotency_key), _about_refunds(asked)
    return Question(request, asked.consume is not False, key, timestamp, "request_count", *more)


def _about_refunds(asked: Asked) -> tuple[bool, str]:
    """Return whether the answer is to name its charge, and what charge is named."""
    return asked.refundable is True, "" if asked.charge is UNSET else asked.charge or _empty("charge")


def _named(asked: Asked) -> dict[str, str]:
    """Return the principal that `identifier` and `dimension` name."""
    foreign = _present(asked, ("principal", *_FORM_1))
    if foreign:
        raise InvalidBody(
            "the body has members of two forms",
            *[(f"/{name}", f"does not go with {', '.join(_present(asked, _FORM_2))}") for name in foreign],
        )
    missing = [name for name in _FORM_2 if getattr(asked, name) is UNSET]
    if missing:
        raise _incomplete(missing)
    dimension, value = str(asked.dimension), str(asked.identifier)
    return {principal_name(dimension or _empty("dimension")): value or _empty("identifier")}


def _incomplete(missing: list[str]) -> InvalidBody:
    return InvalidBody(
        "the body does not say enough", *[(f"/{name}", f"is missing: {_ACCEPTED[name]}") for name in missing]
    )


def _present(asked: Asked, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(asked, name) is not UNSET]


def _empty(name: str) -> str:
    raise InvalidBody(f"{name} is empty", (f"/{name}", f"is {_ACCEPTED[name]}"))


def _key(key: str | UnsetType | None) -> str:
    if key is UNSET or key is None:
        return ""
    return str(key) or _empty("idempotency_key")


def unreadable(error: Exception, body: bytes, accepted: dict[str, str]) -> InvalidBody:
    """Return what is wrong with a body that msgspec does not accept; `accepted` says what each member may be."""
    if isinstance(error, msgspec.ValidationError):
        return _unlike(str(error), body, accepted)
    wrong = f"is not JSON: {error}" if body.strip() else "is empty"
    return InvalidBody(f"the body {wrong}", ("", "it is one JSON object, in UTF-8"))


def _unlike(message: str, body: bytes, accepted: dict[str, str]) -> InvalidBody:
    """Say in our words what msgspec says in its own."""
    what, _, place = message.partition(" - at `$")
    if what.startswith("Object contains unknown field `"):
        name = what.removeprefix("Object contains unknown field `").removesuffix("`")
        near = get_close_matches(name[:_LONGEST_NAME].lower(), accepted, 1)
        right = f"{near[0]} may be meant: {accepted[near[0]]}" if near else f"there are {', '.join(accepted)}"
        return InvalidBody(f"the body has an unknown member {shown(name)}", (_pointer(name), f"is unknown; {right}"))
    member, _, inner = place.removesuffix("`").removeprefix(".").partition("[")
    if not member:
        return InvalidBody(f"the body is not as expected: {what}", ("", f"it is a JSON object with {_FORMS}"))
    pointer = _pointer(member) + (_first_unlike_text(member, body) if inner else "")
    found = what.partition(", got ")[2].strip("`") or what
    found = _IN_JSON.get(found, found)
    right = "text" if inner else accepted.get(member, "something else")
    return InvalidBody(f"{pointer} is not as expected", (pointer, f"is {right}, not {found}"))


def _first_unlike_text(member: str, body: bytes) -> str:
    """Return where in an object of text something is not text; its JSON is well-formed so far."""
    try:
        found = json.loads(body)[member]
    except (ValueError, RecursionError):  # what follows is not well-formed
        return ""
    if not isinstance(found, dict):  # it is there twice
        return ""
    return next((_pointer(name) for name, value in found.items() if not isinstance(value, str)), "")


def _pointer(name: str) -> str:
    return f"/{name.replace('~', '~0').replace('/', '~1')}"


def refuse_repeated(body: bytes, told: int) -> None:
    """Refuse an object that has a member twice, of which parsers take different ones; `told` were understood.

    Each member has a colon. So as many colons as members, as is usual, means that none is there twice; where texts have
    colons in them, those that follow a quotation mark are counted; and where even that is not sure, all is read again.
    """
    if body.count(b":") == told or b"".join(body.split()).count(b'":') == told:
        return
    json.loads(body, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidBody(f"the body has {shown(name)} twice", (_pointer(name), "is there more than once"))
        found[name] = value
    return found
