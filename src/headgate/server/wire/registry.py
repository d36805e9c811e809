"""The connections of a process: what they share, the order in which they are served, the timer that watches them."""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import chain
from typing import Protocol

from headgate.server.wire.admission import Admit
from headgate.server.wire.http1.parsing import Http1Heads
from headgate.server.wire.limits import WireLimits
from headgate.server.wire.messages import DateHeader

_log = logging.getLogger(__name__)


class Connected(Protocol):
    """A connection, as the registry knows it."""

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


class Batched(Protocol):
    """A connection that is served together with others."""

    def serve(self) -> None:
        """Deal with what has arrived."""
        ...

    def flush(self) -> None:
        """Send what is to be sent."""
        ...

    def abort(self) -> None: ...


class ConnectionRegistry:
    """There is one for each process.

    Times are those of the loop, in seconds, as coarse as the timer's `tick`: no request has a timer of its own.

    In each turn of the loop all connections are read, then all their requests are answered, and then all responses are
    sent. Connection by connection it would take a tenth longer, since each of the three evicts the others from the
    processor's caches, and since clients would be woken up one by one.
    """

    def __init__(self, limits: WireLimits, admit: Admit | None, loop: asyncio.AbstractEventLoop) -> None:
        self.limits, self.admit, self.loop = limits, admit, loop
        self.heads, self.date = Http1Heads(limits), DateHeader()
        self.connections: set[Connected] = set()
        self.is_draining = False
        self._arrived: list[Batched] = []
        self._answered: list[Batched] = []
        shortest = min(limits.header_time, limits.body_time, limits.idle_time, limits.write_time)
        self.tick = min(max(shortest / 4, 0.01), 0.5)
        self.date.set(time.time())
        self._timer: asyncio.TimerHandle | None = loop.call_later(self.tick, self._sweep)

    def add(self, connection: Connected) -> bool:
        """Count a new connection; false if there is no room for it."""
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: Connected) -> None:
        """Forget a connection that is gone."""
        self.connections.discard(connection)

    def serve_soon(self, connection: Batched) -> None:
        """Serve and flush a connection when all others are read."""
        if not (self._arrived or self._answered):
            self.loop.call_soon(self._serve)
        self._arrived.append(connection)

    def flush_soon(self, connection: Batched) -> None:
        """Flush a connection, whose request was answered late, with the others."""
        if not (self._arrived or self._answered):
            self.loop.call_soon(self._serve)
        self._answered.append(connection)

    def close(self) -> None:
        """Stop the timer, and close what is still open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self.connections):
            connection.abort()

    def _serve(self) -> None:
        arrived, answered = self._arrived, self._answered
        self._arrived, self._answered = [], []
        for connection in arrived:
            try:
                connection.serve()
            except Exception:  # noqa: BLE001  whatever it is, the others have nothing to do with it
                _give_up(connection)
        for connection in chain(arrived, answered):
            try:
                connection.flush()
            except Exception:  # noqa: BLE001  likewise
                _give_up(connection)

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(self.tick, self._sweep)
        self.date.set(time.time())
        now, held = self.loop.time(), 0
        for connection in list(self.connections):
            try:
                connection.look(now)
                held += connection.held
            except Exception:  # noqa: BLE001  the others are still watched
                _give_up(connection)
        if held > self.limits.held_bytes:
            self._relieve(held)

    def _relieve(self, held: int) -> None:
        """Close connections until what is kept for the others is half of what may be."""
        closed = 0
        for connection in sorted(self.connections, key=lambda each: each.held, reverse=True):
            if held <= self.limits.held_bytes // 2:
                break
            held -= connection.held
            connection.abort()
            closed += 1
        _log.warning("%d connections that held the most memory were closed: there was too little for all", closed)


def _give_up(connection: Connected | Batched) -> None:
    _log.exception("A connection failed, and is closed")
    connection.abort()


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
