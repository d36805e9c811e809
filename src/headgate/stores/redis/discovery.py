"""Discovery of servers: the primary of a service through Sentinels, the nodes of a cluster through each other.

Nothing here waits. An *inquiry* is a flow (see `headgate.flows`): it yields a server and a command, and receives the
reply, or an exception in its place.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Generator
from random import sample
from typing import TypeAlias, TypeVar

from headgate.core.errors import StoreUnavailable
from headgate.stores.redis.address import Address, Cluster, Service
from headgate.stores.redis.protocol import command

SLOTS = 16384
_MAP = command(b"CLUSTER", b"SLOTS")

T = TypeVar("T")
Inquiry: TypeAlias = Generator[tuple[Address, bytes], object, T]


def slot_of(key: bytes) -> int:
    """Return the slot of a key of this store, which always has a hash tag."""
    start = key.index(b"{") + 1
    return crc_hqx(key[start : key.index(b"}", start)], 0) % SLOTS


class Sentinels:
    """Finds the primary of a service; the Sentinel that answered last comes first, while its answers are right."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._order = list(service.sentinels)
        self._last: Address | None = None
        self._named_by: Address | None = None  # the Sentinel that named it
        self.patience = service.primary.connect_timeout / len(self._order)
        """Seconds for each of them."""

    def primary(self) -> Inquiry[Address]:
        """Return the location of the primary: the last known one if no Sentinel answers."""
        service = self._service
        request = command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.name.encode())
        reasons, all_down = [], True
        for sentinel in self._order:
            reply = yield sentinel, request
            match reply:
                case [bytes(host), bytes(port)] if port.isdigit() and len(port) < 6 and 0 < int(port) < 65536:
                    self._order = [sentinel, *(each for each in self._order if each != sentinel)]
                    self._last = service.primary.at(host.decode(errors="replace"), int(port))
                    self._named_by = sentinel
                    return self._last
                case None:
                    all_down = False
                    reasons.append(f"{sentinel}: it does not know the service {service.name!r}")
                case _:
                    reasons.append(f"{reply}")
        if self._last and all_down:
            return self._last
        raise StoreUnavailable(f"no Sentinel names a primary: {'; '.join(dict.fromkeys(reasons))}")

    def doubt(self, named: Address) -> None:
        """Record that a named server is down, or not the primary.

        The Sentinel that named it comes last from now on: it may be cut off from the others, with an outdated view.
        """
        if named == self._last and self._order[0] == self._named_by:
            self._order = [*self._order[1:], self._order[0]]


class SlotMap:
    """The servers of a cluster's slots, as far as known."""

    def __init__(self, cluster: Cluster) -> None:
        self._seeds = cluster.seeds
        self._owners: list[Address | None] = [None] * SLOTS
        self.nodes: frozenset[Address] = frozenset()
        """The servers that have slots."""
        self.trouble = ""
        """Why the last refresh failed."""
        self.patience = min(cluster.seeds[0].connect_timeout, 0.5)
        """Seconds for each server."""

    def owner(self, slot: int) -> Address | None:
        return self._owners[slot]

    def servers(self) -> frozenset[str]:
        return frozenset(map(str, self.nodes))

    def learn(self, slot: int, by: Address, target: tuple[str, int]) -> Address:
        """Record and return the server of `slot`, according to another server."""
        owner = self._owners[slot] = self.named(by, target)
        self.nodes |= {owner}
        return owner

    def named(self, by: Address, target: tuple[str, int]) -> Address:
        """Return the server that another one names; without a host it means its own."""
        host, port = target
        return by.at(host or by.host, port or by.port)

    def refresh(self) -> Inquiry[None]:
        """Read the map from one server after the other, in random order; if none has it, the old one stays."""
        others = [node for node in self.nodes if node not in self._seeds]
        reasons = []
        for server in (*sample(others, len(others)), *sample(self._seeds, len(self._seeds))):
            reply = yield server, _MAP
            if owned := _parse_slots(server, reply):
                owners: list[Address | None] = [None] * SLOTS
                for slots, node in owned:
                    owners[slots.start : slots.stop] = [node] * len(slots)
                self._owners, self.nodes, self.trouble = owners, frozenset(node for _, node in owned), ""
                return
            reasons.append(f"{reply}" if isinstance(reply, Exception) else f"{server}: it does not know any slots")
        self.trouble = f"no server of the cluster knows its slots: {'; '.join(reasons)}"


def _parse_slots(server: Address, reply: object) -> list[tuple[range, Address]]:
    """Parse a slot map: ranges of slots, each with its servers, the primary first. Invalid entries are ignored."""
    owned = []
    for entry in reply if isinstance(reply, list) else []:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS and 0 < port < 65536:
                known = isinstance(host, bytes) and host not in {b"", b"?"}
                node = server.at(host.decode(errors="replace") if known else server.host, port)
                owned.append((range(first, last + 1), node))
            case _:
                continue
    return owned
