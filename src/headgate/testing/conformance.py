"""The contract of a store as a test suite.

A test module for a store has two classes::

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

    class TestMyStoreTraces(StoreTraces):
        def make_store(self, clock):
            return MyStore(clock=clock)

The first states the contract piece by piece. The second plays random sequences of operations, with time passing (and
sometimes falling back) and limits changing in between, and compares every answer with that of the pure core.

An asynchronous store is tested through `headgate.testing.blocking.Blocking`. The clock is a `ManualClock`: a store
whose time comes from elsewhere must be able to take it from there in tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from typing import Any

import pytest
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

from headgate.core.algorithms import Algorithm, State, void_at
from headgate.core.decision import Decision
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidKey
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.stores.base import Store
from headgate.testing.clock import ManualClock
from headgate.testing.reference import ReferenceStore

SECOND = 1_000_000
QUOTAS = [
    *(Quota(5, SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(3, SECOND, burst=2),
    Quota(3, SECOND, burst=2, algorithm=Algorithm.GCRA),
    Quota(3, SECOND, burst=2, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    Quota(5, SECOND, refill_every_us=SECOND // 4),
    Quota.one_off(5, keep_us=10 * SECOND),
]
"""One of each kind, all with a capacity of 5."""

LARGE = [
    *(Quota(20_011, 86_400 * SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(1_000_003, 999_983, burst=2_250_000),
    Quota(2_251, SECOND, burst=2_251_797_000, algorithm=Algorithm.GCRA),
    Quota(22_517_000, 100 * SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER),
    Quota(7, 3650 * 86_400 * SECOND, algorithm=Algorithm.LEAKY_BUCKET),
]
"""Quotas whose arithmetic comes near the bound of what is exact."""

_names = (f"limit-{number}" for number in count())


def family(*quotas: Quota) -> Family:
    """Return limits that no other test shares, even in a store that outlives the test."""
    return Family(next(_names), quotas)


def hesitating(quota: Quota) -> Quota:
    """Return `quota` with a step that lets other threads run before it answers.

    A store that is not atomic is between reading and writing then, and is found out. (One that does not decide in this
    process never calls it.)
    """
    quota = replace(quota)
    step = quota.step

    def hesitant(state: State, cost: int, now: int) -> tuple[State, Decision]:
        outcome = step(state, cost, now)
        time.sleep(0)
        return outcome

    object.__setattr__(quota, "step", hesitant)
    return quota


class _WithStore:
    def make_store(self, clock: ManualClock) -> Store:
        """Return a new store that takes its time from `clock`."""
        raise NotImplementedError(f"{type(self).__name__} must define make_store(clock)")


class StoreConformance(_WithStore):
    """What every store must do, piece by piece."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = self.make_store(clock)
        yield store
        store.close()

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_admits_the_capacity_and_not_one_more(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        assert [store.check(plan, 1).remaining for _ in range(5)] == [4, 3, 2, 1, 0]
        refusal = store.check(plan, 1)
        assert (refusal.allowed, refusal.remaining, refusal.state) == (False, 0, "throttled")

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_retry_after_is_exact(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.check(plan, 4)
        clock.advance(us=137)
        refusal = store.check(plan, 3)
        assert not refusal
        clock.advance(us=refusal.retry_after_us - 1)
        assert not store.check(plan, 3)
        clock.advance(us=1)
        assert store.check(plan, 3)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_after_reset_after_nothing_is_used(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        plan = family(quota).plan("user")
        decision = store.check(plan, 3)
        clock.advance(us=decision.reset_after_us - 1)
        assert store.peek(plan, 1).reset_after_us == 1
        clock.advance(us=1)
        rested = store.peek(plan, 1)
        assert (rested.remaining, rested.reset_after_us) == (5, 0)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_a_refused_request_takes_nothing(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.check(plan, 3)
        assert not store.check(plan, 4)
        assert store.check(plan, 2)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_peek_takes_nothing(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.check(plan, 2)
        assert [store.peek(plan, 3).remaining for _ in range(3)] == [3, 3, 3]
        assert not store.peek(plan, 4)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_refund_gives_back_at_most_what_is_used(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.check(plan, 5)
        assert store.refund(plan, 2).remaining == 2
        assert store.refund(plan, 5).remaining == 5
        assert store.check(plan, 5)
        assert not store.check(plan, 1)

    def test_refund_of_nothing_is_nothing(self, store: Store) -> None:
        plan = family(QUOTAS[0]).plan("user")
        assert store.refund(plan, 3).remaining == 5

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_reset_forgets_one_key(self, store: Store, quota: Quota) -> None:
        limits = family(quota)
        store.check(limits.plan("user"), 5)
        store.check(limits.plan("other"), 5)
        store.reset(limits.plan("user"))
        assert store.check(limits.plan("user"), 5)
        assert not store.check(limits.plan("other"), 1)

    def test_a_plan_takes_from_all_limits_or_none(self, store: Store) -> None:
        plan = family(Quota(5, SECOND), Quota(2, 60 * SECOND, algorithm=Algorithm.FIXED_WINDOW)).plan("user")
        assert store.check(plan, 2)
        refusal = store.check(plan, 1)
        assert not refusal
        assert [part.allowed for part in refusal.limits] == [True, False]
        assert [part.remaining for part in refusal.limits] == [3, 0]

    def test_a_refusal_describes_the_limit_that_blocks_longest(self, store: Store, clock: ManualClock) -> None:
        slow, fast = Quota(1, 60 * SECOND), Quota(1, SECOND)
        plan = family(fast, slow).plan("user")
        store.check(plan, 1)
        refusal = store.check(plan, 1)
        assert refusal.quota == slow
        clock.advance(us=refusal.retry_after_us - 1)
        assert not store.check(plan, 1)
        clock.advance(us=1)
        assert store.check(plan, 1)

    def test_an_admission_describes_the_most_restrictive_limit(self, store: Store) -> None:
        wide, narrow = Quota(100, SECOND), Quota(10, 60 * SECOND)
        decision = store.check(family(wide, narrow).plan("user"), 3)
        assert (decision.quota, decision.remaining, decision.limit) == (narrow, 7, 10)

    def test_keys_are_apart(self, store: Store) -> None:
        keys = ["a", "A", "a ", "a|b", "a|", "|", "{a}", "a:b", "a\n", "a\x00", "é", "e\u0301", "x" * 128, "x" * 129]
        limits = family(Quota(1, 60 * SECOND))
        check = store.bind(limits)
        assert all(check(key) for key in keys)
        assert not any(check(key) for key in keys)

    def test_names_and_shapes_are_apart(self, store: Store) -> None:
        quota, name = Quota(1, 60 * SECOND), next(_names)
        others = [quota, Quota(1, 61 * SECOND), replace(quota, algorithm=Algorithm.GCRA)]
        families = [family(quota), family(quota), *(Family(name, [other]) for other in others)]
        assert all(store.check(each.plan("user"), 1) for each in families)

    def test_the_parts_of_a_key_cannot_imitate_each_other(self, store: Store) -> None:
        """A window of 6 s and the key "0user", a name that ends as a key begins, a long key and its digest."""
        name = next(_names)
        digest = blake2b(b"x" * 200, digest_size=16).hexdigest()
        keys = {
            (name, 6): ["0user", "user", "x" * 200, digest, f"#{digest}", f"={digest}"],
            (name, 60): ["user"],
            (f"{name}u", 60): ["ser", "user"],
        }
        for (each, window), principals in keys.items():
            limits = Family(each, [Quota(1, window * SECOND)])
            for principal in principals:
                assert store.check(limits.plan(principal), 1), (each, window, principal)

    @pytest.mark.parametrize("quota", LARGE, ids=str)
    def test_large_numbers_are_exact(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        """At the edge of what is computed exactly, every answer is still that of the pure core."""
        reference = ReferenceStore(clock)
        plan = family(quota).plan("user")
        for turn in range(60):
            cost = min(quota.capacity, 1 + turn * 7919 % 100_000)
            assert store.check(plan, cost) == reference.check(plan, cost)
            clock.advance(us=turn * turn * turn * quota.window_us // 100_003)

    @pytest.mark.parametrize("quota", [quota for quota in QUOTAS if quota.limit], ids=str)
    def test_a_changed_limit_keeps_what_was_used(self, store: Store, quota: Quota) -> None:
        name = next(_names)
        store.check(Family(name, [quota]).plan("user"), 4)
        raised = replace(quota, limit=quota.limit + 7)
        assert store.peek(Family(name, [raised]).plan("user"), 1).remaining == 8
        lowered = replace(quota, limit=1, burst=0)
        assert not store.check(Family(name, [lowered]).plan("user"), 1)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_bound_checks_decide_as_check_does(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        limits = family(quota)
        check, plan = store.bind(limits), limits.plan("plain")
        for cost in (1, 1, 3, 1, 2, 1):
            assert check("bound", cost) == store.check(plan, cost)
            clock.advance(us=90_001)
        assert check("bound", 0) == store.peek(limits.plan("bound"), 1)

    @pytest.mark.parametrize("quotas", [QUOTAS[:1], QUOTAS[:3]], ids=["one", "three"])
    def test_bound_checks_refuse_bad_keys_and_costs(self, store: Store, quotas: list[Quota]) -> None:
        check = store.bind(family(*quotas))
        key: Any
        for key in ("", 42, None, b"user", ["user"], "\ud800", "x" * 70_000):
            with pytest.raises(InvalidKey):
                check(key)
        cost: Any
        for cost in (-1, 1.0, True, False, None, "1", 100_001, float("nan")):
            with pytest.raises(InvalidCost):
                check("user", cost)
        with pytest.raises(CostTooLarge):
            check("user", 6)
        assert check("user", 5)

    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_16_threads_on_one_key_admit_exactly_the_capacity(self, store: Store, quota: Quota) -> None:
        large = replace(quota, burst=quota.burst + 95) if quota.burst else replace(quota, limit=100)
        check = store.bind(family(hesitating(large)))
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(lambda _: sum(check("user").allowed for _ in range(25)), range(16))) == 100

    def test_16_threads_on_a_plan_admit_exactly_the_tightest_limit(self, store: Store) -> None:
        check = store.bind(family(hesitating(Quota(1000, SECOND)), hesitating(Quota(50, 60 * SECOND))))
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(lambda _: sum(check("user").allowed for _ in range(10)), range(16))) == 50


class StoreTraces(_WithStore):
    """Random operations, each answer compared with the pure core's."""

    examples = 100
    """How many sequences to try."""

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
    """A store under test beside the reference store, on one clock."""

    store: Store
    clock: ManualClock

    def __init__(self) -> None:
        super().__init__()
        self.clock.set(ManualClock.START)  # every sequence is the same when played again
        self.reference = ReferenceStore(self.clock)
        self.name = next(_names)
        self.quotas: list[Quota] = []

    @initialize(picks=st.lists(st.sampled_from(QUOTAS), min_size=1, max_size=3, unique_by=lambda quota: quota.shape))
    def choose(self, picks: list[Quota]) -> None:
        self.quotas = picks

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def check(self, key: str, cost: int) -> None:
        plan, cost = self._plan(key), self._possible(cost)
        assert self.store.check(plan, cost) == self.reference.check(plan, cost)

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def bound_check(self, key: str, cost: int) -> None:
        limits, cost = Family(self.name, self.quotas), self._possible(cost)
        assert self.store.bind(limits)(key, cost) == self.reference.check(limits.plan(key), cost)

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def peek(self, key: str, cost: int) -> None:
        plan, cost = self._plan(key), self._possible(cost)
        assert self.store.peek(plan, cost) == self.reference.peek(plan, cost)

    @rule(key=st.sampled_from("ab"), cost=st.integers(1, 5))
    def refund(self, key: str, cost: int) -> None:
        plan = self._plan(key)
        assert self.store.refund(plan, cost) == self.reference.refund(plan, cost)

    @rule(key=st.sampled_from("ab"))
    def reset(self, key: str) -> None:
        self.store.reset(self._plan(key))
        self.reference.reset(self._plan(key))

    @rule(us=st.one_of(st.integers(0, 2 * SECOND), st.integers(0, 20 * SECOND), st.just(1)))
    def time_passes(self, us: int) -> None:
        self.clock.advance(us=us)

    @precondition(lambda self: self.nothing_to_forget())
    @rule(us=st.one_of(st.integers(1, SECOND), st.integers(1, 3 * SECOND)))
    def the_clock_falls_back(self, us: int) -> None:
        self.clock.advance(us=-us)

    def nothing_to_forget(self) -> bool:
        """Is no state void? A store may have forgotten void ones, and no clock brings them back."""
        now = self.clock.now()
        kept = {space: quota for space, _, quota in self._plan("a")} if self.quotas else {}
        return all(void_at(state, kept[space]) > now for (space, _), state in self.reference.states.items())

    @rule(limit=st.integers(1, 9), burst=st.integers(0, 4))
    def limits_change(self, limit: int, burst: int) -> None:
        self.quotas = [
            replace(quota, limit=limit, burst=burst if quota.burst else 0) if quota.limit else quota
            for quota in self.quotas
        ]

    @invariant()
    def both_say_the_same(self) -> None:
        for key in "ab" if self.quotas else "":
            plan = self._plan(key)
            assert self.store.peek(plan, 1) == self.reference.peek(plan, 1)

    def _plan(self, key: str) -> Any:
        return Family(self.name, self.quotas).plan(key)

    def _possible(self, cost: int) -> int:
        return min(cost, *(quota.capacity for quota in self.quotas))
