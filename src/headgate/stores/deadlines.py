"""The time that a server takes, for deadlines in an event loop that is busy itself.

Ten thousand calls that begin at once keep an event loop busy for longer than any of their deadlines, though the server
answers each batch at once: its answers lie unread in the socket. So deadlines count only the time for which the loop
could have read an answer. It is measured by a timer that rings every `TICK` seconds while calls are open:

* One that rings on time found the loop idle: the time since the last counts, but for what this thread computed.
* One that rings late, though next to nothing was computed, found the machine busy, or a process that was stopped: the
  time counts, but no more than one tick, for an answer may have come since.
* One that rings late otherwise found the loop busy: a `BUSY_SHARE` of the time counts.

So a process that always computes waits at most sixteen times as long as it says for a server that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time

TICK = 0.01
LATE = 0.003
"""Seconds by which a timer of an idle loop may be late."""
IDLE = 0.00025
"""Seconds of computing between two ticks, in an idle loop."""
BUSY_SHARE = 1 / 16


class ServerTime:
    """The time of an event loop, in seconds, without what the loop itself took of it while calls were open.

    Args:
        loop: the event loop.
        look: called at every tick; returns whether calls are still open.
    """

    __slots__ = ("_computed", "_is_watching", "_look", "_own", "_rings_at", "_seen_at", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], bool]) -> None:
        self.loop, self._look = loop, look
        self._is_watching = False
        self._own = 0.0  # what does not count, up to the last tick
        self._seen_at = self._rings_at = self._computed = 0.0

    def time(self) -> float:
        """Return the time. Between two ticks it runs ahead by one at most."""
        now = self.loop.time()
        if self._is_watching:
            now = min(now, self._seen_at + TICK)
        return now - self._own

    def watch(self) -> None:
        """Measure from now on, until no calls are open."""
        if not self._is_watching:
            self._is_watching = True
            self._begin(self.loop.time())

    def _begin(self, now: float) -> None:
        self._seen_at, self._rings_at, self._computed = now, now + TICK, thread_time()
        self.loop.call_at(self._rings_at, self.loop.call_soon, self._tick)  # behind all that is to be done now

    def _tick(self) -> None:
        now = self.loop.time()
        elapsed = now - self._seen_at
        computed = thread_time() - self._computed
        if now - self._rings_at <= LATE:
            self._own += min(elapsed, computed)
        elif computed <= IDLE:
            self._own += max(0.0, elapsed - TICK)
        else:
            self._own += elapsed * (1 - BUSY_SHARE)
        self._seen_at = now  # for what `look` does
        self._is_watching = self._look()
        if self._is_watching:
            self._begin(now)
