"""A synchronous form of asynchronous stores, so that one test suite covers both kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.core.decision import Decision
from headgate.core.plan import Call, Family
from headgate.stores.base import AsyncStore, Check

T = TypeVar("T")


class Blocking:
    """Runs an `AsyncStore` in its own event loop, on its own thread."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.clock = store.clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-blocking")
        self._thread.start()

    def run(self, call: Call) -> Decision:
        return self._wait(self._store.run(call))

    def bind(self, family: Family) -> Check:
        bound = self._store.bind(family)

        async def checked(key: str, cost: int) -> Decision:
            return await bound(key, cost)

        def check(key: str, cost: int = 1) -> Decision:
            return self._wait(checked(key, cost))

        return check

    def ready(self) -> None:
        self._wait(self._store.ready())

    def close(self) -> None:
        self._wait(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
