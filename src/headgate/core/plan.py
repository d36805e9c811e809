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
    """What a store may be asked to do."""

    CHECK = "check"
    """Take its cost from each limit of the plan if all admit theirs, else from none."""
    CHECK_ONCE = "check_once"
    """Check, but only once: asked with the same token again, give the first answer again, and take nothing.

    An admission is remembered for 5 minutes (`headgate.core.key.ONCE_US`), exactly as it was, whatever happens to the
    limits meanwhile, by the same atomic step that takes the cost. A refusal took nothing and is not remembered: who
    waited as long as it says is admitted. (Where a limit was changed in between, the answer may name the new limit.)"""
    PEEK = "peek"
    """Say what a check would answer; take nothing. `remaining` is what there is now."""
    REFUND = "refund"
    """Give the cost back to all limits, and never more than is counted as used; says what is left then. With a charge
    it is what that took, as far as it surely still counts; without, it comes off the newest use, whatever that was."""
    RESET = "reset"
    """Forget all that was used; says what is left then."""


_PEEK, _REFUND, _RESET = Verb.PEEK, Verb.REFUND, Verb.RESET  # to find one in its class takes longer than to compare it


class Charge(NamedTuple):
    """What a refund gives back, if it names it: what one check of the same plan took."""

    taken_at: tuple[int, ...]
    """When, for each limit of the plan: `Decision.taken_at_us`."""
    degraded: str = ""
    """Who has it: empty for the store, else why that did not decide."""
    until: int = 0
    """From when on it surely does not count any more, so that nothing is given back; 0 for no such time."""


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
    names the charge, which acts once: asked with the same token again, the store gives the first answer again, and
    gives nothing back."""
    charge: Charge | None = None
    """Of REFUND, if it names one."""
    shadow: tuple[Plan, ...] = ()
    """Of CHECK and PEEK: plans that are only tried out, in the same step. If the call's own plan passes, or is empty,
    each of them does on its own what the verb says; else it is only looked at."""
    caller: Principal = ""
    """Of CHECK_ONCE: whose record it is, if not that of the first limit. With the same token and other limits, an
    admission is answered that names what these have, and takes nothing."""
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
    """Return the call that gives back what a decision about `plan` took; one that just looks, if it took nothing."""
    if not decision.taken:
        return Call(Verb.PEEK, plan, 1)
    until = max([counts_until(part) for part in decision.limits]) if token else 0
    charge = Charge(tuple([part.taken_at_us for part in decision.limits]), decision.degraded, until)
    refund = call_of(Verb.REFUND, plan, [part.taken for part in decision.limits])
    return msgspec.structs.replace(refund, token=token, charge=charge)


def counts_until(part: Decision) -> int:
    """Return from when on nothing of what a decision of one limit took surely counts: when it alone is void."""
    state, _ = part.quota.step(None, part.taken, part.taken_at_us)
    return void_at(state, part.quota)


def replayed(plan: Plan, states: States, now: int) -> Decision:
    """Return the admission of a request that other limits admitted before: what these have. Nothing is taken."""
    return combine([limit.quota.step(state, 0, now)[1] for limit, state in zip(plan, states, strict=True)])


def places_of(plan: Plan) -> int:
    """Return a number that tells the keys of a plan from those of others, in this process."""
    return hash(tuple([(limit.space, limit.principal) for limit in plan]))


def part_of(call: Call, places: Sequence[int]) -> Call:
    """Return a call about the limits at those places of its plan alone; its shadow plans stay with it."""
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


def decide(call: Call, states: States, now: int) -> tuple[States, Decision]:
    """Run a call: the states of its plan in, those after it and the answer out.

    Shadow plans are calls of their own, made after it (see `shadow_calls`). Who remembers the answers of CHECK_ONCE
    looks there first.
    """
    quotas, verb, costs = [limit.quota for limit in call.plan], call.verb, costs_of(call)
    if verb is _PEEK:
        return states, look(quotas, states, costs, now)[1]
    if verb is _REFUND:
        return _refund(quotas, states, call, now)
    if verb is _RESET:
        nothing: States = [None] * len(quotas)
        return nothing, look(quotas, nothing, costs, now)[1]
    return check(quotas, states, costs, now)


def check(quotas: Sequence[Quota], states: States, costs: Sequence[int], now: int) -> tuple[States, Decision]:
    """Take its cost from every limit if all of them admit it, else from none.

    If one refuses, the others say what they have now, or that they refuse as well; the states that come back are those
    that went in, unless a limit that refuses had to mend its own (see law 8 of this package).
    """
    if not quotas:
        return states, _NO_LIMITS
    new: list[State] = []
    parts: list[Decision] = []
    limits = enumerate(quotas)
    index, remaining, size, delay = 0, 1, 0, 0  # what `combine` finds, found on the way
    for place, quota in limits:
        state, part = quota.step(states[place], costs[place], now)
        parts.append(part)
        if not part.allowed:
            break
        new.append(state)
        if part.remaining * size < remaining * part.limit:
            index, remaining, size = place, part.remaining, part.limit
        if part.delay_us > delay:
            delay = part.delay_us
    else:
        return new, _joint(parts, index, delay)
    after, index, retry = _mended(states, place, state), place, part.retry_after_us
    for earlier in range(place):
        _, parts[earlier] = quotas[earlier].step(states[earlier], 0, now)
    for place, quota in limits:
        state, part = _looked_at(quota, states[place], costs[place], now)
        if not part.allowed:
            after = _mended(after, place, state)
            if part.retry_after_us > retry:
                index, retry = place, part.retry_after_us
        parts.append(part)
    return after, _joint(parts, index)


def look(quotas: Sequence[Quota], states: States, costs: Sequence[int], now: int) -> tuple[States, Decision]:
    """Ask every limit what it has now, and whether it would admit its cost; nothing is taken.

    The states that come back are as in `check`.
    """
    after, parts = states, []
    for place, quota in enumerate(quotas):
        state, part = _looked_at(quota, states[place], costs[place], now)
        after = _mended(after, place, state)
        parts.append(part)
    return after, combine(parts)


def _looked_at(quota: Quota, state: State, cost: int, now: int) -> tuple[State, Decision]:
    """Return what one limit has now, or its refusal; and the state, which only a refusal mends."""
    _, decision = quota.step(state, 0, now)
    return (state, decision) if decision.remaining >= cost else quota.step(state, cost, now)


def _mended(states: States, place: int, state: State) -> States:
    """Return the states with another one at a place, if it is another."""
    return states if state is states[place] else [*states[:place], state, *states[place + 1 :]]


def _refund(quotas: Sequence[Quota], states: States, call: Call, now: int) -> tuple[States, Decision]:
    """Give the cost back to every limit.

    What a charge took is given back as far as it surely still counts: no traffic is let through that would not have
    passed without the charge. A clock that has fallen behind the charge gives nothing back.
    """
    charge = call.charge
    since = min(charge.taken_at) if charge is not None else None
    if charge is not None and not min(charge.taken_at) <= now < (charge.until or now + 1):
        return states, combine([quota.step(state, 0, now)[1] for quota, state in zip(quotas, states, strict=True)])
    after: list[State] = []
    decisions = []
    for quota, state, cost in zip(quotas, states, costs_of(call), strict=True):
        new, decision = quota.step(state, -cost, now, since)
        after.append(state and new)  # nothing comes of nothing
        decisions.append(msgspec.structs.replace(decision, taken=0))
    return after, combine(decisions)


def combine(decisions: Sequence[Decision]) -> Decision:
    """Return what limits say together: they admit what all of them admit.

    It describes the one that blocks longest where one refuses, else the most restrictive one (smallest remaining /
    limit); the first of several. Of no limits, it is an admission whose numbers mean nothing.
    """
    if len(decisions) == 1:
        return decisions[0]
    if not decisions:
        return _NO_LIMITS
    told, index, delay, degraded = decisions[0], 0, 0, ""
    allowed, remaining, limit, retry = told.allowed, told.remaining, told.limit, told.retry_after_us
    for place, decision in enumerate(decisions):
        if decision.allowed:
            tells_more = allowed and decision.remaining * limit < remaining * decision.limit
        else:
            tells_more = allowed or decision.retry_after_us > retry
        if tells_more:
            index, allowed, limit = place, decision.allowed, decision.limit
            remaining, retry = decision.remaining, decision.retry_after_us
        if decision.delay_us > delay:
            delay = decision.delay_us
        if decision.degraded and not degraded:
            degraded = decision.degraded
    return _joint(decisions, index, delay if allowed else 0, degraded)


def _joint(parts: Sequence[Decision], index: int, delay: int = 0, degraded: str = "") -> Decision:
    """Return the decision of limits with these `parts` that describes one of them."""
    told = parts[index]
    if len(parts) == 1:
        return told
    return Decision(
        told.allowed,
        told.limit,
        told.remaining,
        told.retry_after_us,
        told.reset_after_us,
        told.state,
        told.quota,
        delay,
        told.taken,
        told.taken_at_us,
        tuple(parts),
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
    told: tuple[Decision, ...] = ()
    for each in shadow_calls(call, decision):
        told += ((yield each),)
    return msgspec.structs.replace(decision, shadow=told)
