"""What the engine answers: the decision, of whose rules, and what shadow rules would have said."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.policy.selection import Selection, Verdict


class RuleDecision(msgspec.Struct, frozen=True, gc=False):
    """What one limit of a rule says."""

    rule_id: str
    decision: Decision


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request. It is true when the request may pass."""

    allowed: bool
    verdict: Verdict
    """How it came about: by limits, by none, or by a list."""
    decision: Decision | None = None
    """What all enforced limits say together; None where there was nothing to ask."""
    rule_id: str = ""
    """The rule that blocks longest or, when allowed, the most restrictive one; empty where no limit is enforced."""
    limits: tuple[RuleDecision, ...] = ()
    """What each enforced limit says, in the order of the rules."""
    shadow: tuple[RuleDecision, ...] = ()
    """What the limits of shadow rules say; they refuse nothing."""
    matched: bool = False
    """Whether any rule matched, the default included."""
    reason: str = ""
    """Why, for those on a list, for a cost that could never pass among several requests (see `together`), and, by the
    service, for a rule that does not exist."""
    version: int = 0
    """Of the policy."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of principals that the request has and no rule and no list knows: perhaps misspelt."""
    selection: Selection | None = None
    """The limits that were asked, for a refund; None for one of several requests that pass together."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def state(self) -> Pressure:
        """The state of the most restrictive limit."""
        if self.decision is not None:
            return self.decision.state
        return Pressure.NORMAL if self.allowed else Pressure.THROTTLED

    @property
    def degraded(self) -> str:
        """Why the store did not decide; empty if it did, or did not have to."""
        return self.decision.degraded if self.decision is not None else ""


class Passed(NamedTuple):
    """The answer of `is_passed`."""

    passed: bool
    reset_time: float | None
    """When nothing counts as used any more, in seconds since the epoch; None where no limit decided."""
    limit: int | None
    remaining: int | None


class Reset(msgspec.Struct, frozen=True):
    """What a reset did. It is true when anything was reset."""

    rules: tuple[str, ...] = ()
    """Ids of the rules whose limits were reset."""
    shared: tuple[str, ...] = ()
    """Ids of rules that apply as well, but count others too, and were left alone: name one to reset it."""
    reason: str = ""
    """Why nothing was reset, where the service was asked for it."""

    def __bool__(self) -> bool:
        return bool(self.rules)


def rule_decisions(rules: tuple[str, ...], decision: Decision) -> tuple[RuleDecision, ...]:
    """Return what each limit says, with the rule that it belongs to."""
    return tuple([RuleDecision(rule, part) for rule, part in zip(rules, decision.limits, strict=True)])


def ruling_of(
    selection: Selection,
    decision: Decision | None,
    version: int,
    shadow: tuple[RuleDecision, ...] = (),
    *,
    alone: bool = True,
) -> Ruling:
    """Return the ruling on a request about which the store has said all it was asked."""
    rules, asked = selection.enforced.rules, selection if alone else None
    if decision is None:
        allowed = selection.verdict is not Verdict.DENIED
        about = selection.matched, selection.reason, version, selection.unmatched_principals, asked
        return Ruling(allowed, selection.verdict, None, "", (), shadow, *about)
    if len(rules) == 1:
        rule = rules[0]
        limits: tuple[RuleDecision, ...] = (RuleDecision(rule, decision),)
    else:
        rule, limits = rules[decision.index], rule_decisions(rules, decision)
    about = True, "", version, selection.unmatched_principals, asked
    return Ruling(decision.allowed, selection.verdict, decision, rule, limits, shadow, *about)


def passed(ruling: Ruling, now: int) -> Passed:
    """Return a ruling, made at `now`, as the answer of `is_passed`."""
    decision = ruling.decision
    if decision is None:
        return Passed(ruling.allowed, None, None, None)
    return Passed(ruling.allowed, (now + decision.reset_after_us) / SECOND, decision.limit, decision.remaining)
