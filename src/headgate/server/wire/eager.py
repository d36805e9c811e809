"""Running a coroutine at once, up to where it has to wait; most never do.

A task would be scheduled for the next turn of the loop, and cost more than a decision in memory. What runs here has no
task: it may await futures, but nothing that needs `asyncio.current_task`, such as `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_AT_ONCE = 64
"""Coroutines that are started before others get their turn: a millisecond's worth of decisions."""


def start(
    coroutine: Coroutine[Any, Any, T], done: Callable[[T], object], failed: Callable[[BaseException], object]
) -> None:
    """Run it until it waits, and go on when it need not; `done` or `failed` is called when it has ended."""
    _Running(coroutine, done, failed).go_on()


def go_on(
    coroutine: Coroutine[Any, Any, T],
    awaited: Any,
    done: Callable[[T], object],
    failed: Callable[[BaseException], object],
) -> None:
    """Take over a coroutine that somebody else started, and that waits for `awaited`."""
    _Running(coroutine, done, failed).wait(awaited)


class _Running:
    """A coroutine that has not ended: it goes on until it waits, and when what it waits for is there."""

    __slots__ = ("_coroutine", "_done", "_failed")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        done: Callable[[Any], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        self._coroutine, self._done, self._failed = coroutine, done, failed

    def wait(self, awaited: Any) -> None:
        if awaited is None:  # it gives way to others
            asyncio.get_running_loop().call_soon(self.go_on)
            return
        awaited._asyncio_future_blocking = False  # noqa: SLF001  the protocol between futures and who drives them
        awaited.add_done_callback(self.go_on)

    def go_on(self, _: object = None) -> None:
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  whatever it is, it is handed on
            self._failed(error)
        else:
            self.wait(awaited)


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all of them, and return what they return, in order; what they ask of a store can leave together.

    None may raise: an error of one is raised here, when all have ended. Many of them give way to others now and then.
    """
    results: list[Any] = [None] * len(coroutines)
    errors: list[BaseException] = []
    waiting = len(coroutines)
    ended: asyncio.Future[None] | None = None

    def end() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting and ended is not None and not ended.done():
            ended.set_result(None)

    def failed(error: BaseException) -> None:
        errors.append(error)
        end()

    def done_at(index: int) -> Callable[[T], None]:
        def done(result: T) -> None:
            results[index] = result
            end()

        return done

    for index, coroutine in enumerate(coroutines):
        start(coroutine, done_at(index), failed)
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
    if waiting:
        ended = asyncio.get_running_loop().create_future()
        await ended
    if errors:
        raise errors[0]
    return results
