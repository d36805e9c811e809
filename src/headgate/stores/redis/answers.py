"""What becomes of an answer of the script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from headgate.core.decision import Decision
from headgate.core.plan import Call, Plan, Verb, decide
from headgate.stores.fallback import marked
from headgate.stores.redis import scripts

NOT_REPLICATED = "not_replicated"
"""Why a decision is degraded that the primary made, but that not enough replicas have: a failover may forget it."""

UNKNOWN = "storage_unavailable"
"""Why a part of a refusal is degraded: the shard of that limit did not say what it has."""


class Unconfirmed(tuple[int, ...]):
    """An answer of which not enough replicas have what it wrote."""

    __slots__ = ()


Answer: TypeAlias = Sequence[int]
_TAKING = {Verb.CHECK, Verb.CHECK_ONCE}


def answer_to(call: Call, answer: Answer) -> Decision:
    """Return what the script has answered to a call."""
    if call.verb is Verb.RESET:  # it says no more than that it is done
        return nothing_used(call.plan, answer[0])
    return decided(call.plan, answer, call.cost if call.verb in _TAKING else 0)


def nothing_used(plan: Plan, now: int) -> Decision:
    """Return what limits say that nothing was used of."""
    return decide(Call(Verb.PEEK, plan), [None] * len(plan), now)[1]


def decided(plan: Plan, answer: Answer, cost: int = 0) -> Decision:
    """Return the decision of `plan` that the script answered; `cost` is what it has taken if that is an admission."""
    decision = scripts.decision_of(plan, answer, cost)
    return marked(decision, NOT_REPLICATED) if type(answer) is Unconfirmed else decision
