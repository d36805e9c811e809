"""The floors: the minimum work of any limiter in Python, or of Redis. They limit nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import time_ns

import coredis
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from benchmarks.contenders.base import Blocking, Call, Concurrent, Subject
from benchmarks.in_memory.scenarios import Kind, Limit


class Floor:
    """Reads the clock once, and reads, changes and writes one dictionary entry per limit."""

    name = "floor"
    work = "a clock read and a dict read-modify-write per limit"
    equal = False

    def takes_part(self, _kind: Kind, _limits: int) -> bool:
        return True

    def open(self, _: Kind, limits: tuple[Limit, ...]) -> Subject:
        call = _one() if len(limits) == 1 else _several(len(limits))
        return Subject(call, allowed=always, take=call)


def _one() -> Call:
    counts: dict[str, int] = {}
    find = counts.get

    def floor(key: str) -> int:
        counts[key] = find(key, 0) + 1
        return time_ns()

    return floor


def _several(limits: int) -> Call:
    tables: list[dict[str, int]] = [{} for _ in range(limits)]

    def floor(key: str) -> int:
        for counts in tables:
            counts[key] = counts.get(key, 0) + 1
        return time_ns()

    return floor


class Incr:
    """redis-py's `INCR`; with several limits, as many of them in a pipeline."""

    name = "redis-py"
    work = "INCR"
    equal = False
    blocks = True
    is_floor = True

    def takes_part(self, _: Kind) -> bool:
        return True

    def open(self, server: str, _: Kind, limits: tuple[Limit, ...]) -> Blocking:
        client = Redis.from_url(server)
        if len(limits) == 1:
            return Blocking(client.incr, always, client.close)

        def pipelined(key: str) -> object:
            pipeline = client.pipeline(transaction=False)
            for limit in limits:
                pipeline.incr(f"{key}:{limit.seconds}")
            return pipeline.execute()

        return Blocking(pipelined, always, client.close)

    async def open_async(self, server: str, _: Kind, limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedis.from_url(server)
        if len(limits) == 1:
            return Concurrent(client.incr, always, client.aclose)

        async def pipelined(key: str) -> object:
            pipeline = client.pipeline(transaction=False)
            for limit in limits:
                pipeline.incr(f"{key}:{limit.seconds}")
            return await pipeline.execute()

        return Concurrent(pipelined, always, client.aclose)


class SingleIncr:
    """redis-py's `INCR` through a client that has one connection and no pool."""

    name = "redis-py, one connection"
    work = "INCR"
    equal = False
    blocks = True
    is_floor = True

    def takes_part(self, _: Kind) -> bool:
        return True

    def open(self, server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Blocking:
        client = Redis.from_url(server, single_connection_client=True)
        return Blocking(client.incr, always, client.close)

    async def open_async(self, server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedis.from_url(server, single_connection_client=True)
        return Concurrent(client.incr, always, client.aclose)


class _OnlyAsync:
    """The base of floors in an event loop that count one limit."""

    work = "INCR"
    equal = False
    blocks = False
    is_floor = True

    def takes_part(self, _: Kind) -> bool:
        return True

    def open(self, _server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Blocking:
        raise NotImplementedError


class CoredisIncr(_OnlyAsync):
    """coredis's `INCR`."""

    name = "coredis"

    async def open_async(self, server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Concurrent:
        client = coredis.Redis.from_url(server)

        async def close() -> None:
            client.connection_pool.disconnect()

        return Concurrent(client.incr, always, close)


class ClusterIncr(_OnlyAsync):
    """redis-py's `INCR` in a cluster."""

    name = "redis-py RedisCluster"

    async def open_async(self, server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedisCluster.from_url(server)
        await client.initialize()
        return Concurrent(client.incr, always, client.aclose)


class CoalescedIncr(_OnlyAsync):
    """redis-py's `INCR`, pipelined by hand: all calls of one turn of the event loop are one pipeline."""

    name = "redis-py, pipelined by hand"

    async def open_async(self, server: str, _kind: Kind, _limits: tuple[Limit, ...]) -> Concurrent:
        client = AsyncRedis.from_url(server)
        return Concurrent(_Coalesced(client).incr, always, client.aclose)


class _Coalesced:
    def __init__(self, client: AsyncRedis) -> None:
        self._client = client
        self._waiting: list[tuple[str, asyncio.Future[object]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def incr(self, key: str) -> Awaitable[object]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[object] = loop.create_future()
        self._waiting.append((key, answer))
        if len(self._waiting) == 1:
            sending = loop.create_task(self._send())
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        return answer

    async def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        pipeline = self._client.pipeline(transaction=False)
        for key, _ in waiting:
            pipeline.incr(key)
        for (_, answer), reply in zip(waiting, await pipeline.execute(), strict=True):
            answer.set_result(reply)


def always(_: object) -> bool:
    """Return that a floor never refuses."""
    return True
