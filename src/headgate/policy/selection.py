"""What a policy says about a request: which limits to ask the store about, if any.

A selection is made by *steps*: all requests that the same rules apply to, on the same terms, take the same ones, and
only who is counted differs. So the steps are worked out once, and to take them is nearly all that a request costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from headgate.core.errors import CostTooLarge, InvalidCost
from headgate.core.key import LITERAL, Principal, bounded, checked_principal
from headgate.core.numbers import whole
from headgate.core.plan import MAX_COST, Limit, Plan, checked_cost
from headgate.core.quota import Quota
from headgate.policy.facts import EVERYBODY, together
from headgate.policy.prepared import FOREVER, Applied
from headgate.policy.request import ENDPOINT, GLOBAL


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
    UNDECIDED = "undecided"
    """Nobody could decide: a client of a service that is away, and whose rules it never had. No policy says this."""


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
_LIMITED, _UNLIMITED = Verdict.LIMITED, Verdict.UNLIMITED
_NOTHING = Limits()
_new = tuple.__new__


_Step = tuple[str, tuple[str, ...] | None, str, Quota, Limit | None]
"""How to make one limit: by what it counts; by which ones, if it counts by several together; its space and its quota;
and the limit itself, where everybody is counted together. The text of the first is the same object as that of the next
step, if they count alike. (To unpack a named tuple takes several times as long.)"""
_Shadow = tuple[tuple[_Step, ...], tuple[str, ...], int]
"""How to make the limits of one shadow rule: the steps, the rule of each, and the highest cost that all could admit."""


class Steps:
    """How to make the selections of requests that the same rules apply to, on the same terms.

    Args:
        applying: the rules, in order.
        principals: names of principals that those requests have.
    """

    __slots__ = ("_capacity", "_enforced", "_only", "_rules", "_shadow", "applying", "needs_facts", "since", "until")

    def __init__(self, applying: Sequence[Applied], principals: Collection[str]) -> None:
        self.applying = tuple(applying)
        enforced = [applied for applied in applying if applied.is_enforced]
        self._enforced = sum([_steps(applied) for applied in enforced], ())
        self._rules = sum([_rules(applied) for applied in enforced], ())
        self._only = _only(self._enforced)
        self._capacity = min([MAX_COST, *[applied.terms.capacity for applied in enforced]])
        self._shadow: tuple[_Shadow, ...] = tuple(
            [
                (_steps(applied), _rules(applied), applied.terms.capacity)
                for applied in applying
                if not applied.is_enforced
            ]
        )
        self.since = max([applied.terms.since for applied in applying], default=0)
        self.until = min([applied.terms.until for applied in applying], default=FOREVER)
        """Between these times, in microseconds since the epoch, the terms are in force."""
        counted = {name for applied in applying for name in applied.rule.dimensions}
        if all(applied.rule.dimension == GLOBAL or GLOBAL not in applied.rule.dimensions for applied in applying):
            counted.discard(GLOBAL)
        self.needs_facts = not counted <= set(principals).difference({ENDPOINT})
        """Whether requests are counted by more than by principals; an address is one in the form it is counted by."""

    def selection(self, facts: Mapping[str, str], cost: int, asked: int, unmatched: tuple[str, ...]) -> Selection:
        """Return what is to be done about a request.

        Args:
            facts: by what it is counted, at least.
            cost: as the request has it.
            asked: how much of it is to be taken: none for a refund or a reset.
            unmatched: see `Selection.unmatched_principals`.

        Raises InvalidCost, CostTooLarge and InvalidKey; see `Policy.plan`.
        """
        if type(cost) is not int or not 0 <= cost <= self._capacity:
            self._check(cost, asked)
        shadow: tuple[Limits, ...] = ()
        if self._shadow:
            shadow = tuple(
                [Limits(_plan(steps, facts), rules, asked > capacity) for steps, rules, capacity in self._shadow]
            )
        if self._only is not None:
            name, space, quota = self._only
            value = facts[name]
            principal = value if 0 < len(value) <= LITERAL and value.isascii() else principal_of(value)
            plan: Plan = (_new(Limit, (space, principal, quota)),)  # it makes a named tuple in half the time
            return Selection(_LIMITED, Limits(plan, self._rules), shadow, "", unmatched)
        if self._enforced:
            return Selection(_LIMITED, Limits(_plan(self._enforced, facts), self._rules), shadow, "", unmatched)
        return Selection(_UNLIMITED, _NOTHING, shadow, "", unmatched) if shadow or unmatched else UNMATCHED

    def _check(self, cost: int, asked: int) -> None:
        """Refuse a cost that is not one, or that is above the capacity of a rule. Raises InvalidCost, CostTooLarge."""
        whole("cost", cost, 0, MAX_COST, InvalidCost)
        for applied in self.applying:
            if applied.is_enforced and asked > applied.terms.capacity:
                try:
                    checked_cost(cost, applied.terms.quotas)
                except CostTooLarge as error:
                    raise CostTooLarge(f"rule {applied.rule.id!r}: {error}") from None


def limits_of(applied: Applied, facts: Mapping[str, str]) -> Plan:
    """Return the limits of one rule for one request. Raises InvalidKey."""
    return _plan(_steps(applied), facts)


def principal_of(value: str) -> Principal:
    """Return what stands for a value of a dimension in keys. Raises InvalidKey."""
    if 0 < len(value) <= LITERAL and value.isascii():
        return value
    return bounded(checked_principal(value))


def _rules(applied: Applied) -> tuple[str, ...]:
    return (applied.rule.id,) * len(applied.terms.counted)


def _steps(applied: Applied) -> tuple[_Step, ...]:
    dimension, names = applied.rule.dimension, applied.rule.dimensions
    several = names if len(names) > 1 else None
    return tuple(
        [
            (dimension, several, space, quota, Limit(space, EVERYBODY, quota) if dimension == GLOBAL else None)
            for space, quota in applied.terms.counted
        ]
    )


def _only(steps: tuple[_Step, ...]) -> tuple[str, str, Quota] | None:
    """Return by what a single limit counts, its space and its quota, if there is one, for each principal by itself."""
    if len(steps) != 1:
        return None
    ((dimension, several, space, quota, limit),) = steps
    return (dimension, space, quota) if several is None and limit is None else None


def _plan(steps: tuple[_Step, ...], facts: Mapping[str, str]) -> Plan:
    plan: list[Limit] = []  # list[Limit]() would take longer than all the rest
    known = ""
    for dimension, dimensions, space, quota, limit in steps:
        if limit is not None:
            plan.append(limit)
            continue
        if dimension is not known:
            known = dimension
            value = facts[dimension] if dimensions is None else together([facts[name] for name in dimensions]) or ""
            principal = value if 0 < len(value) <= LITERAL and value.isascii() else principal_of(value)
        plan.append(_new(Limit, (space, principal, quota)))
    return tuple(plan)
