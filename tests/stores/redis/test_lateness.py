"""Short deadlines: a process that is late itself does not blame the server, and what is late together fails once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.stores.failover import AsyncFailoverStore, Reason
from headgate.stores.redis.address import parse
from headgate.stores.redis.aio import AsyncRedisStore
from tests.servers import RedisServer, redis_server

FAMILY = Family("late", Quota.parse("100/hour"))
Loops = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_that_has_arrived_counts_though_nobody_looked_in_time(own: RedisServer, loops: Loops) -> None:
    async def run() -> None:
        store = AsyncRedisStore(parse(f"redis://127.0.0.1:{own.port}/0?timeout=0.2"))
        try:
            await store.peek(FAMILY.plan("ada"), 1)
            asked = [asyncio.ensure_future(store.check(FAMILY.plan("ada"), 1)) for _ in range(200)]
            for _ in range(5):
                await asyncio.sleep(0)  # the first flights leave, and others wait for them
            time.sleep(0.5)  # noqa: ASYNC251  this process is busy with something else
            decisions = await asyncio.gather(*asked)
            assert sum(decision.allowed for decision in decisions) == 100
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(run())


def test_questions_that_are_late_together_are_one_failure(own: RedisServer) -> None:
    async def run() -> None:
        inner = AsyncRedisStore(parse(f"redis://127.0.0.1:{own.port}/0?timeout=0.2&connections=1"))
        store = AsyncFailoverStore(inner)
        try:
            await inner.peek(FAMILY.plan("ada"), 1)
            own.send(signal.SIGSTOP)
            decisions = await asyncio.gather(*[store.check(FAMILY.plan("ada"), 1) for _ in range(50)])
            assert {decision.degraded for decision in decisions} <= {*Reason}
            assert all(decision.degraded for decision in decisions)
            assert store.statistics().openings == 0, "one flight was lost, and those who waited for it"
        finally:
            own.send(signal.SIGCONT)
            await store.close()

    asyncio.run(run())
