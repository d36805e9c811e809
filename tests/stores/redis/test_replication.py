"""Answers that must be on replicas, and readiness: what the primary promises and what it cannot."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from headgate.core.errors import StoreError, StoreUnavailable
from headgate.core.quota import Quota
from headgate.stores.base import Store
from headgate.testing.conformance import family
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
