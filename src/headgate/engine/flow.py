"""From a selection to a ruling, without waiting.

A *flow* is a generator that yields the calls of the store that may be made at the same time, and is sent their
decisions; sync and async drive it in their own way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from headgate.core.decision import Decision
from headgate.core.key import once_token
from headgate.core.plan import Plan
from headgate.engine.ruling import Ruling, rule_decisions, rule_of
from headgate.policy.selection import Limits, Selection, Verdict


class Verb(Enum):
    """What is asked of a store."""

    CHECK = "check"
    CHECK_ONCE = "check_once"
    PEEK = "peek"
    REFUND = "refund"


class Call(NamedTuple):
    """One call of a store."""

    verb: Verb
    plan: Plan
    cost: int
    token: bytes = b""


Flow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], Ruling]


def ruled(selection: Selection, verb: Verb, cost: int, version: int, idempotency_key: str = "") -> Flow:
    """Ask the store what the policy says is to be asked.

    Enforced limits first, all or nothing. Shadow rules take their cost where the request passes, each on its own, as
    they would if they were enforced; where it does not pass, they are only asked.
    """
    if verb is Verb.CHECK and not cost:
        verb = Verb.PEEK
    enforced = selection.enforced
    decision: Decision | None = None
    allowed = selection.verdict is not Verdict.DENIED
    if enforced.plan:
        (decision,) = yield (_call(verb, enforced, cost, idempotency_key),)
        allowed = decision.allowed
    shadow: list[tuple[tuple[str, ...], Decision]] = []
    asked = [limits for limits in selection.shadow if not limits.too_small]
    if asked:
        taking = verb if allowed else Verb.PEEK
        decisions = yield [_call(taking, limits, cost, idempotency_key) for limits in asked]
        shadow = [(limits.rules, each) for limits, each in zip(asked, decisions, strict=True)]
    return Ruling(
        allowed,
        selection.verdict,
        decision,
        rule_of(enforced.rules, decision) if decision is not None else "",
        rule_decisions(enforced.rules, decision) if decision is not None else (),
        tuple([part for rules, each in shadow for part in rule_decisions(rules, each)]),
        selection.matched,
        selection.reason,
        version,
    )


def _call(verb: Verb, limits: Limits, cost: int, idempotency_key: str) -> Call:
    if verb is Verb.CHECK_ONCE:
        return Call(verb, limits.plan, cost, once_token(limits.plan, cost, idempotency_key))
    return Call(verb, limits.plan, cost or 1)
