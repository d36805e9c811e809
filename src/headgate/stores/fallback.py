"""Who answers when the store does not: one small class for each mode.

`Local` gives every node its share of each limit. With N nodes, limit and capacity are divided by N and rounded up, so
all nodes together admit at most N * ceil(capacity / N), less than capacity + N, at once, and refill by at most
N * ceil(limit / N) per window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import msgspec

from headgate.clock import Clock
from headgate.core import plan as plans
from headgate.core.decision import Decision
from headgate.core.errors import InvalidQuota
from headgate.core.mode import Mode
from headgate.core.numbers import EXACT
from headgate.core.plan import Limit, Plan
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.stores.memory import MemoryStore

_STRICTNESS = (Mode.ALLOW, Mode.LOCAL, Mode.DENY)


class Fallback(Protocol):
    """Answers in place of a store. `wait_us` is the time until the store is asked again."""

    def mode_of(self, plan: Plan) -> Mode:
        """Return the mode in which a plan is answered: the strictest of those of its limits."""
        ...

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision: ...

    def check_once(self, plan: Plan, cost: int, token: bytes, wait_us: int) -> Decision: ...

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

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.LOCAL

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        share, smallest = self._share(plan)
        return self._store.check(share, cost) if cost <= smallest else self._beyond(share, cost, smallest, wait_us)

    def check_once(self, plan: Plan, cost: int, token: bytes, wait_us: int) -> Decision:
        share, smallest = self._share(plan)
        if cost > smallest:
            return self._beyond(share, cost, smallest, wait_us)
        return self._store.check_once(share, cost, token)

    def peek(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        share, smallest = self._share(plan)
        return self._store.peek(share, cost) if cost <= smallest else self._beyond(share, cost, smallest, wait_us)

    def refund(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has it
        return self._store.refund(self._share(plan)[0], cost)

    def reset(self, plan: Plan) -> None:
        self._store.reset(self._share(plan)[0])

    def close(self) -> None:
        self._store.close()

    def _share(self, plan: Plan) -> tuple[Plan, int]:
        """Return this node's share in each limit, and the smallest capacity among them."""
        if self._nodes > 1:
            plan = tuple([Limit(space, principal, share_of(quota, self._nodes)) for space, principal, quota in plan])
        return plan, min([limit.quota.capacity for limit in plan])

    def _beyond(self, share: Plan, cost: int, smallest: int, wait_us: int) -> Decision:
        parts = self._store.peek(share, smallest).limits
        return plans.blocking([_refused(part, wait_us) if part.limit < cost else part for part in parts])


class Allow:
    """Lets everything pass, as if nothing had been used."""

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.ALLOW

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has them
        return plans.peek(plan, [None] * len(plan), 0, 0)

    peek = refund = check

    def check_once(self, plan: Plan, cost: int, token: bytes, wait_us: int) -> Decision:  # noqa: ARG002  the same
        return self.check(plan, cost, wait_us)

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


class Deny:
    """Lets nothing pass before the store is asked again."""

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.DENY

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:  # noqa: ARG002  the contract has it
        nothing = [Decision(False, quota.capacity, 0, 0, 0, Pressure.THROTTLED, quota) for _, _, quota in plan]
        return plans.blocking([_refused(decision, wait_us) for decision in nothing])

    peek = refund = check

    def check_once(self, plan: Plan, cost: int, token: bytes, wait_us: int) -> Decision:  # noqa: ARG002  the same
        return self.check(plan, cost, wait_us)

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


class Mixed:
    """Answers for each limit of a plan in that limit's own mode. Still all or nothing: a plan passes if all of them do.

    Args:
        mode: returns the mode of a limit.
        nodes: see `Local`; also its `max_keys` and `clock`.
    """

    def __init__(self, mode: Callable[[Limit], Mode], nodes: int, max_keys: int, clock: Clock) -> None:
        self._mode = mode
        self._fallbacks: dict[Mode, Fallback] = {
            Mode.LOCAL: Local(nodes, max_keys, clock),
            Mode.ALLOW: Allow(),
            Mode.DENY: Deny(),
        }

    def mode_of(self, plan: Plan) -> Mode:
        return max([self._mode(limit) for limit in plan], key=_STRICTNESS.index)

    def check(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        return self._check(plan, lambda fallback, part: fallback.check(part, cost, wait_us), cost, wait_us)

    def check_once(self, plan: Plan, cost: int, token: bytes, wait_us: int) -> Decision:
        def ask(fallback: Fallback, part: Plan) -> Decision:
            return fallback.check_once(part, cost, token, wait_us)

        return self._check(plan, ask, cost, wait_us)

    def peek(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        return self._each(plan, lambda fallback, part: fallback.peek(part, cost, wait_us))

    def refund(self, plan: Plan, cost: int, wait_us: int) -> Decision:
        return self._each(plan, lambda fallback, part: fallback.refund(part, cost, wait_us))

    def reset(self, plan: Plan) -> None:
        for fallback in self._fallbacks.values():
            fallback.reset(plan)

    def close(self) -> None:
        for fallback in self._fallbacks.values():
            fallback.close()

    def _check(self, plan: Plan, ask: Callable[[Fallback, Plan], Decision], cost: int, wait_us: int) -> Decision:
        if self.mode_of(plan) is Mode.DENY:  # then nobody takes anything
            return self.peek(plan, cost, wait_us)
        return self._each(plan, ask)

    def _each(self, plan: Plan, ask: Callable[[Fallback, Plan], Decision]) -> Decision:
        """Ask for each mode about the limits that have it. Of those that pass here only `Local` takes anything."""
        found: dict[int, Decision] = {}
        for mode, fallback in self._fallbacks.items():
            places = [place for place, limit in enumerate(plan) if self._mode(limit) is mode]
            if places:
                decision = ask(fallback, tuple([plan[place] for place in places]))
                found.update(zip(places, decision.limits, strict=True))
        decisions = [found[place] for place in range(len(plan))]
        admitted = all(decision.allowed for decision in decisions)
        return plans.most_restrictive(decisions) if admitted else plans.blocking(decisions)


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
