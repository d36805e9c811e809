"""An HTTP/2 connection, as those see it who serve what is on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headgate.server.wire.admission import Admission
from headgate.server.wire.http2.connection import Connection
from headgate.server.wire.http2.events import Event
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Peer


class Outlet(Protocol):
    """Where the connection writes to."""

    is_paused: bool
    """The client does not take what was written."""

    def flush_soon(self) -> None:
        """Write what the machine has to send, with whatever else comes up in this turn of the loop."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """One connection: the machine, who is at the other end, and what it may ask for."""

    machine: Connection
    peer: Peer
    limits: WireLimits
    admission: Admission | None
    outlet: Outlet


class Service(Protocol):
    """What is served on a connection: requests of HTTP, or calls of gRPC. What it sends is in the machine."""

    @property
    def in_flight(self) -> int:
        """How many requests are in the hands of handlers."""
        ...

    def handle(self, events: list[Event]) -> None:
        """Do what events ask for."""
        ...

    def look(self, now: float) -> None:
        """End requests that take too long to arrive."""
        ...

    def resume(self) -> None:
        """Note that the client takes what is written again."""
        ...

    def leave(self) -> None:
        """End what has no end of its own, if all else is answered."""
        ...

    def lose(self) -> None:
        """Give everything up: the connection is gone."""
        ...
