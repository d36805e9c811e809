"""The time that a server takes, for deadlines in a busy event loop.

Ten thousand calls that begin at once keep an event loop busy for longer than their deadlines, though the server answers
each batch at once: its answers wait unread in the socket. So deadlines count only the time in which the loop could have
read an answer. A timer measures it every `TICK` seconds while calls are open:

* If it fires on time, the loop was idle: the time since the last tick counts, minus what this thread computed.
* If it fires late with next to nothing computed, the machine was busy or the process was stopped: at most one tick
  counts, since an answer may have arrived.
* If it fires late otherwise, the loop was busy: a `BUSY_SHARE` of the time counts.

So a process that always computes waits at most sixteen times its timeout for a server that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time

TICK = 0.01
LATE = 0.003
"""Seconds by which a timer may be late in an idle loop."""
IDLE = 0.00025
"""Seconds of computing between two ticks in an idle loop."""
BUSY_SHARE = 1 / 16


class ServerTime:
    """The time of an event loop, in seconds, without the loop's own use of it while calls were open.

    At every tick, `look` returns whether calls are still open.
    """

    __slots__ = ("_computed", "_is_watching", "_look", "_own", "_rings_at", "_seen_at", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], bool]) -> None:
        self.loop, self._look = loop, look
        self._is_watching = False
        self._own = 0.0  # the loop's own use, up to the last tick
        self._seen_at = self._rings_at = self._computed = 0.0

    def time(self) -> float:
        """Return the time. Between two ticks it advances by one tick at most."""
        now = self.loop.time()
        if self._is_watching:
            now = min(now, self._seen_at + TICK)
        return now - self._own

    def watch(self) -> None:
        """Measure until no calls are open."""
        if not self._is_watching:
            self._is_watching = True
            self._begin(self.loop.time())

    def _begin(self, now: float) -> None:
        self._seen_at, self._rings_at, self._computed = now, now + TICK, thread_time()
        self.loop.call_at(self._rings_at, self.loop.call_soon, self._tick)  # after all work that is due now

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
