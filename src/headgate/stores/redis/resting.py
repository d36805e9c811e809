"""How long to rest between attempts to connect: longer each time, and not in step with other processes."""

from __future__ import annotations

from random import uniform

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


def pause_after(failures: int) -> float:
    """Return so many seconds after `failures` in a row."""
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
    return uniform(pause / 2, pause)
