"""Whether a node should be asked, and whether its store decides."""

from __future__ import annotations

import asyncio

import pytest

from headgate.engine import AsyncEngine
from headgate.policy.loading import load
from headgate.server.readiness import Readiness
from tests.servers import RedisServer, free_port, redis_server

RULES = load("version: 1\nrules: [{id: one, dimension: user, limit: 3, window: 1h}]")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store have the time that it takes on a busy machine."""
    monkeypatch.setattr("headgate.server.readiness._PROBE_SECONDS", 60.0)


async def test_a_store_that_decides_is_no_trouble_and_one_that_is_away_is(own_redis: RedisServer) -> None:
    async with AsyncEngine(RULES, store=own_redis.address) as engine:
        readiness = Readiness(engine)
        well = await readiness.degraded()
    async with AsyncEngine(RULES, store=f"redis://127.0.0.1:{free_port()}/0") as engine:
        assert [well, await Readiness(engine).degraded()] == ["", "storage_unavailable"]


async def test_those_who_ask_at_once_share_an_answer_and_one_who_leaves_takes_it_from_nobody() -> None:
    async with AsyncEngine(RULES) as engine:
        readiness = Readiness(engine)
        asking = [asyncio.create_task(readiness.degraded()) for _ in range(3)]
        await asyncio.sleep(0)
        asking.pop().cancel()
        assert await asyncio.gather(*asking) == ["", ""]


async def test_a_store_that_goes_is_noticed() -> None:
    with redis_server() as server:
        async with AsyncEngine(RULES, store=server.address) as engine:
            readiness, patient = Readiness(engine, fresh=0), Readiness(engine, fresh=3600)
            before = [await readiness.degraded(), await patient.degraded()]
            server.stop()
            assert [*before, await readiness.degraded(), await patient.degraded()] == [
                "",
                "",
                "storage_unavailable",
                "",
            ]


async def test_who_waits_hears_that_a_node_drains() -> None:
    async with AsyncEngine(RULES) as engine:
        readiness = Readiness(engine)
        before = await readiness.drains(0.001)
        waiting = asyncio.create_task(readiness.drains(60))
        await asyncio.sleep(0)
        readiness.drain()
        assert (before, await waiting, readiness.is_draining) == (False, True, True)
