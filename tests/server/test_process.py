"""The process of a node: what it waits for."""

from __future__ import annotations

import asyncio

import pytest

from headgate.server import process


def test_whoever_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    async def left() -> int:
        task = asyncio.create_task(process._done_before(asyncio.Event(), asyncio.Event().wait()))
        await asyncio.sleep(0)  # it begins, and waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(left()) == 0
