"""Random sequences of operations on a store, compared with the pure core."""

# ruff: noqa: S101  a test suite asserts

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.core.algorithms import void_at
from headgate.core.decision import Decision
from headgate.core.key import ONCE_US, once_token
from headgate.core.plan import Call, Family, Plan, Verb, call_of, refund_of
from headgate.core.quota import Quota
from headgate.stores.base import Store
from headgate.testing.clock import ManualClock
from headgate.testing.reference import ReferenceStore
from headgate.testing.samples import CALENDARS, QUOTAS, SECOND, WithStore, names

_DAY = 86_400 * SECOND
_LEAPS = [1, ONCE_US, _DAY, 40 * _DAY]


class StoreTraces(WithStore):
    """Random operations, whose results must equal those of the pure core."""

    examples = 100
    """The number of sequences."""

    def test_every_answer_is_that_of_the_pure_core(self) -> None:
        clock = ManualClock()
        store = self.make_store(clock)
        try:
            run_state_machine_as_test(
                type("Machine", (_Machine,), {"store": store, "clock": clock}),
                settings=settings(
                    max_examples=self.examples, stateful_step_count=40, deadline=None, report_multiple_bugs=False
                ),
            )
        finally:
            store.close()


class _Machine(RuleBasedStateMachine):
    store: Store
    clock: ManualClock

    def __init__(self) -> None:
        super().__init__()
        self.clock.set(ManualClock.START)  # so that a sequence can be replayed
        self.reference = ReferenceStore(self.clock)
        self.name = next(names)
        self.quotas: list[Quota] = []
        self.changes = 0
        self.decisions: list[tuple[str, Decision]] = []

    @initialize(
        picks=st.lists(st.sampled_from(QUOTAS + CALENDARS), min_size=1, max_size=3, unique_by=lambda quota: quota.shape)
    )
    def choose(self, picks: list[Quota]) -> None:
        self.quotas = picks

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def check(self, key: str, cost: int) -> None:
        plan, cost = self._plan(key), self._possible(cost)
        self.decisions.append((key, self._compare(Call(Verb.CHECK, plan, cost))))

    @rule(key=st.sampled_from("ab"), cost=st.integers(0, 5))
    def bound_check(self, key: str, cost: int) -> None:
        limits, cost = Family(self.name, self.quotas), self._possible(cost)
        assert self.store.bind(limits)(key, cost) == self.reference.bind(limits)(key, cost)

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5), once=st.sampled_from("xyz"))
    def check_once(self, key: str, cost: int, once: str) -> None:
        plan, cost = self._plan(key), self._possible(cost)
        token = once_token(plan, cost, f"{once}{self.changes}")  # after a change, any limit may be named
        self._compare(Call(Verb.CHECK_ONCE, plan, cost, token))

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def peek(self, key: str, cost: int) -> None:
        plan, cost = self._plan(key), self._possible(cost)
        self._compare(Call(Verb.PEEK, plan, cost))

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def refund(self, key: str, cost: int) -> None:
        self._compare(Call(Verb.REFUND, self._plan(key), cost))

    @precondition(lambda self: self.decisions)
    @rule(data=st.data())
    def refund_what_was_taken(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.decisions) - 1))
        key, decision = self.decisions[number]
        named = f"{self.name}#{number}#{self.changes}"  # after a change, any limit may be named
        token = named.encode() if data.draw(st.booleans()) else b""
        self._compare(refund_of(self._plan(key), decision, token))

    @precondition(lambda self: self.quotas)
    @rule(
        verb=st.sampled_from([Verb.CHECK, Verb.CHECK, Verb.PEEK, Verb.REFUND]),
        key=st.sampled_from("ab"),
        data=st.data(),
    )
    def costs_differ(self, verb: Verb, key: str, data: st.DataObject) -> None:
        plan = self._plan(key)
        costs = [data.draw(st.integers(1, max(1, min(5, limit.quota.capacity)))) for limit in plan]
        decision = self._compare(call_of(verb, plan, costs))
        if decision.taken:
            self.decisions.append((key, decision))

    @rule(key=st.sampled_from("ab"))
    def reset(self, key: str) -> None:
        self._compare(Call(Verb.RESET, self._plan(key)))

    @rule(
        verb=st.sampled_from([Verb.CHECK, Verb.CHECK, Verb.PEEK]),
        key=st.sampled_from("ab"),
        cost=st.integers(1, 5),
        enforced=st.booleans(),
    )
    def check_shadow_plans(self, verb: Verb, key: str, cost: int, *, enforced: bool) -> None:
        shadow = tuple([(limit,) for limit in self._shadow(key)])
        self._compare(Call(verb, self._plan(key) if enforced else (), self._possible(cost), shadow=shadow))

    @rule(us=st.one_of(st.integers(0, 2 * SECOND), st.integers(0, 20 * SECOND), st.sampled_from(_LEAPS)))
    def time_passes(self, us: int) -> None:
        self.clock.advance(us=us)

    @precondition(lambda self: self.nothing_to_forget())
    @rule(us=st.one_of(st.integers(1, SECOND), st.integers(1, 3 * SECOND), st.integers(1, 3 * _DAY)))
    def the_clock_falls_back(self, us: int) -> None:
        self.clock.advance(us=-us)

    def nothing_to_forget(self) -> bool:
        """Whether no state is void and no answer expired, which a store may have dropped for good."""
        now = self.clock.now()
        if any(until <= now for until, *_ in self.reference.answers.values()):
            return False
        limits = (*self._plan("a"), *self._shadow("a")) if self.quotas else ()
        kept = {limit.space: limit.quota for limit in limits}
        return all(void_at(state, kept[space]) > now for (space, _), state in self.reference.states.items())

    @rule(
        limit=st.one_of(st.integers(1, 9), st.sampled_from([101, 999_983, 10**6, 2_251_799_857])),
        burst=st.integers(0, 4),
    )
    def limits_change(self, limit: int, burst: int) -> None:
        self.changes += 1
        self.quotas = [
            replace(quota, limit=limit, burst=burst if quota.burst else 0) if quota.limit else quota
            for quota in self.quotas
        ]

    @invariant()
    def both_agree(self) -> None:
        for key in "ab" if self.quotas else "":
            self._compare(Call(Verb.PEEK, self._plan(key)))

    def _compare(self, call: Call) -> Decision:
        """Return the decision about a call, which must be the same in both stores."""
        decision = self.store.run(call)
        assert decision == self.reference.run(call)
        return decision

    def _plan(self, key: str) -> Plan:
        return Family(self.name, self.quotas).plan(key)

    def _shadow(self, key: str) -> Plan:
        return Family(f"{self.name}.tried", self.quotas).plan(key)

    def _possible(self, cost: int) -> int:
        return min(cost, *(quota.capacity for quota in self.quotas))
