"""A thread with an event loop, in which a client that blocks asks for all threads of its process."""

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
"""For the thread to hang up when its client is closed."""
T = TypeVar("T")


class Background:
    """The thread, and the session in it; of the process that made it.

    Args:
        made: makes the session, in the loop.
    """

    def __init__(self, made: Callable[[], Session]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock, self._is_closed = threading.Lock(), False
        started: Future[Session] = Future()
        self._thread = threading.Thread(target=self._run, args=(made, started), name="headgate-sdk", daemon=True)
        self._thread.start()
        self.session: Session = started.result()

    def do(self, work: Callable[..., object], *args: Any) -> bool:
        """Do something in the loop; says whether it will be: not once the client is closed."""
        with self._lock:
            if not self._is_closed:
                self._loop.call_soon_threadsafe(work, *args)
            return not self._is_closed

    def result(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Return what work in the loop comes to. Raises StoreUnavailable where it does not end in time."""
        ended: Future[T] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def settle() -> None:
            try:
                ended.set_result(await work())
            except BaseException as error:  # noqa: BLE001  it is raised where the result is waited for
                ended.set_exception(error)

        if self.do(lambda: tasks.append(self._loop.create_task(settle()))):
            try:
                return ended.result(seconds)
            except (TimeoutError, CancelledError, asyncio.CancelledError):
                pass
        raise StoreUnavailable("the client was closed, or has too much to do")

    def stop(self) -> None:
        """Have the thread end soon; for a client that nobody closed."""
        if self.pid == os.getpid():
            self.do(self._loop.stop)

    def close(self) -> None:
        """Hang up, and end the thread; whoever waits is told."""
        self.stop()
        self._thread.join(END_SECONDS)

    def _run(self, made: Callable[[], Session], started: Future[Session]) -> None:
        async def make() -> Session:
            return made()

        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            session = loop.run_until_complete(make())
        except BaseException as error:  # noqa: BLE001  it is raised where the thread was started
            started.set_exception(error)
        else:
            started.set_result(session)
            loop.run_forever()
            with self._lock:
                self._is_closed = True  # what was taken before is still done, and told
            loop.run_until_complete(session.close())
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
