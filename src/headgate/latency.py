"""How durations are counted: in buckets whose bounds double, from 10 microseconds on.

Doubling bounds are found by arithmetic instead of a search, which halves what it costs to count a duration. There is a
bucket for any that 8 bytes can hold, so nothing has to be compared; those beyond `BOUNDS_NS` are shown as one.
"""

from __future__ import annotations

FINEST_NS = 10_000
BOUNDS_NS = tuple(FINEST_NS << doublings for doublings in range(18))
"""The upper bounds of the buckets that are shown, in nanoseconds; the last is 1.3 seconds."""
BUCKETS = 51
"""How many there are."""


def bucket_of(elapsed_ns: int) -> int:
    """Return the bucket of a duration: the first whose bound is above it."""
    return (elapsed_ns // FINEST_NS).bit_length()
