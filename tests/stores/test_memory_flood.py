"""Ten million distinct keys through a store bounded to one million, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

FLOOD = """
import resource
from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock

MILLION, MEGABYTE = 1_000_000, 1024
clock = ManualClock()
store = MemoryStore(max_keys=MILLION, clock=clock)
limiter = Limiter("2/day", store=store)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
blocked = [f"blocked:{number}" for number in range(1000)]
for key in blocked:
    assert limiter.check(key, 2)
check = limiter.check
peaks = []
for millions in range(10):
    for number in range(millions * MILLION, (millions + 1) * MILLION):
        check(f"flood:{number}")
    assert not any(limiter.check(key) for key in blocked), "a blocked key was given fresh budget"
    peaks.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // MEGABYTE)
assert len(store) <= MILLION + 1024, len(store)
assert peaks[0] < 700, f"a million keys took {peaks[0]} MB"
assert peaks[-1] < peaks[0] * 1.1 + 20, f"memory grew with the flood: {peaks}"
print(len(store), peaks)
"""


def test_ten_million_keys_stay_within_bounds_and_blocked_keys_stay_blocked() -> None:
    result = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
