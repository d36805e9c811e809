"""The connections of a process: their shared state, the order in which they are served, and their timer."""

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
    """A connection, as the registry sees it."""

    @property
    def held(self) -> int:
        """Bytes buffered for it: incomplete bodies, and responses that its client does not read."""

    def enforce_timeouts(self, now: float) -> None:
        """End what takes too long."""

    def drain(self) -> None:
        """Accept no new requests, and close when those in flight are answered."""

    def finish_draining(self) -> None:
        """Close if nothing is in flight: requests in transit when draining began have arrived."""

    def abort(self) -> None: ...


class Batched(Protocol):
    def serve(self) -> None:
        """Process what has arrived."""

    def flush(self) -> None: ...

    def abort(self) -> None: ...


class ConnectionRegistry:
    """All connections of a process.

    Times are the loop's, in seconds, with the resolution of `tick`: requests have no timers of their own.

    In each turn of the loop all connections are read, then all their requests are answered, and then all responses are
    sent. One connection after the other takes a tenth longer: the three steps evict each other from the processor's
    caches, and clients wake up one by one.
    """

    def __init__(self, limits: WireLimits, admit: Admit | None, loop: asyncio.AbstractEventLoop) -> None:
        self.limits, self.admit, self.loop = limits, admit, loop
        self.heads, self.date = Http1Heads(limits), DateHeader(time.time())
        self.connections: set[Connected] = set()
        self.is_draining = False
        self._arrived: list[Batched] = []
        self._answered: list[Batched] = []
        shortest = min(limits.header_time, limits.body_time, limits.idle_time, limits.write_time)
        self.tick = min(max(shortest / 4, 0.01), 0.5)
        self._timer: asyncio.TimerHandle | None = loop.call_later(self.tick, self._sweep)

    def add(self, connection: Connected) -> bool:
        """Register a new connection; returns false if there is no room for it."""
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: Connected) -> None:
        self.connections.discard(connection)

    def serve_soon(self, connection: Batched) -> None:
        """Serve and flush a connection after all others are read."""
        if not (self._arrived or self._answered):
            self.loop.call_soon(self._serve)
        self._arrived.append(connection)

    def flush_soon(self, connection: Batched) -> None:
        """Flush a connection whose request was answered late, with the others."""
        if not (self._arrived or self._answered):
            self.loop.call_soon(self._serve)
        self._answered.append(connection)

    def close(self) -> None:
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
            except Exception:  # noqa: BLE001  a failure of one connection must not affect the others
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
                connection.enforce_timeouts(now)
                held += connection.held
            except Exception:  # noqa: BLE001  likewise
                _give_up(connection)
        if held > self.limits.held_bytes:
            self._relieve(held)

    def _relieve(self, held: int) -> None:
        """Close connections until the others hold half of the bound."""
        closed = 0
        for connection in sorted(self.connections, key=lambda each: each.held, reverse=True):
            if held <= self.limits.held_bytes // 2:
                break
            held -= connection.held
            connection.abort()
            closed += 1
        _log.warning(
            "closed the %d connections that used the most memory: all connections together used too much", closed
        )


def _give_up(connection: Connected | Batched) -> None:
    _log.exception("a connection failed and is closed")
    connection.abort()


class Stopwatch:
    """Measures how long a state has lasted, whenever it is checked: changes of the state cost nothing."""

    __slots__ = ("_since", "_state")

    def __init__(self) -> None:
        self._state: object = None
        self._since = 0.0

    def seconds_in(self, state: object, now: float) -> float:
        """Return for how many seconds all checks have found this state."""
        if state != self._state:
            self._state, self._since = state, now
        return now - self._since
