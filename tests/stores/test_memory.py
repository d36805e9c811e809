"""The memory store: bounded in keys, forgetful only of what no longer counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate import InvalidStore, Limiter, MemoryStore
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.testing import ManualClock

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
    family = Family("long", [Quota(1, HOUR)])
    check = store.bind(family)
    assert check("x" * 60_000)
    assert not check("x" * 60_000)
    assert check("x" * 59_999)
    assert all(len(principal) <= 128 for principal in store._tables[family.spaces[0]].own)  # type: ignore[arg-type]


def test_limits_of_different_families_count_apart_in_one_store(manual_clock: ManualClock) -> None:
    store = MemoryStore(max_keys=3, clock=manual_clock)
    limiters = [Limiter("1/hour", store=store, name=name) for name in ("a", "b", "c", "d")]
    assert all(limiter.check("user") for limiter in limiters)
    assert not any(limiter.check("user") for limiter in limiters)


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
