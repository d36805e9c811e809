"""The process of a node: what it waits for, and what it leaves to the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from socket import socket

import pytest

from headgate.server import process
from headgate.server.node import COLLECTOR, Node
from headgate.server.settings import Settings
from tests.server.serving import RULES, serving


def test_whoever_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    async def left() -> int:
        task = asyncio.create_task(process._run_unless(asyncio.Event(), asyncio.Event().wait()))
        await asyncio.sleep(0)  # it begins, and waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(left()) == 0


def test_when_a_node_serves_what_it_began_with_is_not_looked_at_for_garbage_again() -> None:
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
    with serving(RULES) as service:
        gc.collect()
        gc.disable()
        try:
            for number in range(1000):
                service.check({"principal": {"user": f"u{number % 10}"}, "endpoint": path, "method": "POST"})
            assert gc.collect() < 100
        finally:
            gc.enable()
