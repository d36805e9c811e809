"""How descriptors become requests of Headgate's rules: each descriptor is one request.

==============================================================  ===================================================
entries of a descriptor                                          what they become
==============================================================  ===================================================
``user``, ``user_id`` and other aliases                          the principal ``user``
``ip``, ``remote_address`` and other aliases                     the principal ``ip``; lists look at it
``masked_remote_address``                                        the principal ``ip``, rather than ``remote_address``:
                                                                 the network that is counted
``apikey``, ``api_key``, ``x-api-key`` and other aliases         the principal ``apikey``
``path``, ``:path``, ``endpoint``                                the endpoint; a query is cut off
``method``, ``:method``                                          the method
``tier``                                                         the tier, if `trust_tier` is set; else an attribute
all others, such as ``generic_key``                              attributes of the same name
==============================================================  ===================================================

Aliases are those of `headgate.policy.request`. Where the principal ``apikey`` is the key of a consumer, it becomes the
consumer: its name as ``user`` and ``apikey``, and its tenant; a key that is not good any more counts nobody.

The domain becomes the attribute ``domain``; also an attribute is
``masked_remote_address``. Rules may ask for attributes with `when`, and count by them. If a name comes twice, the first
one counts. An empty value of a principal is ignored: nobody is counted by it.

Whoever writes Envoy's configuration vouches for the values: a user should come from a verified token (``jwt_claim``,
or metadata of the JWT filter), not from a header that the client chose. The tier decides which limits there are, so it
is believed only if that is asked for.
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
"""What entries mean, by their keys; those that are not here are principals or attributes."""


class Mapper:
    """Makes requests of descriptors.

    Args:
        trust_tier: whether an entry ``tier`` decides which tier a request has.
        identifier: knows the keys of consumers; None: there are no consumers.
    """

    def __init__(self, *, trust_tier: bool = False, identifier: Callable[[], Identifier] | None = None) -> None:
        self._identifier = identifier
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
        """Put a consumer in the place of its key. One that is not good any more is nobody, rather than a key."""
        known = self._identifier().api_keys if self._identifier else None
        if known is not None:
            holder, _ = known.find_key(principal.pop(APIKEY).encode(errors="replace"))
            if holder is not None:
                proven = {APIKEY: holder.name, USER: holder.user, "tenant": holder.tenant}
                principal |= {name: value for name, value in proven.items() if value}
