"""A thread with an event loop that serves the blocking client in all threads of its process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from headgate.core.errors import StoreUnavailable
from headgate.sdk.session import Session

END_SECONDS = 10.0
"""Time for the thread to end."""
T = TypeVar("T")


class Background:
    """The thread and its session, made by `made` in the loop, for the process that made them."""

    def __init__(self, made: Callable[[], Session]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock, self._is_closed = threading.Lock(), False
        started: Future[Session] = Future()
        self._thread = threading.Thread(target=self._run, args=(made, started), name="headgate-sdk", daemon=True)
        self._thread.start()
        self.session: Session = started.result()

    def do(self, work: Callable[..., object], *args: Any) -> bool:
        """Schedule work in the loop; return False if the client is closed."""
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(work, *args)
            return not self._is_closed

    def result(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run work in the loop and return its result. Raises StoreUnavailable if it does not end in time."""
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def settle() -> None:
            try:
                ended.set_result(await work())
            except BaseException as error:  # noqa: BLE001  raised by ended.result
                ended.set_exception(error)

        if self.do(lambda: tasks.append(self._loop.create_task(settle()))):
            try:
                return ended.result(seconds)
            except (TimeoutError, CancelledError, asyncio.CancelledError):
                pass
        raise StoreUnavailable("the client was closed, or is overloaded")

    def stop(self) -> None:
        """End the thread soon, for a client that was not closed."""
        if self.pid == os.getpid():
            self.do(self._loop.stop)

    def close(self) -> None:
        """End the thread; pending calls fail."""
        self.stop()
        self._thread.join(END_SECONDS)

    def _run(self, made: Callable[[], Session], started: Future[Session]) -> None:
        async def make() -> Session:
            return made()

        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            session = loop.run_until_complete(make())
        except BaseException as error:  # noqa: BLE001  raised by started.result
            started.set_exception(error)
        else:
            started.set_result(session)
            loop.run_forever()
            with self._lock:
                self._is_closed = True
            loop.run_until_complete(session.close())
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
