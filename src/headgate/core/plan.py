"""A plan: all limits of one request, decided together or not at all.

This file is what a store runs atomically. It is pure: states in, states and an answer out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headgate.core.algorithms import State
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidQuota
from headgate.core.grammar import EXAMPLES
from headgate.core.key import Principal, bounded, checked_name, checked_principal, space
from headgate.core.numbers import whole
from headgate.core.quota import Quota

MAX_COST = 100_000


class Limit(NamedTuple):
    """A quota bound to one key: a space and a principal (see `headgate.core.key`)."""

    space: str
    principal: Principal
    quota: Quota


Plan = tuple[Limit, ...]
States = Sequence[State]


class Family:
    """The same limits for every principal: makes the plan of a key.

    Args:
        name: separates these limits from others in the same store.
        quotas: one or more. No two may have the same algorithm and window, since they would count in one place.
    """

    __slots__ = ("quotas", "spaces")

    def __init__(self, name: str, quotas: Sequence[Quota]) -> None:
        self.quotas = tuple(quotas)
        self.spaces = tuple(space(checked_name(name), quota) for quota in self.quotas)
        if not self.quotas:
            raise InvalidQuota(f"at least one quota is needed, such as {EXAMPLES}")
        if len(set(self.spaces)) < len(self.spaces):
            texts = "; ".join(map(str, self.quotas))
            raise InvalidQuota(f"two of the quotas {texts!r} have the same algorithm and window: keep the stricter one")

    def plan(self, key: str) -> Plan:
        """Return the plan of a caller's key. Raises InvalidKey."""
        principal = bounded(checked_principal(key))
        return tuple([Limit(place, principal, quota) for place, quota in zip(self.spaces, self.quotas, strict=True)])

    def checked_cost(self, cost: object) -> int:
        """Return `cost` if it is a whole number that every limit could ever admit."""
        return checked_cost(cost, self.quotas)


def checked_cost(cost: object, quotas: Sequence[Quota]) -> int:
    """Return `cost` if it is a whole number that every one of `quotas` could ever admit."""
    cost = whole("cost", cost, 1, MAX_COST, InvalidCost)
    for quota in quotas:
        if cost > quota.capacity:
            raise CostTooLarge(f"cost {cost} is above the capacity of {quota}, {quota.capacity}: it could never pass")
    return cost


def check(plan: Plan, states: States, cost: int, now: int) -> tuple[States, Decision]:
    """Take `cost` from every limit if all of them admit it, else from none."""
    steps = [quota.step(state, cost, now) for (_, _, quota), state in zip(plan, states, strict=True)]
    decisions = [decision for _, decision in steps]
    if all(decisions):
        return [state for state, _ in steps], _most_restrictive(decisions)
    # A refused request takes nothing, so each limit that would have admitted it reports what it has now. A limit that
    # refused may still have mended its state (see law 8 of this package).
    kept: list[State] = []
    for index, ((_, _, quota), state) in enumerate(zip(plan, states, strict=True)):
        after, decision = steps[index]
        if decision.allowed:
            _, decisions[index] = quota.step(state, 0, now)
            after = state
        kept.append(after)
    return kept, _blocking(decisions)


def peek(plan: Plan, states: States, cost: int, now: int) -> Decision:
    """Say what `check` would answer, except that nothing is taken: `remaining` is what there is now."""
    decisions = []
    for (_, _, quota), state in zip(plan, states, strict=True):
        _, decision = quota.step(state, cost, now)
        if decision.allowed:
            _, decision = quota.step(state, 0, now)
        decisions.append(decision)
    return _most_restrictive(decisions) if all(decisions) else _blocking(decisions)


def refund(plan: Plan, states: States, cost: int, now: int) -> tuple[States, Decision]:
    """Give `cost` back to every limit: the newest use first, never more than is still counted as used."""
    steps = [quota.step(state, -cost, now) for (_, _, quota), state in zip(plan, states, strict=True)]
    return [state for state, _ in steps], _most_restrictive([decision for _, decision in steps])


def _most_restrictive(decisions: list[Decision]) -> Decision:
    tightest = decisions[0]
    for decision in decisions:
        if decision.remaining * tightest.limit < tightest.remaining * decision.limit:
            tightest = decision
    return _answer(tightest, decisions)


def _blocking(decisions: list[Decision]) -> Decision:
    blocking = max((decision for decision in decisions if not decision), key=lambda decision: decision.retry_after_us)
    return _answer(blocking, decisions)


def _answer(chosen: Decision, decisions: list[Decision]) -> Decision:
    if len(decisions) == 1:
        return chosen
    delay = max(decision.delay_us for decision in decisions)
    return msgspec.structs.replace(chosen, parts=tuple(decisions), delay_us=delay)
