"""All that is known about a request, by name: what rules count by, compare with, and what lists look at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headgate.core.numbers import short
from headgate.policy.addresses import counted_by
from headgate.policy.paths import normalised
from headgate.policy.request import ENDPOINT, GLOBAL, IP, PRINCIPALS, InvalidRequest, Request, principal_name

IDENTITIES = PRINCIPALS | {ENDPOINT, GLOBAL}
"""Names that attributes cannot claim: an unverified header must not choose whose limit is used."""
EVERYBODY = "global"
"""The one principal of the dimension "global"."""


_METHODS = "", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"
_USUAL_METHODS = frozenset({*_METHODS, *map(str.lower, _METHODS)})
"""What needs no closer look."""
_is_token = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]*").fullmatch


def facts_of(request: Request, *, ignore_case: bool = False) -> dict[str, str]:
    """Return what is known about `request`: its attributes, over them its principals, its endpoint in canonical form.

    Raises InvalidRequest: a field is of the wrong type, or the path, the method, an address or a value not acceptable.
    """
    principal, attributes = request.principal, request.attributes
    if (
        type(principal) is not dict
        or type(attributes) is not dict
        or type(request.method) is not str
        or request.method not in _USUAL_METHODS
        or type(request.tier) is not str
        or type(request.address) is not str
    ):
        check_request(request)
    facts = _of_attributes(attributes) if attributes else {}
    for name, value in principal.items():
        if type(name) is not str or type(value) is not str or not value:
            _check_pair("principal", name, value)
        known = name if name in PRINCIPALS else principal_name(name)
        if known not in PRINCIPALS:
            facts[name] = value
        elif facts.setdefault(known, value) != value:
            raise InvalidRequest(f"principal {short(name)} is another name of {known!r}, and the two differ")
    if IP in facts:
        facts[IP] = counted_by(facts[IP])
    path = normalised(request.endpoint)
    facts[ENDPOINT] = path.lower() if ignore_case else path
    facts[GLOBAL] = EVERYBODY
    return facts


def _of_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    facts = {}
    for name, value in attributes.items():
        if type(name) is not str or type(value) is not str:
            _check_pair("attribute", name, value)
        if principal_name(name) not in IDENTITIES:
            facts[name] = value
    return facts


def address_given(request: Request) -> str:
    """Return the whole address of a request, as it was given; empty: there is none."""
    given = request.address or request.principal.get(IP)
    return given or next((value for name, value in request.principal.items() if principal_name(name) == IP), "")


def together(values: Iterable[str | None]) -> str | None:
    """Return values of several dimensions as one, different for different ones; None if one is missing."""
    parts = []
    for value in values:
        if value is None:
            return None
        parts.append(value.replace("\\", "\\\\").replace("|", "\\|"))
    return "|".join(parts)


def check_request(request: Request) -> None:
    """Refuse fields that are not of the type that they should be. Raises InvalidRequest."""
    for name in ("principal", "attributes"):
        value = getattr(request, name)
        if not isinstance(value, Mapping):
            raise InvalidRequest(f"{name} is a mapping of text to text, such as {{'user': '42'}}, not {short(value)}")
    check_text(method=request.method, tier=request.tier, address=request.address, rule_id=request.rule_id)
    if not _is_token(request.method):
        raise InvalidRequest(f"method is an HTTP method such as POST, and nothing else, not {short(request.method)}")


def check_text(**fields: object) -> None:
    """Refuse what is not text, by its name. Raises InvalidRequest."""
    for name, value in fields.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} is text, not {short(value)}")


def shown(value: str) -> str:
    """Return a value as it is shown to people: as it is, if it is short and harmless."""
    return value if value.isprintable() and 0 < len(value) <= 100 else short(value)


def _check_pair(what: str, name: object, value: object) -> None:
    """Refuse what is not text; that of a subclass is."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of {'an' if what[0] == 'a' else 'a'} {what} is text, not {short(name)}")
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} {short(name)} is text, not {short(value)}")
    if not value and what == "principal":
        raise InvalidRequest(f"principal {short(name)} has at least one character: leave it out if it is not known")
