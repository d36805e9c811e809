"""A server dies under load: only callers of its keys get errors, in time, and are served again soon.

With a failover store around it, no caller gets an error, and none waits for a server that is known to be down.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import AsyncFailoverStore, Decision, FailoverStore, StoreError, StoreUnavailable
from headgate.core.plan import Call, Verb
from headgate.stores.base import Store
from headgate.stores.failover import Statistics
from headgate.testing.conformance import family
from tests.clusters import RedisCluster, redis_cluster
from tests.sentinels import redis_sentinels
from tests.servers import RedisServer, until
from tests.stores.redis.load import (
    GIVE_UP,
    KINDS,
    RESUME,
    Load,
    async_only,
    is_decided,
    lasting,
    load,
    plans_on,
    resumed,
    slot_of,
    store_for,
)

Open = Callable[[str], Store]
LIMIT = 50
TIMEOUT = 2.0
OPTIONS = f"timeout={TIMEOUT}&connect_timeout={TIMEOUT}"

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def own() -> Iterator[RedisCluster]:
    """Three primaries and three replicas that a test may kill."""
    with redis_cluster() as cluster:
        yield cluster


class Shards:
    """One plan for each caller: some on the primary that will be lost, some on the others."""

    def __init__(self, cluster: RedisCluster, callers: int) -> None:
        self.lost, *self.others = cluster.primaries
        self.plans = plans_on(self.lost, callers // 2, LIMIT)
        self.on_lost = range(len(self.plans))
        for node in self.others:
            self.plans += plans_on(node, callers // 4, LIMIT)
        self.on_others = range(len(self.on_lost), len(self.plans))


def failing_over(kind: str, address: str) -> Any:
    around = FailoverStore if kind == "threads" else AsyncFailoverStore
    return around(store_for(kind, address), mode="local", pause=0.05, longest_pause=0.2)


def nobody_waited(asked: Load, statistics: Statistics) -> bool:
    """Was everybody who found the circuit open answered without asking the store?"""
    reasons = Counter(outcome.answer.degraded for outcome in asked.history if isinstance(outcome.answer, Decision))
    assert reasons["circuit_open"], "some found it open"
    unanswered = sum(number for reason, number in reasons.items() if reason not in {"", "circuit_open"})
    return sum(statistics.failures.values()) == unanswered


class TestACluster:
    @each_kind
    def test_loses_a_primary(self, own: RedisCluster, kind: str) -> None:
        shards = Shards(own, KINDS[kind])
        with load(store_for(kind, own.address_with(*own.nodes, options=OPTIONS)), shards.plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(shards.plans)), 5)
            killed_at = time.monotonic()
            with own.alert():
                shards.lost.stop()
                asked.until_answered(shards.on_others, 20)
                asked.until_answered(shards.on_lost, seconds=RESUME)
            resumed_at = time.monotonic()
            asked.until_answered(range(len(shards.plans)), LIMIT)
        assert asked.errors(shards.on_others) == [], "the other shards have not noticed"
        assert [asked.admitted(number) for number in shards.on_others] == [LIMIT] * len(shards.on_others)
        for number in shards.on_lost:
            assert asked.admitted(number) <= 2 * LIMIT, "some charges may be lost with the primary"
        for number in shards.on_others:
            meanwhile = [
                outcome for outcome in asked.since(killed_at) if outcome.number == number and outcome.ended < resumed_at
            ]
            assert len(meanwhile) >= 20, "and have not stopped"

    @each_kind
    def test_loses_a_primary_behind_a_failover_store(self, own: RedisCluster, kind: str) -> None:
        shards = Shards(own, KINDS[kind])
        store = failing_over(kind, own.address_with(*own.nodes, options=OPTIONS))
        statistics: Callable[[], Statistics] = store.statistics
        with load(store, shards.plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(shards.plans)), 5)
            with own.alert():
                shards.lost.stop()
                until(lambda: statistics().openings, "the circuit opens", GIVE_UP)
                asked.until_answered(shards.on_others, 20)
                asked.until_answered(shards.on_lost, seconds=RESUME)
            asked.until_answered(range(len(shards.plans)), LIMIT)
        assert asked.errors() == [], "no caller got an error"
        assert nobody_waited(asked, statistics())
        for number in shards.on_others:
            assert not any(decision.degraded for decision in asked.decisions(number)), "only one shard was degraded"
            assert asked.admitted(number) == LIMIT

    def test_loses_its_only_seed(self, own: RedisCluster) -> None:
        """Callers of both kinds share the discovery of servers."""
        kind = "tasks"
        shards = Shards(own, KINDS[kind])
        address = own.address_with(shards.lost, options=OPTIONS)
        with load(store_for(kind, address), shards.plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(shards.plans)), 5)
            before = len(asked.errors(shards.on_others))
            with own.alert():
                shards.lost.stop()
                asked.until_answered(range(len(shards.plans)), 5, seconds=RESUME)
        assert asked.errors(shards.on_others)[before:] == []

    @each_kind
    def test_has_a_primary_that_falls_silent_and_wakes_up_again(self, own: RedisCluster, kind: str) -> None:
        """It takes connections and questions, and never answers; when it does, it is a replica."""
        shards = Shards(own, KINDS[kind])
        with load(store_for(kind, own.address_with(*own.nodes, options=OPTIONS)), shards.plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(shards.plans)), 5)
            with own.alert():
                shards.lost.send(signal.SIGSTOP)
                asked.until_answered(shards.on_others, 20)
                asked.until_answered(shards.on_lost, seconds=RESUME)
                shards.lost.send(signal.SIGCONT)
                until(lambda: own.is_at_peace, "it is a replica", GIVE_UP)
            before = len(asked.errors())
            asked.until_answered(range(len(shards.plans)), LIMIT)
            assert asked.errors()[before:] == []
        assert asked.errors(shards.on_others) == []
        assert [asked.admitted(number) for number in shards.on_others] == [LIMIT] * len(shards.on_others)
        assert all(asked.admitted(number) <= 2 * LIMIT for number in shards.on_lost)

    @async_only
    def test_loses_a_primary_twice(self, own: RedisCluster, opened: Open) -> None:
        """The second time that one which was a replica; and the first comes back in between."""
        store = opened(own.address_with(*own.nodes, options=OPTIONS))
        first = own.primaries[0]
        (plan,) = plans_on(first, 1, 1000)
        (replica,) = own.replicas_of(first)
        assert store.run(Call(Verb.CHECK, plan))
        with own.alert():
            first.stop()
            assert resumed(lambda: store.run(Call(Verb.CHECK, plan)))
        first.start()
        until(lambda: own.is_at_peace and first in own.replicas_of(replica), "it comes back as a replica", GIVE_UP)
        assert store.run(Call(Verb.CHECK, plan))
        with own.alert():
            replica.stop()
            assert resumed(lambda: store.run(Call(Verb.CHECK, plan)))


class TestAClusterWithoutReplicas:
    @pytest.fixture
    def bare(self) -> Iterator[RedisCluster]:
        with redis_cluster(3, 0) as cluster:
            yield cluster

    def test_one_shard_is_lost_and_the_others_are_not(self, bare: RedisCluster, opened: Open) -> None:
        store, (lost, *others) = opened(bare.address_with(*bare.nodes, options=OPTIONS)), bare.primaries
        (gone,) = plans_on(lost, 1, LIMIT)
        living = [plan for node in others for plan in plans_on(node, 3, 10_000)]
        assert all(store.run(Call(Verb.CHECK, plan)) for plan in (gone, *living))
        lost.stop()
        for _ in range(5):
            with pytest.raises(StoreError):
                store.run(Call(Verb.CHECK, gone))
            assert all(store.run(Call(Verb.CHECK, plan)) for plan in living)
        with bare.alert():
            until(lambda: "fail" in flags_of(others[0], lost), "the others notice", GIVE_UP)
            for _ in range(5):
                with pytest.raises(StoreUnavailable):
                    store.run(Call(Verb.CHECK, gone))
                assert all(store.run(Call(Verb.CHECK, plan)) for plan in living)
            lost.start()
            assert resumed(lambda: store.run(Call(Verb.CHECK, gone))).remaining == LIMIT - 1
        assert all(store.run(Call(Verb.CHECK, plan)) for plan in living)

    def test_plans_over_several_shards_are_served_as_soon_as_a_shard_that_hung_is(self) -> None:
        """Its circuit is one for all plans that it has a part in: once closed, none of them is degraded any more."""
        kind = "tasks"
        with redis_cluster(3, 0) as cluster:
            hung, *others = cluster.primaries
            (first,), (second,) = plans_on(others[0], 1, 1_000_000), plans_on(others[1], 1, 1_000_000)
            alone = plans_on(hung, 4, 1_000_000)
            spread = [each + more for each in alone for more in ((), first, second, first + second)]
            store = failing_over(kind, cluster.address_with(*cluster.nodes, options=OPTIONS))
            plans = [*alone, *spread]
            with load(store, plans, min(KINDS[kind], len(plans))) as asked:
                asked.until_answered(range(len(asked.plans)), 2)
                hung.send(signal.SIGSTOP)
                until(lambda: store.statistics().openings, "the circuit opens", GIVE_UP)
                frozen = len(asked.history)
                until(lambda: len(asked.history) > frozen + 2000, "and stays open for a while", GIVE_UP)
                hung.send(signal.SIGCONT)
                until(lambda: store.statistics().recoveries, "the circuit closes", GIVE_UP)
                back = time.monotonic()
                asked.until_answered(range(len(asked.plans)), 10, since=back)
            assert [outcome for outcome in asked.since(back) if not is_decided(outcome.answer)] == []
            assert len(store.statistics().breakers) == 3, "one for each server"

    @async_only
    def test_most_are_lost_and_the_cluster_is_down(self, bare: RedisCluster, opened: Open) -> None:
        store, (left, *lost) = opened(bare.address_with(*bare.nodes, options=OPTIONS)), bare.primaries
        (plan,) = plans_on(left, 1, LIMIT)
        assert store.run(Call(Verb.CHECK, plan)).remaining == LIMIT - 1
        for node in lost:
            node.stop()
        with bare.alert():
            until(lambda: left.facts("CLUSTER", "INFO")["cluster_state"] == "fail", "the cluster is down", GIVE_UP)
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="cluster is down"):
                    store.run(Call(Verb.CHECK, plan))
            for node in lost:
                node.start()
            again = resumed(lambda: store.run(Call(Verb.CHECK, plan)))
        assert again.remaining == LIMIT - 2, "refused, and so not charged"

    @async_only
    def test_a_slot_without_an_owner(self, bare: RedisCluster, opened: Open) -> None:
        store, (first, *_) = opened(bare.address), bare.primaries
        one, other = plans_on(first, 2, LIMIT)
        assert store.run(Call(Verb.CHECK, one))
        for node in bare.nodes:
            node.ask("CLUSTER", "DELSLOTS", slot_of(one[0]))
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.run(Call(Verb.CHECK, one))
            assert store.run(Call(Verb.CHECK, other))
        first.ask("CLUSTER", "ADDSLOTS", slot_of(one[0]))
        assert resumed(lambda: store.run(Call(Verb.CHECK, one)))


class TestSentinels:
    def test_replace_a_primary_behind_a_failover_store(self) -> None:
        kind = "tasks"
        with redis_sentinels() as sentinels:
            plans = [family(lasting(LIMIT)).plan(f"user-{number}") for number in range(KINDS[kind])]
            store = failing_over(kind, sentinels.address_with(*sentinels.watchers, options=OPTIONS))
            statistics: Callable[[], Statistics] = store.statistics
            with load(store, plans, KINDS[kind]) as asked:
                asked.until_answered(range(len(plans)), 5)
                assert sentinels.primary
                with sentinels.alert():
                    sentinels.primary.stop()
                    until(lambda: statistics().openings, "the circuit opens", GIVE_UP)
                    asked.until_answered(range(len(plans)), seconds=RESUME)
                asked.until_answered(range(len(plans)), LIMIT)
            self.verify(asked, statistics())

    @staticmethod
    def verify(asked: Load, statistics: Statistics) -> None:
        assert asked.errors() == [], "no caller got an error"
        assert nobody_waited(asked, statistics)
        assert statistics.openings == statistics.recoveries
        for number in range(len(asked.plans)):
            by_itself = sum(each.allowed for each in asked.decisions(number) if each.degraded)
            assert by_itself <= LIMIT, "the node's share"
            assert asked.admitted(number) <= 2 * LIMIT, "some charges may be lost with the primary"


def flags_of(observer: RedisServer, node: RedisServer) -> str:
    lines: list[str] = observer.ask("CLUSTER", "NODES").decode().splitlines()
    return next(line.split()[2] for line in lines if f":{node.port}@" in line)
