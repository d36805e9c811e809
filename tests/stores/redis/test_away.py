"""A store that is down from the start: callers get decisions, and only the first waits for a deadline.

It may be down in three ways: nothing listens, a server accepts and sends nothing, or packets get no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from headgate import AsyncFailoverStore, FailoverStore, Quota, StoreUnavailable
from headgate.core.plan import Call, Verb
from headgate.stores.failover import Reason
from headgate.stores.redis.address import Address, Cluster, Role, parse
from headgate.stores.redis.batching import Batcher
from headgate.stores.redis.cluster import AsyncCluster
from headgate.stores.redis.discovery import SlotMap
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.script import probe, query
from headgate.stores.redis.store import AsyncRedisStore, RedisStore
from headgate.testing.conformance import family
from tests.proxy import Proxy, proxy
from tests.servers import RedisServer, free_port

KINDS = ("redis://127.0.0.1:{}/0", "redis+sentinel://127.0.0.1:{}/service/0", "redis+cluster://127.0.0.1:{}")
GIVE_UP = 60
"""Seconds after which a test fails rather than hangs; longer than any deadline here."""


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    yield free_port()


@contextlib.contextmanager
def silence() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listening:
        yield listening.getsockname()[1]


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port whose queue is full: the kernel drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, contextlib.ExitStack() as stack:
        port = listening.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


AWAY = {"nobody": nobody, "silence": silence, "black hole": black_hole}


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("kind", KINDS)
def test_in_an_event_loop_only_the_first_caller_waits_for_its_deadline(kind: str, away: str) -> None:
    """The deadline of the address is an hour: only the deadline of the first caller ends."""
    plan = family(Quota(100, 3_600_000_000)).plan("user")

    async def run(port: int) -> None:
        place = parse(kind.format(port) + "?timeout=3600&connect_timeout=3600")
        store = AsyncFailoverStore(AsyncRedisStore(place), failures=1000)
        async with asyncio.timeout(GIVE_UP):
            decisions = [await store.within(0.05).run(Call(Verb.CHECK, plan))]
            decisions += [await store.run(Call(Verb.CHECK, plan)) for _ in range(9)]
            decisions += await asyncio.gather(*[store.run(Call(Verb.CHECK, plan)) for _ in range(9)])
        assert [decision.degraded for decision in decisions] == [Reason.STORE_UNAVAILABLE] * 19
        assert [decision.remaining for decision in decisions] == [*range(99, 80, -1)]
        await store.close()

    with AWAY[away]() as port:
        asyncio.run(run(port))


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_connect_once_and_rest(kind: str, away: str) -> None:
    with AWAY[away]() as port:
        inner = RedisStore(parse(kind.format(port) + "?timeout=0.05&connect_timeout=0.05"))
        store = FailoverStore(inner, failures=3, pause=3600, longest_pause=3600)
        plan = family(Quota(100, 3_600_000_000)).plan("user")
        decisions = [store.run(Call(Verb.CHECK, plan)) for _ in range(50)]
    assert all(decision.allowed for decision in decisions)
    assert {decision.degraded for decision in decisions[3:]} == {Reason.CIRCUIT_OPEN}
    assert sum(store.statistics().failures.values()) == 3
    store.close()


def test_a_caller_that_timed_out_does_not_keep_others_from_the_server(server: RedisServer) -> None:
    """The attempt that was too slow for one caller goes on, and serves later ones."""
    plan = family(Quota(100, 3_600_000_000)).plan("user")

    async def run(between: Proxy) -> None:
        store = AsyncRedisStore(parse(between.address("timeout=50&connect_timeout=50&connections=1")))
        between.open.clear()
        for each in (store.within(0.01), store, store):
            with pytest.raises(StoreUnavailable, match="not reached"):
                await each.run(Call(Verb.CHECK, plan))
        between.open.set()
        batcher = store._connections.of(asyncio.get_running_loop())
        assert isinstance(batcher, Batcher)
        opening = batcher.connections[0].connecting
        assert opening
        async with asyncio.timeout(GIVE_UP):
            await opening
        assert (await store.run(Call(Verb.CHECK, plan))).remaining == 99
        await store.close()

    with proxy(server.port) as between:
        asyncio.run(run(between))


async def test_ready_opens_every_connection(server: RedisServer) -> None:
    """So that a service has them before its first request."""
    store = AsyncRedisStore(parse(f"{server.address}&connections=5"))
    await store.ready()
    batcher = store._connections.of(asyncio.get_running_loop())
    assert isinstance(batcher, Batcher)
    assert [connection.is_open for connection in batcher.connections] == [True] * 5
    await store.close()


def test_threads_rest_after_a_failed_attempt_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        pool = Pool(Address("127.0.0.1", silent.getsockname()[1], connect_timeout=0.05), None)
        for _ in range(50):
            with pytest.raises(StoreUnavailable, match="no response"):  # also of calls that do not try
                pool.run(query(probe()))
        silent.setblocking(False)
        attempts = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                attempts += 1
    assert 0 < attempts < 50


async def test_a_cluster_that_is_closed_opens_nothing_again() -> None:
    before, cluster = asyncio.all_tasks(), Cluster((Address("127.0.0.1", free_port(), role=Role.NODE),))
    servers = AsyncCluster(cluster, None, asyncio.get_running_loop(), SlotMap(cluster))
    servers.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await servers.run(query(probe()))
    assert asyncio.all_tasks() == before
