"""The memory store: bounded in keys, forgetful only of what no longer counts."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from typing import Any

import pytest

from headgate import InvalidKey, InvalidStore, Limiter, MemoryStore
from headgate.core.plan import Call, Family, Verb
from headgate.core.quota import Quota
from headgate.testing import ManualClock
from headgate.testing.reference import ReferenceStore

HOUR = 3_600_000_000


def test_idle_states_disappear_by_themselves(manual_clock: ManualClock) -> None:
    """Nobody asks for the old keys again; other traffic clears them, a few per call."""
    store = MemoryStore(clock=manual_clock)
    limiter = Limiter("10/s", store=store)
    for number in range(1000):
        limiter.check(f"user:{number}")
    assert len(store) == 1000
    manual_clock.advance(2)
    for _ in range(200):
        limiter.check("another")
    assert len(store) == 1


def test_a_state_in_use_does_not_disappear(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    limiter = Limiter("2/minute", store=store)
    limiter.check("busy", 2)
    for _ in range(300):
        manual_clock.advance(1)
        limiter.check("busy")
        limiter.check("other")
    assert not limiter.check("busy")
    assert len(store) == 2


def test_clearing_is_bounded_per_call(manual_clock: ManualClock) -> None:
    """A million keys that become void at once do not stall the next caller."""
    store = MemoryStore(clock=manual_clock)
    limiter = Limiter("10/s", store=store)
    for number in range(500):
        limiter.check(f"user:{number}")
    manual_clock.advance(5)
    limiter.check("next")
    assert 480 < len(store) < 501


def test_a_full_store_keeps_every_state_and_shares_the_rest(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=100, clock=manual_clock)
    limiter = Limiter("2/hour", store=store)
    for number in range(100):
        assert limiter.check(f"early:{number}", 2)
    for number in range(5000):
        limiter.check(f"flood:{number}", 2)
    assert not any(limiter.check(f"early:{number}") for number in range(100))
    assert len(store) <= 100 + 1024


def test_keys_that_share_a_state_together_pass_no_more_than_one(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=1, clock=manual_clock)
    limiter = Limiter("3/hour", store=store)
    limiter.check("first")
    admitted = sum(limiter.check(f"flood:{number}").allowed for number in range(20_000))
    assert admitted <= 3 * 1024


def test_a_blocked_key_in_a_shared_state_stays_blocked_when_there_is_room_again(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=10, clock=manual_clock)
    filling, slow = Limiter("1/s", store=store, name="filling"), Limiter("1/hour", store=store, name="slow")
    for number in range(10):
        filling.check(f"user:{number}")
    assert slow.check("victim")
    assert not slow.check("victim")
    manual_clock.advance(5)
    for _ in range(20):
        filling.check("user:0")
    assert not slow.peek("victim")
    assert not slow.check("victim")
    slow.reset("victim")
    assert slow.check("victim")


def test_reset_of_a_key_that_shares_its_state_gives_nobody_fresh_budget(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=1, clock=manual_clock)
    limiter = Limiter("1/hour", store=store)
    limiter.check("first")
    limiter.check("second")
    limiter.reset("second")
    assert not limiter.check("second")


def test_long_keys_take_little_room(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    check = store.bind(Family("long", [Quota(1, HOUR)]))
    assert check("x" * 60_000)
    assert not check("x" * 60_000)
    assert check("x" * 59_999)
    kept = [principal for table in store._tables.values() for principal in table.states]
    assert len(kept) == 2
    assert all(len(principal) <= 128 for principal in kept if not isinstance(principal, int))


def test_a_state_takes_about_300_bytes_and_an_admission_in_a_log_about_50(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    bucket, log = (Limiter(text, store=store) for text in ("100/day", "100000/day sliding_window_log"))

    def taken(times: int, step: Callable[[int], object]) -> float:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(times):
            step(number)
        return (tracemalloc.get_traced_memory()[0] - before) / times

    def logged(_: int) -> None:
        manual_clock.advance(us=1000)
        log.check("ada")

    tracemalloc.start()
    try:
        assert 200 < taken(20_000, lambda number: bucket.check(f"user:{number}")) < 400
        assert 30 < taken(20_000, logged) < 70
    finally:
        tracemalloc.stop()


def test_limits_of_different_families_count_apart_in_one_store(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=3, clock=manual_clock)
    limiters = [Limiter("1/hour", store=store, name=name) for name in ("a", "b", "c", "d")]
    assert all(limiter.check("user") for limiter in limiters)
    assert not any(limiter.check("user") for limiter in limiters)


def test_a_digest_is_no_key(manual_clock: ManualClock) -> None:
    """What the store keeps for a long key cannot be asked for."""
    limiter = Limiter("1/hour", clock=manual_clock)
    assert limiter.check("x" * 200)
    digest: Any = blake2b(b"x" * 200, digest_size=16).digest()
    with pytest.raises(InvalidKey):
        limiter.check(digest)


def colliding(limiter: Limiter) -> tuple[str, str]:
    """Return two keys that share an overflow state."""
    slots: dict[int, str] = {}
    for number in count():
        key, space = f"user:{number}", limiter._limits.family.spaces[0]
        other = slots.setdefault(hash((space, key)) % 1024, key)
        if other != key:
            return key, other
    raise AssertionError


def test_a_refund_to_a_key_that_shares_its_state_gives_nobody_budget(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=1, clock=manual_clock)
    limiter = Limiter("5/hour", store=store)
    limiter.check("first")
    busy, idle = colliding(limiter)
    assert limiter.check(busy, 5)
    assert limiter.refund(idle, 5).remaining == 0
    assert not limiter.check(busy)


def test_plans_of_several_limits_are_refunded_nothing_that_others_took(manual_clock: ManualClock) -> None:
    """One place is left, which is not enough for a key with two limits: for all verbs alike the store is full."""
    store = MemoryStore(max_keys=3, clock=manual_clock)
    limiter = Limiter("5/hour; 9/day", store=store)
    limiter.check("first")
    busy, idle = colliding(limiter)
    assert limiter.check(busy, 5)
    assert not limiter.peek(idle)
    assert limiter.refund(idle, 5).remaining == 0
    limiter.reset(idle)
    assert not limiter.check(busy)
    assert not limiter.check(idle)


def test_a_refund_of_a_key_that_used_nothing_leaves_no_state(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    for quotas in ("5/hour", "5/hour sliding_window_log; 9/day"):
        assert Limiter(quotas, store=store).refund("user", 5).remaining == 5
    assert len(store) == 0


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra", "leaky_bucket"])
def test_what_passes_under_a_fast_limit_does_not_refill_the_keys_of_a_slow_one(
    manual_clock: ManualClock, algorithm: str
) -> None:
    """Where they share an overflow state, it serves one limit until it is void, and says exactly when that is."""
    store = MemoryStore(max_keys=1, clock=manual_clock)
    slow, fast = (Limiter(f"{limit}/minute {algorithm}", store=store) for limit in (1, 1000))
    assert Limiter("1/day", store=store).check("first")
    one, other = colliding(slow)
    assert slow.check(one)
    assert not fast.check(other)
    passed = 1
    for _ in range(599):
        manual_clock.advance(us=100_000)
        passed += slow.check(one).allowed
        fast.check(other, 10)
    assert passed == 1
    waiting = fast.check(other, 10)
    assert (waiting.remaining, waiting.retry_after_us) == (0, 100_000)
    assert not fast.peek(other)
    manual_clock.advance(us=99_999)
    assert not fast.check(other, 10)
    manual_clock.advance(us=1)
    assert fast.check(other, 10)
    assert slow.check(one).retry_after_us == 600_000


def test_a_refusal_under_longer_refill_steps_is_kept_until_its_wait_is_over(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    quota = Quota(1, 1_000_000)
    before, after = Limiter([quota], store=store), Limiter([replace(quota, refill_every_us=60_000_000)], store=store)
    assert before.check("user")
    assert after.check("user").retry_after == 60
    manual_clock.advance(us=59_999_999)
    for number in range(20):
        before.check(f"other:{number}")
    assert not after.check("user")
    manual_clock.advance(us=1)
    assert after.check("user")


def test_a_key_without_a_state_of_its_own_keeps_what_it_used_when_its_limit_changes(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=1, clock=manual_clock)
    assert Limiter("1/day", store=store).check("first")
    assert Limiter("10/minute", store=store).check("user", 10)
    for limit in (20, 5, 1000):
        assert not Limiter(f"{limit}/minute", store=store).check("user")


@pytest.mark.parametrize("quota", ["1/hour", "5/hour", "5/hour fixed_window"])
def test_a_plan_of_two_keys_that_share_a_state_passes_once_until_that_is_void(
    manual_clock: ManualClock, quota: str
) -> None:
    store = MemoryStore(max_keys=1, clock=manual_clock)
    limiter = Limiter(quota, store=store)
    limiter.check("first")
    one, other = colliding(limiter)
    call = Call(Verb.CHECK, limiter._limits.family.plan(one) + limiter._limits.family.plan(other))
    for _ in range(3):
        assert store.run(call)
        assert not limiter.check(one)
        refused = store.run(call)
        assert [part.allowed for part in refused.limits] == [False, False]
        manual_clock.advance(us=refused.retry_after_us - 1)
        limiter.check("first")
        assert not store.run(call)
        manual_clock.advance(us=1)


def test_a_plan_of_two_new_keys_of_a_new_space_keeps_both(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    limiter = Limiter("5/hour", store=store)
    assert store.run(Call(Verb.CHECK, limiter._limits.family.plan("one") + limiter._limits.family.plan("other"), 2))
    assert (limiter.peek("one").remaining, limiter.peek("other").remaining) == (3, 3)


def test_a_reset_stays_in_force_as_long_as_the_shared_state_does(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=2, clock=manual_clock)
    filling, slow = Limiter("2/s", store=store, name="filling"), Limiter("1/hour", store=store, name="slow")
    filling.check("one")
    filling.check("two")
    assert slow.check("victim")
    manual_clock.advance(5)
    for _ in range(20):
        filling.check("one")
    assert not slow.check("victim")
    slow.reset("victim")
    manual_clock.advance(60)
    for _ in range(20):
        filling.check("one")
    assert slow.check("victim")


@pytest.mark.parametrize("limits", [2, 32, 33, 200])
def test_a_limiter_of_any_number_of_quotas(limits: int, manual_clock: ManualClock) -> None:
    """Few are checked by code that is written out for their number, many in a loop: as the pure core does."""
    quotas = [Quota(limits + 2 - number, (number + 1) * 1_000_000) for number in range(limits)]
    store, reference = MemoryStore(clock=manual_clock), ReferenceStore(manual_clock)
    limiter, plan = Limiter(quotas, store=store), Family("default", quotas).plan("user")
    for _ in range(4):
        call = Call(Verb.CHECK, plan)
        assert limiter.check("user") == reference.run(call)
        assert store.run(call) == reference.run(call)
        assert limiter.peek("user") == reference.run(Call(Verb.PEEK, plan))
    assert not limiter.check("user")


def test_names_that_come_and_go_leave_nothing_behind(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=10, clock=manual_clock)
    limiter = Limiter("1/s", store=store)
    for number in range(300):
        store.run(Call(Verb.CHECK, Family(f"rule-{number}", limiter.quotas).plan("user")))
        limiter.peek(f"user:{number}")
    assert len(store) <= 10 + 1024
    manual_clock.advance(5)
    for _ in range(2000):
        limiter.check("user")
        manual_clock.advance(us=2000)  # what shares a state with the user by its hash is kept as long as that counts
    assert len(store) == 1
    assert len(store._tables) == 1


@pytest.mark.parametrize("clock", [5, time.time, object()])
def test_a_clock_must_be_one(clock: Any) -> None:
    with pytest.raises(InvalidStore, match="a clock has now"):
        MemoryStore(clock=clock)


@pytest.mark.parametrize("max_keys", [0, -1, 1.5, True, "many"])
def test_bad_bounds_are_refused(max_keys: int) -> None:
    with pytest.raises(InvalidStore, match="max_keys must be"):
        MemoryStore(max_keys=max_keys)


def test_threads_that_create_and_clear_states_do_not_disturb_each_other() -> None:
    """Real time, tiny windows: states come and go while 16 threads use them."""
    store = MemoryStore(max_keys=500)
    limiter = Limiter("1000/ms", store=store)
    start = threading.Barrier(16)

    def work(seed: int) -> int:
        start.wait()
        return sum(limiter.check(f"user:{(seed * 7919 + number) % 2000}").allowed for number in range(3000))

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(work, range(16))) == 16 * 3000


def test_close_forgets_everything() -> None:
    store = MemoryStore()
    limiter = Limiter("1/hour", store=store)
    limiter.check("user")
    limiter.close()
    assert len(store) == 0
    assert limiter.check("user")
