"""What becomes of an answer of the script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from headgate.core.decision import Decision
from headgate.core.plan import Plan
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


def decided(plan: Plan, answer: Answer, cost: int = 0) -> Decision:
    """Return the decision of `plan` that the script answered; `cost` is what it has taken if that is an admission."""
    decision = scripts.decision_of(plan, answer, cost)
    return marked(decision, NOT_REPLICATED) if type(answer) is Unconfirmed else decision
