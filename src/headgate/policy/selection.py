"""The selection of a policy for a request: the limits for the store, if any."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headgate.core.errors import CostTooLarge, InvalidCost
from headgate.core.key import LITERAL, bounded, checked_principal
from headgate.core.numbers import whole
from headgate.core.plan import MAX_COST, Limit, Plan, checked_cost
from headgate.policy.prepared import FOREVER, Applied


class Verdict(StrEnum):
    """The action for a request."""

    LIMITED = "limited"
    """The store decides about `Selection.enforced`."""
    UNLIMITED = "unlimited"
    """It passes: no limit is enforced. See `Selection.matched` for whether any rule matched."""
    ALLOWED = "allowed"
    """It passes: it is on the allow list."""
    DENIED = "denied"
    """It is refused without the store: it is on the deny list."""
    UNDECIDED = "undecided"
    """No decision: a client's service is unavailable, and its rules have never been fetched. Policies never return
    this."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Limits that are decided together, and their rules."""

    plan: Plan = ()
    rules: tuple[str, ...] = ()
    """The id of the rule, for each limit of the plan."""
    too_small: bool = False
    """Shadow limits only: the cost is above a capacity, so they would always refuse. Do not call the store."""


class Selection(msgspec.Struct, frozen=True, gc=False):
    """The result of a policy for one request."""

    verdict: Verdict
    enforced: Limits = Limits()
    """Limits that decide, all or nothing; possibly for several principals."""
    shadow: tuple[Limits, ...] = ()
    """Limits that only count and report, rule by rule; each is decided on its own. Only the store knows which of them
    took the cost of a request, so a refund is for all of them, each up to its usage."""
    reason: str = ""
    """For requests on a list, and for a named rule that does not exist or is disabled."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of the request's principals that occur in no rule, and may be misspelt."""
    since: int = 0
    until: int = FOREVER
    """The selection is valid between these times, in microseconds since the epoch."""

    @property
    def matched(self) -> bool:
        """Whether any rule matched, including the default."""
        return bool(self.enforced.plan or self.shadow)

    @property
    def size(self) -> int:
        """The number of limits, including those of shadow rules."""
        count = len(self.enforced.plan)
        for limits in self.shadow:
            count += len(limits.plan)
        return count


UNMATCHED = Selection(Verdict.UNLIMITED)
_LIMITED, _UNLIMITED = Verdict.LIMITED, Verdict.UNLIMITED


def selection_of(applying: Sequence[Applied], cost: int, taken: int, unmatched: tuple[str, ...]) -> Selection:
    """Return the selection for a request with the rules that apply, in order.

    `taken` is the part of the cost to take: 0 for a refund or a reset. Raises InvalidCost, CostTooLarge and InvalidKey;
    see `Policy.select`.
    """
    since, until, capacity = 0, FOREVER, MAX_COST
    for applied in applying:
        terms = applied.terms
        if applied.is_enforced and terms.capacity < capacity:
            capacity = terms.capacity
        since = max(since, terms.since)
        until = min(until, terms.until)
    if type(cost) is not int or not 0 <= cost <= capacity:
        _check_cost(applying, cost, taken)
    plan: Plan = ()  # tuples that grow: a list takes longer, unless it gets long
    rules: tuple[str, ...] = ()
    shadow: tuple[Limits, ...] = ()
    for applied in applying:
        terms, limits = applied.terms, limits_of(applied)
        if applied.is_enforced:
            plan += limits
            rules += terms.rules
        else:
            shadow += (Limits(limits, terms.rules, taken > terms.capacity),)
    if not plan and not shadow and not unmatched:
        return UNMATCHED
    return Selection(_LIMITED if plan else _UNLIMITED, Limits(plan, rules), shadow, "", unmatched, since, until)


def limits_of(applied: Applied) -> Plan:
    """Return the limits of one rule for one request. Raises InvalidKey."""
    value = applied.value
    principal = value if 0 < len(value) <= LITERAL and value.isascii() else bounded(checked_principal(value))
    limits: Plan = ()
    for space, quota in applied.terms.counted:
        limits += (Limit(space, principal, quota),)
    return limits


def _check_cost(applying: Sequence[Applied], cost: int, taken: int) -> None:
    """Raise InvalidCost, or CostTooLarge if the cost is above the capacity of a rule."""
    whole("cost", cost, 0, MAX_COST, InvalidCost)
    for applied in applying:
        if applied.is_enforced and taken > applied.terms.capacity:
            try:
                checked_cost(cost, applied.terms.quotas)
            except CostTooLarge as error:
                raise CostTooLarge(f"rule {applied.rule.id!r}: {error}") from None
