"""Leaky bucket: each request pours its cost into a bucket that leaks `limit` units per window.

As a *meter* it refuses what would overflow. That is the token bucket seen from the other side (what is poured in is
what is missing there), so it is the same function. As a *queue* it also says when it is the request's turn: `delay_us`
is the time that all poured in before needs to leak, so admitted requests flow out at a constant rate.

Bound: the meter admits at most capacity + floor(limit * t / window) units in any interval of t microseconds; the queue
lets at most cost + floor(limit * t / window) units out, `cost` being that of the first.

State: that of the token bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core import token_bucket
from headgate.core.decision import Decision
from headgate.core.numbers import reduced

if TYPE_CHECKING:
    from headgate.core.algorithms import State, Transition
    from headgate.core.quota import Quota


void_at = token_bucket.void_at


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a leaky bucket."""
    meter = token_bucket.transition(quota)
    if not quota.queue:
        return meter
    gain, unit = reduced(quota.limit, quota.window_us)
    round_up, capacity = gain - 1, quota.capacity

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        after, decision = meter(state, cost, now)
        if after is None or cost < 0 or not decision.allowed:
            return after, decision
        level, at, _, _ = after
        ahead = level - cost * unit
        delay = (ahead + round_up) // gain + at - now if ahead else 0
        return after, Decision(
            True, capacity, decision.remaining, 0, decision.reset_after_us, decision.state, quota, delay
        )

    return step
