"""The facts about a request, by name: rules count by them, and rules and lists compare them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headgate.core.numbers import short
from headgate.policy.addresses import counted_by
from headgate.policy.paths import normalised
from headgate.policy.request import ENDPOINT, GLOBAL, IP, PRINCIPALS, InvalidRequest, Request, principal_name

IDENTITIES = PRINCIPALS | {ENDPOINT, GLOBAL}
"""Names that attributes cannot have: an unverified header must not choose which limit is used."""
EVERYBODY = "global"
"""The only principal of the dimension "global"."""
_METHODS = "", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"
_USUAL_METHODS = frozenset({*_METHODS, *map(str.lower, _METHODS)})
"""Methods that need no further check."""
_is_token = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]*").fullmatch


def facts_of(request: Request, *, ignore_case: bool = False) -> dict[str, str]:
    """Return the attributes of `request`, its principals, which take precedence, and its endpoint in canonical form.

    Raises InvalidRequest if a field has the wrong type, or the path, the method, an address or a value is invalid.
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
            names = " and ".join([short(each) for each in principal if principal_name(each) == known])
            raise InvalidRequest(f"the principals {names} are names of {known!r}, and their values differ")
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
    """Return the whole address of a request, as given; empty if there is none."""
    given = request.address or request.principal.get(IP)
    return given or next((value for name, value in request.principal.items() if principal_name(name) == IP), "")


def together(values: Iterable[str | None]) -> str | None:
    """Join the values of several dimensions, injectively; return None if one is missing."""
    parts = []
    for value in values:
        if value is None:
            return None
        parts.append(value.replace("\\", "\\\\").replace("|", "\\|"))
    return "|".join(parts)


def check_request(request: Request) -> None:
    """Raise InvalidRequest if a field has the wrong type."""
    for name in ("principal", "attributes"):
        value = getattr(request, name)
        if not isinstance(value, Mapping):
            raise InvalidRequest(
                f"{name} must be a mapping of text to text, such as {{'user': '42'}}, not {short(value)}"
            )
    check_text(method=request.method, tier=request.tier, address=request.address, rule_id=request.rule_id)
    if not _is_token(request.method):
        raise InvalidRequest(f"method must be an HTTP method such as POST, not {short(request.method)}")


def check_text(**fields: object) -> None:
    """Raise InvalidRequest if a field is not text."""
    for name, value in fields.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} must be text, not {short(value)}")


def shown(value: str) -> str:
    """Return a value for people: unchanged if it is short and printable."""
    return value if value.isprintable() and 0 < len(value) <= 100 else short(value)


def _check_pair(what: str, name: object, value: object) -> None:
    """Raise InvalidRequest unless a name and its value are text; subclasses of `str` are accepted."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of {'an' if what[0] == 'a' else 'a'} {what} must be text, not {short(name)}")
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} {short(name)} must be text, not {short(value)}")
    if not value and what == "principal":
        raise InvalidRequest(f"principal {short(name)} must not be empty: leave it out if it is unknown")
