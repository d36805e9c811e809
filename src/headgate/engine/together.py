"""Several requests that pass together or not at all, such as the descriptors of one call of Envoy.

All limits of all requests make one plan, which the store decides in one call. More calls are needed where costs differ,
since a store takes one cost from all limits of a plan:

- A limit that several of the requests share is asked once, for the sum of their costs.
- Where costs differ, all limits are looked at first, at the same time: if one would refuse, nothing is taken. Then one
  cost is taken after the other. Should others be quicker, so that a later one refuses, what the earlier ones took is
  given back, as far as it surely still counts. In between, others may be refused that would have passed.
- Costs of 0 are asked first: whether a cost of 1 would pass.

Refunds are made in any case. Shadow rules, which refuse nothing, come last, as for a single request, all at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.plan import Call, Limit, Plan, Verb, combine, refund_of, too_large
from headgate.engine.ruling import Ruling, refused, ruling_of, shadow_limits
from headgate.policy.compiled import Policy
from headgate.policy.request import Request
from headgate.policy.selection import Limits, Selection, Verdict


class JointRequest(NamedTuple):
    """One of several requests."""

    request: Request
    refund: bool = False
    """Whether its cost is to be given back instead."""
    instead: Limits = Limits()
    """Limits that came with the request. If there are any, they stand for all that the rules have; lists still hold."""


JointFlow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], tuple[Ruling, ...]]
_Asking: TypeAlias = Generator[Sequence[Call], Sequence[Decision], None]
_Taking: TypeAlias = Generator[Sequence[Call], Sequence[Decision], bool]
_Key: TypeAlias = tuple[object, ...]
_Known: TypeAlias = dict[_Key, Decision]
"""What limits said, each to what it was last asked."""
_PEEK, _CHECK, _REFUND = Verb.PEEK, Verb.CHECK, Verb.REFUND
"""To look members up in their class takes longer than most of what is done with them."""


def together(policy: Policy, parts: Iterable[JointRequest], now: int) -> JointFlow:
    """Return the rulings on requests that pass together or not at all; each says what its own limits say.

    A cost that is above the capacity of a limit is refused, not an error: the other requests want their answers. Such a
    ruling has a reason, since no wait would help.

    Raises InvalidRequest, InvalidKey, InvalidCost; before anything is asked.
    """
    asked = [_Asked(part, selected(policy, part, now)) for part in parts]
    looked: _Known = {}
    yield from _ask(_PEEK, _groups(_charges([each for each in asked if each.verb is _PEEK], summed=False)), looked)
    may_pass = all(decision.allowed for decision in looked.values()) and not any(each.is_denied for each in asked)
    taken: _Known = {}
    charges = _charges([each for each in asked if each.verb is _CHECK])
    beyond = {_key(limit): cost for limit, cost in charges if cost > limit.quota.capacity}
    if beyond:
        allowed = yield from _looked_at(charges, beyond, taken)
    else:
        allowed = yield from _taken(_groups(charges), taken, may_pass=may_pass)
    returned: _Known = {}
    refunds = [
        _Charge(limit, min(cost, limit.quota.capacity))
        for limit, cost in _charges([each for each in asked if each.verb is _REFUND])
    ]
    yield from _ask(_REFUND, _groups(refunds), returned)
    calls = [call for each in asked for call in each.shadow_calls(allowed=allowed)]
    decisions = iter((yield calls) if calls else ())
    rulings = []
    for each in asked:
        tried = tuple(islice(decisions, len(each.selection.shadow)))
        decision = each.decision(looked if each.verb is _PEEK else taken if each.verb is _CHECK else returned)
        ruling = ruling_of(each.selection, decision, policy.version, shadow_limits(each.selection.shadow, tried))
        reason = each.too_much(beyond) if beyond else ""
        rulings.append(msgspec.structs.replace(ruling, reason=reason or ruling.reason, is_joint=True))
    return tuple(rulings)


class _Asked:
    """A request, and what is to be done about it."""

    __slots__ = ("cost", "is_denied", "selection", "verb")

    def __init__(self, part: JointRequest, selection: Selection) -> None:
        self.selection, self.cost = selection, part.request.cost
        self.verb = _PEEK if not self.cost else _REFUND if part.refund else _CHECK
        self.is_denied = selection.verdict is Verdict.DENIED and not part.refund

    def decision(self, known: _Known) -> Decision | None:
        """Return what its limits say together."""
        parts = [known[_key(limit)] for limit in self.selection.enforced.plan]
        return combine(parts) if parts else None

    def shadow_calls(self, *, allowed: bool) -> list[Call]:
        """Return the calls that ask its shadow rules; where the requests do not pass, they are only asked."""
        verb = self.verb if allowed or self.verb is _REFUND else _PEEK
        return [
            Call(_PEEK, limits.plan) if limits.too_small else Call(verb, limits.plan, self.cost or 1)
            for limits in self.selection.shadow
        ]

    def too_much(self, beyond: Mapping[_Key, int]) -> str:
        """Say which of its limits could never admit what is asked of it; empty if all could."""
        if self.verb is _CHECK:
            for limit, rule in zip(self.selection.enforced.plan, self.selection.enforced.rules, strict=True):
                if _key(limit) in beyond:
                    return f"rule {rule!r}: {too_large(beyond[_key(limit)], limit.quota)}"
        return ""


class _Charge(NamedTuple):
    """What is asked of one limit."""

    limit: Limit
    cost: int


class _Group(NamedTuple):
    """Limits of which the same is asked, in one call."""

    plan: Plan
    cost: int


def selected(policy: Policy, part: JointRequest, now: int) -> Selection:
    """Return what is to be done about one of several requests."""
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


def _key(limit: Limit) -> _Key:
    return limit.space, limit.principal, id(limit.quota)


def _charges(asked: Iterable[_Asked], *, summed: bool = True) -> list[_Charge]:
    """Return what is asked of each limit, by all requests together; of those that only look, 1."""
    charges: dict[_Key, _Charge] = {}
    for each in asked:
        for limit in each.selection.enforced.plan:
            key = _key(limit)
            before = charges[key].cost if key in charges and summed else 0
            charges[key] = _Charge(limit, before + (each.cost or 1))
    return list(charges.values())


def _groups(charges: Iterable[_Charge]) -> list[_Group]:
    """Return the calls that it takes. None has two limits that count in one place: a store would take one cost."""
    groups: list[tuple[int, dict[_Key, Limit]]] = []
    for limit, cost in charges:
        place = limit.space, limit.principal
        for common, group in groups:
            if common == cost and place not in group:
                group[place] = limit
                break
        else:
            groups.append((cost, {place: limit}))
    return [_Group(tuple(group.values()), cost) for cost, group in groups]


def _looked_at(charges: Iterable[_Charge], beyond: Mapping[_Key, int], known: _Known) -> _Taking:
    """Look at all limits, some of which could never admit what is asked of them; nothing is taken."""
    asked = [_Charge(limit, min(cost, limit.quota.capacity)) for limit, cost in charges]
    yield from _ask(_PEEK, _groups(asked), known)
    for key in beyond:
        known[key] = refused(known[key])
    return False


def _taken(groups: Sequence[_Group], known: _Known, *, may_pass: bool) -> _Taking:
    """Take all charges, if they may pass and all limits admit them; says whether they did."""
    if not may_pass or len(groups) > 1:
        yield from _ask(_PEEK, groups, known)
        if not may_pass or not all(decision.allowed for decision in known.values()):
            return False
    taken: list[tuple[_Group, Decision]] = []
    for group in groups:
        (decision,) = yield (Call(_CHECK, *group),)
        _note(group.plan, decision, known)
        if not decision.allowed:
            yield from _make([refund_of(each.plan, by) for each, by in taken], known)
            return False
        taken.append((group, decision))
    return True


def _ask(verb: Verb, groups: Iterable[_Group], known: _Known) -> _Asking:
    """Do something about all groups, and note what their limits say."""
    yield from _make([Call(verb, *group) for group in groups], known)


def _make(calls: Sequence[Call], known: _Known) -> _Asking:
    if calls:
        decisions = yield calls
        for call, decision in zip(calls, decisions, strict=True):
            _note(call.plan, decision, known)


def _note(plan: Plan, decision: Decision, known: _Known) -> None:
    for limit, part in zip(plan, decision.limits, strict=True):
        known[_key(limit)] = part
