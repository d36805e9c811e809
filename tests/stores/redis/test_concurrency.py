"""Many processes and tasks on one key: never one too many, and no refusal without a reason."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic_ns
from typing import NamedTuple

from headgate import Algorithm, Decision, Quota, open_async_store
from headgate.core.plan import Call, Family, Verb
from headgate.stores.base import AsyncStore
from headgate.stores.redis.address import parse
from headgate.stores.redis.store import RedisStore
from tests.servers import RedisServer

WINDOW_US = 3650 * 24 * 3600 * 1_000_000  # nothing comes back while a test runs
GIVE_UP = 300


class Asked(NamedTuple):
    """One check: when it began and ended, by a clock that all processes share, and its decision."""

    client: int
    cost: int
    began: int
    decision: Decision
    ended: int


def costs(client: int, count: int) -> list[int]:
    return [1 + (client * 7 + turn * 3) % 3 for turn in range(count)]


def ask_from_tasks(address: str, family: Family, tasks: int, count: int, process: int) -> list[Asked]:
    async def client(store: AsyncStore, number: int) -> list[Asked]:
        plan = family.plan("shared")
        return [
            Asked(number, cost, monotonic_ns(), await store.run(Call(Verb.CHECK, plan, cost)), monotonic_ns())
            for cost in costs(number, count)
        ]

    async def run() -> list[Asked]:
        store = open_async_store(address)
        try:
            answers = await asyncio.gather(*(client(store, process * tasks + task) for task in range(tasks)))
        finally:
            await store.close()
        return [each for answer in answers for each in answer]

    return asyncio.run(run())


def ask_from_threads(address: str, family: Family, threads: int, count: int, process: int) -> list[Asked]:
    store, plan = RedisStore(parse(address)), family.plan("shared")

    def client(number: int) -> list[Asked]:
        return [
            Asked(number, cost, monotonic_ns(), store.run(Call(Verb.CHECK, plan, cost)), monotonic_ns())
            for cost in costs(number, count)
        ]

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(client, [process * threads + thread for thread in range(threads)]))
    store.close()
    return [each for answer in answers for each in answer]


def in_processes(work: Callable[[int], list[Asked]], processes: int) -> list[Asked]:
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        answers = pool.map_async(work, range(processes), chunksize=1).get(GIVE_UP)
        pool.close()
        pool.join()
    return [each for answer in answers for each in answer]


def verify(asked: list[Asked], limit: int, stored: int) -> None:
    """Check a history of one key in a window that cannot roll."""
    admitted = sum(each.cost for each in asked if each.decision.allowed)
    assert sum(each.cost for each in asked) > limit, "the demand exceeds the limit"
    assert admitted == limit == stored, "exactly the limit was admitted, and is stored"
    begun = sorted((each.began, each.cost) for each in asked if each.decision.allowed)
    at = taken = 0
    for refused in sorted((each for each in asked if not each.decision.allowed), key=lambda each: each.ended):
        while at < len(begun) and begun[at][0] < refused.ended:
            taken += begun[at][1]
            at += 1
        assert taken > limit - refused.cost, "a refusal is justified by what others may have taken before it came"
        assert refused.decision.remaining < refused.cost
    for client in {each.client for each in asked}:
        seen = [each.decision.remaining for each in asked if each.client == client]
        assert seen == sorted(seen, reverse=True), "what is left never grows in the eyes of one client"


def used(address: str, family: Family, limit: int) -> int:
    store = RedisStore(parse(address))
    try:
        return limit - store.run(Call(Verb.PEEK, family.plan("shared"))).remaining
    finally:
        store.close()


def test_8_processes_of_64_tasks_admit_exactly_the_limit(server: RedisServer) -> None:
    limit, address = 2000, server.address.replace("timeout=5", "timeout=30")
    family = Family(f"tasks-{monotonic_ns()}", [Quota(limit, WINDOW_US, algorithm=Algorithm.SLIDING_WINDOW_LOG)])
    asked = in_processes(partial(ask_from_tasks, address, family, 64, 6), 8)
    assert len(asked) == 8 * 64 * 6
    verify(asked, limit, used(address, family, limit))


def test_2_processes_of_16_threads_admit_exactly_the_limit(server: RedisServer) -> None:
    limit, address = 1000, server.address.replace("timeout=5", "timeout=30")
    family = Family(f"threads-{monotonic_ns()}", [Quota(limit, WINDOW_US, algorithm=Algorithm.FIXED_WINDOW)])
    asked = in_processes(partial(ask_from_threads, address, family, 16, 40), 2)
    assert len(asked) == 2 * 16 * 40
    verify(asked, limit, used(address, family, limit))
