"""A limit is a pure function of state, cost and time."""

from __future__ import annotations

from headgate import Quota

quota = Quota(limit=2, window_us=1_000_000)
state, decision = quota.step(None, 2, 0)  # state, cost, now
print(decision.allowed, decision.remaining)  # True 0
print(quota.step(state, 1, 499_999)[1].allowed)  # False
print(quota.step(state, 1, 500_000)[1].allowed)  # True
