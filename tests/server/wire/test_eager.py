"""Running a coroutine at once: it ends now if it need not wait, and goes on by itself if it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from tests.server.starting import start


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


def started(coroutine: Coroutine[Any, Any, Any]) -> list[Any]:
    """Start it; the list gets its result, or its error, when it ends."""
    ended: list[Any] = []
    start(coroutine, ended.append, ended.append)
    return ended


@in_a_loop
async def test_what_never_waits_has_ended_when_start_returns() -> None:
    async def quick() -> int:
        return 42

    assert started(quick()) == [42]


@in_a_loop
async def test_what_is_cancelled_at_once_has_failed() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    (error,) = started(cancelled())
    assert isinstance(error, asyncio.CancelledError)


@in_a_loop
async def test_what_waits_goes_on_when_its_future_is_done() -> None:
    future = asyncio.get_running_loop().create_future()

    async def waiting() -> str:
        return f"{await future} and on"

    ended = started(waiting())
    assert ended == []
    future.set_result("waited")
    await asyncio.sleep(0)
    assert ended == ["waited and on"]


@in_a_loop
async def test_it_may_wait_many_times_and_give_way() -> None:
    async def counting() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
        return 3

    ended = started(counting())
    for _ in range(20):
        await asyncio.sleep(0)
    assert ended == [3]


@pytest.mark.parametrize("late", [False, True])
@in_a_loop
async def test_an_error_is_told_not_raised(late: bool) -> None:  # noqa: FBT001  a parameter of the test
    async def failing() -> None:
        if late:
            await asyncio.sleep(0)
        raise LookupError

    ended = started(failing())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [type(error) for error in ended] == [LookupError]


@in_a_loop
async def test_a_future_that_fails_or_is_cancelled_is_an_error_inside() -> None:
    loop = asyncio.get_running_loop()

    async def waiting(future: asyncio.Future[None]) -> None:
        await future

    broken, cancelled = loop.create_future(), loop.create_future()
    ended = [started(waiting(broken)), started(waiting(cancelled))]
    broken.set_exception(LookupError())
    cancelled.cancel()
    await asyncio.sleep(0)
    assert [type(each[0]) for each in ended] == [LookupError, asyncio.CancelledError]
