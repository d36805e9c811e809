"""Coroutines that run without a task: they end at once if they need not wait, and go on when they must."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headgate import eager
from tests.server.serving import start


def started(coroutine: Coroutine[Any, Any, Any]) -> list[Any]:
    ended: list[Any] = []
    start(coroutine, ended.append, ended.append)
    return ended


async def ends(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value


async def waits(future: asyncio.Future[Any]) -> Any:
    return await future


async def test_what_never_waits_has_ended_when_start_returns() -> None:
    assert started(ends(42)) == [42]
    for error in (asyncio.CancelledError(), LookupError()):
        assert started(ends(error)) == [error]


async def test_what_waits_goes_on_when_its_future_is_done_fails_or_is_cancelled() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    ended = [started(waits(future)) for future in futures]
    assert ended == [[], [], []]
    futures[0].set_result("waited")
    futures[1].set_exception(LookupError())
    futures[2].cancel()
    await asyncio.sleep(0)
    assert ended[0] == ["waited"]
    assert [type(each[0]) for each in ended[1:]] == [LookupError, asyncio.CancelledError]


async def test_it_may_wait_many_times_and_give_way_and_fail_late() -> None:
    async def counting(error: Exception | None) -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        if error:
            raise error
        return 3

    error = LookupError()
    ended = [*map(started, (counting(None), counting(error)))]
    for _ in range(20):
        await asyncio.sleep(0)
    assert ended == [[3], [error]]


class TestTogether:
    """Several coroutines at once, without a task for each."""

    async def test_results_are_in_order_whatever_ends_first_and_also_if_there_are_none(self) -> None:
        loop = asyncio.get_running_loop()
        first, second = loop.create_future(), loop.create_future()
        ended = started(eager.together([waits(first), ends(20), waits(second)]))
        second.set_result(30)
        await asyncio.sleep(0)
        assert ended == []
        first.set_result(10)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (ended, started(eager.together([]))) == ([[10, 20, 30]], [[]])

    def test_what_never_waits_needs_no_loop(self) -> None:
        with pytest.raises(StopIteration) as ended:
            eager.together([ends(1), ends(2)]).send(None)
        assert ended.value.value == [1, 2]

    @pytest.mark.parametrize("step", [1, -1])
    async def test_an_error_is_raised_when_all_have_ended(self, step: int) -> None:
        future, error = asyncio.get_running_loop().create_future(), LookupError()
        ended = started(eager.together([ends(error), waits(future)][::step]))
        await asyncio.sleep(0)
        assert ended == []
        future.set_result(1)
        for _ in range(3):
            await asyncio.sleep(0)
        assert ended == [error]
