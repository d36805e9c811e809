"""Several coroutines at once, without a task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate.server.wire import eager
from tests.server.starting import start


async def plain(value: int) -> int:
    return value


async def waits(value: int, future: asyncio.Future[int]) -> int:
    return value + await future


async def fails() -> int:
    raise LookupError("no")


def run(coroutine: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Drive it as the wire does."""

    async def within() -> list[int]:
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        start(coroutine, done.set_result, done.set_exception)
        return await done

    return asyncio.run(within())


def test_results_are_in_order_whatever_ends_first() -> None:
    async def together() -> list[int]:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        loop.call_soon(second.set_result, 1)
        loop.call_later(0.001, first.set_result, 2)
        return await eager.together([waits(10, first), plain(20), waits(30, second)])

    assert run(together()) == [12, 20, 31]


def test_what_never_waits_needs_no_loop() -> None:
    coroutine = eager.together([plain(1), plain(2)])
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == [1, 2]


def test_nothing_is_done_at_once() -> None:
    assert run(eager.together([])) == []


def test_an_error_is_raised_when_all_have_ended() -> None:
    ended = []

    async def together() -> list[int]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, 1)

        async def last() -> int:
            ended.append(await future)
            return 0

        return await eager.together([fails(), last()])

    with pytest.raises(LookupError):
        run(together())
    assert ended == [1]
