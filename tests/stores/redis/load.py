"""Load of threads or tasks on a store, and its decisions and errors."""

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

import pytest
from redis.crc import key_slot

from headgate import Algorithm, Decision, Quota, StoreError, open_async_store, open_store
from headgate.core.plan import Call, Limit, Plan, Verb
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
async_only = pytest.mark.parametrize("opened", ["async"], indirect=True)
"""For tests with a cluster of their own, of what stores of both kinds share."""


class Outcome(NamedTuple):
    """A decision or error: of which plan, and when it began and ended, in seconds."""

    number: int
    began: float
    ended: float
    answer: Decision | StoreError


class Load:
    """Callers at work. Caller n checks plan n, n + callers ... in turn, and again."""

    def __init__(self, plans: Sequence[Plan], pause: float) -> None:
        self.plans, self.pause = plans, pause
        self.history: list[Outcome] = []
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

    def since(self, moment: float) -> list[Outcome]:
        return [outcome for outcome in self.history if outcome.began >= moment]

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
            for outcome in news:
                if outcome.number in missing and outcome.began >= began and is_decided(outcome.answer):
                    missing[outcome.number] -= 1
                    if not missing[outcome.number]:
                        del missing[outcome.number]
                    if seconds is None:
                        give_up = time.monotonic() + GIVE_UP
            time.sleep(0.01)

    def errors(self, numbers: Iterable[int] | None = None) -> list[StoreError]:
        wanted = range(len(self.plans)) if numbers is None else set(numbers)
        return [each.answer for each in self.history if isinstance(each.answer, StoreError) and each.number in wanted]

    def decisions(self, number: int) -> list[Decision]:
        return [each.answer for each in self.history if each.number == number and isinstance(each.answer, Decision)]

    def admitted(self, number: int) -> int:
        """How many were admitted by the store, not by what stood in for it."""
        return sum(decision.allowed and not decision.degraded for decision in self.decisions(number))

    @contextlib.contextmanager
    def _call(self, number: int) -> Iterator[list[Decision]]:
        """Note the decision that is put into the list, or the error."""
        began, answers = time.monotonic(), list[Any]()
        try:
            yield answers
        except StoreError as error:
            answers.append(error)
        self.history.append(Outcome(number, began, time.monotonic(), answers[0]))

    def _thread(self, store: Store, first: int, callers: int) -> None:
        while not self._over.is_set():
            for number in range(first, len(self.plans), callers):
                with self._call(number) as answers:
                    answers.append(store.run(Call(Verb.CHECK, self.plans[number])))
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
                with self._call(number) as answers:
                    answers.append(await store.run(Call(Verb.CHECK, self.plans[number])))
                await asyncio.sleep(self.pause)


@contextlib.contextmanager
def load(store: Store | AsyncStore, plans: Sequence[Plan], callers: int, pause: float = 0.005) -> Iterator[Load]:
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
    return open_store(address) if kind == "threads" else open_async_store(address)


def resumed(call: Callable[[], Any], seconds: float = RESUME) -> Any:
    found: list[Any] = []

    def seen() -> bool:
        try:
            found.append(call())
        except StoreError:
            return False
        return True

    until(seen, "decisions resume", seconds)
    return found[0]


def is_decided(answer: Decision | StoreError) -> bool:
    return isinstance(answer, Decision) and not answer.degraded


def lasting(limit: int, algorithm: Algorithm = Algorithm.FIXED_WINDOW) -> Quota:
    """Return a quota of which nothing comes back while a test runs."""
    return Quota(limit, AGES_US, algorithm=algorithm)


def slot_of(limit: Limit) -> int:
    """Return the slot of a limit, computed by another library."""
    return key_slot(key_of(limit.space, limit.principal))


def plans_on(node: RedisServer, count: int, limit: int) -> list[Plan]:
    limits, owned = family(lasting(limit)), slots_of(node)
    plans = (limits.plan(f"user-{number}") for number in range(1_000_000))
    return list(islice((plan for plan in plans if slot_of(plan[0]) in owned), count))
