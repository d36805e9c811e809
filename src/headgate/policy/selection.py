"""What a policy says about a request: which limits to ask the store about, if any.

A selection is made by *steps*: all requests that the same rules apply to, on the same terms, take the same ones, and
only who is counted differs. So the steps are worked out once, and to take them is nearly all that a request costs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from headgate.core.errors import CostTooLarge, InvalidCost
from headgate.core.key import LITERAL, bounded, checked_principal
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
    """Why, for those on a list, and for a rule that was named and does not exist or is disabled."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of principals that the request has and no rule knows: perhaps misspelt, for nothing limits by them."""
    since: int = 0
    until: int = FOREVER
    """Between these times, in microseconds since the epoch, the policy says the same about the same request."""

    @property
    def matched(self) -> bool:
        """Whether any rule matched, the default included."""
        return bool(self.enforced.plan or self.shadow)

    @property
    def size(self) -> int:
        """How many limits there are, those of shadow rules included."""
        count = len(self.enforced.plan)
        for limits in self.shadow:
            count += len(limits.plan)
        return count


UNMATCHED = Selection(Verdict.UNLIMITED)
"""No rule has anything to say."""
_LIMITED, _UNLIMITED = Verdict.LIMITED, Verdict.UNLIMITED


_Step = tuple[str, tuple[str, ...] | None, str, Quota, Limit | None]
"""How to make one limit: by what it counts; by which ones, if it counts by several together; its space and its quota;
and the limit itself, where everybody is counted together. The text of the first is the same object as that of the next
step, if they count alike. (To unpack a named tuple takes several times as long.)"""
_Shadow = tuple[int, int, tuple[str, ...], int]
"""Which of the limits are those of one shadow rule, from and to; the rule of each, and the highest cost that all of
them could admit."""


class Steps:
    """How to make the selections of requests that the same rules apply to, on the same terms.

    Args:
        applying: the rules, in order.
        principals: names of principals that those requests have.
    """

    __slots__ = ("_capacity", "_enforced", "_rules", "_shadow", "_steps", "applying", "needs_facts", "since", "until")

    def __init__(self, applying: Sequence[Applied], principals: Collection[str] = ()) -> None:
        self.applying = applying
        self.since, self.until = 0, FOREVER
        """Between these times, in microseconds since the epoch, the terms are in force."""
        self.needs_facts = False
        """Whether requests are counted by more than by principals; an address is one in the form it is counted by."""
        self._steps: tuple[_Step, ...] = ()
        self._rules: tuple[str, ...] = ()
        self._shadow: tuple[_Shadow, ...] = ()
        self._capacity = MAX_COST
        for applied in applying:
            rule, terms = applied.rule, applied.terms
            if applied.is_enforced:
                steps = _steps(applied)
                self._steps += steps
                self._rules += (rule.id,) * len(steps)
                self._capacity = min(self._capacity, terms.capacity)
            self.since, self.until = max(self.since, terms.since), min(self.until, terms.until)
            for name in rule.dimensions:
                if (name not in principals and name != GLOBAL) or name == ENDPOINT:
                    self.needs_facts = True
        self._enforced = len(self._steps)
        for applied in applying:
            if not applied.is_enforced:
                first, steps = len(self._steps), _steps(applied)
                self._steps += steps
                self._shadow += ((first, len(self._steps), (applied.rule.id,) * len(steps), applied.terms.capacity),)

    def selection(self, facts: Mapping[str, str], cost: int, asked: int, unmatched: tuple[str, ...]) -> Selection:
        """Return what is to be done about a request.

        Args:
            facts: by what it is counted, at least.
            cost: as the request has it.
            asked: how much of it is to be taken: none for a refund or a reset.
            unmatched: see `Selection.unmatched_principals`.

        Raises InvalidCost, CostTooLarge and InvalidKey; see `Policy.select`.
        """
        if type(cost) is not int or not 0 <= cost <= self._capacity:
            self._check(cost, asked)
        plan: Plan = ()  # tuples that grow: a list takes longer, unless it gets long
        known = ""
        for dimension, dimensions, space, quota, limit in self._steps:
            if limit is not None:
                plan += (limit,)
                continue
            if dimension is not known:
                known = dimension
                value = facts[dimension] if dimensions is None else _joined(dimensions, facts)
                principal = (
                    value if 0 < len(value) <= LITERAL and value.isascii() else bounded(checked_principal(value))
                )
            plan += (Limit(space, principal, quota),)
        if not self._shadow:
            if not plan and not unmatched:
                return UNMATCHED
            return Selection(
                _LIMITED if plan else _UNLIMITED, Limits(plan, self._rules), (), "", unmatched, self.since, self.until
            )
        shadow: tuple[Limits, ...] = ()
        for first, end, rules, capacity in self._shadow:
            shadow += (Limits(plan[first:end], rules, asked > capacity),)
        enforced = Limits(plan[: self._enforced], self._rules)
        return Selection(
            _LIMITED if self._enforced else _UNLIMITED, enforced, shadow, "", unmatched, self.since, self.until
        )

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
    return Steps([Applied(applied.rule, applied.terms, True)]).selection(facts, 0, 0, ()).enforced.plan


def _joined(dimensions: tuple[str, ...], facts: Mapping[str, str]) -> str:
    return together([facts[name] for name in dimensions]) or ""


def _steps(applied: Applied) -> tuple[_Step, ...]:
    dimension, names = applied.rule.dimension, applied.rule.dimensions
    several = names if len(names) > 1 else None
    steps: tuple[_Step, ...] = ()
    for space, quota in applied.terms.counted:
        steps += ((dimension, several, space, quota, Limit(space, EVERYBODY, quota) if dimension == GLOBAL else None),)
    return steps
