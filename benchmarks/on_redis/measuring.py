"""Measures one case: open everybody, see that they limit, take turns, look at every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import process_time_ns
from typing import Protocol

from benchmarks.contenders import REDIS_CLUSTER_FLOOR, REDIS_FLOOR, REDIS_OTHER_FLOORS, REDIS_OURS, REDIS_PEERS
from benchmarks.contenders.redis_base import RedisContender
from benchmarks.on_redis.cases import Case, Way
from benchmarks.on_redis.driving import Driver, WrongAnswer, driver, prove, verify
from benchmarks.on_redis.figures import Cost, Row
from benchmarks.on_redis.servers import Cluster, Server
from benchmarks.timing import Figure, Pace, alternate


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
    """Return what one decision of `case` costs each contender. Each has a database of its own.

    Raises:
        WrongAnswer: a contender does not limit, or answered otherwise than the case demands, twice in a row.
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


Address = Callable[[RedisContender], str]


def _with_second_try(
    case: Case, server: Measured, contenders: Sequence[RedisContender], address: Address, pace: Pace
) -> list[Cost]:
    try:
        return _measure(case, server, contenders, address, pace)
    except WrongAnswer:
        return _measure(case, server, contenders, address, pace)  # a day may have ended meanwhile, and with it a window


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
