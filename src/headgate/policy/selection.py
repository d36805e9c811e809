"""What a policy says about a request: which limits to ask the store about, if any."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headgate.core.errors import CostTooLarge, InvalidCost
from headgate.core.key import LITERAL, Principal, bounded, checked_principal
from headgate.core.numbers import whole
from headgate.core.plan import MAX_COST, Limit, Plan, checked_cost
from headgate.policy.prepared import Applied


class Verdict(StrEnum):
    """What is to be done."""

    LIMITED = "limited"
    """Ask the store about `Selection.enforced`."""
    UNLIMITED = "unlimited"
    """Let it pass: no limit is enforced. See `Selection.matched` for whether any rule matched."""
    ALLOWED = "allowed"
    """Let it pass: it is on the allow list."""
    DENIED = "denied"
    """Refuse it without asking: it is on the deny list."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Limits that are decided together, and the rule that each belongs to."""

    plan: Plan = ()
    rules: tuple[str, ...] = ()
    """The id of the rule, for each limit of the plan."""
    too_small: bool = False
    """Shadow limits only: the cost is above a capacity, so that they would refuse without end. Do not ask the store."""


class Selection(msgspec.Struct, frozen=True, gc=False):
    """All that a policy knows to say about one request."""

    verdict: Verdict
    enforced: Limits = Limits()
    """What decides: all or nothing. Possibly for several principals."""
    shadow: tuple[Limits, ...] = ()
    """What is only counted and reported, rule by rule: each is decided on its own, and refuses nothing. Whether one of
    them took the cost of a request is known only when it is asked: a refund gives it back to all of them, so also to
    one that refused then, though never more than that one has counted as used."""
    reason: str = ""
    """Why, for those on a list."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of principals that the request has and no rule knows: perhaps misspelt, for nothing limits by them."""

    @property
    def matched(self) -> bool:
        """Whether any rule matched, the default included."""
        return bool(self.enforced.plan or self.shadow)


UNMATCHED = Selection(Verdict.UNLIMITED)
"""No rule has anything to say."""


def select(applying: list[Applied], cost: int, *, asking: bool = True) -> Selection:
    """Return what follows from the rules that apply. Raises InvalidCost, InvalidKey, and CostTooLarge if `asking`."""
    if type(cost) is not int or not 0 <= cost <= MAX_COST:
        whole("cost", cost, 0, MAX_COST, InvalidCost)
    plan: list[Limit] = []
    rules: tuple[str, ...] = ()
    has_shadow = False
    for applied in applying:
        if not applied.is_enforced:
            has_shadow = True
            continue
        terms, principal = applied.terms, principal_of(applied.value)
        if cost > terms.capacity and asking:
            _refuse(applied, cost)
        for place, quota in terms.places:
            plan.append(Limit(place, principal, quota))
        rules += terms.rules
    shadow: tuple[Limits, ...] = ()
    if has_shadow:
        asked = cost if asking else 0
        shadow = tuple([_shadow(applied, asked) for applied in applying if not applied.is_enforced])
    if plan:
        return Selection(Verdict.LIMITED, Limits(tuple(plan), rules), shadow)
    return Selection(Verdict.UNLIMITED, shadow=shadow) if shadow else UNMATCHED


def limits_of(applied: Applied) -> Plan:
    """Return the limits of one rule for one principal. Raises InvalidKey."""
    principal = principal_of(applied.value)
    return tuple([Limit(place, principal, quota) for place, quota in applied.terms.places])


def principal_of(value: str) -> Principal:
    """Return what stands for a value of a dimension in keys. Raises InvalidKey."""
    if 0 < len(value) <= LITERAL and value.isascii():
        return value
    return bounded(checked_principal(value))


def _shadow(applied: Applied, cost: int) -> Limits:
    terms = applied.terms
    return Limits(limits_of(applied), terms.rules, cost > terms.capacity)


def _refuse(applied: Applied, cost: int) -> None:
    try:
        checked_cost(cost, applied.terms.quotas)
    except CostTooLarge as error:
        raise CostTooLarge(f"rule {applied.rule.id!r}: {error}") from None
