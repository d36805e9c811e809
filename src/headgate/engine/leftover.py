"""Using up what is left of limits, for what was used before it was asked for, such as the tokens of a response."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from headgate.core.decision import Decision
from headgate.core.plan import Call, Plan, Verb

TRIES = 3
"""To take what is left of a limit, while others take from it too."""


def used_up(plan: Plan, cost: int) -> Generator[Sequence[Call], Sequence[Decision], None]:
    """Take `cost` from each limit on its own, or what is left of it."""
    for limit in plan:
        for _ in range(TRIES):
            (decision,) = yield (Call(Verb.PEEK, (limit,), 1),)
            left = min(cost, decision.remaining)
            if not left:
                break
            (decision,) = yield (Call(Verb.CHECK, (limit,), left),)
            if decision.allowed:
                break
