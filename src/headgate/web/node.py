"""Addresses as proxies write them, and the one form in which limits are kept.

Canonical first, everything else after: an IPv4 address inside IPv6 (``::ffff:203.0.113.9``, or through NAT64
``64:ff9b::203.0.113.9``) *is* that IPv4 address, before it is compared, masked or shown. Otherwise one client has two
keys, or all clients of IPv4 have one.

The key of an IPv4 address is the address. That of an IPv6 address is its network, the /64 by default:
whoever has one address there has all of them.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

LONGEST = 128
"""More characters than any written address, its zone and port included, has."""
NAT64 = 0x64_FF9B << 64
WITHIN_IPV6 = frozenset({0xFFFF, NAT64})
"""The 96 bits before an IPv4 address: IPv4-mapped, and NAT64."""
_PORT_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_REMEMBERED = 4096


class Node(NamedTuple):
    """An address, canonical: IPv4 if there is an IPv4 address in it, and no zone."""

    text: str
    version: int
    """4 or 6."""
    number: int
    """Its 32 or 128 bits."""


def parse(text: str) -> Node | None:
    """Read an address with or without brackets, zone and port; None if it is anything else.

    ``203.0.113.9``, ``203.0.113.9:4711``, ``2001:db8::1``, ``[2001:db8::1]``, ``[fe80::1%eth0]:4711``. Spaces around
    it do not matter. A port may be obfuscated as RFC 7239 has it: ``:_p4711``.
    """
    text = text.strip(" \t")
    return _parse(text) if len(text) <= LONGEST else None


def key_of(node: Node, ipv6_prefix: int = 64) -> str:
    """Return the text that stands for an address in keys."""
    return node.text if node.version == 4 else _network(node.number, ipv6_prefix)


@lru_cache(maxsize=_REMEMBERED)  # most peers are known; a flood of others costs what it would cost without
def _parse(text: str) -> Node | None:
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed or ":" not in host or not (not port or (port[0] == ":" and _is_port(port[1:]))):
            return None
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not _is_port(port):
            return None
    else:
        host = text
    if ":" in host:
        host = host.partition("%")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    number = int(address)
    if isinstance(address, IPv6Address) and number >> 32 in WITHIN_IPV6:
        address = IPv4Address(number & 0xFFFF_FFFF)
    return Node(str(address), address.version, int(address))


@lru_cache(maxsize=_REMEMBERED)
def _network(number: int, prefix: int) -> str:
    host_bits = 128 - prefix
    return f"{IPv6Address(number >> host_bits << host_bits)}/{prefix}"


def _is_port(text: str) -> bool:
    if text[:1] == "_":
        return len(text) > 1 and _PORT_CHARACTERS.issuperset(text[1:])
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535
