"""Leaky bucket: each request adds its cost to a bucket that leaks `limit` units per window.

As a *meter* it refuses what would overflow. That is the token bucket seen from the other side (what is poured in is
what is missing there), so it is the same function. As a *queue* it also returns the time until the request's turn:
`delay_us` is the time that earlier requests need to leak, so admitted requests flow out at a constant rate.

Bound: the meter admits at most capacity + floor(limit * t / window) units in any interval of t microseconds; the queue
lets at most floor(limit * (t + 1) / window) + cost units out, `cost` being that of the last: turns are rounded up to
whole microseconds.

State: that of the token bucket.
"""

from __future__ import annotations

from headgate.core.token_bucket import transition, void_at

__all__ = ["transition", "void_at"]
