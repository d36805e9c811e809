"""What an engine answers: the decision, of whose rules, and what shadow rules would have said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.policy.explain import Considered, Explanation
from headgate.policy.request import Request
from headgate.policy.selection import Limits, Selection, Verdict

Tried: TypeAlias = tuple[tuple[str, ...], tuple[Decision, ...]]
"""The shadow rule of each limit that is only tried out, and what the limit says."""
NOTHING_TRIED: Tried = ((), ())


class RuleDecision(msgspec.Struct, frozen=True, gc=False):
    """What one limit of a rule says."""

    rule_id: str
    decision: Decision


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a client of the service keeps of a check, for a refund."""

    request: Request
    charge: str
    """See `headgate.engine.charges`; empty if nothing was taken."""


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request. It is true when the request may pass."""

    allowed: bool
    verdict: Verdict
    """How it came about: by limits, by none, or by a list."""
    decision: Decision | None = None
    """What all enforced limits say together; None where there was nothing to ask."""
    rule_id: str = ""
    """The rule that blocks longest or, when allowed, the most restrictive one; empty where no limit is enforced."""
    rules: tuple[str, ...] = ()
    """The rule of each enforced limit, in the order of ``decision.limits``."""
    shadow_rules: tuple[str, ...] = ()
    """The shadow rule of each limit that was only tried out; they refuse nothing."""
    shadow_decisions: tuple[Decision, ...] = ()
    """What each of those limits says."""
    matched: bool = False
    """Whether any rule matched, the default included."""
    reason: str = ""
    """Why, for those on a list, for a cost that could never pass among several requests (see `headgate.engine.joint`),
    for what nobody could decide and, by the service, for a rule that does not exist."""
    version: int = 0
    """Of the policy."""
    unmatched_principals: tuple[str, ...] = ()
    """Names of principals that the request has and no rule and no list knows: perhaps misspelt."""
    selection: Selection | Receipt | None = None
    """The limits that were asked, or what a client of the service has instead, for a refund."""
    is_joint: bool = False
    """Whether it is about one of several requests that pass together: then it does not say what was taken."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def limits(self) -> tuple[RuleDecision, ...]:
        """What each enforced limit says, in the order of the rules."""
        return () if self.decision is None else _rule_decisions(self.rules, self.decision.limits)

    @property
    def shadow(self) -> tuple[RuleDecision, ...]:
        """What the limits of shadow rules say."""
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
        """Why the store did not decide; empty if it did, or did not have to."""
        if self.verdict is Verdict.UNDECIDED:
            return self.reason
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
    """Why nothing was reset, if nothing was."""

    def __bool__(self) -> bool:
        return bool(self.rules)


class Explained(msgspec.Struct, frozen=True):
    """An explanation by the policy, joined with what the store knows."""

    explanation: Explanation
    """Every rule, whether it applies, and why or why not."""
    ruling: Ruling
    """What would be decided now."""
    states: Mapping[str, tuple[Decision, ...]]
    """What each limit of the rules that apply has now, by rule id."""


def _rule_decisions(rules: Sequence[str], decisions: Sequence[Decision]) -> tuple[RuleDecision, ...]:
    return tuple([RuleDecision(rule, part) for rule, part in zip(rules, decisions, strict=True)])


def shadow_limits(shadow: Sequence[Limits], decisions: Sequence[Decision]) -> Tried:
    """Return the rule of each limit of shadow rules, and what it says, by one decision for each rule."""
    rules: tuple[str, ...] = ()
    told: tuple[Decision, ...] = ()
    for place, decision in enumerate(decisions):
        limits, parts = shadow[place], decision.parts if decision.made_of else (decision,)
        rules += limits.rules
        told += tuple([refused(part) for part in parts]) if limits.too_small else parts
    return rules, told


def refused(decision: Decision) -> Decision:
    """Return the refusal of a cost that is above the capacity. No wait would help; it says a window, rather than 0."""
    refusal = {"allowed": False, "state": Pressure.THROTTLED, "retry_after_us": decision.quota.window_us}
    return msgspec.structs.replace(decision, **refusal)


def ruling_of(
    selection: Selection,
    decision: Decision | None,
    version: int,
    shadow: Tried = NOTHING_TRIED,
    reason: str = "",
    *,
    is_joint: bool = False,
) -> Ruling:
    """Return the ruling on a request about which the store has said all it was asked.

    Args:
        selection: what applies to the request.
        decision: about its enforced limits; None where there are none.
        version: of the policy.
        shadow: what `shadow_limits` returns.
        reason: why limits refuse a cost that could never pass.
        is_joint: see `Ruling.is_joint`.
    """
    verdict, unmatched = selection.verdict, selection.unmatched_principals
    if decision is None:
        allowed, matched = verdict is not Verdict.DENIED, selection.matched
        about = *shadow, matched, selection.reason, version, unmatched, selection, is_joint
        return Ruling(allowed, verdict, None, "", (), *about)
    rules = selection.enforced.rules
    allowed, rule_id, (tried, told) = decision.allowed, rules[decision.index], shadow
    about = tried, told, True, reason, version, unmatched, selection, is_joint
    return Ruling(allowed, verdict, decision, rule_id, rules, *about)


def passed(ruling: Ruling, now: int) -> Passed:
    """Return a ruling, asked for at `now`, as the answer of `is_passed`."""
    decision = ruling.decision
    if decision is None:
        return Passed(ruling.allowed, None, None, None)
    reset_time = (now + decision.reset_after_us) / SECOND
    return Passed(ruling.allowed, reset_time, decision.limit, decision.remaining)


def joined(explanation: Explanation, ruling: Ruling) -> Explained:
    """Return an explanation with the answers of a peek."""
    states: dict[str, tuple[Decision, ...]] = {}
    for each in (*ruling.limits, *ruling.shadow):
        states[each.rule_id] = (*states.get(each.rule_id, ()), each.decision)
    return Explained(explanation, ruling, states)


def explained_data(explained: Explained) -> dict[str, Any]:
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
    """Return what a limit has now as plain data. Times are in seconds."""
    return {
        "quota": str(decision.quota),
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after": decision.retry_after,
        "reset_after": decision.reset_after,
        "state": str(decision.state),
    }
