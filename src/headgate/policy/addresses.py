"""Addresses of the dimension "ip" in one form: the same client has one key, and is found on lists.

An IPv4 address inside IPv6 (``::ffff:203.0.113.9``, ``64:ff9b::203.0.113.9``) *is* that IPv4 address. A zone
(``fe80::1%eth0``) is left out.

A client is counted by its IPv4 address, or by the /64 network of its IPv6 address: whoever has one address there has
all of them. A network (``2001:db8:1::/48``, also ``2001:db8::1/128``) is counted as it stands. Lists see the address.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from socket import AF_INET, inet_pton
from typing import NamedTuple

from headgate.core.numbers import short
from headgate.policy.request import InvalidRequest

UNKNOWN = "unknown"
"""Stands for the address of all whose address is not known, such as those on a Unix socket."""
_LONGEST = 64
_COUNTED_BITS = 64
"""How many bits of an IPv6 address are its network's by default."""
_REMEMBERED = 4096
"""Of short texts (no error is remembered), and reading one anew costs a few microseconds: nothing to be gained by
flooding."""
_ZONE = re.compile(r"%[^/%]+(?=/|$)")
_IPV4 = int(AF_INET)
_LONGEST_IPV4 = 15
_WITHIN_IPV6 = {0xFFFF, 0x64_FF9B << 64}
"""The 96 bits before an IPv4 address: IPv4-mapped, and NAT64."""


class Address(NamedTuple):
    """An address or a network, canonical."""

    text: str
    version: int
    """4 or 6; 0 if it is not known."""
    number: int
    """As many bits as `version` has, those of the host being 0."""
    length: int
    """How many bits are the network's: all of them for a single address."""


@lru_cache(maxsize=_REMEMBERED)
def address_of(text: str) -> Address:
    """Return the address, or network, that `text` is. Raises InvalidRequest."""
    if text == UNKNOWN:
        return Address(text, 0, 0, 0)
    packed = _ipv4(text)
    if packed is not None:
        return Address(text, 4, int.from_bytes(packed), 32)
    try:
        if len(text) <= _LONGEST:
            return canonical_network(ip_network(_ZONE.sub("", text) if ":" in text else text, strict=False))
    except ValueError:
        pass
    raise InvalidRequest(f"ip is an address such as 203.0.113.9, without a port, or 'unknown', not {short(text)}")


def counted_by(text: str) -> str:
    """Return what stands for a client of that address in keys; see this module. Raises InvalidRequest."""
    return text if _ipv4(text) is not None else _network_of(text)


@lru_cache(maxsize=_REMEMBERED)
def _network_of(text: str) -> str:
    address = address_of(text)
    if address.version != 6 or address.length != 128 or "/" in text:
        return address.text
    hosts = 128 - _COUNTED_BITS
    return f"{IPv6Address(address.number >> hosts << hosts)}/{_COUNTED_BITS}"


def _ipv4(text: str) -> bytes | None:
    """Return an IPv4 address as bytes; None for anything else. There is one way to write such an address."""
    if len(text) > _LONGEST_IPV4 or ":" in text:
        return None
    try:
        return inet_pton(_IPV4, text)
    except (OSError, ValueError):
        return None


def canonical_network(network: IPv4Network | IPv6Network) -> Address:
    """Return a network in the form in which addresses are compared with it."""
    number, length = int(network.network_address), network.prefixlen
    if isinstance(network, IPv6Network) and length >= 96 and number >> 32 in _WITHIN_IPV6:
        network = IPv4Network((number & 0xFFFF_FFFF, length - 96))
        number, length = int(network.network_address), network.prefixlen
    text = str(network.network_address) if length == network.max_prefixlen else str(network)
    return Address(text, network.version, number, length)
