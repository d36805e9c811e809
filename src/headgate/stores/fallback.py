"""Who answers when the store does not: one small class for each mode.

`Local` gives every node its share of each limit. With N nodes, limit and capacity are divided by N and rounded up, so
all nodes together admit at most N * ceil(capacity / N), less than capacity + N, at once, and refill by at most
N * ceil(limit / N) per window.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

import msgspec

from headgate.clock import Clock
from headgate.core import plan as plans
from headgate.core.decision import Decision
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT
from headgate.core.plan import Limit, Plan
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.stores.memory import MemoryStore


class Mode(StrEnum):
    """What to answer when the store does not."""

    LOCAL = "local"
    ALLOW = "allow"
    DENY = "deny"


class Fallback(Protocol):
    """Answers in place of a store. `wait_us` is the time until the store is asked again."""

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision: ...

    def peek(self, plan: Plan, cost: int, wait_us: int) -> Decision: ...

    def refund(self, plan: Plan, cost: int, wait_us: int) -> Decision: ...

    def reset(self, plan: Plan) -> None: ...

    def close(self) -> None: ...


class Local:
    """Decides in this process, with this node's share of each limit.

    What it admitted stays used when the store is back and away again, so an outage with interruptions admits no more
    than one without. A cost above a share's capacity is refused until the store is back: no wait here would admit it.
    """

    def __init__(self, nodes: int, max_keys: int, clock: Clock) -> None:
        self._nodes = nodes
        self._store = MemoryStore(max_keys=max_keys, clock=clock)

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        share = self._share(plan)
        smallest = min([limit.quota.capacity for limit in share])
        return self._store.check(share, cost) if cost <= smallest else self._beyond(share, cost, smallest, wait_us)

    def peek(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        share = self._share(plan)
        smallest = min([limit.quota.capacity for limit in share])
        return self._store.peek(share, cost) if cost <= smallest else self._beyond(share, cost, smallest, wait_us)

    def refund(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has it
        return self._store.refund(self._share(plan), cost)

    def reset(self, plan: Plan) -> None:
        self._store.reset(self._share(plan))

    def close(self) -> None:
        self._store.close()

    def _share(self, plan: Plan) -> Plan:
        if self._nodes == 1:
            return plan
        return tuple([Limit(space, principal, share_of(quota, self._nodes)) for space, principal, quota in plan])

    def _beyond(self, share: Plan, cost: int, smallest: int, wait_us: int) -> Decision:
        parts = self._store.peek(share, smallest).limits
        return plans.blocking([_refused(part, wait_us) if part.limit < cost else part for part in parts])


class Allow:
    """Lets everything pass, as if nothing had been used."""

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has them
        return plans.peek(plan, [None] * len(plan), 0, 0)

    peek = refund = check

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


class Deny:
    """Lets nothing pass before the store is asked again."""

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has it
        nothing = [Decision(False, quota.capacity, 0, 0, 0, Pressure.THROTTLED, quota) for _, _, quota in plan]
        return plans.blocking([_refused(decision, wait_us) for decision in nothing])

    peek = refund = check

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


@lru_cache(maxsize=4096)
def share_of(quota: Quota, nodes: int) -> Quota:
    """Return the share of one of `nodes` in `quota`: limit and capacity divided, rounded up, at least 1.

    Where a bucket of that rate cannot be computed exactly, its limit is rounded down to fewer digits.
    """
    if nodes == 1:
        return quota
    limit, capacity = -(-quota.limit // nodes), -(-quota.capacity // nodes)
    for digits in range(len(str(limit))):
        rounded = limit - limit % 10**digits
        try:
            return replace(quota, limit=rounded, burst=capacity - rounded)
        except InvalidQuota:
            continue
    return replace(quota, limit=1, burst=min(capacity, EXACT // quota.window_us) - 1)


def marked(decision: Decision, reason: str) -> Decision:
    """Return `decision` with the reason why the store did not make it."""
    parts = tuple([msgspec.structs.replace(part, degraded=reason) for part in decision.parts])
    return msgspec.structs.replace(decision, parts=parts, degraded=reason)


def _refused(decision: Decision, wait_us: int) -> Decision:
    reset_us = max(decision.reset_after_us, wait_us)
    return msgspec.structs.replace(
        decision, allowed=False, retry_after_us=wait_us, reset_after_us=reset_us, state=Pressure.THROTTLED, delay_us=0
    )
