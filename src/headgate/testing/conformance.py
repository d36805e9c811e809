"""The contract of a store as a test suite.

A test module for a store has two classes::

    class TestMyStore(StoreConformance):
        def make_store(self, clock):
            return MyStore(clock=clock)

    class TestMyStoreTraces(StoreTraces):
        def make_store(self, clock):
            return MyStore(clock=clock)

The first tests the contract law by law. The second runs random sequences of operations, in which time passes (and
sometimes steps back) and limits change, and compares every result with that of the pure core.

An asynchronous store is tested through `headgate.testing.blocking.Blocking`. The clock is a `ManualClock`, which a
store with another source of time must use in tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from headgate.core.algorithms import Algorithm
from headgate.core.errors import CostTooLarge, InvalidCost, InvalidKey
from headgate.core.key import ONCE_US, once_token
from headgate.core.plan import Call, Family, Verb, call_of, refund_of
from headgate.core.quota import Quota
from headgate.stores.base import Store
from headgate.testing.clock import ManualClock
from headgate.testing.reference import ReferenceStore
from headgate.testing.samples import CALENDARS, FEW, LARGE, QUOTAS, SECOND, WithStore, family, hesitating, names
from headgate.testing.traces import StoreTraces

__all__ = ["CALENDARS", "FEW", "LARGE", "QUOTAS", "SECOND", "StoreConformance", "StoreTraces", "family", "hesitating"]


class StoreConformance(WithStore):
    """The contract of every store, law by law."""

    quotas = QUOTAS + CALENDARS
    """For the laws of a single limit."""
    large = LARGE
    """For the laws about large numbers."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run a law once for each quota; called by pytest for each test of the class."""
        for name, quotas in (("quota", self.quotas), ("large", self.large)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, quotas, ids=str)

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[Store]:
        store = self.make_store(clock)
        yield store
        store.close()

    def test_admits_the_capacity_and_not_one_more(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        assert [store.run(Call(Verb.CHECK, plan)).remaining for _ in range(5)] == [4, 3, 2, 1, 0]
        refusal = store.run(Call(Verb.CHECK, plan))
        assert (refusal.allowed, refusal.remaining, refusal.state) == (False, 0, "throttled")

    def test_retry_after_is_exact(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.run(Call(Verb.CHECK, plan, 4))
        clock.advance(us=137)
        refusal = store.run(Call(Verb.CHECK, plan, 3))
        assert not refusal
        clock.advance(us=refusal.retry_after_us - 1)
        assert not store.run(Call(Verb.CHECK, plan, 3))
        clock.advance(us=1)
        assert store.run(Call(Verb.CHECK, plan, 3))

    def test_after_reset_after_nothing_is_used(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        plan = family(quota).plan("user")
        decision = store.run(Call(Verb.CHECK, plan, 3))
        clock.advance(us=decision.reset_after_us - 1)
        assert store.run(Call(Verb.PEEK, plan)).reset_after_us == 1
        clock.advance(us=1)
        rested = store.run(Call(Verb.PEEK, plan))
        assert (rested.remaining, rested.reset_after_us) == (5, 0)

    def test_a_refused_request_takes_nothing(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.run(Call(Verb.CHECK, plan, 3))
        assert not store.run(Call(Verb.CHECK, plan, 4))
        assert store.run(Call(Verb.CHECK, plan, 2))

    def test_peek_takes_nothing(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.run(Call(Verb.CHECK, plan, 2))
        assert [store.run(Call(Verb.PEEK, plan, 3)).remaining for _ in range(3)] == [3, 3, 3]
        assert not store.run(Call(Verb.PEEK, plan, 4))

    def test_refund_gives_back_at_most_what_is_used(self, store: Store, quota: Quota) -> None:
        plan = family(quota).plan("user")
        store.run(Call(Verb.CHECK, plan, 5))
        assert store.run(Call(Verb.REFUND, plan, 2)).remaining == 2
        assert store.run(Call(Verb.REFUND, plan, 5)).remaining == 5
        assert store.run(Call(Verb.CHECK, plan, 5))
        assert not store.run(Call(Verb.CHECK, plan))

    def test_a_charge_is_refunded_once(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        """A repeated refund returns the first result, and does nothing once the charge no longer counts."""
        plan, token = family(quota).plan("user"), next(names).encode()
        charges = [refund_of(plan, store.run(Call(Verb.CHECK, plan, 2)), each) for each in (token, token + b"2")]
        first = store.run(charges[0])
        assert first.remaining in {1, 3}, "where others may count on it, in doubt the charge stays"
        store.run(Call(Verb.CHECK, plan))
        left = store.run(Call(Verb.PEEK, plan))
        assert [store.run(charges[0]) for _ in range(2)] == [first] * 2
        assert store.run(Call(Verb.PEEK, plan)) == left
        assert charges[1].charge is not None
        clock.set(charges[1].charge.until)
        left = store.run(Call(Verb.PEEK, plan))
        assert [store.run(charge).remaining for charge in charges] == [left.remaining] * 2

    def test_refund_of_nothing_is_nothing(self, store: Store) -> None:
        plan = family(QUOTAS[0]).plan("user")
        assert store.run(Call(Verb.REFUND, plan, 3)).remaining == 5

    def test_reset_forgets_one_key(self, store: Store, quota: Quota) -> None:
        limits = family(quota)
        store.run(Call(Verb.CHECK, limits.plan("user"), 5))
        store.run(Call(Verb.CHECK, limits.plan("other"), 5))
        assert store.run(Call(Verb.RESET, limits.plan("user"))).remaining == 5
        assert store.run(Call(Verb.CHECK, limits.plan("user"), 5))
        assert not store.run(Call(Verb.CHECK, limits.plan("other")))

    def test_a_plan_takes_from_all_limits_or_none(self, store: Store) -> None:
        plan = family(Quota(5, SECOND), Quota(2, 60 * SECOND, algorithm=Algorithm.FIXED_WINDOW)).plan("user")
        assert store.run(Call(Verb.CHECK, plan, 2))
        refusal = store.run(Call(Verb.CHECK, plan))
        assert not refusal
        assert [part.allowed for part in refusal.limits] == [True, False]
        assert [part.remaining for part in refusal.limits] == [3, 0]

    def test_each_limit_takes_its_own_cost(self, store: Store) -> None:
        plan = family(Quota(5, SECOND), Quota(9, 60 * SECOND, algorithm=Algorithm.FIXED_WINDOW)).plan("user")
        check = call_of(Verb.CHECK, plan, [2, 6])
        admission = store.run(check)
        assert [(part.remaining, part.taken) for part in admission.limits] == [(3, 2), (3, 6)]
        refusal = store.run(check)
        assert [(part.allowed, part.remaining) for part in refusal.limits] == [(True, 3), (False, 3)]
        looked = store.run(call_of(Verb.PEEK, plan, [4, 3]))
        assert [part.allowed for part in looked.limits] == [False, True]
        assert [part.remaining for part in store.run(call_of(Verb.REFUND, plan, [1, 2])).limits] == [4, 5]

    def test_a_refusal_describes_the_limit_that_blocks_longest(self, store: Store, clock: ManualClock) -> None:
        slow, fast = Quota(1, 60 * SECOND), Quota(1, SECOND)
        plan = family(fast, slow).plan("user")
        store.run(Call(Verb.CHECK, plan))
        refusal = store.run(Call(Verb.CHECK, plan))
        assert refusal.quota == slow
        clock.advance(us=refusal.retry_after_us - 1)
        assert not store.run(Call(Verb.CHECK, plan))
        clock.advance(us=1)
        assert store.run(Call(Verb.CHECK, plan))

    def test_an_admission_describes_the_most_restrictive_limit(self, store: Store) -> None:
        wide, narrow = Quota(100, SECOND), Quota(10, 60 * SECOND)
        decision = store.run(Call(Verb.CHECK, family(wide, narrow).plan("user"), 3))
        assert (decision.quota, decision.remaining, decision.limit) == (narrow, 7, 10)

    def test_a_decision_says_which_limit_it_describes(self, store: Store) -> None:
        plan = family(Quota(100, SECOND), Quota(2, 60 * SECOND), Quota(3, 3600 * SECOND)).plan("user")
        assert store.run(Call(Verb.CHECK, plan)).index == 1
        assert store.run(Call(Verb.PEEK, plan[:1])).index == 0
        refusal = store.run(Call(Verb.CHECK, plan, 2))
        assert (refusal.index, refusal.quota) == (1, plan[1].quota)

    def test_a_shadow_plan_takes_the_cost_where_the_request_passes(self, store: Store) -> None:
        plan, tried = family(Quota(2, 60 * SECOND)).plan("user"), family(Quota(9, SECOND), QUOTAS[1]).plan("user")
        call = Call(Verb.CHECK, plan, 2, shadow=(tried,))
        (tried_out,) = store.run(call).shadow
        assert (tried_out.allowed, tried_out.taken, [part.remaining for part in tried_out.limits]) == (True, 2, [7, 3])
        refusal = store.run(call)
        (tried_out,) = refusal.shadow
        assert (refusal.allowed, tried_out.allowed, tried_out.taken) == (False, True, 0)
        assert [part.remaining for part in tried_out.limits] == [7, 3]
        assert [part.remaining for part in store.run(Call(Verb.PEEK, tried)).limits] == [7, 3]

    def test_shadow_plans_refuse_nothing_and_are_each_on_their_own(self, store: Store) -> None:
        plan, small, wide = (family(Quota(limit, 60 * SECOND)).plan("user") for limit in (9, 1, 5))
        call = Call(Verb.CHECK, plan, shadow=(small, wide))
        store.run(call)
        decision = store.run(call)
        assert (decision.allowed, decision.remaining) == (True, 7)
        assert [(tried_out.allowed, tried_out.remaining) for tried_out in decision.shadow] == [(False, 0), (True, 3)]

    def test_shadow_plans_without_a_plan_take_the_cost(self, store: Store) -> None:
        tried = family(Quota(5, 60 * SECOND)).plan("user")
        for verb, remaining in ((Verb.CHECK, 3), (Verb.PEEK, 3), (Verb.CHECK, 1)):
            decision = store.run(Call(verb, (), 2, shadow=(tried,)))
            assert (decision.allowed, decision.shadow[0].remaining) == (True, remaining)

    def test_a_peek_only_looks_at_shadow_plans(self, store: Store) -> None:
        plan, tried = (family(Quota(5, 60 * SECOND)).plan("user") for _ in range(2))
        for _ in range(2):
            (tried_out,) = store.run(Call(Verb.PEEK, plan, 3, shadow=(tried,))).shadow
            assert (tried_out.allowed, tried_out.remaining) == (True, 5)

    def test_keys_are_apart(self, store: Store) -> None:
        keys = ["a", "A", "a ", "a|b", "a|", "|", "{a}", "a:b", "a\n", "a\x00", "é", "e\u0301", "x" * 128, "x" * 129]
        limits = family(Quota(1, 60 * SECOND))
        check = store.bind(limits)
        assert all(check(key) for key in keys)
        assert not any(check(key) for key in keys)

    def test_names_and_shapes_are_apart(self, store: Store) -> None:
        quota, name = Quota(1, 60 * SECOND), next(names)
        others = [quota, Quota(1, 61 * SECOND), replace(quota, algorithm=Algorithm.GCRA)]
        families = [family(quota), family(quota), *(Family(name, [other]) for other in others)]
        assert all(store.run(Call(Verb.CHECK, each.plan("user"))) for each in families)

    def test_the_parts_of_a_key_cannot_imitate_each_other(self, store: Store) -> None:
        """A window of 6 s and the key "0user", a name that ends as a key begins, a long key and its digest."""
        name = next(names)
        digest = blake2b(b"x" * 200, digest_size=16).hexdigest()
        keys = {
            (name, 6): ["0user", "user", "x" * 200, digest, f"#{digest}", f"={digest}"],
            (name, 60): ["user"],
            (f"{name}u", 60): ["ser", "user"],
        }
        for (each, window), principals in keys.items():
            limits = Family(each, [Quota(1, window * SECOND)])
            for principal in principals:
                assert store.run(Call(Verb.CHECK, limits.plan(principal))), (each, window, principal)

    def test_large_numbers_are_exact(self, store: Store, clock: ManualClock, large: Quota) -> None:
        """At the edge of what is computed exactly, every answer is still that of the pure core."""
        reference = ReferenceStore(clock)
        plan = family(large).plan("user")
        for turn in range(60):
            cost = min(large.capacity, 1 + turn * 7919 % 100_000)
            assert store.run(Call(Verb.CHECK, plan, cost)) == reference.run(Call(Verb.CHECK, plan, cost))
            clock.advance(us=turn * turn * turn * large.window_us // 300_007)  # in all, less than 53 bits

    def test_a_changed_limit_keeps_what_was_used(self, store: Store, quota: Quota) -> None:
        name = next(names)
        store.run(Call(Verb.CHECK, Family(name, [quota]).plan("user"), 4))
        more: dict[str, Any] = {"limit": quota.limit + 7} if quota.limit else {"burst": quota.burst + 7}
        assert store.run(Call(Verb.PEEK, Family(name, [replace(quota, **more)]).plan("user"))).remaining == 8
        lowered = replace(quota, limit=1, burst=0)
        assert not store.run(Call(Verb.CHECK, Family(name, [lowered]).plan("user")))

    def test_bound_checks_decide_as_check_does(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        limits = family(quota)
        check, plan = store.bind(limits), limits.plan("plain")
        for cost in (1, 1, 3, 1, 2, 1):
            assert check("bound", cost) == store.run(Call(Verb.CHECK, plan, cost))
            clock.advance(us=90_001)
        assert check("bound", 0) == store.run(Call(Verb.PEEK, limits.plan("bound")))

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

    def test_16_threads_on_one_key_admit_exactly_the_capacity(self, store: Store, quota: Quota) -> None:
        large = replace(quota, burst=quota.burst + 95) if quota.burst else replace(quota, limit=100)
        check = store.bind(family(hesitating(large)))
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(lambda _: sum(check("user").allowed for _ in range(25)), range(16))) == 100

    def test_16_threads_on_a_plan_admit_exactly_the_tightest_limit(self, store: Store) -> None:
        check = store.bind(family(hesitating(Quota(1000, SECOND)), hesitating(Quota(50, 60 * SECOND))))
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(lambda _: sum(check("user").allowed for _ in range(10)), range(16))) == 50

    def test_check_once_gives_the_first_answer_again_and_takes_nothing(
        self, store: Store, clock: ManualClock, quota: Quota
    ) -> None:
        limits = family(quota)
        plan, token = limits.plan("user"), once_token(limits.plan("user"), 2, "retry")
        first = store.run(Call(Verb.CHECK_ONCE, plan, 2, token))
        assert (first.allowed, first.remaining) == (True, 3)
        store.run(Call(Verb.CHECK, plan))
        clock.advance(us=137)
        left = store.run(Call(Verb.PEEK, plan))
        assert [store.run(Call(Verb.CHECK_ONCE, plan, 2, token)) for _ in range(3)] == [first] * 3
        assert store.run(Call(Verb.PEEK, plan)) == left

    def test_check_once_does_not_remember_a_refusal(self, store: Store, clock: ManualClock, quota: Quota) -> None:
        """A caller that has waited for retry_after is admitted, and the admission is remembered."""
        plan = family(quota).plan("user")
        token = once_token(plan, 3, "retry")
        store.run(Call(Verb.CHECK, plan, 4))
        refusal = store.run(Call(Verb.CHECK_ONCE, plan, 3, token))
        assert not refusal
        clock.advance(us=refusal.retry_after_us - 1)
        assert store.run(Call(Verb.CHECK_ONCE, plan, 3, token)).retry_after_us == 1
        clock.advance(us=1)
        admission = store.run(Call(Verb.CHECK_ONCE, plan, 3, token))
        assert admission
        assert store.run(Call(Verb.CHECK_ONCE, plan, 3, token)) == admission

    def test_check_once_counts_other_requests_separately(self, store: Store) -> None:
        """Another idempotency key, another cost, another principal, other limits, and a plain check."""
        limits, more = family(Quota(10, 3600 * SECOND)), family(Quota(10, 3600 * SECOND))
        plan = limits.plan("user")
        others = [(limits.plan("other"), 1, "a"), (more.plan("user"), 1, "a")]
        requests = [(plan, 1, "a"), (plan, 1, "b"), (plan, 2, "a"), *others]
        calls = [Call(Verb.CHECK_ONCE, each, cost, once_token(each, cost, key)) for each, cost, key in requests]
        for _ in range(2):
            assert [store.run(call).remaining for call in calls] == [9, 8, 6, 9, 9]
        assert store.run(Call(Verb.CHECK, plan)).remaining == 5

    def test_check_once_remembers_for_5_minutes(self, store: Store, clock: ManualClock) -> None:
        plan = family(Quota(5, 3600 * SECOND, algorithm=Algorithm.SLIDING_WINDOW_LOG)).plan("user")
        token = once_token(plan, 1, "retry")
        for remaining in (4, 3):
            answers = [store.run(Call(Verb.CHECK_ONCE, plan, 1, token))]
            clock.advance(us=ONCE_US - 1)
            answers += [store.run(Call(Verb.CHECK_ONCE, plan, 1, token))]
            assert answers[0] == answers[1]
            assert answers[0].remaining == remaining
            clock.advance(us=1)
        assert store.run(Call(Verb.CHECK_ONCE, plan, 1, token)).remaining == 2

    def test_check_once_remembers_whatever_happens_to_the_limit(self, store: Store) -> None:
        name, quota = next(names), Quota(5, 3600 * SECOND)
        plan = Family(name, [quota]).plan("user")
        token = once_token(plan, 2, "retry")
        first = store.run(Call(Verb.CHECK_ONCE, plan, 2, token))
        store.run(Call(Verb.REFUND, plan, 2))
        assert store.run(Call(Verb.CHECK_ONCE, plan, 2, token)) == first
        store.run(Call(Verb.RESET, plan))
        assert store.run(Call(Verb.CHECK_ONCE, plan, 2, token)) == first
        raised = Family(name, [replace(quota, limit=9)]).plan("user")
        assert once_token(raised, 2, "retry") == token
        assert store.run(Call(Verb.CHECK_ONCE, raised, 2, token)).remaining == first.remaining
        assert store.run(Call(Verb.PEEK, raised)).remaining == 9

    def test_check_once_takes_nothing_from_other_limits_that_come_with_a_token(self, store: Store) -> None:
        """It returns their state, however little remains, and nothing that could be refunded."""
        user, address = family(Quota(5, 3600 * SECOND)).plan("ada"), family(Quota(2, 3600 * SECOND))
        token, one, other = b"one request 1234", address.plan("192.0.2.1"), address.plan("192.0.2.2")
        first = store.run(Call(Verb.CHECK_ONCE, (*user, *one), 2, token, caller="ada"))
        store.run(Call(Verb.CHECK, other, 2))
        for plan, left in (((*user, *other), [3, 0]), (other, [0])):
            again = store.run(Call(Verb.CHECK_ONCE, plan, 2, token, caller="ada"))
            assert (again.allowed, again.taken, again.retry_after_us) == (True, 0, 0)
            assert [part.remaining for part in again.limits] == left
        assert store.run(Call(Verb.CHECK_ONCE, (*user, *one), 2, token, caller="ada")) == first
        assert store.run(Call(Verb.CHECK_ONCE, user, 2, token, caller="ada")).remaining == 3
        assert store.run(Call(Verb.PEEK, user)).remaining == 3
        alone = b"another of no one"
        assert store.run(Call(Verb.CHECK_ONCE, address.plan("192.0.2.3"), 2, alone, caller="ada"))
        again = store.run(Call(Verb.CHECK_ONCE, address.plan("192.0.2.4"), 2, alone, caller="ada"))
        assert (again.allowed, again.taken, again.remaining) == (True, 0, 2)

    def test_check_once_takes_from_all_limits_of_a_plan_or_none(self, store: Store, clock: ManualClock) -> None:
        plan = family(Quota(5, SECOND), Quota(3, 60 * SECOND, algorithm=Algorithm.FIXED_WINDOW)).plan("user")
        token, other = once_token(plan, 2, "one"), once_token(plan, 2, "other")
        first = store.run(Call(Verb.CHECK_ONCE, plan, 2, token))
        assert [part.remaining for part in first.limits] == [3, 1]
        clock.advance(1)
        assert not store.run(Call(Verb.CHECK_ONCE, plan, 2, other))
        assert store.run(Call(Verb.CHECK_ONCE, plan, 2, token)) == first
        assert [part.remaining for part in store.run(Call(Verb.PEEK, plan)).limits] == [5, 1]

    def test_check_once_from_16_threads_with_one_token_takes_once(self, store: Store) -> None:
        plan = family(hesitating(Quota(100, 3600 * SECOND)), hesitating(Quota(1000, 60 * SECOND))).plan("user")
        for number in range(10):
            token = once_token(plan, 1, f"retry {number}")
            with ThreadPoolExecutor(16) as pool:
                answers = list(
                    pool.map(lambda _, token=token: store.run(Call(Verb.CHECK_ONCE, plan, 1, token)), range(32))
                )
            assert answers == [answers[0]] * 32
            assert store.run(Call(Verb.PEEK, plan)).remaining == 99 - number

    def test_is_ready(self, store: Store) -> None:
        store.ready()
