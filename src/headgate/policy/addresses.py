"""Addresses of the dimension "ip", without zones (``fe80::1%eth0``). See `headgate.networks`.

A client is counted by its IPv4 address, or by the /64 network of its IPv6 address, since a client usually has all
addresses of that network. A given network (``2001:db8:1::/48``, also ``2001:db8::1/128``) is counted as it is. Lists
compare the whole address.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_network
from socket import AF_INET, inet_pton

from headgate.core.numbers import short
from headgate.networks import IpAddress, canonical, key_of
from headgate.policy.request import InvalidRequest

UNKNOWN = "unknown"
"""The address of all clients without a known address, such as those on a Unix socket."""
_LONGEST = 64
_REMEMBERED = 4096
"""Addresses that are cached; errors are not. A miss costs a few microseconds, so flooding gains nothing."""
_ZONE = re.compile(r"%[^/%]+(?=/|$)")
_IPV4 = int(AF_INET)
_LONGEST_IPV4 = 15


@lru_cache(maxsize=_REMEMBERED)
def address_of(text: str) -> IpAddress:
    """Parse an address or a network. Raises InvalidRequest."""
    if text == UNKNOWN:
        return IpAddress(text, 0, 0, 0)
    packed = _ipv4(text)
    if packed is not None:
        return IpAddress(text, 4, int.from_bytes(packed), 32)
    try:
        if len(text) <= _LONGEST:
            return canonical(ip_network(_ZONE.sub("", text) if ":" in text else text, strict=False))
    except ValueError:
        pass
    raise InvalidRequest(f"ip must be an address such as 203.0.113.9, without a port, or 'unknown', not {short(text)}")


def counted_by(text: str) -> str:
    """Return the address or network that represents a client in keys. Raises InvalidRequest."""
    return text if _ipv4(text) is not None else _network_of(text)


@lru_cache(maxsize=_REMEMBERED)
def _network_of(text: str) -> str:
    address = address_of(text)
    if address.version != 6 or address.length != 128 or "/" in text:
        return address.text
    return key_of(address)


def _ipv4(text: str) -> bytes | None:
    """Return an IPv4 address as bytes; None for anything else."""
    if len(text) > _LONGEST_IPV4 or ":" in text:
        return None
    try:
        return inet_pton(_IPV4, text)
    except (OSError, ValueError):
        return None
