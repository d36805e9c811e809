"""Measures the Redis part: callers, rounds, and the memory of the server. Every result is verified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import Any, Protocol

from benchmarks.contenders import REDIS_CLUSTER_FLOOR, REDIS_FLOOR, REDIS_OTHER_FLOORS, REDIS_OURS, REDIS_PEERS
from benchmarks.contenders.base import AsyncCall, Blocking, Concurrent, RedisContender
from benchmarks.in_memory.operations import LOG_ADMISSIONS
from benchmarks.in_memory.scenarios import Kind, Limit
from benchmarks.on_redis.cases import (
    ALLOWING,
    CALLERS,
    KINDS,
    PROVING,
    Amount,
    Case,
    Cost,
    Row,
    Way,
    all_cases,
    cluster_cases,
)
from benchmarks.on_redis.servers import Cluster, Server, redis_cluster, redis_server
from benchmarks.timing import Figure, Pace, alternate

Address = Callable[[RedisContender], str]


class WrongResult(AssertionError):
    """A result of a contender is not that of the case, so its time would be meaningless."""


class Driver(Protocol):
    """Calls one contender."""

    def run(self, keys: Sequence[str]) -> tuple[int, list[Any]]:
        """Call once for each key; return the total nanoseconds, and the results."""
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
            answers.append(call(key))  # noqa: PERF401  the same loop as the others
        return perf_counter_ns() - start, answers

    def close(self) -> None:
        self._subject.close()


class InLoop:
    """Concurrent callers in an event loop, each with one call at a time."""

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
            answers.append(await call(key))  # noqa: PERF401  results arrive in any order, and each is awaited alone

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
    """Raise WrongResult unless the contender admits exactly the limit, and then refuses."""
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
        raise WrongResult(f"{case}: {contender.name} ({contender.work}) does not limit to {units}: {found}")


def verify(contender: RedisContender, driver: Driver, case: Case, answers: list[Any]) -> None:
    """Raise WrongResult unless every result is that of the case."""
    if not contender.is_floor:
        wrong = sum(driver.allowed(answer) is not case.allows for answer in answers)
        if wrong:
            expected = "allowed" if case.allows else "denied"
            raise WrongResult(
                f"{case}: {wrong} of {len(answers)} answers of {contender.name} ({contender.work}) are not {expected}"
            )


class Measured(Protocol):
    """One server or several, whose processor time is counted."""

    def cpu_us(self) -> float: ...

    def forget(self) -> None: ...


class Course:
    """A contender's rounds, and the processor time that they took here and on the server."""

    def __init__(self, contender: RedisContender, driven: Driver, case: Case, server: Measured) -> None:
        self.contender, self.driven = contender, driven
        self._case, self._server = case, server
        self._client_us = self._server_us = 0.0
        self._decisions = 0

    def prepare(self) -> None:
        """Give every key its state, and on the deny path use up all there is; and open all connections."""
        for key_list in (self._case.all_keys(), self._case.round(-1)):
            self.driven.run(key_list)

    def round(self, number: int) -> float:
        """Run a round; returns nanoseconds per decision."""
        keys = self._case.round(number)
        server, client = self._server.cpu_us(), process_time_ns()
        spent, answers = self.driven.run(keys)
        self._client_us += (process_time_ns() - client) / 1000
        self._server_us += self._server.cpu_us() - server
        self._decisions += len(keys)
        verify(self.contender, self.driven, self._case, answers)
        return spent / len(keys)

    def cost(self, time: Figure) -> Cost:
        contender, decisions = self.contender, self._decisions
        client, server = self._client_us / decisions, self._server_us / decisions
        return Cost(contender.name, contender.work, contender.equal, time, client, server)


def measure(case: Case, server: Server, pace: Pace) -> Row:
    """Return the cost of one decision of `case` by each contender, each with its own database.

    Raises:
        WrongResult: a contender does not limit, or answered otherwise than the case demands, twice in a row.
    """
    peers = [peer for peer in REDIS_PEERS if peer.takes_part(case.kind) and _can_be_called(peer, case)]
    others = [floor for floor in REDIS_OTHER_FLOORS if case.other_floors and _can_be_called(floor, case)]
    contenders = [REDIS_FLOOR, REDIS_OURS, *peers, *others]
    addresses = {contender: server.address(number) for number, contender in enumerate(contenders)}
    costs = _with_second_try(case, server, contenders, addresses.__getitem__, pace)
    return Row(case, costs[0], costs[1], tuple(costs[2 : 2 + len(peers)]), tuple(costs[2 + len(peers) :]))


def measure_cluster(case: Case, cluster: Cluster, pace: Pace) -> Row:
    """Do the same in a cluster, against a bare INCR only."""

    def address(contender: RedisContender) -> str:
        return cluster.address if contender is REDIS_OURS else cluster.servers[0].address()

    floor, ours = _with_second_try(case, cluster, [REDIS_CLUSTER_FLOOR, REDIS_OURS], address, pace)
    return Row(case, floor, ours)


def _can_be_called(contender: RedisContender, case: Case) -> bool:
    return contender.blocks or case.way is not Way.BLOCKING


def _with_second_try(
    case: Case, server: Measured, contenders: Sequence[RedisContender], address: Address, pace: Pace
) -> list[Cost]:
    try:
        return _measure(case, server, contenders, address, pace)
    except WrongResult:
        return _measure(case, server, contenders, address, pace)  # a day, and with it a window, may have ended


def _measure(
    case: Case, server: Measured, contenders: Sequence[RedisContender], address: Address, pace: Pace
) -> list[Cost]:
    server.forget()
    with asyncio.Runner() as runner, ExitStack() as opened:
        courses: dict[str, Course] = {}
        for contender in contenders:
            if not contender.is_floor:
                prove(contender, address(contender), case, runner)
            driven = driver(contender, address(contender), case, runner)
            opened.callback(driven.close)
            course = courses[f"{contender.name}: {contender.work}"] = Course(contender, driven, case, server)
            course.prepare()
        figures = alternate({label: course.round for label, course in courses.items()}, pace)
        return [course.cost(figures[label]) for label, course in courses.items()]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The server's memory for one client after `admissions` admissions under `limits` limits."""

    kind: Kind
    limits: int
    admissions: int
    contender: str
    bytes_per_client: float


def footprints(server: Server, clients: int) -> Iterator[Footprint]:
    """Yield the footprint of every algorithm in every library that has it."""
    libraries = {peer.name: peer for peer in REDIS_PEERS}  # further calls do not change the stored data
    contenders = [REDIS_FLOOR, REDIS_OURS, *libraries.values()]
    for kind, limits, admissions in footprint_tasks():
        server.forget()
        for database, contender in enumerate(contenders):
            if contender.takes_part(kind):
                names = [f"user:{number:08}" for number in range(clients)] * admissions
                _take(server.address(database), contender, kind, limits, names)
                kept = server.bytes_used(database) / clients
                yield Footprint(kind, len(limits), admissions, contender.name, kept)


def footprint_tasks() -> list[tuple[Kind, tuple[Limit, ...], int]]:
    """Return the footprints to measure: algorithm, limits, admissions per client."""
    one = [(kind, ALLOWING[:1], 1) for kind in KINDS]
    return [*one, (Kind.SLIDING_WINDOW_LOG, ALLOWING[:1], LOG_ADMISSIONS), (Kind.GCRA, ALLOWING, 1)]


def _take(server: str, contender: RedisContender, kind: Kind, limits: tuple[Limit, ...], names: list[str]) -> None:
    with asyncio.Runner() as runner:
        driven = InLoop(runner.run(contender.open_async(server, kind, limits)), runner, CALLERS)
        driven.run(names)
        driven.close()


@dataclass(frozen=True, slots=True)
class RedisResults:
    """All that was measured on Redis."""

    server: str
    """The server's version."""
    rows: list[Row]
    footprints: list[Footprint]


def steps(amount: Amount) -> int:
    """Return how many steps there are to report."""
    return len(all_cases(amount)) + len(footprint_tasks()) + len(cluster_cases(amount))


def run(amount: Amount, pace: Pace, done: Callable[[str], None]) -> RedisResults:
    """Measure everything; `done` reports each step."""
    rows: list[Row] = []
    with redis_server() as server:
        for case in all_cases(amount):
            rows.append(measure(case, server, pace))
            done(summary_of(rows[-1]))
        found = []
        for kept in footprints(server, amount.clients):
            found.append(kept)
            if kept.contender == "headgate":
                done(f"{kept.kind}: {kept.bytes_per_client:.0f} bytes per client")
        version = server.version
    with redis_cluster() as cluster:
        for case in cluster_cases(amount):
            rows.append(measure_cluster(case, cluster, pace))
            done(summary_of(rows[-1]))
    return RedisResults(version, rows, found)


def summary_of(row: Row) -> str:
    """Return the result in a line."""
    peers = "" if row.times_peer is None else f", {row.times_peer:.2f}x the fastest peer"
    each = f"{row.ours.time.median / 1000:.0f} us" if row.case.callers == 1 else f"{row.ours.per_second:,.0f}/s"
    return f"{row.case}: {each}, {row.times_floor:.2f}x INCR{peers}, server {row.ours.server_us:.1f} us"
