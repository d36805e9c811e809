"""A cluster looks like one server: callers get the decision wherever a slot is, and while it moves.

Slots move, also under load, and replicas take their primaries' places: no caller gets an error, and no charge is lost.
Nothing dies: see `test_topology_faults`.
"""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from headgate import Algorithm, Decision, StoreUnavailable, open_store
from headgate.core.plan import Call, Plan, Verb
from headgate.stores import open_resilient_store
from headgate.stores.base import Store
from headgate.stores.breaker import THRESHOLD
from headgate.stores.redis import cluster as routing
from headgate.stores.redis.address import parse
from headgate.stores.redis.cluster import BlockingCluster
from headgate.stores.redis.script import key_of
from headgate.stores.redis.store import RedisStore
from headgate.testing.conformance import family
from tests.clusters import Migration, RedisCluster, redis_cluster, slots_of
from tests.servers import RedisServer, free_port, until
from tests.stores.redis.load import GIVE_UP, KINDS, async_only, lasting, load, plans_on, resumed, slot_of, store_for

Open = Callable[[str], Store]

each_kind = pytest.mark.parametrize("kind", KINDS)


def key(plan: Plan, number: int = 0) -> bytes:
    return key_of(plan[number].space, plan[number].principal)


def elsewhere(cluster: RedisCluster, plan: Plan) -> RedisServer:
    owner = cluster.owner(slot_of(plan[0]))
    return next(node for node in cluster.primaries if node is not owner)


def is_served(store: Store, plan: Plan) -> bool:
    return store.run(Call(Verb.PEEK, plan)).degraded == ""


def departure(cluster: RedisCluster, plan: Plan) -> Migration:
    migration = cluster.migration(slot_of(plan[0]), elsewhere(cluster, plan))
    migration.begin()
    return migration


class TestKeys:
    def test_one_principal_lives_in_one_place(self, cluster: RedisCluster, opened: Open) -> None:
        """Whatever it is called, so that all its limits are decided in one step."""
        store = opened(cluster.address)
        for name in ("ada", "{}", "{a}b", "}{", "{{x}}", "é{ü}", "x" * 1000, "%7B"):
            plan = family(*(lasting(5, algorithm) for algorithm in Algorithm)).plan(name)
            assert [part.remaining for part in store.run(Call(Verb.CHECK, plan, 2)).limits] == [3] * len(plan)
            assert len({slot_of(limit) for limit in plan}) == 1


class TestTheWayIn:
    def test_one_seed_is_enough_when_all_others_are_dead(self, cluster: RedisCluster, opened: Open) -> None:
        dead = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        alive = f"127.0.0.1:{cluster.nodes[0].port}"
        for seeds in ([*dead, alive], [alive, *dead]):
            store = opened(f"redis+cluster://{','.join(seeds)}?timeout=20&connect_timeout=20")
            for node in cluster.primaries:
                assert all(resumed(partial(store.run, Call(Verb.CHECK, plan))) for plan in plans_on(node, 3, 10))

    def test_any_node_is_a_good_seed(self, cluster: RedisCluster, opened: Open) -> None:
        """Also a replica: it knows the others, too."""
        plans = [plan for node in cluster.primaries for plan in plans_on(node, 2, 100)]
        for node in cluster.nodes:
            store = opened(cluster.address_with(node))
            assert all(resumed(partial(store.run, Call(Verb.CHECK, plan))) for plan in plans)

    def test_no_seed_answers(self, opened: Open) -> None:
        store = opened(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}?timeout=20&connect_timeout=20")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="cannot connect"):
                store.run(Call(Verb.CHECK, family(lasting(5)).plan("ada")))

    @async_only
    def test_a_cluster_behind_a_password(self, opened: Open) -> None:
        word = "hunter2"
        with redis_cluster(3, 0, password=word) as own:
            store = opened(own.address)
            for node in own.primaries:
                assert all(store.run(Call(Verb.CHECK, plan)) for plan in plans_on(node, 2, 10))
            with pytest.raises(StoreUnavailable, match="authentication is required"):
                opened(own.address.replace(":hunter2@", "")).run(Call(Verb.CHECK, family(lasting(5)).plan("ada")))

    @async_only
    def test_a_store_opened_too_early_finds_the_cluster_later(self, opened: Open) -> None:
        with redis_cluster(3, 0) as own:
            plans = [plan for node in own.primaries for plan in plans_on(node, 2, 100)]
            for node in own.nodes:
                node.stop()
            store = opened(own.address)
            with pytest.raises(StoreUnavailable):
                store.run(Call(Verb.CHECK, plans[0]))
            for node in own.nodes:
                node.start()
            for plan in plans:
                assert resumed(partial(store.run, Call(Verb.CHECK, plan))).remaining == 99


class TestASlotThatMoved:
    def test_is_remembered_there(self, cluster: RedisCluster, opened: Open) -> None:
        """One redirection teaches the way; the old owner is not asked every time."""
        store, (plan,) = opened(cluster.address), plans_on(cluster.primaries[0], 1, 1000)
        store.run(Call(Verb.CHECK, plan))
        old = cluster.owner(slot_of(plan[0]))
        departure(cluster, plan).finish()
        until(lambda: cluster.is_at_peace, "all nodes return the new map")
        store.run(Call(Verb.CHECK, plan))
        before = said(old, "MOVED")
        for _ in range(50):
            store.run(Call(Verb.CHECK, plan))
        assert said(old, "MOVED") == before
        assert store.run(Call(Verb.PEEK, plan)).remaining == 1000 - 52


def said(node: RedisServer, word: str) -> int:
    """Return how often a node has answered with an error of this name."""
    return int(node.facts("INFO", "errorstats").get(f"errorstat_{word}", "count=0").removeprefix("count="))


class TestASlotOnTheMove:
    @each_kind
    def test_keys_in_all_states_are_found_by_many_callers_at_once(self, cluster: RedisCluster, kind: str) -> None:
        """They travel together where they can, and each arrives; the operator takes all the time in the world.

        Two keys of one slot of which one has moved cannot be asked for in one call (TRYAGAIN), however often.
        """
        plans = [family(lasting(1000)).plan("alan") for _ in range(KINDS[kind])]
        moved, staying = plans[::3], plans[1::3]  # and the others are new
        with closing(open_store(cluster.address)) as store:
            assert all(store.run(Call(Verb.CHECK, plan)) for plan in moved + staying)
        migration = departure(cluster, plans[0])
        migration.move(*map(key, moved))
        with load(store_for(kind, cluster.address), plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(plans)), 100)
            migration.finish()
            asked.until_answered(range(len(plans)), 5)
        assert asked.errors() == []
        with closing(open_store(cluster.address)) as store:
            for number, plan in enumerate(plans):
                before = plan in moved + staying
                assert store.run(Call(Verb.PEEK, plan)).used == asked.admitted(number) + before, (
                    "no charge is lost, none made twice"
                )

    def test_all_verbs_find_their_way(self, cluster: RedisCluster, opened: Open) -> None:
        store, plan = opened(cluster.address), family(lasting(10)).plan("grace")
        store.run(Call(Verb.CHECK, plan, 4))
        migration = departure(cluster, plan)
        migration.move(key(plan))
        assert store.run(Call(Verb.PEEK, plan)).remaining == 6
        assert store.run(Call(Verb.REFUND, plan)).remaining == 7
        store.run(Call(Verb.RESET, plan))
        assert store.run(Call(Verb.CHECK, plan)).remaining == 9
        migration.finish()
        assert store.run(Call(Verb.PEEK, plan)).remaining == 9

    def test_a_plan_whose_keys_are_moving_waits_until_they_have_moved(
        self, cluster: RedisCluster, opened: Open
    ) -> None:
        store = opened(cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30"))
        plan = family(lasting(10), lasting(20, Algorithm.GCRA)).plan("edsger")
        store.run(Call(Verb.CHECK, plan))
        migration = departure(cluster, plan)
        migration.move(key(plan))
        with ThreadPoolExecutor(1) as pool:
            before = said(migration.source, "TRYAGAIN")
            asking = pool.submit(store.run, Call(Verb.CHECK, plan))
            until(lambda: said(migration.source, "TRYAGAIN") > before, "the plan is asked for")
            migration.finish()
            decision = asking.result(GIVE_UP)
        assert [part.remaining for part in decision.limits] == [8, 18]

    def test_a_plan_whose_keys_keep_moving_fails_in_time_and_takes_nothing(
        self, cluster: RedisCluster, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(routing, "LAST_ATTEMPT", 1.0)  # in which a busy machine answers, too
        store = opened(cluster.address_with(*cluster.nodes, options="timeout=2&connect_timeout=5"))
        plan = family(lasting(10), lasting(20, Algorithm.GCRA)).plan("barbara")
        store.run(Call(Verb.CHECK, plan))
        migration = departure(cluster, plan)
        migration.move(key(plan))
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.run(Call(Verb.CHECK, plan))
        assert [store.run(Call(Verb.PEEK, (limit,))).remaining for limit in plan] == [9, 19], (
            "neither of the two was charged"
        )
        migration.finish()
        assert [part.remaining for part in store.run(Call(Verb.CHECK, plan)).limits] == [8, 18]

    def test_only_a_plan_whose_keys_keep_moving_is_decided_by_the_mode(self, cluster: RedisCluster) -> None:
        address = cluster.address_with(*cluster.nodes, options="timeout=1&connect_timeout=5")
        plan = family(lasting(10), lasting(20, Algorithm.GCRA)).plan("leslie")
        (neighbour,) = plans_on(cluster.owner(slot_of(plan[0])), 1, 10)
        nodes = [open_resilient_store(address, on_store_failure="local", nodes=2) for _ in range(2)]

        def asked(store: Store) -> list[Decision]:
            return [store.run(Call(Verb.CHECK, plan, 2)) for _ in range(THRESHOLD + 1)]

        try:
            for store in nodes:
                until(partial(is_served, store, plan), "it is connected")
                assert store.run(Call(Verb.CHECK, plan)).degraded == ""
            migration = departure(cluster, plan)
            migration.move(key(plan))
            with ThreadPoolExecutor(2) as pool:
                meanwhile = [decision for each in pool.map(asked, nodes) for decision in each]
            assert all(decision.degraded for decision in meanwhile)
            assert 0 < 2 * sum(decision.allowed for decision in meanwhile) < 10 + 2
            assert [store.run(Call(Verb.CHECK, neighbour)).degraded for store in nodes] == ["", ""]
            migration.finish()
            assert resumed(lambda: nodes[0].run(Call(Verb.CHECK, plan))).limits[0].remaining == 7, (
                "nothing was lost there"
            )
        finally:
            for store in nodes:
                store.close()

    @each_kind
    def test_a_plan_whose_keys_are_moving_does_not_delay_others(self, cluster: RedisCluster, kind: str) -> None:
        torn = family(lasting(1000), lasting(1000, Algorithm.GCRA)).plan("donald")
        others = plans_on(cluster.owner(slot_of(torn[0])), KINDS[kind] - 1, 10_000)
        with closing(open_store(cluster.address)) as store:
            store.run(Call(Verb.CHECK, torn))
        address = cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30")
        with load(store_for(kind, address), [torn, *others], KINDS[kind]) as asked:
            asked.until_answered(range(len(others) + 1), 5)
            migration = departure(cluster, torn)
            migration.move(key(torn))
            asked.until_answered(range(1, len(others) + 1), 100)
            migration.finish()
            asked.until_answered(range(len(others) + 1), 5)
        assert asked.errors(range(1, len(others) + 1)) == []
        assert all(isinstance(error, StoreUnavailable) for error in asked.errors()), "or none, if it waited"


class TestAReplicaThatTakesOver:
    @each_kind
    def test_callers_get_no_error(self, cluster: RedisCluster, kind: str) -> None:
        """An orderly change of roles: the old primary is read-only then, and sends everybody on."""
        plans = [plan for node in cluster.primaries for plan in plans_on(node, 12, 60)]
        with load(store_for(kind, cluster.address), plans, KINDS[kind]) as asked:
            for node in cluster.primaries:
                asked.until_answered(range(len(plans)), 3)
                cluster.failover(cluster.replicas_of(node)[0])
            asked.until_answered(range(len(plans)), 60)
        assert asked.errors() == []
        assert [asked.admitted(number) for number in range(len(plans))] == [60] * len(plans)

    def test_a_store_that_slept_meanwhile_finds_it(self, cluster: RedisCluster, opened: Open) -> None:
        store, (plan,) = opened(cluster.address), plans_on(cluster.primaries[0], 1, 10)
        assert store.run(Call(Verb.CHECK, plan)).remaining == 9
        cluster.failover(cluster.replicas_of(cluster.owner(slot_of(plan[0])))[0])
        assert store.run(Call(Verb.CHECK, plan)).remaining == 8


class TestTheProcess:
    def test_a_forked_child_has_connections_and_locks_of_its_own(self, cluster: RedisCluster) -> None:
        plans = [plans_on(node, 1, 9)[0] for node in cluster.primaries]
        with closing(RedisStore(parse(cluster.address))) as store:
            assert store.run(Call(Verb.CHECK, plans[0]))
            assert isinstance(store._servers, BlockingCluster)
            locks = (store._servers._lock, store._servers._refreshing)
            for lock in locks:
                lock.acquire()  # as if other threads of the parent were at it
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads
                child = os.fork()
            if child == 0:  # the child: nothing of pytest may run
                signal.alarm(60)
                os._exit([store.run(Call(Verb.CHECK, plan)).remaining for plan in plans] != [7, 8, 8])
            for lock in locks:
                lock.release()
            assert os.waitpid(child, 0)[1] == 0
            assert [store.run(Call(Verb.CHECK, plan)).remaining for plan in plans] == [6, 7, 7]


def test_the_shared_cluster_is_whole(cluster: RedisCluster) -> None:
    """The tests above have moved slots and roles, and have left a cluster that works."""
    assert sum(len(slots_of(node)) for node in cluster.primaries) == 16_384


MOVED = 40
"""The limit of the plans whose slots move under load."""


def plans_in(slots: set[int], count: int) -> list[Plan]:
    limits, plans, number = family(lasting(MOVED), lasting(MOVED * 2, Algorithm.GCRA)), list[Plan](), 0
    while len(plans) < count:
        plan = limits.plan(f"user-{number}")
        plans += [plan] * (slot_of(plan[0]) in slots)
        number += 1
    return plans


def test_1000_slots_move_under_load(cluster: RedisCluster) -> None:
    kind = "tasks"
    source, target, other = cluster.primaries
    slots = random.Random(5).sample(sorted(slots_of(source)), 1000)
    plans = [*plans_in(set(slots), 120), *plans_in(slots_of(target), 20), *plans_in(slots_of(other), 20)]
    with load(store_for(kind, cluster.address), plans, KINDS[kind], pause=0.002) as asked:
        asked.until_answered(range(len(plans)), 2)
        cluster.move(slots, source, target)
        asked.until_answered(range(len(plans)))
        asked.until_answered(range(len(plans)), MOVED + 1, since=0)
    assert asked.errors() == []
    assert not set(slots) & slots_of(source)
    assert set(slots) <= slots_of(target)
    assert [asked.admitted(number) for number in range(len(plans))] == [MOVED] * len(plans)
    with closing(open_store(cluster.address)) as store:
        for plan in plans:
            assert [part.used for part in store.run(Call(Verb.PEEK, plan)).limits] == [MOVED, MOVED]


@each_kind
def test_slots_move_to_and_fro_under_load(cluster: RedisCluster, kind: str) -> None:
    """What was learned of a slot is wrong again soon."""
    one, other, _ = cluster.primaries
    slots = random.Random(5).sample(sorted(slots_of(one)), 30)
    plans = plans_in(set(slots), 60)
    with load(store_for(kind, cluster.address), plans, KINDS[kind], pause=0.001) as asked:
        asked.until_answered(range(len(plans)), 2)
        for _ in range(5):
            cluster.move(slots, one, other)
            cluster.move(slots, other, one)
        asked.until_answered(range(len(plans)))
        asked.until_answered(range(len(plans)), MOVED + 1, since=0)
    assert asked.errors() == []
    assert [asked.admitted(number) for number in range(len(plans))] == [MOVED] * len(plans)
