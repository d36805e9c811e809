"""Callers that ask a store all the time, threads or tasks, and what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, cast

from redis.crc import key_slot

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.errors import StoreError
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores import open_async_store, open_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.redis.script import key_of
from headgate.testing.conformance import family
from tests.clusters import slots_of
from tests.servers import RedisServer, until

GIVE_UP = 60
"""Seconds after which a test fails rather than hangs; never what a test is about."""
RESUME = 30
"""Seconds in which decisions resume after the loss of a server. This is a promise."""
AGES_US = 3650 * 24 * 3600 * 1_000_000
"""A window that does not end, and in which less than one unit comes back, while a test runs."""
KINDS = {"threads": 8, "tasks": 32}
"""Kinds of callers, and how many of them."""


class Told(NamedTuple):
    """What a caller was told, about which of the plans, and when; in seconds."""

    number: int
    began: float
    ended: float
    answer: Decision | StoreError


class Load:
    """Callers at work. Caller n asks for plan n, n + callers ... in turn, and again."""

    def __init__(self, plans: Sequence[Plan], pause: float) -> None:
        self.plans, self.pause = plans, pause
        self.history: list[Told] = []
        self._over = threading.Event()
        self._callers: list[Future[None]] = []

    def start(self, pool: ThreadPoolExecutor, store: Store | AsyncStore, callers: int) -> None:
        if inspect.iscoroutinefunction(store.run):
            tasks = self._tasks(cast("AsyncStore", store), callers)
            self._callers = [pool.submit(asyncio.run, tasks)]
        else:
            self._callers = [
                pool.submit(self._thread, cast("Store", store), first, callers) for first in range(callers)
            ]

    def stop(self) -> None:
        self._over.set()
        for caller in self._callers:
            caller.result(GIVE_UP)

    def since(self, moment: float) -> list[Told]:
        """Return what those were told who began to ask after `moment`."""
        return [told for told in self.history if told.began >= moment]

    def until_answered(
        self, numbers: Iterable[int], count: int = 1, seconds: float | None = None, since: float | None = None
    ) -> None:
        """Wait until each of these plans was decided `count` times by the store, asked since a moment, or from now on.

        Without a number of `seconds` this may take its time, on a busy machine, as long as decisions go on.
        """
        missing = dict.fromkeys(numbers, count)
        began, at = (time.monotonic(), len(self.history)) if since is None else (since, 0)
        give_up = time.monotonic() + (seconds or GIVE_UP)
        while missing:
            assert not any(caller.done() for caller in self._callers), "a caller has failed"
            assert time.monotonic() < give_up, f"no decisions about {missing}"
            news = self.history[at:]
            at += len(news)
            for told in news:
                if told.number in missing and told.began >= began and is_decided(told.answer):
                    missing[told.number] -= 1
                    if not missing[told.number]:
                        del missing[told.number]
                    if seconds is None:
                        give_up = time.monotonic() + GIVE_UP
            time.sleep(0.01)

    def errors(self, numbers: Iterable[int] | None = None) -> list[StoreError]:
        wanted = range(len(self.plans)) if numbers is None else set(numbers)
        return [told.answer for told in self.history if isinstance(told.answer, StoreError) and told.number in wanted]

    def decisions(self, number: int) -> list[Decision]:
        return [told.answer for told in self.history if told.number == number and isinstance(told.answer, Decision)]

    def admitted(self, number: int) -> int:
        """How many were admitted by the store, not by what stood in for it."""
        return sum(decision.allowed and not decision.degraded for decision in self.decisions(number))

    def _thread(self, store: Store, first: int, callers: int) -> None:
        while not self._over.is_set():
            for number in range(first, len(self.plans), callers):
                began = time.monotonic()
                answer: Decision | StoreError
                try:
                    answer = store.run(Call(Verb.CHECK, self.plans[number]))
                except StoreError as error:
                    answer = error
                self.history.append(Told(number, began, time.monotonic(), answer))
                self._over.wait(self.pause)

    async def _tasks(self, store: AsyncStore, callers: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for first in range(callers):
                    group.create_task(self._task(store, first, callers))
        finally:
            await store.close()

    async def _task(self, store: AsyncStore, first: int, callers: int) -> None:
        while not self._over.is_set():
            for number in range(first, len(self.plans), callers):
                began = time.monotonic()
                answer: Decision | StoreError
                try:
                    answer = await store.run(Call(Verb.CHECK, self.plans[number]))
                except StoreError as error:
                    answer = error
                self.history.append(Told(number, began, time.monotonic(), answer))
                await asyncio.sleep(self.pause)


@contextlib.contextmanager
def load(store: Store | AsyncStore, plans: Sequence[Plan], callers: int, pause: float = 0.005) -> Iterator[Load]:
    """Callers for the length of a with block; the store is closed after it."""
    asked = Load(plans, pause)
    with ThreadPoolExecutor(callers) as pool:
        asked.start(pool, store, callers)
        try:
            yield asked
        finally:
            asked.stop()
            if not inspect.iscoroutinefunction(store.run):
                cast("Store", store).close()


def store_for(kind: str, address: str) -> Any:
    """Return a store for callers of a kind."""
    return open_store(address) if kind == "threads" else open_async_store(address)


def resumed(call: Callable[[], Decision]) -> Decision:
    """Return what `call` returns once it raises no StoreError any more."""
    found: list[Decision] = []

    def seen() -> bool:
        try:
            found.append(call())
        except StoreError:
            return False
        return True

    until(seen, "decisions resume", RESUME)
    return found[0]


def is_decided(answer: Decision | StoreError) -> bool:
    """Did the store itself decide?"""
    return isinstance(answer, Decision) and not answer.degraded


def lasting(limit: int, algorithm: Algorithm = Algorithm.FIXED_WINDOW) -> Quota:
    """Return a quota of which nothing comes back while a test runs."""
    return Quota(limit, AGES_US, algorithm=algorithm)


def slot_of(limit: Limit) -> int:
    """Return the slot of a limit, computed by somebody else."""
    return key_slot(key_of(limit.space, limit.principal))


def plans_on(node: RedisServer, count: int, limit: int) -> list[Plan]:
    """Return so many plans of one limit that live on `node`."""
    limits, owned = family(lasting(limit)), slots_of(node)
    plans = (limits.plan(f"user-{number}") for number in range(1_000_000))
    return list(islice((plan for plan in plans if slot_of(plan[0]) in owned), count))
