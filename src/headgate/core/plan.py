"""A plan: all limits of one request, decided together or not at all.

This file is what a store runs atomically. It is pure: states in, states and an answer out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from headgate.core.algorithms import State
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidQuota
from headgate.core.grammar import EXAMPLES
from headgate.core.key import LITERAL, Principal, bounded, checked_name, checked_principal, space
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


class Verb(Enum):
    """What a store may be asked to decide."""

    CHECK = "check"
    CHECK_ONCE = "check_once"
    PEEK = "peek"
    REFUND = "refund"


class Charge(NamedTuple):
    """What a refund gives back, if it names it: what one check of the same plan took."""

    taken_at: tuple[int, ...]
    """When, for each limit of the plan: `Decision.taken_at_us`."""
    degraded: str = ""
    """Who has it: empty for the store, else why that did not decide."""


class Call(NamedTuple):
    """One call of a store, as a value."""

    verb: Verb
    plan: Plan
    cost: int
    token: bytes = b""
    """Of CHECK_ONCE."""
    charge: Charge | None = None
    """Of REFUND, if it names one."""


def refund_of(plan: Plan, decision: Decision) -> Call:
    """Return the call that gives back what a decision about `plan` took; one that just looks, if it took nothing."""
    if not decision.taken:
        return Call(Verb.PEEK, plan, 1)
    charge = Charge(tuple([part.taken_at_us for part in decision.limits]), decision.degraded)
    return Call(Verb.REFUND, plan, decision.taken, charge=charge)


class Family:
    """The same limits for every principal: makes the plan of a key.

    Args:
        name: separates these limits from others in the same store.
        quotas: one or more. No two may have the same algorithm and window, since they would count in one place.
    """

    __slots__ = ("_places", "quotas", "spaces")

    def __init__(self, name: str, quotas: Sequence[Quota]) -> None:
        self.quotas = tuple(quotas)
        self.spaces = tuple(space(checked_name(name), quota) for quota in self.quotas)
        self._places = tuple(zip(self.spaces, self.quotas, strict=True))
        if not self.quotas:
            raise InvalidQuota(f"at least one quota is needed, such as {EXAMPLES}")
        if len(set(self.spaces)) < len(self.spaces):
            texts = "; ".join(map(str, self.quotas))
            raise InvalidQuota(f"two of the quotas {texts!r} have the same algorithm and window: keep the stricter one")

    def plan(self, key: str) -> Plan:
        """Return the plan of a caller's key. Raises InvalidKey."""
        usual = type(key) is str and 0 < len(key) <= LITERAL and key.isascii()
        principal = key if usual else bounded(checked_principal(key))
        return tuple([Limit(place, principal, quota) for place, quota in self._places])

    def checked_cost(self, cost: object) -> int:
        """Return `cost` if it is a whole number that every limit could ever admit."""
        return checked_cost(cost, self.quotas)


def checked_cost(cost: object, quotas: Sequence[Quota]) -> int:
    """Return `cost` if it is a whole number that every one of `quotas` could ever admit."""
    cost = whole("cost", cost, 1, MAX_COST, InvalidCost)
    for quota in quotas:
        if cost > quota.capacity:
            raise CostTooLarge(too_large(cost, quota))
    return cost


def too_large(cost: int, quota: Quota) -> str:
    """Say that a quota could never admit a cost."""
    return f"cost {cost} is above the capacity of {quota}, {quota.capacity}: it could never pass"


def check(plan: Plan, states: States, cost: int, now: int) -> tuple[States, Decision]:
    """Take `cost` from every limit if all of them admit it, else from none."""
    after: list[State] = []
    decisions: list[Decision] = []
    for limit, state in zip(plan, states, strict=True):
        new, decision = limit.quota.step(state, cost, now)
        if not decision.allowed:
            refusal = len(after), new, decision
            return look([limit.quota for limit in plan], states, cost, now, refusal)
        after.append(new)
        decisions.append(decision)
    return after, most_restrictive(decisions)


def peek(plan: Plan, states: States, cost: int, now: int) -> Decision:
    """Say what `check` would answer, except that nothing is taken: `remaining` is what there is now."""
    _, decision = look([limit.quota for limit in plan], states, cost, now)
    return decision


def look(
    quotas: Sequence[Quota],
    states: States,
    cost: int,
    now: int,
    refusal: tuple[int, State, Decision] | None = None,
) -> tuple[list[State], Decision]:
    """Ask every limit what it has now, and whether it would admit `cost`; nothing is taken.

    One limit's refusal (its index, state and decision) may be known already. The states that come back differ from
    those that went in only where a limit that refuses had to mend its own (see law 8 of this package).
    """
    known, mended, refused = refusal or (-1, None, None)
    after, decisions, admitted = list(states), [], True
    for index, quota in enumerate(quotas):
        if index == known and refused is not None:
            after[index], decision, admitted = mended, refused, False
        else:
            _, decision = quota.step(states[index], 0, now)
            if decision.remaining < cost:
                after[index], decision = quota.step(states[index], cost, now)
                admitted = False
        decisions.append(decision)
    return after, most_restrictive(decisions) if admitted else blocking(decisions)


def refund(plan: Plan, states: States, cost: int, now: int, since: int | None = None) -> tuple[States, Decision]:
    """Give `cost` back to every limit, and never more than is still counted as used.

    With `since`, it is what was charged at that time, as far as it surely still counts: no traffic is let through that
    would not have passed without the charge. Without, it is taken off the newest use, whatever that was for. A clock
    that has fallen behind the charge gives nothing back.
    """
    in_vain = since is not None and now < since
    after: list[State] = []
    decisions = []
    for limit, state in zip(plan, states, strict=True):
        new, decision = limit.quota.step(state, 0, now) if in_vain else limit.quota.step(state, -cost, now, since)
        after.append(state if in_vain else state and new)  # nothing comes of nothing
        decisions.append(msgspec.structs.replace(decision, taken=0))
    return after, most_restrictive(decisions)


def most_restrictive(decisions: list[Decision]) -> Decision:
    """Return the answer that describes the limit with the smallest remaining / limit."""
    tightest = decisions[0]
    delay, limit, remaining = tightest.delay_us, tightest.limit, tightest.remaining
    for decision in decisions:
        if decision.remaining * limit < remaining * decision.limit:
            tightest, limit, remaining = decision, decision.limit, decision.remaining
        if decision.delay_us > delay:
            delay = decision.delay_us
    if len(decisions) == 1:
        return tightest
    reset, pressure, parts = tightest.reset_after_us, tightest.state, tuple(decisions)
    taken, at = tightest.taken, tightest.taken_at_us
    return Decision(True, limit, remaining, 0, reset, pressure, tightest.quota, delay, taken, at, parts)


def blocking(decisions: list[Decision]) -> Decision:
    """Return the answer that describes the limit that refuses longest."""
    retry, longest = 0, decisions[0]
    for decision in decisions:
        if decision.retry_after_us > retry:
            retry, longest = decision.retry_after_us, decision
    if len(decisions) == 1:
        return longest
    remaining, reset, parts = longest.remaining, longest.reset_after_us, tuple(decisions)
    return Decision(False, longest.limit, remaining, retry, reset, longest.state, longest.quota, parts=parts)
