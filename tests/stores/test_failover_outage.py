"""Failover with a real Redis server that is killed and restarted, or frozen until that is noticed, under load.

Two nodes share a limit that does not refill while the test runs, so that all admissions can be counted: what the server
admits before, what the nodes admit by themselves, and what the server admits after. A killed one forgot everything. One
key is asked for all the time, and is used up before the outage; another is asked for only after degraded answers.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from headgate import Algorithm, AsyncLimiter, Decision, Limiter, Quota
from headgate.stores import open_async_store, open_store
from headgate.stores.failover import AsyncFailoverStore, FailoverStore, Options, Statistics
from tests.servers import RedisServer, redis_server

LIMIT, NODES, CALLERS = 75, 2, 4
SHARES = NODES * 38
"""N * ceil(L / N), the published bound of the mode local."""
QUOTA = Quota(LIMIT, 24 * 3600 * 1_000_000, algorithm=Algorithm.SLIDING_WINDOW_LOG)
GIVE_UP = 60
OPTIONS = Options(nodes=NODES, failures=2, pause=0.05, longest_pause=0.2)


def address_of(server: RedisServer) -> str:
    """Return an address with more time for an answer than any but a frozen server takes on a busy machine."""
    return f"redis://127.0.0.1:{server.port}/0?timeout=3&connect_timeout=3"


def outage(server: RedisServer, nodes: Sequence[Callable[[], Statistics]], *, killed: bool) -> None:
    def until(seen: Callable[[Statistics], bool]) -> None:
        end = time.monotonic() + GIVE_UP
        while not all(seen(statistics()) for statistics in nodes):
            assert time.monotonic() < end, [statistics() for statistics in nodes]
            time.sleep(0.01)

    def more_calls(count: int = 200) -> None:
        before = [statistics().calls for statistics in nodes]
        for statistics, calls in zip(nodes, before, strict=True):
            end = time.monotonic() + GIVE_UP
            while statistics().calls < calls + count:
                assert time.monotonic() < end
                time.sleep(0.01)

    more_calls()
    server.stop() if killed else server.send(signal.SIGSTOP)
    until(lambda seen: seen.openings > 0)
    more_calls()
    server.start() if killed else server.send(signal.SIGCONT)
    until(lambda seen: seen.recoveries > 0)
    more_calls()


class Answers:
    """The decisions of a node: about a key that the server knows, and about another one."""

    def __init__(self) -> None:
        self.known: list[Decision] = []
        self.strange: list[Decision] = []


def check_the_promises(given: Sequence[Answers], nodes: Sequence[Statistics], *, killed: bool) -> None:
    known = [answer for each in given for answer in each.known]
    strange = [answer for each in given for answer in each.strange]
    assert len(known) + len(strange) == sum(node.calls for node in nodes), "every call was answered"
    degraded = [answer for answer in (*known, *strange) if answer.degraded]
    assert len(degraded) == sum(sum(node.degraded.values()) for node in nodes), "every degraded answer says so"
    assert {answer.degraded for answer in degraded} <= {"storage_unavailable", "outcome_unknown", "circuit_open"}
    assert sum(answer.allowed for answer in known if answer.degraded) == 0, "nothing was left"
    assert sum(answer.allowed for answer in strange if answer.degraded) == SHARES
    by_the_server = sum(answer.allowed and not answer.degraded for answer in known)
    assert LIMIT <= by_the_server <= (2 * LIMIT if killed else LIMIT)
    for node in nodes:
        assert node.openings == node.recoveries > 0
        assert node.breakers[""].state == "closed"
        assert sum(node.failures.values()) >= OPTIONS["failures"]


def test_threads_are_answered_within_the_bound_while_the_server_is_killed_and_restarted() -> None:
    with redis_server() as server:
        stores = [FailoverStore(open_store(address_of(server)), **OPTIONS) for _ in range(NODES)]
        stop = threading.Event()

        def load(store: FailoverStore) -> Answers:
            limiter, answers = Limiter([QUOTA], store=store), Answers()
            while not stop.is_set():
                answers.known.append(limiter.check("user"))
                if answers.known[-1].degraded:
                    answers.strange.append(limiter.check("stranger"))
                time.sleep(0.0005)
            return answers

        with ThreadPoolExecutor(NODES * CALLERS) as pool:
            loads = [pool.submit(load, store) for store in stores for _ in range(CALLERS)]
            try:
                outage(server, [store.statistics for store in stores], killed=True)
            finally:
                stop.set()
            answers = [each.result() for each in loads]
        check_the_promises(answers, [store.statistics() for store in stores], killed=True)
        for store in stores:
            store.close()


def test_tasks_are_answered_within_the_bound_while_the_server_is_frozen() -> None:
    async def story(server: RedisServer) -> None:
        stores = [AsyncFailoverStore(open_async_store(address_of(server)), **OPTIONS) for _ in range(NODES)]
        stop = threading.Event()

        async def load(store: AsyncFailoverStore) -> Answers:
            limiter, answers = AsyncLimiter([QUOTA], store=store), Answers()
            while not stop.is_set():
                answers.known.append(await limiter.check("user"))
                if answers.known[-1].degraded:
                    answers.strange.append(await limiter.check("stranger"))
                await asyncio.sleep(0.0005)
            return answers

        loads = [asyncio.create_task(load(store)) for store in stores for _ in range(CALLERS)]
        try:
            statistics = [store.statistics for store in stores]
            await asyncio.to_thread(outage, server, statistics, killed=False)
        finally:
            stop.set()
        answers = await asyncio.gather(*loads)
        check_the_promises(answers, [store.statistics() for store in stores], killed=False)
        for store in stores:
            await store.close()

    with redis_server() as server:
        asyncio.run(story(server))
