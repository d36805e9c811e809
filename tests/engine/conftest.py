"""Engines of both kinds, called in the same way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.engine import AsyncEngine, Engine

Make = Callable[..., Any]


class Called:
    """An engine whose methods return, whether they are coroutine functions or not."""

    def __init__(self, engine: Engine | AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self._loop = engine, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._loop.run_until_complete(found(*args, **options))


@pytest.fixture(params=[Engine, AsyncEngine])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    loop, made = asyncio.new_event_loop(), []

    def make_one(*args: Any, **options: Any) -> Called:
        made.append(Called(request.param(*args, **options), loop))
        return made[-1]

    yield make_one
    for engine in made:
        engine.close()
    loop.close()
