"""The address of a client behind trusted proxies.

Any client can send ``X-Forwarded-For: 1.2.3.4``. By default, the client is therefore the *peer*, which opened the
connection. Behind proxies, name **one** header that they write, and the proxies to trust::

    AddressReader("x-forwarded-for", trusted=["10.0.0.0/8", "2001:db8:53::/48"])    # by address: preferred
    AddressReader("forwarded", hops=2)                                              # the last two, at any address
    AddressReader("cf-connecting-ip", trusted=[...])                                # a header with a single address

The laws, all tested on arbitrary bytes:

1. A header counts only if the peer is trusted. (With `hops` it always is: let no other peer reach the port.)
2. All lines of the header are one list, walked from right to left. With `trusted`, the first address that is not
   trusted is the client, and if all are trusted, the leftmost is. With `hops`, the N-th from the right is.
3. What a client puts left of that never changes the result.
4. An absent, short or malformed header leads to the last address that a trusted proxy vouched for, at worst the peer:
   never to an error, and never to something the client chose. `ClientAddress.finding` has the reason, for metrics.

At most 20 addresses and 4 KiB are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import islice
from socket import AF_INET, inet_pton
from typing import TypeAlias

import msgspec

from headgate.core.numbers import short, whole
from headgate.networks import IpAddress, NetworkMap, canonical, key_of
from headgate.web.errors import InvalidSettings
from headgate.web.lines import HeaderLines, collect, forwarded_elements, header_name, plain_elements, right_end

MAX_HOPS = 20
"""Addresses of a header that are read."""
UNKNOWN = "unknown"
"""The key of clients without an address, such as those on a Unix socket."""
LONGEST = 128
"""Characters; no address is longer, with its zone and port."""
_PORT_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_IPV4 = int(AF_INET)
_LISTS = {b"x-forwarded-for": plain_elements, b"forwarded": forwarded_elements}


class AddressFinding(StrEnum):
    """How an address was found."""

    PEER = "peer"
    HEADER = "header"
    UNTRUSTED_PEER = "untrusted_peer"
    """The peer is not a trusted proxy, so it is the client; a header was not read."""
    ABSENT = "absent"
    SHORT = "short"
    """The header has fewer addresses than hops."""
    REPEATED = "repeated"
    """A header with a single address is present more than once."""
    MALFORMED = "malformed"
    """A trusted proxy's entry is not an address."""
    TOO_LONG = "too_long"
    """All addresses that were read are trusted."""
    ATTESTED = "attested"
    """From a trusted proxy, separate from what its client sent."""


_ATTESTED = AddressFinding.ATTESTED  # attribute lookup in an enum is slow
_Found: TypeAlias = tuple[IpAddress | None, AddressFinding]


class ClientAddress(msgspec.Struct, frozen=True, gc=False):
    """The address of a client."""

    key: str
    """The key of limits: the IPv4 address, the IPv6 network, or "unknown"."""
    client: IpAddress | None
    """None if it is not known (a Unix socket)."""
    peer: IpAddress | None
    """The address that opened the connection."""
    finding: AddressFinding

    @property
    def text(self) -> str:
        """The client, or "unknown"."""
        return UNKNOWN if self.client is None else self.client.text

    @property
    def is_suspect(self) -> bool:
        """Whether something was wrong with the header; worth a counter."""
        return self.finding in {
            AddressFinding.SHORT,
            AddressFinding.REPEATED,
            AddressFinding.MALFORMED,
            AddressFinding.TOO_LONG,
        }

    def network(self, ipv6_prefix: int) -> str:
        """Return the key of a wider network, such as a /48, for a second, higher limit."""
        return UNKNOWN if self.client is None else key_of(self.client, ipv6_prefix)


@dataclass(frozen=True, slots=True)
class AddressReader:
    """Finds the address of a client; see the laws of this module.

    Raises:
        InvalidSettings: the settings contradict each other, or trust every client.
    """

    source: str = "peer"
    """``peer``, ``x-forwarded-for``, ``forwarded``, or the name of a header that has one address."""
    trusted: Sequence[str] = ()
    """Networks of trusted proxies, such as ``10.0.0.0/8``; ``unix``: any peer on a Unix socket."""
    hops: int = 0
    """Or the number of trusted proxies, including the peer."""
    ipv6_prefix: int = 64
    """Bits of an IPv6 network that counts as one client, 32 to 128."""

    header: bytes = field(init=False, repr=False)
    """The name of the header, in lower case; empty for ``peer``."""
    _networks: _Networks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        derive = object.__setattr__  # the instance is frozen
        if isinstance(self.trusted, str):
            raise InvalidSettings(
                f"trusted must be a list of networks, such as ['10.0.0.0/8'], got {short(self.trusted)}"
            )
        derive(self, "trusted", tuple(self.trusted))
        whole("hops", self.hops, 0, MAX_HOPS, InvalidSettings)
        whole("ipv6_prefix", self.ipv6_prefix, 32, 128, InvalidSettings)
        derive(self, "header", b"" if self.source == "peer" else header_name(self.source))
        derive(self, "_networks", _Networks(self.trusted))
        if self.trusted and self.hops:
            raise InvalidSettings("set either trusted networks or a number of hops, not both")
        if self.header and not (self.trusted or self.hops):
            raise InvalidSettings(
                f"any client can send {self.source}: name the trusted proxies, with trusted=['10.0.0.0/8'] or hops=1"
            )
        if not self.header and (self.trusted or self.hops):
            raise InvalidSettings("source 'peer' reads no header; behind proxies, name one, such as 'x-forwarded-for'")
        if self.hops > 1 and self.header not in _LISTS:
            raise InvalidSettings(f"{self.source} has one address, written by the nearest proxy: hops must be 1")

    def read(self, peer: str | None, lines: HeaderLines) -> ClientAddress:
        """Return the address of the client of a request that `peer` sent, None or "" on a Unix socket."""
        found = collect(lines, (self.header,)) if self.header else {}
        return self.read_values(peer, found.get(self.header, ()))

    def read_values(self, peer: str | None, values: Sequence[bytes]) -> ClientAddress:
        """Do the same with the values of `header`, in order."""
        node = parse(peer) if peer else None
        client, finding = self._find(node, values) if self.header else (node, AddressFinding.PEER)
        key = UNKNOWN if client is None else key_of(client, self.ipv6_prefix)
        return ClientAddress(key, client, node, finding)

    def trusts(self, peer: str | None) -> bool:
        """Whether a peer is a trusted proxy."""
        return bool(self.hops) or (parse(peer) if peer else None) in self._networks

    def attested(self, peer: str | None, client: IpAddress | None) -> ClientAddress:
        """Return the address of a client that a trusted proxy attests; None if the client has none."""
        key = UNKNOWN if client is None else key_of(client, self.ipv6_prefix)
        return ClientAddress(key, client, parse(peer) if peer else None, _ATTESTED)

    def _find(self, peer: IpAddress | None, values: Sequence[bytes]) -> _Found:
        if not self.hops and peer not in self._networks:
            return peer, AddressFinding.UNTRUSTED_PEER
        text, was_cut = right_end(values)
        if not text.strip(" \t,") and not was_cut:
            return peer, AddressFinding.ABSENT
        elements = _LISTS.get(self.header)
        if elements is None:
            return _single(peer, values)
        if self.hops:
            return self._count(peer, elements(text))
        return self._walk(peer, elements(text), was_cut=was_cut)

    def _count(self, peer: IpAddress | None, elements: Iterator[str]) -> _Found:
        nearest = list(islice(elements, self.hops))
        if len(nearest) < self.hops:
            return peer, AddressFinding.SHORT
        address = parse(nearest[-1])
        return (peer, AddressFinding.MALFORMED) if address is None else (address, AddressFinding.HEADER)

    def _walk(self, peer: IpAddress | None, elements: Iterator[str], *, was_cut: bool) -> _Found:
        vouched = peer
        for element in islice(elements, MAX_HOPS):
            address = parse(element)
            if address is None:
                return vouched, AddressFinding.MALFORMED
            vouched = address
            if address not in self._networks:
                return address, AddressFinding.HEADER
        if was_cut or next(elements, None) is not None:
            return vouched, AddressFinding.TOO_LONG
        return vouched, AddressFinding.HEADER


def _single(peer: IpAddress | None, values: Sequence[bytes]) -> _Found:
    if len(values) != 1:
        return peer, AddressFinding.REPEATED
    address = parse(values[0].decode("latin-1"))
    return (peer, AddressFinding.MALFORMED) if address is None else (address, AddressFinding.HEADER)


class _Networks:
    """The networks of trusted proxies."""

    __slots__ = ("_has_unix", "_networks")

    def __init__(self, texts: Iterable[str]) -> None:
        named = tuple(texts)
        self._has_unix = "unix" in named
        self._networks = NetworkMap([(_network(text), True) for text in named if text != "unix"])

    def __contains__(self, address: IpAddress | None) -> bool:
        return self._has_unix if address is None else self._networks.find(address) is not None


def _network(text: str) -> IpAddress:
    try:
        network = ip_network(text) if isinstance(text, str) else None
    except ValueError as error:
        raise InvalidSettings(f"{short(text)} is not a network such as 10.0.0.0/8: {error}") from None
    if network is None:
        raise InvalidSettings(f"a network must be text such as '10.0.0.0/8', got {short(text)}")
    found = canonical(network)
    if not found.length:
        raise InvalidSettings(f"{text} trusts every client: name the networks of the proxies, or count them with hops")
    return found


def parse(text: str) -> IpAddress | None:
    """Parse an address as proxies write it, with or without brackets, zone and port; None if it is not one.

    ``203.0.113.9``, ``203.0.113.9:4711``, ``2001:db8::1``, ``[2001:db8::1]``, ``[fe80::1%eth0]:4711``. Surrounding
    spaces are ignored. A port may be obfuscated as in RFC 7239: ``:_p4711``.
    """
    text = text.strip(" \t")
    return _parse(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=4096)  # peers recur; others cost no more than without it
def _parse(text: str) -> IpAddress | None:
    try:
        return IpAddress(text, 4, int.from_bytes(inet_pton(_IPV4, text)), 32)  # IPv4 has one notation
    except (OSError, ValueError):
        pass
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
        return canonical(ip_network(ip_address(host)))
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    if text[:1] == "_":
        return len(text) > 1 and _PORT_CHARACTERS.issuperset(text[1:])
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65_535
