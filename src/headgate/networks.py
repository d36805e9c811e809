"""IP addresses and networks in one form, in which they are compared, counted and shown.

An IPv4 address inside IPv6 (``::ffff:203.0.113.9``, or through NAT64 ``64:ff9b::203.0.113.9``) *is* that IPv4 address.
Otherwise one client would have two keys, or all IPv4 clients one.

The key of an IPv4 address is the address. That of an IPv6 address is its network, the /64 by default: a client with one
of its addresses has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
_WITHIN_IPV6 = frozenset({0xFFFF, 0x64_FF9B << 64})
"""The 96 bits before an IPv4 address: IPv4-mapped, and NAT64."""
_BITS = {4: 32, 6: 128}


class IpAddress(NamedTuple):
    """A canonical address or network: IPv4 if it contains an IPv4 address, and without a zone."""

    text: str
    version: int
    """4 or 6; 0 if unknown."""
    number: int
    """The bits of the address, those of the host being 0."""
    length: int
    """The prefix length: all bits for a single address."""


def canonical(network: IPv4Network | IPv6Network) -> IpAddress:
    """Return a network, or a single address as one, in its canonical form."""
    number, length = int(network.network_address), network.prefixlen
    if isinstance(network, IPv6Network) and length >= 96 and number >> 32 in _WITHIN_IPV6:
        network = IPv4Network((number & 0xFFFF_FFFF, length - 96))
        number, length = int(network.network_address), network.prefixlen
    text = str(network.network_address) if length == network.max_prefixlen else str(network)
    return IpAddress(text, network.version, number, length)


def key_of(address: IpAddress, ipv6_prefix: int = 64) -> str:
    """Return the text of a single address in keys."""
    return address.text if address.version == 4 else _network(address.number, ipv6_prefix)


@lru_cache(maxsize=4096)  # a flood of new addresses costs no more than without the cache
def _network(number: int, prefix: int) -> str:
    host_bits = 128 - prefix
    return f"{IPv6Address(number >> host_bits << host_bits)}/{prefix}"


class NetworkMap(Generic[T]):
    """Values of networks, found with one lookup for each prefix length.

    Args:
        entries: networks and their values; the first value of a network counts.
    """

    __slots__ = ("_by_version",)

    def __init__(self, entries: Iterable[tuple[IpAddress, T]]) -> None:
        by_length: dict[tuple[int, int], dict[int, T]] = {}
        for (_, version, number, length), value in entries:
            by_length.setdefault((version, length), {}).setdefault(number, value)
        self._by_version: dict[int, list[tuple[int, dict[int, T]]]] = {}
        for (version, length), networks in sorted(by_length.items(), key=lambda item: item[0], reverse=True):
            self._by_version.setdefault(version, []).append((length, networks))

    def find(self, address: IpAddress) -> T | None:
        """Return the value of the smallest network that contains this address or network."""
        _, version, number, own_length = address
        for length, networks in self._by_version.get(version, ()):
            if length <= own_length:
                host_bits = _BITS[version] - length
                found = networks.get(number >> host_bits << host_bits)
                if found is not None:
                    return found
        return None
