"""How descriptors become requests of Headgate's rules: each descriptor is one request.

==============================================================  ===================================================
entries of a descriptor                                         become
==============================================================  ===================================================
``user``, ``user_id`` and other aliases                         the principal ``user``
``ip``, ``remote_address`` and other aliases                    the principal ``ip``, which lists match
``masked_remote_address``                                       the principal ``ip``, rather than ``remote_address``:
                                                                the network that is counted
``apikey``, ``api_key``, ``x-api-key`` and other aliases        the principal ``apikey``
``path``, ``:path``, ``endpoint``                               the endpoint, without a query
``method``, ``:method``                                         the method
``tier``                                                        the tier, if `trust_tier` is set; else an attribute
all others, such as ``generic_key``                             attributes of the same name
==============================================================  ===================================================

Aliases are those of `headgate.policy.request`. A principal ``apikey`` that is the key of a consumer becomes the
consumer: its name as ``user`` and ``apikey``, and its tenant; an invalid key is ignored.

The domain becomes the attribute ``domain``; ``masked_remote_address`` is an attribute as well. Rules can match
attributes with `when`, and count by them. If a name is repeated, the first value counts. Empty values of principals are
ignored.

The author of Envoy's configuration vouches for the values: a user should come from a verified token (``jwt_claim``, or
metadata of the JWT filter), not from a header that the client chose. The tier decides which limits apply, so it is
trusted only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from headgate.policy.envoy.request import Descriptor
from headgate.policy.key_file import CONSUMER_PREFIX
from headgate.policy.request import APIKEY, ENDPOINT, IP, PRINCIPALS, USER, Request, principal_name
from headgate.web.identity import Identifier

NETWORK, METHOD, TIER = "network", "method", "tier"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "masked_remote_address": NETWORK,
        "path": ENDPOINT,
        ":path": ENDPOINT,
        "endpoint": ENDPOINT,
        "method": METHOD,
        ":method": METHOD,
    }
)
"""The meaning of entries, by their keys; others are principals or attributes."""


class Mapper:
    """Maps descriptors; `identifier` has the keys of consumers, if there are any."""

    def __init__(self, *, trust_tier: bool = False, identifier: Callable[[], Identifier] | None = None) -> None:
        self._identifier = identifier
        self._meaning = dict(NAMES, tier=TIER) if trust_tier else dict(NAMES)

    def request(self, domain: str, descriptor: Descriptor, hits: int) -> Request:
        """Return the request of a descriptor; `hits` is its cost."""
        principal: dict[str, str] = {}
        attributes = {"domain": domain}
        endpoint = method = tier = network = ""
        meaning = self._meaning
        for key, value in descriptor.entries:
            meant = meaning.get(key)
            if meant is None:
                name = principal_name(key)
                if name not in PRINCIPALS:
                    attributes.setdefault(key, value)
                elif value:
                    principal.setdefault(name, value)
            elif meant is ENDPOINT:
                endpoint = endpoint or value
            elif meant is METHOD:
                method = method or value
            elif meant is TIER:
                tier = tier or value
            else:
                network = network or value
                attributes.setdefault(key, value)
        if principal.get(APIKEY, "").startswith(CONSUMER_PREFIX):
            self._identify(principal)
        address = ""
        if network:
            address = principal.get(IP, "")
            principal[IP] = network
        return Request(principal, endpoint or "/", method, attributes, hits, tier, address)

    def _identify(self, principal: dict[str, str]) -> None:
        """Replace the key of a consumer by the consumer; remove an invalid one."""
        known = self._identifier().api_keys if self._identifier else None
        if known is not None:
            holder, _ = known.find_key(principal.pop(APIKEY).encode(errors="replace"))
            if holder is not None:
                proven = {APIKEY: holder.name, USER: holder.user, "tenant": holder.tenant}
                principal |= {name: value for name, value in proven.items() if value}
