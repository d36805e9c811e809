"""A plan: all limits of one request, decided together or not at all.

This file is what a store runs atomically. It is pure: states in, states and an answer out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from headgate.core.algorithms import State, void_at
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidQuota
from headgate.core.grammar import EXAMPLES
from headgate.core.key import LITERAL, Principal, bounded, checked_name, checked_principal, space
from headgate.core.numbers import whole
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota

MAX_COST = 100_000


class Limit(msgspec.Struct, frozen=True, gc=False):
    """A quota bound to one key: a space and a principal (see `headgate.core.key`).

    A `msgspec.Struct`, as a decision is: several are made per request, at a quarter of what a named tuple costs.
    """

    space: str
    principal: Principal
    quota: Quota


Plan = tuple[Limit, ...]
States = Sequence[State]


class Verb(Enum):
    """What a store does in one call."""

    CHECK = "check"
    """Take its cost from each limit of the plan if all admit theirs, else from none."""
    CHECK_ONCE = "check_once"
    """Check, but only once: another call with the same token gets the first answer, and takes nothing.

    An admission is remembered for 5 minutes (`headgate.core.key.ONCE_US`), exactly as it was, whatever happens to the
    limits meanwhile, by the same atomic step that takes the cost. A refusal took nothing and is not remembered: after
    its `retry_after` the request is admitted. (If a limit was changed meanwhile, the answer may name the new limit.)"""
    PEEK = "peek"
    """Return what a check would decide; take nothing. `remaining` is the current remainder."""
    REFUND = "refund"
    """Refund the cost to all limits, never more than their usage; returns the remainder. With a charge, what that took
    is refunded, as far as it surely still counts; without, the newest usage."""
    RESET = "reset"
    """Forget all usage; returns the remainder."""

    __hash__ = object.__hash__  # that of Enum is a function in Python


_PEEK, _REFUND, _RESET = Verb.PEEK, Verb.REFUND, Verb.RESET  # a global is found faster than an enum member


class Charge(NamedTuple):
    """The charge that a refund names: what one check of the same plan took."""

    taken_at: tuple[int, ...]
    """When, for each limit of the plan: `Decision.taken_at_us`."""
    degraded: str = ""
    """Where it counts: empty for the store, else why that did not decide."""
    until: int = 0
    """The time from which it surely no longer counts, so that nothing is refunded; 0: none."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One call of a store, as a value.

    A `msgspec.Struct`, as a decision is: one is made per request, at a quarter of what a named tuple costs.
    """

    verb: Verb
    plan: Plan
    cost: int = 1
    """Units of each limit, as `checked_cost` has checked them; RESET has none."""
    token: bytes = b""
    """Of CHECK_ONCE: names the request, such as that of `headgate.core.key.once_token` for a plan and cost. Of REFUND:
    names the charge, which is refunded once: another call with the same token gets the first answer, and refunds
    nothing."""
    charge: Charge | None = None
    """Of REFUND, if it names one."""
    shadow: tuple[Plan, ...] = ()
    """Of CHECK and PEEK: plans that are only tried out, in the same step. If the call's own plan passes, or is empty,
    the verb applies to each of them on its own; else they are peeked at."""
    caller: Principal = ""
    """Of CHECK_ONCE: the owner of the record, if not the principal of the first limit. With the same token and other
    limits, the answer is an admission with what these have, which takes nothing."""
    costs: tuple[int, ...] = ()
    """Units of each limit where they differ (see `call_of`); shadow plans have `cost`."""


def call_of(verb: Verb, plan: Plan, costs: Sequence[int]) -> Call:
    """Return a call with a cost for each limit of its plan, which has at least one."""
    cost = max(costs)
    return Call(verb, plan, cost, costs=() if costs.count(cost) == len(costs) else tuple(costs))


def costs_of(call: Call) -> tuple[int, ...]:
    """Return the cost of each limit of the plan of a call."""
    return call.costs or (call.cost,) * len(call.plan)


def refund_of(plan: Plan, decision: Decision, token: bytes = b"") -> Call:
    """Return the call that refunds what a decision about `plan` took; a peek if it took nothing."""
    if not decision.taken:
        return Call(Verb.PEEK, plan, 1)
    until = max([counts_until(part) for part in decision.limits]) if token else 0
    charge = Charge(tuple([part.taken_at_us for part in decision.limits]), decision.degraded, until)
    refund = call_of(Verb.REFUND, plan, [part.taken for part in decision.limits])
    return msgspec.structs.replace(refund, token=token, charge=charge)


def counts_until(part: Decision) -> int:
    """Return the time from which nothing of what a decision of one limit took counts: when it alone is void."""
    state, _ = part.quota.step(None, part.taken, part.taken_at_us)
    return void_at(state, part.quota)


def replayed(plan: Plan, states: States, now: int) -> Decision:
    """Return the admission of a request that other limits admitted before, with what these have; it takes nothing."""
    return combine([limit.quota.step(state, 0, now)[1] for limit, state in zip(plan, states, strict=True)])


def hash_of(plan: Plan) -> int:
    """Return a hash of the keys of a plan, for this process."""
    return hash(tuple([(limit.space, limit.principal) for limit in plan]))


def part_of(call: Call, places: Sequence[int]) -> Call:
    """Return a call about some limits of its plan, by place; its shadow plans stay with it."""
    charge = call.charge
    if charge is not None:
        charge = charge._replace(taken_at=tuple([charge.taken_at[place] for place in places]))
    plan = tuple([call.plan[place] for place in places])
    part = msgspec.structs.replace(call, plan=plan, charge=charge, costs=())
    if call.costs and places:
        own = call_of(call.verb, plan, [call.costs[place] for place in places])
        part = msgspec.structs.replace(part, cost=own.cost, costs=own.costs)
    return part


class Family:
    """The same limits for every principal: makes the plan of a key.

    Args:
        name: separates these limits from others in the same store.
        quotas: one or more. No two may have the same algorithm and window, since they would count in one place.
    """

    __slots__ = ("_most", "_places", "quotas", "spaces")

    def __init__(self, name: str, quotas: Sequence[Quota]) -> None:
        self.quotas = tuple(quotas)
        self.spaces = tuple(space(checked_name(name), quota) for quota in self.quotas)
        self._places = tuple(zip(self.spaces, self.quotas, strict=True))
        if not self.quotas:
            raise InvalidQuota(f"at least one quota is needed, such as {EXAMPLES}")
        if len(set(self.spaces)) < len(self.spaces):
            texts = "; ".join(map(str, self.quotas))
            raise InvalidQuota(f"two of the quotas {texts!r} have the same algorithm and window: keep the stricter one")
        self._most = min(MAX_COST, *[quota.capacity for quota in self.quotas])

    def plan(self, key: str) -> Plan:
        """Return the plan of a caller's key. Raises InvalidKey."""
        usual = type(key) is str and 0 < len(key) <= LITERAL and key.isascii()
        principal = key if usual else bounded(checked_principal(key))
        return tuple([Limit(place, principal, quota) for place, quota in self._places])

    def checked_cost(self, cost: object) -> int:
        """Return `cost` if it is a whole number that every limit could ever admit."""
        return cost if type(cost) is int and 0 < cost <= self._most else checked_cost(cost, self.quotas)


def checked_cost(cost: object, quotas: Sequence[Quota]) -> int:
    """Return `cost` if it is a whole number that every one of `quotas` could ever admit."""
    cost = whole("cost", cost, 1, MAX_COST, InvalidCost)
    for quota in quotas:
        if cost > quota.capacity:
            raise CostTooLarge(too_large(cost, quota))
    return cost


def too_large(cost: int, quota: Quota) -> str:
    """Return the message for a cost that a quota could never admit."""
    return f"cost {cost} is above the capacity of {quota}, {quota.capacity}: it could never pass"


def decide(call: Call, states: States, now: int) -> tuple[States, Decision]:
    """Run a call: returns the states of its plan after it, and the decision.

    Shadow plans are calls of their own, made after it (see `shadow_calls`). A store looks for a remembered answer to
    CHECK_ONCE first.
    """
    quotas, verb, costs = [limit.quota for limit in call.plan], call.verb, costs_of(call)
    if verb is _PEEK:
        return states, peek(quotas, states, costs, now)[1]
    if verb is _REFUND:
        return _refund(quotas, states, call, now)
    if verb is _RESET:
        nothing: States = [None] * len(quotas)
        return nothing, peek(quotas, nothing, costs, now)[1]
    return check(quotas, states, costs, now)


def check(quotas: Sequence[Quota], states: States, costs: Sequence[int], now: int) -> tuple[States, Decision]:
    """Take its cost from every limit if all of them admit it, else from none.

    If one refuses, the decisions of the others are those of a peek. The states stay as they are, unless a limit that
    refuses had to mend its own (see law 8 of this package).
    """
    new: list[State] = []
    parts: list[Decision] = []
    limits = enumerate(quotas)
    for place, quota in limits:
        state, part = quota.step(states[place], costs[place], now)
        parts.append(part)
        if not part.allowed:
            break
        new.append(state)
    else:
        return new, combine(parts)
    for earlier in range(place):
        _, parts[earlier] = quotas[earlier].step(states[earlier], 0, now)
    after = _with_state(states, place, state)
    for later, quota in limits:
        state, part = _peek_limit(quota, states[later], costs[later], now)
        after = _with_state(after, later, state)
        parts.append(part)
    return after, combine(parts)


def peek(quotas: Sequence[Quota], states: States, costs: Sequence[int], now: int) -> tuple[States, Decision]:
    """Return what every limit has now, and whether it would admit its cost; the states are as in `check`."""
    after, parts = states, []
    for place, quota in enumerate(quotas):
        state, part = _peek_limit(quota, states[place], costs[place], now)
        after = _with_state(after, place, state)
        parts.append(part)
    return after, combine(parts)


def _peek_limit(quota: Quota, state: State, cost: int, now: int) -> tuple[State, Decision]:
    """Return what one limit has now, or its refusal; and the state, which only a refusal mends."""
    _, decision = quota.step(state, 0, now)
    return (state, decision) if decision.remaining >= cost else quota.step(state, cost, now)


def _with_state(states: States, place: int, state: State) -> States:
    """Return the states with another one at a place, if it is another."""
    return states if state is states[place] else [*states[:place], state, *states[place + 1 :]]


def _refund(quotas: Sequence[Quota], states: States, call: Call, now: int) -> tuple[States, Decision]:
    """Refund the cost to every limit.

    What a charge took is refunded as far as it surely still counts: no traffic is let through that would not have
    passed without the charge. Nothing is refunded while the clock is behind the charge.
    """
    charge = call.charge
    since = min(charge.taken_at) if charge is not None else None
    if charge is not None and not min(charge.taken_at) <= now < (charge.until or now + 1):
        return states, combine([quota.step(state, 0, now)[1] for quota, state in zip(quotas, states, strict=True)])
    after: list[State] = []
    decisions = []
    for quota, state, cost in zip(quotas, states, costs_of(call), strict=True):
        new, decision = quota.step(state, -cost, now, since)
        after.append(state and new)  # a limit without use stays so
        decisions.append(msgspec.structs.replace(decision, taken=0))
    return after, combine(decisions)


def combine(decisions: Sequence[Decision]) -> Decision:
    """Return the joint decision of limits: they admit what all of them admit.

    It describes the one that blocks longest if one refuses, else the most restrictive one (smallest remaining / limit);
    the first of several. Without limits, it is an admission whose numbers mean nothing.
    """
    if len(decisions) == 1:
        return decisions[0]
    if not decisions:
        return _NO_LIMITS
    shown, index, delay, degraded = decisions[0], 0, 0, ""
    for place, decision in enumerate(decisions):
        if decision.allowed:
            is_tighter = shown.allowed and decision.remaining * shown.limit < shown.remaining * decision.limit
        else:
            is_tighter = shown.allowed or decision.retry_after_us > shown.retry_after_us
        if is_tighter:
            shown, index = decision, place
        if decision.delay_us > delay:
            delay = decision.delay_us
        if decision.degraded and not degraded:
            degraded = decision.degraded
    return Decision(
        shown.allowed,
        shown.limit,
        shown.remaining,
        shown.retry_after_us,
        shown.reset_after_us,
        shown.state,
        shown.quota,
        delay if shown.allowed else 0,
        shown.taken,
        shown.taken_at_us,
        tuple(decisions),
        degraded,
        index,
    )


_NO_LIMITS = Decision(True, 0, 0, 0, 0, Pressure.NORMAL, Quota(1, 1))


def shadow_calls(call: Call, decision: Decision) -> list[Call]:
    """Return the calls that try out the shadow plans of a call, now that its own plan is decided."""
    verb = call.verb if decision.allowed else Verb.PEEK
    return [Call(verb, plan, call.cost) for plan in call.shadow]


def shadowed(call: Call) -> Generator[Call, Decision, Decision]:
    """Return the flow that makes a call, and then one for each of its shadow plans; see `headgate.flows`."""
    decision = (yield msgspec.structs.replace(call, shadow=())) if call.plan else combine(())
    tried: tuple[Decision, ...] = ()
    for each in shadow_calls(call, decision):
        tried += ((yield each),)
    return msgspec.structs.replace(decision, shadow=tried)
