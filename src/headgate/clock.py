"""Sources of time, waiting, and buckets for durations.

Limits never read a clock (time is an argument of the core); stores and waiting callers do. Both accept another clock,
such as `headgate.testing.ManualClock`.

Durations are counted in buckets whose bounds double from 10 microseconds, so a bucket is computed, which takes half the
time of a search. There is a bucket for every 64-bit duration; those beyond `BOUNDS_NS` are exported as one.
"""

from __future__ import annotations

import asyncio
import threading
from time import monotonic_ns, time_ns
from typing import Protocol, runtime_checkable

FINEST_NS = 10_000
BOUNDS_NS = tuple(FINEST_NS << doublings for doublings in range(18))
"""Upper bounds of the exported buckets, in nanoseconds; the last is 1.3 seconds."""
BUCKETS = 51
"""Number of buckets."""


@runtime_checkable
class Clock(Protocol):
    """A source of time in microseconds."""

    def now(self) -> int:
        """Return the time since the epoch, by which limits count. It may go back."""
        ...

    def ticks(self) -> int:
        """Return the time since an arbitrary moment, by which callers wait. It never goes back."""
        ...

    def wait(self, event: threading.Event, until: int | None) -> None:
        """Block until `event` is set or, if `until` is given, `ticks` has reached it."""
        ...

    async def wait_async(self, event: asyncio.Event, until: int | None) -> None:
        """Wait without blocking the event loop."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> int:
        return time_ns() // 1000

    def ticks(self) -> int:
        return monotonic_ns() // 1000

    def wait(self, event: threading.Event, until: int | None) -> None:
        if until is None:
            event.wait()
            return
        while (left := until - self.ticks()) > 0:
            if event.wait(min(left / 1_000_000, threading.TIMEOUT_MAX)):
                return

    async def wait_async(self, event: asyncio.Event, until: int | None) -> None:
        while until is None or (left := until - self.ticks()) > 0:
            try:
                async with asyncio.timeout(None if until is None else left / 1_000_000):
                    await event.wait()
                    return
            except TimeoutError:
                continue


def bucket_of(elapsed_ns: int) -> int:
    """Return the bucket of a duration: the first whose bound is above it."""
    return (elapsed_ns // FINEST_NS).bit_length()
