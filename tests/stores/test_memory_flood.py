"""Ten times as many keys as a store may keep, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

FLOOD = """
import resource
from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock

BOUND, MEGABYTE = 100_000, 1024
clock = ManualClock()
store = MemoryStore(max_keys=BOUND, clock=clock)
limiter = Limiter("2/day", store=store)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
blocked = [f"blocked:{number}" for number in range(1000)]
for key in blocked:
    assert limiter.check(key, 2)
check = limiter.check
peaks = []
for turn in range(10):
    for number in range(turn * BOUND, (turn + 1) * BOUND):
        check(f"flood:{number}")
    assert not any(limiter.check(key) for key in blocked), "a blocked key was given fresh budget"
    peaks.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // MEGABYTE)
assert len(store) <= BOUND + 1024, len(store)
assert peaks[0] < 70, f"{BOUND} keys took {peaks[0]} MB"
assert peaks[-1] < peaks[0] * 1.1 + 2, f"memory grew with the flood: {peaks}"
print(len(store), peaks)
"""


def test_a_flood_of_keys_stays_within_bounds_and_blocked_keys_stay_blocked() -> None:
    result = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
