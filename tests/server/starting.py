"""Coroutines run as handlers are: at once, without a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headgate.server.wire.eager import Waiting, begin

T = TypeVar("T")


def start(
    coroutine: Coroutine[Any, Any, T], done: Callable[[T], object], failed: Callable[[BaseException], object]
) -> None:
    """Run it until it waits, and go on when it need not; `done` or `failed` is called when it has ended."""
    errors: list[BaseException] = []

    def end(result: Any) -> None:
        if errors:
            failed(errors[0])
        else:
            done(result)

    result: Any = begin(lambda _: coroutine, None, errors.append)
    if isinstance(result, Waiting):
        result.then(end)
    else:
        end(result)
