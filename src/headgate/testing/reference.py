"""The simplest store there is: the pure core over a dictionary. What every other store must agree with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headgate.clock import Clock
from headgate.core import plan as plans
from headgate.core.algorithms import State
from headgate.core.decision import Decision
from headgate.core.key import ONCE_US, Principal
from headgate.core.plan import Charge, Family, Plan, States
from headgate.stores.base import Check


class ReferenceStore:
    """Keeps every state for ever, for one thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.states: dict[tuple[str, Principal], State] = {}
        self.answers: dict[bytes, tuple[int, Decision]] = {}
        """Of `check_once`, each with the time when it ends."""

    def check(self, plan: Plan, cost: int) -> Decision:
        return self._run(plans.check, plan, cost)

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        now = self.clock.now()
        until, decision = self.answers.get(token, (now, None))
        if decision is None or until <= now:
            decision = self.check(plan, cost)
            if decision.allowed:
                self.answers[token] = now + ONCE_US, decision
        return decision

    def refund(self, plan: Plan, cost: int, charge: Charge | None = None) -> Decision:
        transact = plans.refund if charge is None else partial(plans.refund, since=min(charge.taken_at))
        return self._run(transact, plan, cost)

    def peek(self, plan: Plan, cost: int) -> Decision:
        return plans.peek(plan, self._states(plan), cost, self.clock.now())

    def reset(self, plan: Plan) -> None:
        for space, principal, _ in plan:
            self.states.pop((space, principal), None)

    def bind(self, family: Family) -> Check:
        def check(key: str, cost: int = 1) -> Decision:
            plan = family.plan(key)
            if type(cost) is int and cost == 0:
                return self.peek(plan, 1)
            return self.check(plan, family.checked_cost(cost))

        return check

    def ready(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        self.states.clear()
        self.answers.clear()

    def _run(
        self, transact: Callable[[Plan, States, int, int], tuple[States, Decision]], plan: Plan, cost: int
    ) -> Decision:
        states, decision = transact(plan, self._states(plan), cost, self.clock.now())
        for (space, principal, _), state in zip(plan, states, strict=True):
            self.states[space, principal] = state
        return decision

    def _states(self, plan: Plan) -> States:
        return [self.states.get((space, principal)) for space, principal, _ in plan]
