"""All that is known about a request, by name: what rules count by, compare with, and what lists look at."""

from __future__ import annotations

from headgate.core.numbers import short
from headgate.policy.addresses import address_of
from headgate.policy.model import ENDPOINT, GLOBAL
from headgate.policy.paths import normalised
from headgate.policy.request import InvalidRequest, Request

IDENTITIES = frozenset({"user", "ip", "apikey", ENDPOINT, GLOBAL})
"""Names that attributes cannot claim: an unverified header must not choose whose limit is used."""
EVERYBODY = "global"
"""The one principal of the dimension "global"."""


def facts_of(request: Request, *, ignore_case: bool = False) -> dict[str, str]:
    """Return what is known about `request`: its attributes, over them its principals, its endpoint in canonical form.

    Raises InvalidRequest: the path, an address or a value is not acceptable.
    """
    facts: dict[str, str] = {}
    if request.attributes:
        for name, value in request.attributes.items():
            if type(value) is not str:
                raise InvalidRequest(f"attribute {short(name)} is text, not {short(value)}")
            if name not in IDENTITIES:
                facts[name] = value
    for name, value in request.principal.items():
        if type(value) is not str or not value:
            raise InvalidRequest(f"principal {short(name)} is text, at least one character, not {short(value)}")
        facts[name] = value
    if "ip" in facts:
        facts["ip"] = address_of(facts["ip"]).text
    path = normalised(request.endpoint)
    facts[ENDPOINT] = path.lower() if ignore_case else path
    facts[GLOBAL] = EVERYBODY
    return facts


def shown(value: str) -> str:
    """Return a value as it is shown to people: as it is, if it is short and harmless."""
    return value if value.isprintable() and 0 < len(value) <= 100 else short(value)
