"""Several requests that pass together or not at all, such as the descriptors of one call of Envoy.

All their limits make one plan, with a cost for each, which the store decides in one call:

- A limit that several of the requests share is asked once, for the sum of their costs.
- Costs of 0 are asked first: whether a cost of 1 would pass. If not, or if a list denies a request, nothing is taken.
- Refunds are made in any case.
- Shadow rules, which refuse nothing, come last, all at once.

Where requests have the same limit on different terms, such as those of two tiers, it counts in one place. No plan has
that twice, so there is a plan for each of the terms. All of them are looked at first, and taken one after the other.
Should others be quicker, so that a later one refuses, what the earlier ones took is refunded, as far as it surely still
counts. In between, others may be refused that would have passed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.key import Principal
from headgate.core.plan import Call, Limit, Verb, call_of, combine, refund_of, too_large
from headgate.engine.ruling import NOTHING_TRIED, Ruling, refused, ruling_of, shadow_limits
from headgate.policy.compiled import Policy
from headgate.policy.prepared import FOREVER
from headgate.policy.request import Request
from headgate.policy.selection import Limits, Selection, Verdict

_PEEK, _CHECK, _REFUND, _DENIED = Verb.PEEK, Verb.CHECK, Verb.REFUND, Verdict.DENIED
"""Module globals: to look members up in their class is slow."""


class JointRequest(msgspec.Struct, frozen=True, gc=False):
    """One of several requests."""

    request: Request
    refund: bool = False
    """Whether its cost is refunded instead."""
    instead: Limits = Limits()
    """Limits that came with the request. If there are any, they stand for all that the rules have; lists still hold."""


JointFlow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], tuple[Ruling, ...]]
_Answers: TypeAlias = list[tuple[Decision, ...]]
"""What the limits of each plan say."""


class _Plan:
    """Limits that count in different places, and the cost of each."""

    __slots__ = ("_places", "costs", "is_possible", "limits")

    def __init__(self) -> None:
        self.limits: list[Limit] = []
        self.costs: list[int] = []
        self.is_possible = True
        """Whether every limit could ever admit its cost."""
        self._places: dict[tuple[str, Principal], int] = {}

    def add(self, limit: Limit, cost: int) -> int | None:
        """Charge a limit with a cost, and return its index; None if it is here on other terms."""
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

    def judged(self, parts: Sequence[Decision]) -> tuple[Decision, ...]:
        """Return what the limits say when they are looked at; one that could never admit its cost refuses."""
        each = zip(self.limits, self.costs, parts, strict=True)
        return tuple([refused(part) if cost > limit.quota.capacity else part for limit, cost, part in each])


class _Part(msgspec.Struct, frozen=True, gc=False):
    """One of the requests, and what applies to it."""

    request: Request
    is_refund: bool
    verb: Verb
    selection: Selection
    places: list[tuple[int, int]]
    """The plan of each of its limits, among those of its verb, and the index there."""


class JointCheck:
    """Requests that pass together, and what they ask of the store. It may be kept, and asked again while it `holds`.

    Raises InvalidRequest, InvalidKey, InvalidCost; before anything is asked.
    """

    __slots__ = ("_has_shadow", "_is_denied", "_plans", "_since", "_until", "parts", "policy")

    def __init__(self, policy: Policy, requests: Sequence[JointRequest], now: int) -> None:
        self.policy = policy
        self.parts: list[_Part] = []
        self._plans: dict[Verb, list[_Plan]] = {}
        self._is_denied, self._has_shadow, self._since, self._until = False, False, 0, FOREVER
        for each in requests:
            request, selection = each.request, selected(policy, each, now)
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

    def holds(self, policy: Policy, now: int) -> bool:
        """Whether the same requests ask the same by this policy, at this time."""
        return self.policy is policy and self._since <= now < self._until

    @property
    def size(self) -> int:
        """How many limits there are, those of shadow rules included."""
        return sum([part.selection.size for part in self.parts])

    def flow(self) -> JointFlow:
        """Return the rulings; each says what its own limits say.

        A cost that is above the capacity of a limit is refused, not an error: the other requests want their answers.
        Such a ruling has a reason, since no wait would help.
        """
        answers: dict[Verb, _Answers] = {}
        plans, allowed = self._plans, not self._is_denied
        if _PEEK in plans:
            answers[_PEEK] = yield from _made([Call(_PEEK, tuple(plan.limits)) for plan in plans[_PEEK]])
            allowed = allowed and _all_allow(answers[_PEEK])
        if _CHECK in plans:
            answers[_CHECK], allowed = yield from _taken(plans[_CHECK], may_pass=allowed)
        if _REFUND in plans:
            answers[_REFUND] = yield from _made([plan.call(_REFUND) for plan in plans[_REFUND]])
        tried = iter((yield from self._tried(allowed=allowed)) if self._has_shadow else ())
        return tuple([self._ruling(part, answers, tried) for part in self.parts])

    def _place(self, verb: Verb, limit: Limit, cost: int) -> tuple[int, int]:
        """Charge a limit with a cost, in the first plan that has it on no other terms."""
        plans = self._plans.setdefault(verb, [])
        for number, plan in enumerate(plans):
            index = plan.add(limit, cost)
            if index is not None:
                return number, index
        plans.append(_Plan())
        return self._place(verb, limit, cost)

    def _tried(self, *, allowed: bool) -> Generator[Sequence[Call], Sequence[Decision], Sequence[Decision]]:
        """Ask shadow rules; where the requests do not pass, they take nothing."""
        calls = []
        for part in self.parts:
            for limits in part.selection.shadow:
                verb = part.verb if (allowed or part.verb is _REFUND) and not limits.too_small else _PEEK
                calls.append(Call(verb, limits.plan, 1 if limits.too_small else part.request.cost or 1))
        return (yield calls) if calls else ()

    def _ruling(self, part: _Part, answers: dict[Verb, _Answers], tried: Iterator[Decision]) -> Ruling:
        selection, places, decision, reason = part.selection, part.places, None, ""
        if places:
            told = answers[part.verb]
            decision = combine([told[plan][index] for plan, index in places])
            if not decision.allowed and part.verb is _CHECK:
                reason = self._too_much(part)
        shadow = NOTHING_TRIED
        if selection.shadow:
            shadow = shadow_limits(selection.shadow, list(islice(tried, len(selection.shadow))))
        return ruling_of(selection, decision, self.policy.version, shadow, reason, is_joint=True)

    def _too_much(self, part: _Part) -> str:
        """Say which limit could never admit what is asked of it; empty if all could."""
        for (number, index), rule in zip(part.places, part.selection.enforced.rules, strict=True):
            plan = self._plans[_CHECK][number]
            cost, quota = plan.costs[index], plan.limits[index].quota
            if cost > quota.capacity:
                return f"rule {rule!r}: {too_large(cost, quota)}"
        return ""


def selected(policy: Policy, part: JointRequest, now: int) -> Selection:
    """Return what applies to one of several requests."""
    selection = policy.select(part.request, now, asking=False)
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


def _taken(
    plans: Sequence[_Plan], *, may_pass: bool
) -> Generator[Sequence[Call], Sequence[Decision], tuple[_Answers, bool]]:
    """Take all costs, if they may pass and all limits admit them; returns what these say, and whether they did."""
    answers: _Answers = []
    for plan in plans:
        may_pass = may_pass and plan.is_possible
    if len(plans) > 1 or not may_pass:
        looked = yield from _made([plan.call(_PEEK) for plan in plans])
        answers = [plan.judged(parts) for plan, parts in zip(plans, looked, strict=True)]
        if not may_pass or not _all_allow(answers):
            return answers, False
    taken: list[tuple[Call, Decision]] = []
    for number, plan in enumerate(plans):
        call = plan.call(_CHECK)
        (decision,) = yield (call,)
        answers[number : number + 1] = [decision.made_of or (decision,)]
        if not decision.allowed:
            answers[:number] = yield from _made([refund_of(earlier.plan, by) for earlier, by in taken])
            return answers, False
        taken.append((call, decision))
    return answers, True


def _made(calls: Sequence[Call]) -> Generator[Sequence[Call], Sequence[Decision], _Answers]:
    """Make calls at the same time; returns what the limits of each say."""
    return [decision.limits for decision in (yield calls)] if calls else []


def _all_allow(answers: _Answers) -> bool:
    return all(part.allowed for parts in answers for part in parts)
