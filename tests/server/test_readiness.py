"""Readiness, the probe of the store, and the garbage collector of a node."""

from __future__ import annotations

import asyncio
import gc
from socket import socket

import pytest

from headgate.engine import AsyncEngine
from headgate.policy.loading import load
from headgate.server.node import COLLECTOR, Node
from headgate.server.readiness import Readiness
from headgate.server.settings import Settings
from tests.server.serving import serving
from tests.servers import redis_server

RULES = load("version: 1\nrules: [{id: one, dimension: user, limit: 3, window: 1h}]")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the store enough time on a busy machine."""
    monkeypatch.setattr("headgate.server.readiness._PROBE_SECONDS", 60.0)


async def test_concurrent_callers_share_a_probe_that_no_cancellation_ends() -> None:
    async with AsyncEngine(RULES) as engine:
        readiness = Readiness(engine)
        asking = [asyncio.create_task(readiness.degraded()) for _ in range(3)]
        await asyncio.sleep(0)
        asking.pop().cancel()
        assert await asyncio.gather(*asking) == ["", ""]


async def test_a_store_that_fails_is_noticed() -> None:
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


def test_objects_of_the_start_are_frozen_for_the_garbage_collector() -> None:
    async def started() -> tuple[int, tuple[int, int, int]]:
        node = Node(Settings())
        with socket() as http, socket() as grpc:
            for each in (http, grpc):
                each.bind(("127.0.0.1", 0))
            await node.open({"http": http, "grpc": grpc})
            found = gc.get_freeze_count(), gc.get_threshold()
            await node.close()
        return found

    frozen, thresholds = gc.get_freeze_count(), gc.get_threshold()
    try:
        more, found = asyncio.run(started())
    finally:
        gc.set_threshold(*thresholds)
    assert more > frozen
    assert found == COLLECTOR


@pytest.mark.parametrize("path", ["/orders/1", "/trial", "/elsewhere"], ids=["refused", "a shadow", "allowed"])
def test_requests_leave_nothing_to_the_garbage_collector(path: str) -> None:
    with serving() as service:
        gc.collect()
        gc.disable()
        try:
            for number in range(1000):
                service.check({"principal": {"user": f"u{number % 10}"}, "endpoint": path, "method": "POST"})
            assert gc.collect() < 100
        finally:
            gc.enable()
