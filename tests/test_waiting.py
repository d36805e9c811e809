"""acquire: a fair queue with exact waits, without polling, for threads and tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncLimiter, Decision, Limiter, MemoryStore, Quota, UsageError
from headgate.core.plan import Call, Limit, Verb
from headgate.testing import ManualClock


class Waiter(threading.Thread):
    """A thread in acquire; `decision` is what it got."""

    def __init__(self, limiter: Limiter, *args: Any, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self.decision: Decision | None = None
        self._limiter, self._arguments = limiter, (args, kwargs)
        self.start()

    def run(self) -> None:
        args, kwargs = self._arguments
        self.decision = self._limiter.acquire(*args, **kwargs)

    def result(self) -> Decision:
        self.join(60)
        assert self.decision is not None, "still waiting"
        return self.decision


def until_asleep(clock: ManualClock, sleepers: int) -> None:
    give_up = time.monotonic() + 60
    while clock.sleepers != sleepers:
        assert time.monotonic() < give_up, f"{clock.sleepers} sleepers, not {sleepers}"
        threading.Event().wait(0.001)


def in_line(limiter: Limiter | AsyncLimiter, key: str, length: int) -> None:
    give_up = time.monotonic() + 60
    while len(limiter._queues._queues.get(key, ())) != length:
        assert time.monotonic() < give_up
        threading.Event().wait(0.001)


class CountingStore(MemoryStore):
    checks = 0

    def run(self, call: Call) -> Decision:
        self.checks += call.verb is Verb.CHECK
        return super().run(call)


def test_acquire_waits_exactly_until_there_is_enough(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/s", clock=manual_clock)
    limiter.check("a")
    waiter = Waiter(limiter, "a")
    until_asleep(manual_clock, 1)
    manual_clock.advance(us=999_999)
    waiter.join(0.02)
    assert waiter.is_alive()
    manual_clock.advance(us=1)
    assert waiter.result().allowed


def test_a_wait_that_must_fail_is_refused_at_once(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/minute", clock=manual_clock)
    limiter.check("a")
    refusal = limiter.acquire("a", timeout=59.999_999)
    assert (refusal.allowed, refusal.retry_after) == (False, 60.0)
    assert manual_clock.sleepers == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True, 2e9])
def test_bad_timeouts_are_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout must be None or a number of seconds"):
        Limiter("1/s").acquire("a", timeout=timeout)


def test_first_come_first_served(manual_clock: ManualClock) -> None:
    """Also when those behind need less than the head, and without asking the store more than once per turn."""
    store = CountingStore(clock=manual_clock)
    limiter = Limiter("3/s", store=store)
    limiter.check("a", 3)
    store.checks = 0
    waiters = []
    for place, cost in enumerate((3, 1, 2), start=1):
        waiters.append(Waiter(limiter, "a", cost))
        in_line(limiter, "a", place)
    until_asleep(manual_clock, 1)
    manual_clock.advance(us=999_999)
    assert all(waiter.is_alive() for waiter in waiters)
    manual_clock.advance(us=1)
    assert waiters[0].result().remaining == 0
    until_asleep(manual_clock, 1)
    assert waiters[1].is_alive()
    assert waiters[2].is_alive()
    manual_clock.advance(1 / 3, us=1)
    assert waiters[1].result().allowed
    until_asleep(manual_clock, 1)
    manual_clock.advance(1)
    assert waiters[2].result().allowed
    assert store.checks == 2 * len(waiters) + 1, (
        "refused, then admitted; the first asked once more when it stood in line"
    )


def test_a_check_does_not_queue(manual_clock: ManualClock) -> None:
    """It may take what the head of the line waits for, who then waits for the next."""
    limiter = Limiter("3/minute", clock=manual_clock)
    limiter.check("a", 3)
    waiter = Waiter(limiter, "a", 2)
    until_asleep(manual_clock, 1)
    manual_clock.advance(20)
    assert limiter.check("a").allowed
    manual_clock.advance(20)
    until_asleep(manual_clock, 1)
    assert waiter.is_alive()
    manual_clock.advance(20)
    assert waiter.result().remaining == 0


def test_keys_wait_apart(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/s", clock=manual_clock)
    limiter.check("a")
    Waiter(limiter, "a")
    until_asleep(manual_clock, 1)
    assert limiter.acquire("b", timeout=0)
    manual_clock.advance(1)


@pytest.mark.parametrize("verb", ["refund", "reset"])
def test_refunds_and_resets_wake_the_head(verb: str, manual_clock: ManualClock) -> None:
    limiter = Limiter("1/minute", clock=manual_clock)
    limiter.check("a")
    waiter = Waiter(limiter, "a")
    until_asleep(manual_clock, 1)
    getattr(limiter, verb)("a")
    assert waiter.result().allowed


def test_a_caller_that_times_out_is_refused_and_the_others_move_up(manual_clock: ManualClock) -> None:
    limiter = Limiter("2/s", clock=manual_clock)
    limiter.check("a", 2)
    head = Waiter(limiter, "a", 2)
    until_asleep(manual_clock, 1)
    impatient = Waiter(limiter, "a", timeout=0.6)
    until_asleep(manual_clock, 2)
    last = Waiter(limiter, "a")
    in_line(limiter, "a", 3)
    manual_clock.advance(0.6)
    refusal = impatient.result()
    assert not refusal.allowed, "one unit is there, but the head needs two"
    assert refusal.retry_after_us > 0
    manual_clock.advance(0.4)
    assert head.result().allowed
    until_asleep(manual_clock, 1)
    manual_clock.advance(0.5)
    assert last.result().allowed
    assert limiter._queues._queues == {}


class OvertakenStore(MemoryStore):
    """Somebody else comes right after each check of a key, before its answer is known."""

    turns: tuple[int, ...] = ()

    def run(self, call: Call) -> Decision:
        if call.verb is not Verb.CHECK:
            return super().run(call)
        decisions = [super().run(call), super().run(Call(Verb.CHECK, tuple(map(_meant, call.plan))))]
        self.turns += tuple([self.clock.now() + each.delay_us for each in decisions if each.allowed])
        return decisions[0]


def _meant(limit: Limit) -> Limit:
    return Limit(limit.space, limit.principal, QUEUE)


(QUEUE,) = Quota.parse("2/s leaky_bucket queue burst 8")


@pytest.mark.parametrize("timeout", [0, 0.2, 0.5, 0.75])
def test_no_two_callers_of_a_queue_get_one_turn(timeout: float) -> None:
    """Whoever gives up never had a turn: others may stand behind it by then."""
    store = OvertakenStore(clock=SleepingClock())
    limiter = Limiter(QUEUE, store=store)
    for _ in range(4):
        limiter.acquire("a", timeout=timeout)
    assert len(store.turns) >= 5
    assert [later - turn for turn, later in pairwise(store.turns)] == [500_000] * (len(store.turns) - 1)


class SleepingClock(ManualClock):
    def wait(self, event: threading.Event, until: int | None) -> None:  # noqa: ARG002  the contract has it
        assert until is not None
        self.set(max(until, self.now()))


@given(
    st.sampled_from(["2/s", "3/s", "7/minute", "1/s", "1000/s"]),
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 5_000_000), st.integers(1, 3)), max_size=12),
)
def test_a_queue_admits_exactly_those_whose_turn_comes_in_time(
    rate: str, burst: int, calls: list[tuple[int, int, int]]
) -> None:
    clock = SleepingClock()
    (quota,) = Quota.parse(f"{rate} leaky_bucket queue burst {burst + 2}")
    limiter = Limiter(quota, clock=clock)
    for gap, timeout, cost in calls:
        clock.advance(us=gap)
        before, came = limiter.peek("a", cost), clock.now()
        expected = before.retry_after_us + before.delay_us if before.allowed else None
        decision = limiter.acquire("a", cost, timeout=timeout / 1_000_000)
        waited = clock.now() - came
        if expected is not None:
            assert decision.allowed == (expected <= timeout)
            assert waited == (expected if decision.allowed else 0)
        if decision.allowed:
            assert waited <= timeout
            assert (decision.quota, decision.limit) == (quota, quota.capacity)
        else:
            assert (waited, decision.remaining) == (0, before.remaining)
            assert limiter.peek("a", cost) == before
            clock.advance(us=decision.retry_after_us)
            assert limiter.peek("a", cost).delay_us <= timeout


def test_an_interrupted_waiter_leaves_the_queue(manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manual_clock, "wait", interrupted)
    limiter = Limiter("1/s", clock=manual_clock)
    limiter.check("a")
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire("a")
    assert limiter._queues._queues == {}


def test_a_real_clock_wakes_waiters() -> None:
    limiter = Limiter("1/ms burst 1")
    assert all(limiter.acquire("a").allowed for _ in range(20))
    limiter = Limiter("1/hour")
    assert [limiter.acquire("a", timeout=0).allowed for _ in range(2)] == [True, False]


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_tasks_queue_too(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("2/s", clock=manual_clock)
    await limiter.check("a", 2)
    done: list[str] = []

    async def wait(name: str, cost: int) -> None:
        assert await limiter.acquire("a", cost)
        done.append(name)

    tasks = [asyncio.create_task(wait("large", 2)), asyncio.create_task(wait("small", 1))]
    await settled()
    manual_clock.advance(0.5)
    await settled()
    assert done == []
    manual_clock.advance(0.5)
    await settled()
    assert done == ["large"]
    manual_clock.advance(0.5)
    await asyncio.gather(*tasks)
    assert done == ["large", "small"]


async def test_a_cancellation_storm_leaves_no_trace(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("10/s", clock=manual_clock)
    await limiter.check("a", 10)
    tasks = [asyncio.create_task(limiter.acquire("a")) for _ in range(500)]
    await settled()
    for task in tasks[::2]:
        task.cancel()
    for _ in range(300):
        await settled()
        manual_clock.advance(0.1)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, Decision) and result.allowed for result in results) == 250
    assert limiter._queues._queues == {}
    assert manual_clock.sleepers == 0


async def test_tasks_time_out_queue_and_are_woken(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("2/s leaky_bucket queue", clock=manual_clock)
    assert await limiter.acquire("a")
    delayed = asyncio.create_task(limiter.acquire("a"))
    await settled()
    assert not await limiter.acquire("a", timeout=0.4)
    manual_clock.advance(0.5)
    assert (await delayed).delay == 0.5
    limiter = AsyncLimiter("1/hour", clock=manual_clock)
    await limiter.check("a")
    head = asyncio.create_task(limiter.acquire("a"))
    await settled()
    behind = asyncio.create_task(limiter.acquire("a", timeout=1))
    await settled()
    manual_clock.advance(1)
    assert not await behind
    await limiter.reset("a")
    assert (await head).allowed


async def test_a_real_clock_wakes_tasks() -> None:
    limiter = AsyncLimiter("1/ms burst 1")
    decisions = await asyncio.gather(*(limiter.acquire("a") for _ in range(20)))
    assert all(decisions)


async def test_concurrent_guards_refuse_no_caller_while_there_is_budget() -> None:
    """Whoever is just being served is no line."""
    limiter = Limiter("1000000/s")
    refused: list[Decision] = []

    def work() -> None:
        refused.extend(decision for _ in range(500) if not (decision := limiter.acquire("a", timeout=0)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    in_a_loop = AsyncLimiter("100/hour")
    decisions = await asyncio.gather(*(in_a_loop.acquire("a", timeout=0) for _ in range(150)))
    assert sum(map(bool, decisions)) == 100


def test_a_caller_that_cannot_be_served_in_time_is_refused_at_once(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/hour", clock=manual_clock)
    limiter.check("a")
    head = Waiter(limiter, "a")
    until_asleep(manual_clock, 1)
    assert not limiter.acquire("a", timeout=2)
    manual_clock.advance(3600)
    assert head.result().allowed


def test_a_wall_clock_that_is_set_back_does_not_stretch_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter("1/100ms")
    limiter.check("a")
    now = limiter._store.clock.now()
    monkeypatch.setattr(limiter._store.clock, "now", lambda: now - 3_600_000_000)
    assert not limiter.acquire("a", timeout=0.001)


def test_waiters_of_a_closed_event_loop_do_not_block_others(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("1/s", clock=manual_clock)

    async def abandoned() -> None:
        await limiter.check("a")
        task = asyncio.ensure_future(limiter.acquire("a"))
        await settled()
        abandoned_tasks.append(task)

    abandoned_tasks: list[asyncio.Future[Decision]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandoned())
    loop.close()

    async def main() -> None:
        await limiter.refund("a")
        assert await limiter.acquire("a", timeout=0)

    asyncio.run(main())
    abandoned_tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # that is what it is
