"""A clock for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.locks import new_lock


class ManualClock:
    """A clock that stands still until the test advances it, which wakes those that wait for it.

    >>> clock = ManualClock()
    >>> clock.advance(0.25)
    >>> clock.now() - ManualClock.START
    250000

    Args:
        now: the initial time, in microseconds since the epoch.
    """

    START = 1_750_000_000_000_000
    """In June 2025, at the start of a second, 40 s into a minute."""

    def __init__(self, now: int = START) -> None:
        self._now = now
        self._lock = new_lock()
        self._sleepers: dict[object, tuple[int, Callable[[], object]]] = {}

    def now(self) -> int:
        return self._now

    def ticks(self) -> int:
        return self._now

    def advance(self, seconds: float = 0, *, us: int = 0) -> None:
        """Advance by `seconds`, rounded to microseconds, plus `us` microseconds. Negative: step back."""
        self._move(lambda now: now + round(seconds * 1_000_000) + us)

    def set(self, now: int) -> None:
        """Set the time, in microseconds since the epoch."""
        self._move(lambda _: now)

    def _move(self, change: Callable[[int], int]) -> None:
        with self._lock:
            now = self._now = change(self._now)
            due = [wake for until, wake in self._sleepers.values() if until <= now]
        for wake in due:
            wake()

    @property
    def sleepers(self) -> int:
        """The number of waits for a point in time."""
        with self._lock:
            return len(self._sleepers)

    def wait(self, event: threading.Event, until: int | None) -> None:
        with self._sleeping(event.set, until):
            event.wait()

    async def wait_async(self, event: asyncio.Event, until: int | None) -> None:
        loop = asyncio.get_running_loop()
        with self._sleeping(lambda: loop.call_soon_threadsafe(event.set), until):
            await event.wait()

    @contextmanager
    def _sleeping(self, wake: Callable[[], object], until: int | None) -> Iterator[None]:
        """Call `wake` at `until`, if that is within the block."""
        sleeper = object()
        with self._lock:
            if until is not None:
                self._sleepers[sleeper] = until, wake
            due = until is not None and until <= self._now
        if due:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._sleepers.pop(sleeper, None)
