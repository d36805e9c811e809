"""Short deadlines: delays of this process are not failures of the server, and calls late together are one failure."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest
import uvloop

from headgate import AsyncFailoverStore, Decision, Quota, StoreError, open_store
from headgate.core.plan import Call, Family, Verb
from headgate.stores import failover
from headgate.stores.deadlines import TICK
from headgate.stores.failover import Reason
from headgate.stores.redis import batching, connection
from headgate.stores.redis.address import parse
from headgate.stores.redis.connection import LOOK_FROM
from headgate.stores.redis.store import AsyncRedisStore
from tests.proxy import Proxy, proxy
from tests.servers import RedisServer

FAMILY = Family("late", Quota.parse("100/hour"))
TEN = Family("ten", Quota.parse("10/hour"))
Loops = Callable[[], asyncio.AbstractEventLoop]


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_that_arrived_in_time_counts_though_it_was_read_late(
    own_redis: RedisServer, loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batching, connection):  # between the last looks a busy machine lets the server answer, too
        monkeypatch.setattr(module, "LOOK_EVERY", 20.0)
        monkeypatch.setattr(module, "LOOK_FROM", 0.0)

    async def run() -> None:
        store = AsyncRedisStore(parse(f"redis://127.0.0.1:{own_redis.port}/0?timeout=0.2&connect_timeout=20"))
        try:
            await store.run(Call(Verb.PEEK, FAMILY.plan("ada")))
            asked = [asyncio.ensure_future(store.run(Call(Verb.CHECK, FAMILY.plan("ada")))) for _ in range(200)]
            for _ in range(5):
                await asyncio.sleep(0)  # the first batches are sent, and others wait for them
            time.sleep(0.3)  # noqa: ASYNC251  this process is busy with something else
            decisions = await asyncio.gather(*asked)
            assert sum(decision.allowed for decision in decisions) == 100
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())


def test_the_last_reads_are_within_the_deadline(own_redis: RedisServer) -> None:
    """Or a caller who waits 20 ms, as Envoy does, would be answered in vain."""
    timers: list[float] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_at(self, when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
            timers.append(when)
            return super().call_at(when, *arguments, **options)

    async def run() -> None:
        store = AsyncRedisStore(parse(f"redis://127.0.0.1:{own_redis.port}/0?timeout=50&connections=1"))
        try:
            await store.run(Call(Verb.PEEK, FAMILY.plan("ada")))
            timers.clear()
            before = asyncio.get_running_loop().time()
            await store.within(30).run(Call(Verb.CHECK, FAMILY.plan("ada")))
            after = asyncio.get_running_loop().time()
            assert before + 30 <= max(timers) + LOOK_FROM <= after + 30 + TICK
            rings_at, within = max(timers), len(timers)
            await store.run(Call(Verb.CHECK, FAMILY.plan("ada")))
            assert all(timer < rings_at for timer in timers[within:]), "one who waits longer needs no other timer"
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(run())


async def test_calls_that_are_late_together_are_one_failure(own_redis: RedisServer) -> None:
    inner = AsyncRedisStore(parse(f"redis://127.0.0.1:{own_redis.port}/0?timeout=1&connections=1"))
    store = AsyncFailoverStore(inner)
    try:
        await until_open(inner)
        own_redis.send(signal.SIGSTOP)
        decisions = await asyncio.gather(*[store.run(Call(Verb.CHECK, FAMILY.plan("ada"))) for _ in range(50)])
        assert {decision.degraded for decision in decisions} <= {*Reason}
        assert all(decision.degraded for decision in decisions)
        assert store.statistics().openings == 0, "one batch was lost, and those who waited for it"
    finally:
        own_redis.send(signal.SIGCONT)
        await store.close()


async def until_open(store: AsyncRedisStore) -> None:
    """Wait until the store is connected; on a busy machine that takes longer than the callers wait."""
    give_up = time.monotonic() + 60
    while True:
        try:
            await store.run(Call(Verb.PEEK, FAMILY.plan("ada")))
        except StoreError:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.01)
        else:
            return


async def until_late(store: AsyncFailoverStore, answers: int) -> None:
    give_up = time.monotonic() + 60
    while store.statistics().late < answers:
        assert time.monotonic() < give_up
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def hurried(own_redis: RedisServer) -> AsyncIterator[tuple[AsyncFailoverStore, Proxy]]:
    """A store behind a proxy that can hold replies, for callers that wait for 50 ms only."""
    with proxy(own_redis.port) as between:
        whole = AsyncFailoverStore(AsyncRedisStore(parse(between.address("timeout=60&connections=1"))))
        try:
            await whole.run(Call(Verb.PEEK, TEN.plan("warm")))
            yield whole.within(0.05), between
        finally:
            await whole.close()


@pytest.mark.parametrize("shadow", [False, True], ids=["enforced", "shadow alone"])
async def test_a_late_answer_counts_for_the_next_decision(own_redis: RedisServer, *, shadow: bool) -> None:
    plan = TEN.plan("ada")
    call = Call(Verb.CHECK, (), shadow=(plan,)) if shadow else Call(Verb.CHECK, plan)

    async def asked(store: AsyncFailoverStore) -> Decision:
        decision = await store.run(call)
        return decision.shadow[0] if shadow else decision

    async with hurried(own_redis) as (store, between):
        assert (await asked(store.within(60))).remaining == 9
        with closing(open_store(own_redis.address)) as other:
            assert other.run(Call(Verb.CHECK, plan, 8)).remaining == 1
        between.open.clear()
        decision = await asked(store)
        assert (decision.allowed, decision.degraded) == (True, Reason.OUTCOME_UNKNOWN), "9 were left, as far as known"
        between.open.set()
        await until_late(store, 1)
        between.open.clear()
        decision = await asked(store)
        assert (decision.allowed, decision.degraded) == (False, Reason.OUTCOME_UNKNOWN), "and now none is"
        between.open.set()
        await until_late(store, 2)
        decision = await asked(store.within(60))
        assert decision.degraded == "", "the connection is the same, and in step"


def test_late_answers_are_counted_apart_from_outages_and_logged_once_in_a_while(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "LATE_EVERY_US", 3600 * 1_000_000)  # a while that no machine is too slow for

    async def run() -> None:
        async with hurried(own_redis) as (store, between):
            for times in range(1, 9):
                between.open.clear()
                assert (await store.run(Call(Verb.CHECK, TEN.plan("ada")))).degraded == Reason.OUTCOME_UNKNOWN
                between.open.set()
                await until_late(store, times)
            seen = store.statistics()
            assert (seen.late, seen.failures, seen.openings) == (8, {Reason.OUTCOME_UNKNOWN: 8}, 0)

    with caplog.at_level("WARNING", "headgate"):
        asyncio.run(run())
    assert [message for message in caplog.messages if "after the deadline" in message] == caplog.messages
    assert len(caplog.messages) == 1


async def test_a_limit_holds_though_many_answers_are_late(own_redis: RedisServer) -> None:
    """The only node knows what is left, from the store or from its own decisions: no more than the limit passes."""
    async with hurried(own_redis) as (store, between):
        admitted, late = 0, 0
        for number in range(40):
            if number % 3 == 2:
                between.open.clear()
            decision = await store.run(Call(Verb.CHECK, TEN.plan("ada")))
            between.open.set()
            admitted += decision.allowed
            if decision.degraded == Reason.OUTCOME_UNKNOWN:  # on a busy machine others are late, too
                late += 1
                await until_late(store, late)
        assert late >= 13
        assert admitted == 10


async def test_callers_with_longer_deadlines_are_answered_on_the_same_connection(own_redis: RedisServer) -> None:
    async with hurried(own_redis) as (store, between):
        patient = store.within(60)
        between.open.clear()
        waiting = asyncio.ensure_future(patient.run(Call(Verb.CHECK, TEN.plan("bob"))))
        assert (await store.run(Call(Verb.CHECK, TEN.plan("ada")))).degraded
        between.open.set()
        assert (await waiting).degraded == ""


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_burst_that_keeps_this_process_busy_is_decided_by_the_server(own_redis: RedisServer, loops: Loops) -> None:
    """The burst takes several timeouts, and even on a busy machine less than `BUSY_SHARE` allows: sixteen of them."""

    async def run() -> None:
        inner = AsyncRedisStore(parse(f"redis://127.0.0.1:{own_redis.port}/0?timeout=0.6&connect_timeout=20"))
        store = AsyncFailoverStore(inner)

        async def work() -> Decision:
            decision = await store.run(Call(Verb.CHECK, FAMILY.plan("ada")))
            time.sleep(0.001)  # noqa: ASYNC251  what a caller does with its answer
            return decision

        try:
            await until_open(inner)
            decisions = await asyncio.gather(*[work() for _ in range(1500)])
            assert [decision.degraded for decision in decisions] == [""] * 1500
            assert sum(decision.allowed for decision in decisions) == 100
            assert store.statistics().openings == 0
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())


async def test_no_deadline_is_lost_when_its_clock_goes_back_between_the_last_reads(own_redis: RedisServer) -> None:
    """As on a busy machine, when a tick finds that this process has used the time itself."""
    async with hurried(own_redis) as (store, between):
        between.open.clear()
        asked = asyncio.ensure_future(store.run(Call(Verb.CHECK, TEN.plan("ada"))))
        redis = store._store
        assert isinstance(redis, AsyncRedisStore)
        batcher = redis._connections.of(asyncio.get_running_loop())
        assert isinstance(batcher, batching.Batcher)
        (only,) = batcher.connections
        for _ in range(3):
            await asyncio.sleep(0)
        assert only.batch
        only._looks = connection.LOOKS
        async with asyncio.timeout(30):
            assert (await asked).degraded == Reason.OUTCOME_UNKNOWN
        between.open.set()
