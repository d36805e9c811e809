"""The reference for all stores: the pure core over a dictionary."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.core.algorithms import State
from headgate.core.decision import Decision
from headgate.core.key import ONCE_US, Principal
from headgate.core.plan import Call, decide, hash_of, replayed, shadowed
from headgate.flows import drive
from headgate.stores.base import plain_check


class ReferenceStore:
    """Keeps every state forever; for one thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.states: dict[tuple[str, Principal], State] = {}
        self.answers: dict[bytes, tuple[int, Decision, int]] = {}
        """Of `check_once` and of refunds with a token, each with the time when it ends."""

    def run(self, call: Call) -> Decision:
        if call.shadow:
            return drive(shadowed(call), self.run)
        if not call.token:
            return self._decide(call)
        now = self.clock.now()
        if call.charge is not None:
            if now >= call.charge.until:
                return self._decide(call)
            if call.token not in self.answers:
                self.answers[call.token] = call.charge.until, self._decide(call), 0
            return self.answers[call.token][1]
        until, decision, known = self.answers.get(call.token, (now, None, 0))
        if decision is None or until <= now:
            decision = self._decide(call)
            if decision.allowed:
                self.answers[call.token] = now + ONCE_US, decision, hash_of(call.plan)
        elif known != hash_of(call.plan):
            return replayed(call.plan, [self.states.get((each.space, each.principal)) for each in call.plan], now)
        return decision

    bind = plain_check

    def ready(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        self.states.clear()
        self.answers.clear()

    def _decide(self, call: Call) -> Decision:
        keys = [(limit.space, limit.principal) for limit in call.plan]
        states, decision = decide(call, [self.states.get(key) for key in keys], self.clock.now())
        for key, state in zip(keys, states, strict=True):
            self.states[key] = state
            if state is None:
                del self.states[key]
        return decision
