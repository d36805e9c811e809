"""The memory store: it keeps the contract, is bounded in keys, and forgets only what no longer counts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from itertools import count
from math import floor
from random import Random
from typing import Any

import pytest

from headgate import Algorithm, Decision, InvalidStore, Limiter, MemoryStore, Quota
from headgate.core.key import ONCE_US, space
from headgate.core.plan import Call, Family, Limit, Plan, Verb
from headgate.stores import memory
from headgate.stores.base import Store
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.refunds import Admissions
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import StoreConformance, StoreTraces

HOUR = 3_600_000_000


@pytest.fixture
def store(manual_clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=manual_clock)


@pytest.fixture
def full(manual_clock: ManualClock) -> MemoryStore:
    """A store without room for a state of another key: further keys share states."""
    store = MemoryStore(max_keys=1, clock=manual_clock)
    Limiter("1/day", store=store).check("first")
    return store


def test_idle_states_are_cleared(manual_clock: ManualClock, store: MemoryStore) -> None:
    """The old keys are not used again; other traffic clears them, a few per call."""
    limiter = Limiter("10/s", store=store)
    for number in range(1000):
        limiter.check(f"user:{number}")
    assert len(store) == 1000
    manual_clock.advance(2)
    for _ in range(200):
        limiter.check("another")
    assert len(store) == 1


def test_a_state_in_use_does_not_disappear(manual_clock: ManualClock, store: MemoryStore) -> None:
    limiter = Limiter("2/minute", store=store)
    limiter.check("busy", 2)
    for _ in range(300):
        manual_clock.advance(1)
        limiter.check("busy")
        limiter.check("other")
    assert not limiter.check("busy")
    assert len(store) == 2


def test_clearing_is_bounded_per_call(manual_clock: ManualClock, store: MemoryStore) -> None:
    """A million keys that become void at once do not stall the next caller."""
    limiter = Limiter("10/s", store=store)
    for number in range(500):
        limiter.check(f"user:{number}")
    manual_clock.advance(5)
    limiter.check("next")
    assert 480 < len(store) < 501


def test_keys_that_share_a_state_together_pass_no_more_than_one(full: MemoryStore) -> None:
    limiter = Limiter("3/hour", store=full)
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


def test_a_reset_of_a_key_that_shares_its_state_hands_out_no_budget(full: MemoryStore) -> None:
    limiter = Limiter("1/hour", store=full)
    limiter.check("second")
    limiter.reset("second")
    assert not limiter.check("second")


def test_long_keys_take_little_room(store: MemoryStore) -> None:
    check = store.bind(Family("long", [Quota(1, HOUR)]))
    assert check("x" * 60_000)
    assert not check("x" * 60_000)
    assert check("x" * 59_999)
    kept = [principal for table in store._tables.values() for principal in table.states]
    assert len(kept) == 2
    assert all(len(principal) <= 128 for principal in kept if not isinstance(principal, int))


def test_a_state_takes_about_300_bytes_and_an_admission_in_a_log_about_50(
    manual_clock: ManualClock, store: MemoryStore
) -> None:
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
        assert 200 < taken(5_000, lambda number: bucket.check(f"user:{number}")) < 400
        assert 30 < taken(5_000, logged) < 70
    finally:
        tracemalloc.stop()


def colliding(limiter: Limiter) -> tuple[str, str]:
    slots: dict[int, str] = {}
    for number in count():
        key, space = f"user:{number}", limiter._family.spaces[0]
        other = slots.setdefault(hash((space, key)) % 1024, key)
        if other != key:
            return key, other
    raise AssertionError


def test_a_refund_to_a_key_that_shares_its_state_hands_out_no_budget(full: MemoryStore) -> None:
    limiter = Limiter("5/hour", store=full)
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


def test_a_refund_of_a_key_that_used_nothing_leaves_no_state(store: MemoryStore) -> None:
    for text in ("5/hour", "5/hour sliding_window_log; 9/day"):
        assert Limiter(text, store=store).refund("user", 5).remaining == 5
    assert len(store) == 0


def test_a_refusal_under_longer_refill_steps_is_kept_until_its_wait_is_over(
    manual_clock: ManualClock, store: MemoryStore
) -> None:
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


class TestMemory(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock=clock)


class TestMemoryTraces(StoreTraces):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock=clock)


class TestAsyncMemoryTraces(StoreTraces):
    examples = 30

    def make_store(self, clock: ManualClock) -> Store:
        return Blocking(AsyncMemoryStore(MemoryStore(clock=clock)))


def run_apart(script: str) -> None:
    """Run a script in a process of its own, where it must not fail."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr


INTERRUPTIONS = """
import signal
from headgate import Limiter, MemoryStore

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

store = MemoryStore()
texts = ["1000000/s", "1000000/minute", "1000000/hour", "1000000/day"]
limiters = [Limiter(texts[: limits + 1], store=store, name=str(limits)) for limits in range(4)]
signal.signal(signal.SIGALRM, interrupt)
for number in range(1000):
    limiter = limiters[number % 4]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + number * 1e-7)
        while True:
            limiter.check("user")
    except Interrupted:
        assert not store._lock._is_owned(), f"interruption {number} left the lock held"
"""


def test_a_signal_handler_that_raises_leaves_the_lock_free() -> None:
    """Ctrl-C, or a task's time limit, at any instant of a check.

    In a process of its own: a tool that traces the tests, such as coverage, would itself be left with its lock held.
    """
    run_apart(INTERRUPTIONS)


FLOOD = """
import resource
from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock

BOUND, MEGABYTE = 40_000, 1024
clock = ManualClock()
store = MemoryStore(max_keys=BOUND, clock=clock)
limiter = Limiter("2/day", store=store)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
blocked = [f"blocked:{number}" for number in range(1000)]
for key in blocked:
    assert limiter.check(key, 2)
check = limiter.check
peaks = []
for turn in range(4):
    for number in range(turn * BOUND, (turn + 1) * BOUND):
        check(f"flood:{number}")
    assert not any(limiter.check(key) for key in blocked), "a blocked key was given fresh budget"
    peaks.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // MEGABYTE)
assert len(store) <= BOUND + 1024, len(store)
assert peaks[0] < 28, f"{BOUND} keys took {peaks[0]} MB"
assert peaks[-1] < peaks[0] * 1.1 + 2, f"memory grew with the flood: {peaks}"
print(len(store), peaks)
"""


def test_a_flood_of_keys_stays_within_bounds_and_blocked_keys_stay_blocked() -> None:
    run_apart(FLOOD)


SECOND = 1_000_000


@pytest.fixture
def few_overflow_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_OVERFLOW_STATES", 2)
    monkeypatch.setattr(memory, "_OVERFLOW_GROUPS", 2)


class Trace:
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
        assert decision.allowed == (decision.retry_after_us == 0)
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


@pytest.mark.usefixtures("few_overflow_states")
@pytest.mark.parametrize("algorithm", Algorithm)
def test_where_few_keys_fit_and_limits_change_bounds_hold_and_waits_are_exact(algorithm: Algorithm) -> None:
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


NOW = ManualClock.START


def decision(remaining: int) -> Decision:
    return Quota(10, 1_000_000).step(None, 10 - remaining, NOW)[1]


def test_a_renewed_admission_is_the_youngest() -> None:
    answers = Admissions(3)
    for token, now in [
        (b"a", NOW),
        (b"b", NOW + 1),
        (b"a", NOW + ONCE_US),
        (b"c", NOW + ONCE_US),
        (b"d", NOW + ONCE_US),
    ]:
        answers.keep(token, decision(3), now)
    assert [bool(answers.find(token, NOW + ONCE_US)[0]) for token in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        True,
    ]
    assert len(answers) == 3


def test_a_clock_that_is_set_back_loses_nothing_and_clears_it_all_later() -> None:
    answers = Admissions(10)
    answers.keep(b"late", decision(1), NOW)
    answers.keep(b"early", decision(2), NOW - ONCE_US)
    assert answers.find(b"late", NOW - ONCE_US)[0] == decision(1)
    assert not answers.drop_ended(NOW)
    assert answers.find(b"early", NOW)[0] is None
    assert [answers.drop_ended(NOW + ONCE_US) for _ in range(3)] == [True, True, False]
    assert len(answers) == 0


def test_ended_admissions_are_cleared(manual_clock: ManualClock, store: MemoryStore) -> None:
    """Other traffic clears them, a few per call."""
    once, other = Limiter("1000/s", store=store), Limiter("1000/s", store=store, name="other")
    for number in range(500):
        assert once.check_once("user", f"request {number}")
        manual_clock.advance(us=2000)
    assert len(store._once) == 500
    manual_clock.advance(us=ONCE_US)
    other.check("somebody")
    assert 480 < len(store._once) < 500
    for _ in range(100):
        other.check("somebody")
    assert len(store._once) == 0
    assert len(store) == 1


def test_a_full_store_still_remembers_the_latest(manual_clock: ManualClock) -> None:
    limiter = Limiter("1000/hour", store=MemoryStore(max_keys=10, clock=manual_clock))
    first = [limiter.check_once("user", f"request {number}") for number in range(30)]
    assert [limiter.check_once("user", f"request {number}") for number in range(20, 30)] == first[20:]
    assert limiter.check_once("user", "request 0").remaining == 969


def test_close_forgets_states_and_answers(store: MemoryStore) -> None:
    limiter = Limiter("5/hour", store=store)
    checks: list[Callable[[], Decision]] = [lambda: limiter.check_once("user", "once"), lambda: limiter.check("user")]
    assert [check().remaining for check in checks] == [4, 3]
    limiter.close()
    assert len(store) == 0
    assert [check().remaining for check in checks] == [4, 3]
