"""Run a handler immediately, up to its first wait; most never wait.

A task would start only in the next turn of the loop, and cost more than a decision in memory. A handler here has no
task: it may await futures, but nothing that needs `asyncio.current_task`, such as `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
_AT_ONCE = 64
"""Coroutines that start before the loop does other work: decisions of a millisecond."""


class Waiting(Generic[R]):
    """A handler that waits; it continues once `then` was called and its wait is over."""

    __slots__ = ("_about", "_awaited", "_coroutine", "_done", "_failed")

    def __init__(
        self, coroutine: Coroutine[Any, Any, R], awaited: Any, failed: Callable[..., R], about: tuple[Any, ...]
    ) -> None:
        self._coroutine, self._awaited, self._failed, self._about = coroutine, awaited, failed, about

    def then(self, done: Callable[[R], object]) -> None:
        """Continue the handler, and call `done` with its result, or with what `failed` made of its error."""
        self._done = done
        self._wait(self._awaited)

    def _wait(self, awaited: Any) -> None:
        if awaited is None:  # it yields to the loop
            asyncio.get_running_loop().call_soon(self._continue)
            return
        awaited._asyncio_future_blocking = False  # noqa: SLF001  the protocol between futures and their drivers
        awaited.add_done_callback(self._continue)

    def _continue(self, _: object = None) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            result = stop.value
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  `failed` handles any error
            result = self._failed(error, *self._about)
        else:
            self._wait(awaited)
            return
        self._done(result)


def begin(
    handler: Callable[[Q], R | Coroutine[Any, Any, R]], request: Q, failed: Callable[..., R], *about: Any
) -> R | Waiting[R]:
    """Run a handler until it waits or ends.

    Args:
        handler: returns a result, or a coroutine that does.
        request: its argument.
        failed: makes a result of an error.
        about: further arguments of `failed`.
    """
    try:
        answered: Any = handler(request)
        if type(answered) is not CoroutineType:
            return answered  # type: ignore[no-any-return]
        awaited = answered.send(None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  `failed` handles any error
        return failed(error, *about)
    return Waiting(answered, awaited, failed, about)


async def together(coroutines: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """Run all of them, and return their results in order; their calls of a store can be sent together.

    An error of one is raised when all have ended. A long list yields to the loop now and then.
    """
    results: list[Any] = [None] * len(coroutines)
    errors: list[BaseException] = []
    waiting = 0
    ended: asyncio.Future[None] | None = None

    def end(index: int, result: Any) -> None:
        nonlocal waiting
        results[index] = result
        waiting -= 1
        if not waiting and ended is not None and not ended.done():
            ended.set_result(None)

    for index, coroutine in enumerate(coroutines[:-1]):
        result: Any = begin(_itself, coroutine, errors.append)
        if isinstance(result, Waiting):
            waiting += 1
            result.then(partial(end, index))
        else:
            results[index] = result
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    for last in coroutines[-1:]:  # awaited here: usually the others have ended when it ends
        try:
            results[-1] = await last
        except Exception as error:  # noqa: BLE001  raised below
            errors.append(error)
    if waiting:
        ended = asyncio.get_running_loop().create_future()
        await ended
    if errors:
        raise errors[0]
    return results


def _itself(coroutine: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
    return coroutine
