"""The results of an engine: rulings, resets, explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headgate.core.decision import Decision, refused
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.policy.explain import Considered, Explanation
from headgate.policy.request import Request
from headgate.policy.selection import Limits, Selection, Verdict

Tried: TypeAlias = tuple[tuple[str, ...], tuple[Decision, ...]]
"""The rule of each shadow limit, and its decision."""
NOTHING_TRIED: Tried = ((), ())


class RuleDecision(msgspec.Struct, frozen=True, gc=False):
    """The decision of one limit of a rule."""

    rule_id: str
    decision: Decision


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a client of the service keeps of a check, for a refund."""

    request: Request
    charge: str
    """See `headgate.engine.charges`; empty if nothing was taken."""


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """The ruling on a request. It is true if the request may pass."""

    allowed: bool
    verdict: Verdict
    """Whether limits decided, or none, or a list."""
    decision: Decision | None = None
    """The joint decision of all enforced limits; None without limits."""
    rule_id: str = ""
    """The rule that blocks longest or, if allowed, the most restrictive one; empty without enforced limits."""
    rules: tuple[str, ...] = ()
    """The rule of each enforced limit, in the order of ``decision.limits``."""
    shadow_rules: tuple[str, ...] = ()
    """The rule of each shadow limit; they refuse nothing."""
    shadow_decisions: tuple[Decision, ...] = ()
    """The decision of each of those limits."""
    matched: bool = False
    """Whether any rule matched, including the default."""
    reason: str = ""
    """Why, if a list decided, if a cost among several requests could never pass (see `headgate.engine.joint`), if the
    request was undecided and, in a service, if the rule does not exist."""
    version: int = 0
    """Of the policy."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of the request's principals that no rule and no list uses: perhaps typos."""
    selection: Selection | Receipt | None = None
    """The limits, or in a client of the service the receipt, for a refund."""
    is_joint: bool = False
    """Whether the request is one of several that pass together: then it does not have what was taken."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def limits(self) -> tuple[RuleDecision, ...]:
        """The decision of each enforced limit, in the order of the rules."""
        return () if self.decision is None else _rule_decisions(self.rules, self.decision.limits)

    @property
    def shadow(self) -> tuple[RuleDecision, ...]:
        """The decisions of shadow limits."""
        return _rule_decisions(self.shadow_rules, self.shadow_decisions)

    @property
    def shadow_denied(self) -> tuple[str, ...]:
        """The shadow rule of each limit that would have refused."""
        denied: tuple[str, ...] = ()
        for place, decision in enumerate(self.shadow_decisions):
            if not decision.allowed:
                denied += (self.shadow_rules[place],)
        return denied

    @property
    def state(self) -> Pressure:
        """The state of the most restrictive limit."""
        if self.decision is not None:
            return self.decision.state
        return Pressure.NORMAL if self.allowed else Pressure.THROTTLED

    @property
    def degraded(self) -> str:
        """Why the store did not decide; empty if it did, or no call was necessary."""
        if self.verdict is Verdict.UNDECIDED:
            return self.reason
        return self.decision.degraded if self.decision is not None else ""


class Passed(NamedTuple):
    """The result of `is_passed`."""

    passed: bool
    reset_time: float | None
    """When the whole limit is available again, in seconds since the epoch; None if no limit decided."""
    limit: int | None
    remaining: int | None


class Reset(msgspec.Struct, frozen=True):
    """The result of a reset. It is true if anything was reset."""

    rules: tuple[str, ...] = ()
    """Ids of the rules whose limits were reset."""
    shared: tuple[str, ...] = ()
    """Ids of rules that apply but count others too, and were not reset: name one to reset it."""
    reason: str = ""
    """Why nothing was reset, if nothing was."""

    def __bool__(self) -> bool:
        return bool(self.rules)


class Explained(msgspec.Struct, frozen=True):
    """An explanation by the policy, with the state in the store."""

    explanation: Explanation
    """Every rule, whether it applies, and why or why not."""
    ruling: Ruling
    """What would be decided now."""
    states: Mapping[str, tuple[Decision, ...]]
    """The current state of the limits of matching rules, by rule id."""


def _rule_decisions(rules: Sequence[str], decisions: Sequence[Decision]) -> tuple[RuleDecision, ...]:
    return tuple([RuleDecision(rule, part) for rule, part in zip(rules, decisions, strict=True)])


def shadow_limits(shadow: Sequence[Limits], decisions: Sequence[Decision]) -> Tried:
    """Return the rule and the decision of each shadow limit, given a decision for each shadow rule."""
    rules: tuple[str, ...] = ()
    tried: tuple[Decision, ...] = ()
    for place, decision in enumerate(decisions):
        limits, parts = shadow[place], decision.parts or (decision,)
        rules += limits.rules
        tried += tuple([refuse(part) for part in parts]) if limits.too_small else parts
    return rules, tried


def refuse(decision: Decision) -> Decision:
    """Return the refusal of a cost above the capacity. Waiting would not help; the wait is a window, rather than 0."""
    return refused(decision, decision.quota.window_us)


def ruling_of(
    selection: Selection,
    decision: Decision | None,
    version: int,
    shadow: Tried = NOTHING_TRIED,
    reason: str = "",
    *,
    is_joint: bool = False,
) -> Ruling:
    """Return the ruling by the decision about the enforced limits (None: there are none) and those of shadow limits.

    `version` is that of the policy; for `reason` and `is_joint`, see `Ruling`.
    """
    verdict, unmatched = selection.verdict, selection.unmatched_principals
    if decision is None:
        allowed, matched = verdict is not Verdict.DENIED, selection.matched
        about = *shadow, matched, selection.reason, version, unmatched, selection, is_joint
        return Ruling(allowed, verdict, None, "", (), *about)
    rules = selection.enforced.rules
    about = *shadow, True, reason, version, unmatched, selection, is_joint
    return Ruling(decision.allowed, verdict, decision, rules[decision.index], rules, *about)


def as_passed(ruling: Ruling, now: int) -> Passed:
    """Return a ruling at `now` as the result of `is_passed`."""
    decision = ruling.decision
    if decision is None:
        return Passed(ruling.allowed, None, None, None)
    reset_time = (now + decision.reset_after_us) / SECOND
    return Passed(ruling.allowed, reset_time, decision.limit, decision.remaining)


def with_states(explanation: Explanation, ruling: Ruling) -> Explained:
    """Return an explanation with the decisions of a peek."""
    states: dict[str, tuple[Decision, ...]] = {}
    for each in (*ruling.limits, *ruling.shadow):
        states[each.rule_id] = (*states.get(each.rule_id, ()), each.decision)
    return Explained(explanation, ruling, states)


def explanation_data(explained: Explained) -> dict[str, Any]:
    """Return an explanation as plain data, for JSON."""
    explanation, ruling = explained.explanation, explained.ruling
    return {
        "allowed": ruling.allowed,
        "verdict": str(ruling.verdict),
        "rule_id": ruling.rule_id,
        "reason": ruling.reason,
        "degraded": ruling.degraded,
        "unmatched_principals": list(ruling.unmatched_principals),
        "facts": dict(explanation.facts),
        "tier": explanation.tier,
        "rules": [_considered_data(each, explained.states.get(each.rule, ())) for each in explanation.rules],
    }


def _considered_data(considered: Considered, states: Sequence[Decision]) -> dict[str, Any]:
    limits = []
    for limit, state in zip(considered.limits, states, strict=False):
        principal = limit.principal
        shown = principal if isinstance(principal, str) else f"blake2b:{principal.hex()}"
        limits.append({**state_data(state), "space": limit.space, "principal": shown})
    return {
        "id": considered.rule,
        "applies": considered.applies,
        "reason": considered.reason,
        "enforced": considered.is_enforced,
        "source": considered.source,
        "limits": limits,
    }


def state_data(decision: Decision) -> dict[str, Any]:
    """Return the state of a limit as plain data. Times are in seconds."""
    return {
        "quota": str(decision.quota),
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "reset_after": decision.reset_after,
        "state": str(decision.state),
    }
