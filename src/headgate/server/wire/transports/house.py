"""What all connections of a process share, and the one timer that looks after them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Protocol

from headgate.server.wire.admission import Admit
from headgate.server.wire.http1.head import Heads
from headgate.server.wire.http1.responses import Date
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import Peer

_log = logging.getLogger(__name__)


class Guest(Protocol):
    """A connection, as the house sees it."""

    @property
    def held(self) -> int:
        """Bytes that are kept for it: of bodies that are incomplete, and of responses that it does not take."""
        ...

    def look(self, now: float) -> None:
        """End what takes too long."""
        ...

    def drain(self) -> None:
        """Begin no new requests, and close when those in flight are answered."""
        ...

    def finish_draining(self) -> None:
        """Close if there is nothing in flight: what was on its way when draining began has arrived."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class TakingTurns(Protocol):
    """A connection that is served in turns."""

    def serve(self) -> None:
        """Deal with what has arrived."""
        ...

    def flush(self) -> None:
        """Send what is to be sent."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class House:
    """One for each process.

    Times are those of the loop, in seconds, as coarse as the timer's `tick`: no request has a timer of its own.

    In each turn of the loop all connections are read, then all that they ask is answered, and then all answers are
    sent. Connection by connection it would take a tenth longer, since each of the three evicts the others from the
    processor's caches, and since clients would be woken up one by one.
    """

    __slots__ = ("_timer", "_turn", "admit", "date", "guests", "heads", "is_draining", "limits", "loop", "tick")

    def __init__(self, limits: WireLimits, admit: Admit | None, loop: asyncio.AbstractEventLoop) -> None:
        self.limits, self.admit, self.loop = limits, admit, loop
        self.heads, self.date = Heads(limits), Date()
        self.guests: set[Guest] = set()
        self.is_draining = False
        self._turn: list[TakingTurns] = []
        shortest = min(limits.header_time, limits.body_time, limits.idle_time, limits.write_time)
        self.tick = min(max(shortest / 4, 0.01), 0.5)
        self.date.set(time.time())
        self._timer: asyncio.TimerHandle | None = loop.call_later(self.tick, self._sweep)

    def enter(self, guest: Guest) -> bool:
        """Count a new connection; false if there is no room for it."""
        if len(self.guests) >= self.limits.connections:
            return False
        self.guests.add(guest)
        return True

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is gone."""
        self.guests.discard(guest)

    def await_turn(self, guest: TakingTurns) -> None:
        """Serve and flush a connection when all others are read."""
        if not self._turn:
            self.loop.call_soon(self._take_turns)
        self._turn.append(guest)

    def close(self) -> None:
        """Stop the timer, and close what is still open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for guest in list(self.guests):
            guest.abort()

    def _take_turns(self) -> None:
        guests, self._turn = self._turn, []
        for guest in guests:
            try:
                guest.serve()
            except Exception:  # noqa: BLE001  whatever it is, the others have nothing to do with it
                _give_up(guest)
        for guest in guests:
            try:
                guest.flush()
            except Exception:  # noqa: BLE001  likewise
                _give_up(guest)

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(self.tick, self._sweep)
        self.date.set(time.time())
        now, held = self.loop.time(), 0
        for guest in list(self.guests):
            try:
                guest.look(now)
                held += guest.held
            except Exception:  # noqa: BLE001  the others are still looked after
                _log.exception("A connection could not be looked after, and is closed")
                guest.abort()
        if held > self.limits.held_bytes:
            self._relieve(held)

    def _relieve(self, held: int) -> None:
        """Close connections until what is kept for the others is half of what may be."""
        closed = 0
        for guest in sorted(self.guests, key=lambda guest: guest.held, reverse=True):
            if held <= self.limits.held_bytes // 2:
                break
            held -= guest.held
            guest.abort()
            closed += 1
        _log.warning("%d connections are closed that held the most memory: there was too little for all", closed)


def _give_up(guest: TakingTurns) -> None:
    _log.exception("A connection failed, and is closed")
    guest.abort()


class Stopwatch:
    """Tells for how long a state has lasted, as far as it was looked at: nothing is done when the state changes."""

    __slots__ = ("_since", "_state")

    def __init__(self) -> None:
        self._state: object = None
        self._since = 0.0

    def lasted(self, state: object, now: float) -> float:
        """Return for how many seconds the state has been this one."""
        if state != self._state:
            self._state, self._since = state, now
        return now - self._since


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return who is at the other end."""
    address = transport.get_extra_info("peername")
    host = address[0] if isinstance(address, tuple) else None
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    names = certificate.get("subjectAltName", ())
    return Peer(host, tuple([f"{kind}:{name}" for kind, name in names]))
