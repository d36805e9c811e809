"""Answers that must be on replicas, and readiness: what the primary promises and what it cannot."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from headgate.core.errors import StoreError, StoreUnavailable
from headgate.core.quota import Quota
from headgate.stores import open_async_store
from headgate.stores.base import Store
from headgate.stores.failover import AsyncFailoverStore
from headgate.stores.redis import scripts
from headgate.testing.conformance import family
from tests.proxy import proxy
from tests.servers import RedisServer, redis_server, until

QUOTA = Quota(5, 3600 * 1_000_000)
Open = Callable[[str], Store]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica."""
    with (
        redis_server("repl-diskless-sync-delay 0") as primary,
        redis_server(f"replicaof 127.0.0.1 {primary.port}") as replica,
    ):
        until(lambda: replica.facts("INFO", "replication")["master_link_status"] == "up", "the replica is in step")
        yield primary, replica


def test_an_answer_that_replicas_have_is_strict(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, replica = pair
    store, plan = opened(f"{primary.address}&replicas=1"), family(QUOTA).plan("user")
    decisions = [store.check(plan, 1) for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert [decision.degraded for decision in decisions] == [""] * 6
    assert replica.ask("DBSIZE") == primary.ask("DBSIZE")


def test_an_answer_that_no_replica_has_says_so(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, replica = pair
    store, plan = opened(f"{primary.address.replace('timeout=5', 'timeout=1')}&replicas=1"), family(QUOTA).plan("user")
    store.check(plan, 1)
    replica.send(signal.SIGSTOP)
    try:
        decision = store.check(plan, 1)
        assert (decision.allowed, decision.remaining, decision.degraded) == (True, 3, "not_replicated")
    finally:
        replica.send(signal.SIGCONT)
    until(lambda: store.check(family(QUOTA).plan("user"), 1).degraded == "", "the replica is in step again")
    assert store.peek(plan, 1).remaining == 3


@pytest.fixture(scope="module")
def sleepy() -> Iterator[RedisServer]:
    """A primary without replicas that, left alone, looks at its clock once a second only."""
    with redis_server("hz 1", "dynamic-hz no") as primary:
        yield primary


def test_a_short_deadline_finds_the_answer_though_an_idle_server_does_not_notice_that_it_waits_in_vain(
    sleepy: RedisServer, opened: Open
) -> None:
    store, plan = opened(f"redis://127.0.0.1:{sleepy.port}?timeout=0.5&replicas=1"), family(QUOTA).plan("user")
    decisions = [store.check(plan, 1) for _ in range(6)]
    assert [decision.allowed for decision in decisions] == [True] * 5 + [False]
    assert {decision.degraded for decision in decisions} == {"not_replicated"}


def test_what_was_decided_by_the_deadline_is_answered_though_the_replicas_are_not_heard_of(
    sleepy: RedisServer, opened: Open
) -> None:
    plan = family(QUOTA).plan("unheard")
    with proxy(sleepy.port) as between:
        store = opened(between.address("timeout=0.5&connect_timeout=5&replicas=1&connections=1"))
        between.hold_from = b":"  # what WAIT answers
        decisions = [store.check(plan, 1)]
        between.hold_from = b""
        between.open.set()
        decisions.append(store.check(plan, 1))
    assert [decision.remaining for decision in decisions] == [4, 3], "both were decided, once each"
    assert {decision.degraded for decision in decisions} == {"not_replicated"}


def test_a_connection_that_ends_after_the_decision_does_not_lose_it(sleepy: RedisServer, opened: Open) -> None:
    store, plan = opened(f"{sleepy.address}&replicas=1&connections=1"), family(QUOTA).plan("cut")
    store.peek(family(QUOTA).plan("other"), 1)

    def cut() -> None:
        key = scripts.key_of(plan[0].space, plan[0].principal)
        until(lambda: sleepy.ask("EXISTS", key), "it is decided")
        sleepy.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    cutting = threading.Thread(target=cut)
    cutting.start()
    decision = store.check(plan, 1)
    cutting.join()
    assert (decision.allowed, decision.remaining, decision.degraded) == (True, 4, "not_replicated")


def test_a_lost_replica_does_not_open_the_circuit(sleepy: RedisServer) -> None:
    """Nobody is asked instead of a store that decides: a limit that is used up stays so."""

    async def run() -> None:
        address = f"redis://127.0.0.1:{sleepy.port}?timeout=0.5&replicas=1"
        store, plan = AsyncFailoverStore(open_async_store(address)), family(QUOTA).plan("many")
        try:
            for _ in range(4):
                decisions = await asyncio.gather(*[store.check(plan, 1) for _ in range(40)])
                assert {decision.degraded for decision in decisions} == {"not_replicated"}
            assert store.statistics().openings == 0
            assert (await store.peek(plan, 1)).remaining == 0
        finally:
            await store.close()

    asyncio.run(run())


def test_more_replicas_than_there_are(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    primary, _ = pair
    store, plan = opened(f"{primary.address.replace('timeout=5', 'timeout=1')}&replicas=2"), family(QUOTA).plan("user")
    several = family(QUOTA, Quota(3, 60 * 1_000_000)).plan("user")
    assert store.check(plan, 1).degraded == "not_replicated"
    assert {part.degraded for part in store.check(several, 1).limits} == {"not_replicated"}


def test_a_store_is_ready_when_its_script_runs(server: RedisServer, opened: Open) -> None:
    store = opened(server.address)
    store.ready()
    server.command("SCRIPT", "FLUSH")
    store.ready()


def test_a_replica_is_not_ready(pair: tuple[RedisServer, RedisServer], opened: Open) -> None:
    _, replica = pair
    with pytest.raises(StoreUnavailable, match="READONLY"):
        opened(replica.address).ready()


def test_a_server_without_memory_is_not_ready_although_it_answers_ping(opened: Open) -> None:
    with redis_server() as server:
        store = opened(server.address)
        store.ready()
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert server.command("PING") == "PONG"
        with pytest.raises(StoreUnavailable, match="OOM"):
            store.ready()


def test_a_user_who_may_not_write_is_not_ready(server: RedisServer, opened: Open) -> None:
    server.command(
        "ACL", "SETUSER", "reader", "on", ">pw", "+evalsha", "+script|load", "+info", "+time", "+get", "~hg1:*"
    )
    with pytest.raises(StoreError, match="permission"):
        opened(server.address.replace("127.0.0.1", "reader:pw@127.0.0.1")).ready()


@pytest.mark.parametrize(
    ("options", "scheme", "advice"),
    [
        (("cluster-enabled yes",), "redis://", r"redis\+cluster://"),
        ((), "redis+cluster://", "no server of the cluster"),
        (("maxmemory-policy allkeys-lru",), "redis://", "evicting=allow"),
    ],
)
def test_the_wrong_kind_of_server_is_refused_with_advice(
    opened: Open, options: tuple[str, ...], scheme: str, advice: str
) -> None:
    with redis_server(*options) as server, pytest.raises(StoreUnavailable, match=advice):
        opened(f"{scheme}127.0.0.1:{server.port}?timeout=5").ready()
