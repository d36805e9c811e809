"""Addresses of the dimension "ip": the same client has one key, and is found on lists. See `headgate.core.address`.

A zone (``fe80::1%eth0``) is left out.

A client is counted by its IPv4 address, or by the /64 network of its IPv6 address: whoever has one address there has
all of them. A network (``2001:db8:1::/48``, also ``2001:db8::1/128``) is counted as it stands. Lists see the address.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_network
from socket import AF_INET, inet_pton

from headgate.core.address import IpAddress, canonical, key_of
from headgate.core.numbers import short
from headgate.policy.request import InvalidRequest

UNKNOWN = "unknown"
"""Stands for the address of all whose address is not known, such as those on a Unix socket."""
_LONGEST = 64
_REMEMBERED = 4096
"""Of short texts (no error is remembered), and reading one anew costs a few microseconds: nothing to be gained by
flooding."""
_ZONE = re.compile(r"%[^/%]+(?=/|$)")
_IPV4 = int(AF_INET)
_LONGEST_IPV4 = 15


@lru_cache(maxsize=_REMEMBERED)
def address_of(text: str) -> IpAddress:
    """Return the address, or network, that `text` is. Raises InvalidRequest."""
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
    raise InvalidRequest(f"ip is an address such as 203.0.113.9, without a port, or 'unknown', not {short(text)}")


def counted_by(text: str) -> str:
    """Return what stands for a client of that address in keys; see this module. Raises InvalidRequest."""
    return text if _ipv4(text) is not None else _network_of(text)


@lru_cache(maxsize=_REMEMBERED)
def _network_of(text: str) -> str:
    address = address_of(text)
    if address.version != 6 or address.length != 128 or "/" in text:
        return address.text
    return key_of(address)


def _ipv4(text: str) -> bytes | None:
    """Return an IPv4 address as bytes; None for anything else. There is one way to write such an address."""
    if len(text) > _LONGEST_IPV4 or ":" in text:
        return None
    try:
        return inet_pton(_IPV4, text)
    except (OSError, ValueError):
        return None
