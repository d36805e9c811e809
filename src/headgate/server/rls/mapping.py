"""How descriptors become requests of Headgate's rules: each descriptor is one request.

==============================================================  ===================================================
entries of a descriptor                                          what they become
==============================================================  ===================================================
``user``, ``user_id``                                            the principal ``user``
``ip``, ``remote_address``                                       the principal ``ip``; lists look at it
``masked_remote_address``                                        the principal ``ip``, rather than ``remote_address``:
                                                                 the network that is counted
``apikey``, ``api_key``, ``x-api-key``                           the principal ``apikey``
``path``, ``:path``, ``endpoint``                                the endpoint; a query is cut off
``method``, ``:method``                                          the method
``tier``                                                         the tier, if `trust_tier` is set; else an attribute
all others, such as ``generic_key``                              attributes of the same name
==============================================================  ===================================================

The domain becomes the attribute ``domain``; ``masked_remote_address`` is an attribute as well. Rules may ask for
attributes with `when`, and count by them. If a name comes twice, the first one counts. An empty value of a principal is
as none: nobody is counted by it.

Whoever writes Envoy's configuration vouches for the values: a user should come from a verified token (``jwt_claim``,
or metadata of the JWT filter), not from a header that the client chose. The tier decides which limits there are, so it
is believed only if that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headgate.policy.envoy.request import Descriptor
from headgate.policy.request import Request

USER, IP, NETWORK, APIKEY, ENDPOINT, METHOD, TIER = "user", "ip", "network", "apikey", "endpoint", "method", "tier"
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "user": USER,
        "user_id": USER,
        "ip": IP,
        "remote_address": IP,
        "masked_remote_address": NETWORK,
        "apikey": APIKEY,
        "api_key": APIKEY,
        "x-api-key": APIKEY,
        "path": ENDPOINT,
        ":path": ENDPOINT,
        "endpoint": ENDPOINT,
        "method": METHOD,
        ":method": METHOD,
    }
)
"""What entries mean, by their keys; those that are not here are attributes."""


class Mapper:
    """Makes requests of descriptors.

    Args:
        trust_tier: whether an entry ``tier`` decides which tier a request has.
    """

    def __init__(self, *, trust_tier: bool = False) -> None:
        self._meaning = dict(NAMES, tier=TIER) if trust_tier else dict(NAMES)

    def request(self, domain: str, descriptor: Descriptor, hits: int) -> Request:
        """Return what a descriptor asks for; `hits` is its cost."""
        principal: dict[str, str] = {}
        attributes = {"domain": domain}
        endpoint = method = tier = network = ""
        meaning = self._meaning
        for key, value in descriptor.entries:
            meant = meaning.get(key)
            if meant is None:
                attributes.setdefault(key, value)
            elif meant is ENDPOINT:
                endpoint = endpoint or value
            elif meant is METHOD:
                method = method or value
            elif meant is TIER:
                tier = tier or value
            elif meant is NETWORK:
                network = network or value
                attributes.setdefault(key, value)
            elif value:
                principal.setdefault(meant, value)
        address = ""
        if network:
            address = principal.get(IP, "")
            principal[IP] = network
        return Request(principal, endpoint or "/", method, attributes, hits, tier, address)
