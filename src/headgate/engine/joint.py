"""Several requests that pass together or not at all, such as the descriptors of one call of Envoy.

All their limits make one plan, with a cost for each, which the store decides in one call:

- A limit that several of the requests share is charged once, with the sum of their costs.
- Costs of 0 come first: would a cost of 1 pass? If not, or if a list denies a request, nothing is taken.
- Refunds are made in any case.
- Shadow rules, which refuse nothing, come last, all at once.

Requests may have the same limit on different terms, such as those of two tiers; it has one state. A plan contains a
state once, so there is a plan for each of the terms. All plans are peeked at first, and then taken one after the other.
If a later one refuses, because of concurrent requests, what the earlier ones took is refunded, as far as it certainly
still counts. In between, other requests may be refused that would have passed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.key import Principal
from headgate.core.plan import Call, Limit, Verb, call_of, combine, refund_of, too_large
from headgate.engine.ruling import NOTHING_TRIED, Ruling, Tried, refuse, ruling_of, shadow_limits
from headgate.policy.compiled import Policy
from headgate.policy.prepared import FOREVER
from headgate.policy.request import Request
from headgate.policy.selection import Limits, Selection, Verdict

_PEEK, _CHECK, _REFUND, _DENIED = Verb.PEEK, Verb.CHECK, Verb.REFUND, Verdict.DENIED
"""Module globals: looking up members in their class is slow."""


class JointRequest(msgspec.Struct, frozen=True, gc=False):
    """One of several requests."""

    request: Request
    refund: bool = False
    """Whether its cost is refunded instead."""
    instead: Limits = Limits()
    """Limits that came with the request. They replace those of the rules; lists still apply."""


JointFlow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], tuple[Ruling, ...]]
_Answers: TypeAlias = list[tuple[Decision, ...]]
"""The decisions of each plan's limits."""


class _Plan:
    """Limits with different states, and the cost of each."""

    __slots__ = ("_places", "costs", "is_possible", "limits")

    def __init__(self) -> None:
        self.limits: list[Limit] = []
        self.costs: list[int] = []
        self.is_possible = True
        """Whether every limit could ever admit its cost."""
        self._places: dict[tuple[str, Principal], int] = {}

    def add(self, limit: Limit, cost: int) -> int | None:
        """Charge a limit with a cost, and return its index; None if the plan has it on other terms."""
        limits, costs = self.limits, self.costs
        index = self._places.setdefault((limit.space, limit.principal), len(limits))
        if index == len(limits):
            limits.append(limit)
            costs.append(cost)
        elif limits[index].quota == limit.quota:
            costs[index] += cost
        else:
            return None
        if costs[index] > limit.quota.capacity:
            self.is_possible = False
        return index

    def call(self, verb: Verb) -> Call:
        """Return the call about these limits, with no cost above the capacity of its limit."""
        costs = self.costs
        if not self.is_possible:
            costs = [min(cost, limit.quota.capacity) for limit, cost in zip(self.limits, costs, strict=True)]
        return call_of(verb, tuple(self.limits), costs)

    def judge(self, parts: Sequence[Decision]) -> tuple[Decision, ...]:
        """Return the decisions of a peek; a limit that could never admit its cost refuses."""
        each = zip(self.limits, self.costs, parts, strict=True)
        return tuple([refuse(part) if cost > limit.quota.capacity else part for limit, cost, part in each])


class _Part(msgspec.Struct, frozen=True, gc=False):
    """One of the requests, with its limits."""

    request: Request
    is_refund: bool
    verb: Verb
    selection: Selection
    places: list[tuple[int, int]]
    """The plan of each of its limits, among those of its verb, and the index there."""


class JointCheck:
    """Requests that pass together, with their limits. It may be kept, and used again while it `holds`.

    Raises InvalidRequest, InvalidKey, InvalidCost, before any call.
    """

    __slots__ = ("_has_shadow", "_is_denied", "_plans", "_since", "_until", "call", "parts", "policy")

    def __init__(self, policy: Policy, requests: Sequence[JointRequest], now: int) -> None:
        self.policy = policy
        self.parts: list[_Part] = []
        self._plans: dict[Verb, list[_Plan]] = {}
        self._is_denied, self._has_shadow, self._since, self._until = False, False, 0, FOREVER
        for each in requests:
            request, selection = each.request, selection_of(policy, each, now)
            cost = request.cost
            verb = _PEEK if not cost else _REFUND if each.refund else _CHECK
            self._since = max(self._since, selection.since)
            self._until = min(self._until, selection.until)
            if selection.verdict is _DENIED and not each.refund:
                self._is_denied = True
            if selection.shadow:
                self._has_shadow = True
            places = [self._place(verb, limit, cost) for limit in selection.enforced.plan]
            self.parts.append(_Part(request, each.refund, verb, selection, places))
        self.call = self._only_call()
        """The call that decides, if one is enough."""

    def holds(self, policy: Policy, now: int) -> bool:
        """Return whether the same requests have the same limits by this policy, at this time."""
        return self.policy is policy and self._since <= now < self._until

    @property
    def size(self) -> int:
        """The number of limits, including those of shadow rules."""
        return sum([part.selection.size for part in self.parts])

    def flow(self) -> JointFlow:
        """Return the rulings, each with the decisions of its own limits.

        A cost above the capacity of a limit is refused, and no error, since the other requests need their rulings.
        Its ruling has a reason, since waiting would not help.
        """
        if self.call is not None:
            (decision,) = yield (self.call,)
            return self.rulings(decision)
        answers: dict[Verb, _Answers] = {}
        plans, allowed = self._plans, not self._is_denied
        if _PEEK in plans:
            answers[_PEEK] = yield from _make([Call(_PEEK, tuple(plan.limits)) for plan in plans[_PEEK]])
            allowed = allowed and _all_allow(answers[_PEEK])
        if _CHECK in plans:
            answers[_CHECK], allowed = yield from _take(plans[_CHECK], may_pass=allowed)
        if _REFUND in plans:
            answers[_REFUND] = yield from _make([plan.call(_REFUND) for plan in plans[_REFUND]])
        tried = iter((yield from self._try_shadows(allowed=allowed)) if self._has_shadow else ())
        rulings = []
        for part in self.parts:
            decisions = [answers[part.verb][plan][index] for plan, index in part.places]
            shadow = part.selection.shadow
            rulings.append(self._ruling(part, decisions, shadow_limits(shadow, list(islice(tried, len(shadow))))))
        return tuple(rulings)

    def rulings(self, decision: Decision) -> tuple[Ruling, ...]:
        """Return the rulings by the decision about `call`."""
        given = decision.parts or (decision,)
        return tuple([self._ruling(part, [given[index] for _, index in part.places]) for part in self.parts])

    def _only_call(self) -> Call | None:
        if self._is_denied or self._has_shadow or len(self._plans) != 1 or len(self._plans.get(_CHECK, ())) != 1:
            return None
        (plan,) = self._plans[_CHECK]
        return plan.call(_CHECK) if plan.is_possible else None

    def _place(self, verb: Verb, limit: Limit, cost: int) -> tuple[int, int]:
        """Charge a limit with a cost, in the first plan that does not have it on other terms."""
        plans = self._plans.setdefault(verb, [])
        for number, plan in enumerate(plans):
            index = plan.add(limit, cost)
            if index is not None:
                return number, index
        plans.append(_Plan())
        return self._place(verb, limit, cost)

    def _try_shadows(self, *, allowed: bool) -> Generator[Sequence[Call], Sequence[Decision], Sequence[Decision]]:
        """Try shadow rules; if the requests do not pass, they take nothing."""
        calls = []
        for part in self.parts:
            for limits in part.selection.shadow:
                verb = part.verb if (allowed or part.verb is _REFUND) and not limits.too_small else _PEEK
                calls.append(Call(verb, limits.plan, 1 if limits.too_small else part.request.cost or 1))
        return (yield calls) if calls else ()

    def _ruling(self, part: _Part, decisions: Sequence[Decision], shadow: Tried = NOTHING_TRIED) -> Ruling:
        """Return the ruling on one of the requests by the decisions of its limits, and those of its shadow limits."""
        decision = combine(decisions) if decisions else None
        is_refused = decision is not None and not decision.allowed and part.verb is _CHECK
        reason = self._too_much(part) if is_refused else ""
        return ruling_of(part.selection, decision, self.policy.version, shadow, reason, is_joint=True)

    def _too_much(self, part: _Part) -> str:
        """Return why a limit could never admit its cost; empty if all could."""
        for (number, index), rule in zip(part.places, part.selection.enforced.rules, strict=True):
            plan = self._plans[_CHECK][number]
            cost, quota = plan.costs[index], plan.limits[index].quota
            if cost > quota.capacity:
                return f"rule {rule!r}: {too_large(cost, quota)}"
        return ""


def selection_of(policy: Policy, part: JointRequest, now: int) -> Selection:
    """Select the limits of one of several requests."""
    selection = policy.select(part.request, now, takes_cost=False)
    if part.instead.plan and selection.verdict not in {Verdict.ALLOWED, Verdict.DENIED}:
        if policy.enforcing:
            return Selection(Verdict.LIMITED, part.instead)
        selection = Selection(Verdict.UNLIMITED, shadow=(part.instead,))
    if selection.shadow and not part.refund:
        cost = part.request.cost
        shadow = [
            Limits(limits.plan, limits.rules, any(cost > limit.quota.capacity for limit in limits.plan))
            for limits in selection.shadow
        ]
        return msgspec.structs.replace(selection, shadow=tuple(shadow))
    return selection


def _take(
    plans: Sequence[_Plan], *, may_pass: bool
) -> Generator[Sequence[Call], Sequence[Decision], tuple[_Answers, bool]]:
    """Take all costs, if they may pass and all limits admit them; return the decisions, and whether they passed."""
    answers: _Answers = []
    for plan in plans:
        may_pass = may_pass and plan.is_possible
    if len(plans) > 1 or not may_pass:
        peeked = yield from _make([plan.call(_PEEK) for plan in plans])
        answers = [plan.judge(parts) for plan, parts in zip(plans, peeked, strict=True)]
        if not may_pass or not _all_allow(answers):
            return answers, False
    taken: list[tuple[Call, Decision]] = []
    for number, plan in enumerate(plans):
        call = plan.call(_CHECK)
        (decision,) = yield (call,)
        answers[number : number + 1] = [decision.parts or (decision,)]
        if not decision.allowed:
            answers[:number] = yield from _make([refund_of(earlier.plan, by) for earlier, by in taken])
            return answers, False
        taken.append((call, decision))
    return answers, True


def _make(calls: Sequence[Call]) -> Generator[Sequence[Call], Sequence[Decision], _Answers]:
    """Make calls concurrently; return the decisions of each call's limits."""
    return [decision.limits for decision in (yield calls)] if calls else []


def _all_allow(answers: _Answers) -> bool:
    return all(part.allowed for parts in answers for part in parts)
