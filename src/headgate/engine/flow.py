"""From a selection to a ruling, without waiting.

A *flow* is a generator that yields the calls of the store that may be made at the same time, and is sent their
decisions; sync and async drive it in their own way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.key import once_token
from headgate.core.plan import Call, Verb, combine
from headgate.core.pressure import Pressure
from headgate.engine.ruling import RuleDecision, Ruling, rule_decisions, ruling_of
from headgate.policy.selection import Limits, Selection, Verdict
from headgate.stores.wrapping import Refund

Flow: TypeAlias = Generator[Sequence[Call], Sequence[Decision], Ruling]


def ruled(selection: Selection, verb: Verb, cost: int, version: int, idempotency_key: str = "") -> Flow:
    """Ask the store what the policy says is to be asked.

    Enforced limits first, all or nothing. Shadow rules take their cost where the request passes, each on its own, as
    they would if they were enforced; where it does not pass, they are only asked.
    """
    if not cost:  # it takes nothing, and gives nothing back
        verb = Verb.PEEK
    enforced = selection.enforced
    decision: Decision | None = None
    allowed = selection.verdict is not Verdict.DENIED
    if enforced.plan:
        (decision,) = yield (_call(verb, enforced, cost, idempotency_key),)
        allowed = decision.allowed
    shadow: tuple[RuleDecision, ...] = ()
    if selection.shadow:
        decisions = yield shadow_calls(selection.shadow, verb if allowed else Verb.PEEK, cost, idempotency_key)
        shadow = shadow_told(selection.shadow, decisions)
    return ruling_of(selection, decision, version, shadow)


def refunded(ruling: Ruling, version: int) -> Flow:
    """Give back what a ruling took, to the limits that it took it from; says what they have then."""
    selection, refunds = ruling.selection, []
    if selection is None:
        raise UsageError("one of several requests that passed together is refunded by its request, not by its ruling")
    if ruling.decision is not None:
        refunds.append(Refund(selection.enforced.plan, ruling.decision))
    shadow = iter(ruling.shadow)
    for limits in selection.shadow:
        parts = [part.decision for part in islice(shadow, len(limits.plan))]
        refunds.append(Refund(limits.plan, combine(parts), parts))
    with ExitStack() as under_way:
        calls = [under_way.enter_context(refund).call for refund in refunds]
        answers = (yield calls) if calls else ()
        told = [refund.done(answer) for refund, answer in zip(refunds, answers, strict=True)]
    decision = told.pop(0) if ruling.decision is not None else None
    return ruling_of(selection, decision, version, shadow_told(selection.shadow, told))


def shadow_calls(shadow: Sequence[Limits], verb: Verb, cost: int, idempotency_key: str = "") -> list[Call]:
    """Return the calls that ask shadow rules, each on its own."""
    return [_shadow_call(verb, limits, cost, idempotency_key) for limits in shadow]


def shadow_told(shadow: Sequence[Limits], decisions: Iterable[Decision]) -> tuple[RuleDecision, ...]:
    """Return what shadow rules say, by the decisions of those calls."""
    told: list[RuleDecision] = []
    for limits, each in zip(shadow, decisions, strict=True):
        parts = rule_decisions(limits.rules, each)
        told += [RuleDecision(part.rule_id, refused(part.decision)) for part in parts] if limits.too_small else parts
    return tuple(told)


def refused(decision: Decision) -> Decision:
    """Return the refusal of a cost that is above the capacity. No wait would help; it says a window, rather than 0."""
    refusal = {"allowed": False, "state": Pressure.THROTTLED, "retry_after_us": decision.quota.window_us}
    return msgspec.structs.replace(decision, **refusal)


def _shadow_call(verb: Verb, limits: Limits, cost: int, idempotency_key: str) -> Call:
    if limits.too_small:  # no store would accept the cost; what is left can be asked
        return Call(Verb.PEEK, limits.plan, 1)
    return _call(verb, limits, cost, idempotency_key)


def _call(verb: Verb, limits: Limits, cost: int, idempotency_key: str) -> Call:
    if verb is Verb.CHECK_ONCE:
        return Call(verb, limits.plan, cost, once_token(limits.plan, cost, idempotency_key))
    return Call(verb, limits.plan, cost or 1)
