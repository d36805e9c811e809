"""A store with room for a few keys, whose limits change all the time: the bounds hold, and every wait is exact."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from random import Random

import pytest

from headgate import MemoryStore
from headgate.core.algorithms import Algorithm
from headgate.core.key import space
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores import memory
from headgate.testing import ManualClock

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def few_overflow_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_OVERFLOW_STATES", 2)
    monkeypatch.setattr(memory, "_OVERFLOW_GROUPS", 2)


class Trace:
    """Random checks of one store, and what they admitted."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self.random, self.algorithm, self.clock = Random(f"{algorithm}{seed}"), algorithm, ManualClock()
        self.window = self.random.choice([SECOND, 7 * SECOND, 60 * SECOND])
        self.store = MemoryStore(max_keys=self.random.randint(1, 4), clock=self.clock)
        self.quotas: dict[tuple[str, str], list[Quota]] = {}
        self.admitted: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def quota(self) -> Quota:
        burst = self.random.choice([0, 0, 3]) if self.algorithm.is_bucket else 0
        steps = [1, 1, SECOND // 3, 2 * self.window] if self.algorithm is Algorithm.TOKEN_BUCKET else [1]
        limit, every = self.random.choice([1, 2, 3, 5, 50, 200]), self.random.choice(steps)
        return Quota(limit, self.window, burst, self.algorithm, refill_every_us=every)

    def plan(self) -> Plan:
        plan: Plan = ()
        for name in self.random.sample("abc", self.random.randint(1, 2)):
            key = f"user:{self.random.randint(0, 5)}"
            quotas = self.quotas.setdefault((name, key), [self.quota()])
            if self.random.random() < 0.2:
                quotas.append(self.quota())
            plan += (Limit(space(name, quotas[-1]), key, quotas[-1]),)
        return plan

    def check(self, plan: Plan, cost: int) -> int:
        """Return how long to wait; 0 if it was admitted."""
        decision = self.store.run(Call(Verb.CHECK, plan, cost))
        if decision:
            for limit in plan:
                name = limit.space.partition("|")[0]
                self.admitted.setdefault((name, str(limit.principal)), []).append((self.clock.now(), cost))
        return decision.retry_after_us

    def most(self, quotas: list[Quota], start: int, end: int) -> int:
        """Return how much the highest of the limits of a key would let pass from `start` to `end`."""
        capacity, aligned = max(quota.capacity for quota in quotas), end // self.window - start // self.window
        if self.algorithm.is_bucket:
            rate = Fraction(max(quota.limit for quota in quotas), self.window)
            every = max(quota.refill_every_us for quota in quotas)
            return capacity + floor(rate * (end - start + (every if every > 1 else 0)))
        if self.algorithm is Algorithm.SLIDING_WINDOW_LOG:
            aligned = (end - start) // self.window
        return capacity * (aligned + 1)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_bounds_hold_and_waits_are_exact(algorithm: Algorithm) -> None:
    for seed in range(40):
        trace = Trace(algorithm, seed)
        for _ in range(60):
            step = trace.random.choice([0, 1, trace.window // 10, trace.random.randint(0, 2 * trace.window)])
            trace.clock.advance(us=step)
            plan = trace.plan()
            cost = min(trace.random.choice([1, 2, 5]), *[limit.quota.capacity for limit in plan], 5)
            wait = trace.check(plan, cost)
            if wait and trace.random.random() < 0.5:
                trace.clock.advance(us=wait - 1)
                assert trace.check(plan, cost) == 1
                trace.clock.advance(us=1)
                assert trace.check(plan, cost) == 0
        for key, admitted in trace.admitted.items():
            for index, (start, _) in enumerate(admitted):
                passed = 0
                for end, cost in admitted[index:]:
                    passed += cost
                    assert passed <= trace.most(trace.quotas[key], start, end)
