"""Calls contenders: one caller that blocks, one in an event loop, or many at once. Every answer is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Protocol

from benchmarks.contenders.redis_base import AsyncCall, Blocking, Concurrent, RedisContender
from benchmarks.on_redis.cases import PROVING, Case, Way


class WrongAnswer(AssertionError):
    """A contender did not answer as the case demands, so its time would mean nothing."""


class Driver(Protocol):
    """Calls one contender."""

    def run(self, keys: Sequence[str]) -> tuple[int, list[Any]]:
        """Ask once for each key; returns nanoseconds for all, and the answers."""
        ...

    def allowed(self, answer: Any) -> bool: ...

    def close(self) -> None: ...


class Alone:
    """One caller that blocks."""

    def __init__(self, subject: Blocking) -> None:
        self._subject = subject
        self.allowed = subject.allowed

    def run(self, keys: Sequence[str]) -> tuple[int, list[Any]]:
        call, answers = self._subject.call, []
        start = perf_counter_ns()
        for key in keys:
            answers.append(call(key))  # noqa: PERF401  the loop that the others have
        return perf_counter_ns() - start, answers

    def close(self) -> None:
        self._subject.close()


class InLoop:
    """So many callers in an event loop, each asking for the next key as soon as it has its answer."""

    def __init__(self, subject: Concurrent, runner: asyncio.Runner, callers: int) -> None:
        self._subject, self._runner, self._callers = subject, runner, callers
        self.allowed = subject.allowed

    def run(self, keys: Sequence[str]) -> tuple[int, list[Any]]:
        return self._runner.run(_together(self._subject.call, keys, self._callers))

    def close(self) -> None:
        self._runner.run(_awaited(self._subject))


async def _together(call: AsyncCall, keys: Sequence[str], callers: int) -> tuple[int, list[Any]]:
    turn, answers = iter(keys), []

    async def caller() -> None:
        for key in turn:
            answers.append(await call(key))  # noqa: PERF401  answers come in any order, and each is awaited alone

    start = perf_counter_ns()
    if callers == 1:
        await caller()
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())
    return perf_counter_ns() - start, answers


async def _awaited(subject: Concurrent) -> None:
    await subject.close()
    await asyncio.sleep(0)


def driver(contender: RedisContender, server: str, case: Case, runner: asyncio.Runner) -> Driver:
    """Open the contender for the case."""
    if case.way is Way.BLOCKING:
        return Alone(contender.open(server, case.kind, case.limits))
    return InLoop(runner.run(contender.open_async(server, case.kind, case.limits)), runner, case.callers)


def prove(contender: RedisContender, server: str, case: Case, runner: asyncio.Runner) -> None:
    """Raise WrongAnswer unless the contender admits as many as the limit says, and then refuses."""
    limits = PROVING[: len(case.limits)]
    if case.way is Way.BLOCKING:
        tried: Driver = Alone(contender.open(server, case.kind, limits))
    else:
        tried = InLoop(runner.run(contender.open_async(server, case.kind, limits)), runner, 1)
    try:
        units = limits[0].units
        _, answers = tried.run(["user:to be refused"] * (units + 1))
        found = [tried.allowed(answer) for answer in answers]
    finally:
        tried.close()
    if found != [True] * units + [False]:
        raise WrongAnswer(f"{case}: {contender.name} ({contender.work}) does not limit to {units}: {found}")


def verify(contender: RedisContender, driver: Driver, case: Case, answers: list[Any]) -> None:
    """Raise WrongAnswer unless every answer is the one that the case is about."""
    if not contender.is_floor:
        wrong = sum(driver.allowed(answer) is not case.allows for answer in answers)
        if wrong:
            expected = "allowed" if case.allows else "denied"
            raise WrongAnswer(
                f"{case}: {wrong} of {len(answers)} answers of {contender.name} ({contender.work}) are not {expected}"
            )
