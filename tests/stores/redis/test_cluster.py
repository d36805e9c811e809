"""A cluster looks like one server: whoever owns a slot, and wherever it moves, callers get the decision.

Slots move under the eyes of the store here, and replicas take their primaries' places. Nothing dies: see
`test_topology_faults`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.errors import StoreUnavailable
from headgate.core.plan import Call, Family, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores import open_async_store, open_resilient_store, open_store
from headgate.stores.base import AsyncStore, Store
from headgate.stores.breaker import THRESHOLD
from headgate.stores.memory import MemoryStore
from headgate.stores.redis import cluster as routing
from headgate.stores.redis.address import parse
from headgate.stores.redis.cluster import BlockingCluster
from headgate.stores.redis.script import key_of
from headgate.stores.redis.store import RedisStore
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import QUOTAS, family
from tests.clusters import Migration, RedisCluster, redis_cluster, slots_of
from tests.servers import RedisServer, free_port, until
from tests.stores.redis.load import AGES_US, GIVE_UP, KINDS, lasting, load, plans_on, resumed, slot_of, store_for
from tests.stores.redis.test_concurrency import ask_from_tasks, in_processes, verify

Open = Callable[[str], Store]

each_kind = pytest.mark.parametrize("kind", KINDS)


def key(plan: Plan, number: int = 0) -> bytes:
    return key_of(plan[number].space, plan[number].principal)


def elsewhere(cluster: RedisCluster, plan: Plan) -> RedisServer:
    """Return a primary that does not own the plan."""
    owner = cluster.owner(slot_of(plan[0]))
    return next(node for node in cluster.primaries if node is not owner)


def is_served(store: Store, plan: Plan) -> bool:
    return store.run(Call(Verb.PEEK, plan)).degraded == ""


def departure(cluster: RedisCluster, plan: Plan) -> Migration:
    """Begin to move the slot of a plan."""
    migration = cluster.migration(slot_of(plan[0]), elsewhere(cluster, plan))
    migration.begin()
    return migration


def manual(cluster: RedisCluster, clock: ManualClock, *, asynchronous: bool) -> Store:
    """Return a store whose time is that of `clock`."""
    if asynchronous:
        return Blocking(open_async_store(cluster.address, clock=clock))
    return open_store(cluster.address, clock=clock)


class TestManyKeys:
    @pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
    def test_are_decided_as_in_memory_and_live_on_all_primaries(
        self, cluster: RedisCluster, *, asynchronous: bool
    ) -> None:
        clock, chance = ManualClock(), random.Random(3)
        memory, families = MemoryStore(clock=clock), [family(quota) for quota in QUOTAS]
        with closing(manual(cluster, clock, asynchronous=asynchronous)) as store:
            for turn in range(600):
                plan, cost = chance.choice(families).plan(f"user:{turn % 150}"), chance.choice([1, 1, 2, 5])
                assert store.run(Call(Verb.CHECK, plan, cost)) == memory.run(Call(Verb.CHECK, plan, cost))
                clock.advance(us=chance.choice([0, 137, 1_000, 300_000]))
        held = [node.ask("DBSIZE") for node in cluster.primaries]
        assert all(held), "every primary has a part of the keys"

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

    def test_a_server_that_is_no_cluster(self, server: RedisServer, opened: Open) -> None:
        store = opened(f"redis+cluster://127.0.0.1:{server.port}?timeout=20&connect_timeout=20")
        with pytest.raises(StoreUnavailable, match=r"(?i)cluster"):
            store.run(Call(Verb.CHECK, family(lasting(5)).plan("ada")))

    def test_a_cluster_behind_a_password(self, opened: Open) -> None:
        word = "hunter2"
        with redis_cluster(3, 0, password=word) as own:
            store = opened(own.address)
            for node in own.primaries:
                assert all(store.run(Call(Verb.CHECK, plan)) for plan in plans_on(node, 2, 10))
            with pytest.raises(StoreUnavailable, match="authentication is required"):
                opened(own.address.replace(":hunter2@", "")).run(Call(Verb.CHECK, family(lasting(5)).plan("ada")))

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
    def test_is_found_in_its_new_place(self, cluster: RedisCluster, opened: Open) -> None:
        store, (plan, neighbour) = opened(cluster.address), plans_on(cluster.primaries[0], 2, 10)
        assert [store.run(Call(Verb.CHECK, each)).remaining for each in (plan, neighbour)] == [9, 9]
        for remaining in (8, 7, 6):
            departure(cluster, plan).finish()
            assert store.run(Call(Verb.CHECK, plan)).remaining == remaining
            assert store.run(Call(Verb.CHECK, neighbour)).remaining == remaining

    def test_is_remembered_there(self, cluster: RedisCluster, opened: Open) -> None:
        """One redirection teaches the way; the old owner is not asked every time."""
        store, (plan,) = opened(cluster.address), plans_on(cluster.primaries[0], 1, 1000)
        store.run(Call(Verb.CHECK, plan))
        old = cluster.owner(slot_of(plan[0]))
        departure(cluster, plan).finish()
        until(lambda: cluster.is_at_peace, "nobody asked for the map tells the old way")
        store.run(Call(Verb.CHECK, plan))
        before = said(old, "MOVED")
        for _ in range(50):
            store.run(Call(Verb.CHECK, plan))
        assert said(old, "MOVED") == before
        assert store.run(Call(Verb.PEEK, plan)).remaining == 1000 - 52

    def test_and_a_new_store_finds_it_at_once(self, cluster: RedisCluster, opened: Open) -> None:
        (plan,) = plans_on(cluster.primaries[1], 1, 10)
        opened(cluster.address).run(Call(Verb.CHECK, plan))
        departure(cluster, plan).finish()
        assert opened(cluster.address).run(Call(Verb.CHECK, plan)).remaining == 8


def said(node: RedisServer, word: str) -> int:
    """Return how often a node has answered with an error of this name."""
    return int(node.facts("INFO", "errorstats").get(f"errorstat_{word}", "count=0").removeprefix("count="))


class TestASlotOnTheMove:
    def test_keys_are_found_whether_they_have_moved_or_not(self, cluster: RedisCluster, opened: Open) -> None:
        store, name = opened(cluster.address), "ada"
        moved, staying, new = (family(lasting(100)).plan(name) for _ in range(3))
        assert [store.run(Call(Verb.CHECK, plan)).remaining for plan in (moved, staying)] == [99, 99]
        migration = departure(cluster, moved)
        migration.move(key(moved))
        for turn in range(1, 11):
            assert store.run(Call(Verb.CHECK, moved)).remaining == 99 - turn, "asked for at its new place"
            assert store.run(Call(Verb.CHECK, staying)).remaining == 99 - turn, "asked for at its old place"
            assert store.run(Call(Verb.CHECK, new)).remaining == 100 - turn, "made in the new place"
        migration.finish()
        for plan, remaining in ((moved, 88), (staying, 88), (new, 89)):
            assert store.run(Call(Verb.CHECK, plan)).remaining == remaining

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

    def test_a_plan_that_is_torn_apart_waits_until_it_is_whole(self, cluster: RedisCluster, opened: Open) -> None:
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

    def test_a_plan_that_stays_torn_apart_is_refused_in_time_and_whole(
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

    def test_a_plan_that_stays_torn_apart_is_decided_by_the_mode_and_nothing_else_is(
        self, cluster: RedisCluster
    ) -> None:
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
    def test_a_plan_that_is_torn_apart_keeps_nobody_else_waiting(self, cluster: RedisCluster, kind: str) -> None:
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
    def test_nobody_notices(self, cluster: RedisCluster, kind: str) -> None:
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
    def test_a_store_serves_one_event_loop_after_another(self, cluster: RedisCluster) -> None:
        store, plans = open_async_store(cluster.address), [plans_on(node, 1, 9)[0] for node in cluster.primaries]

        async def run() -> list[int]:
            decisions = await asyncio.gather(*(store.run(Call(Verb.CHECK, plan)) for plan in plans))
            await store.close()
            return [decision.remaining for decision in decisions]

        assert [asyncio.run(run()) for _ in range(3)] == [[8] * 3, [7] * 3, [6] * 3]

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

    def test_callers_that_are_cancelled_disturb_nobody(self, cluster: RedisCluster) -> None:
        chance = random.Random(7)
        plans = [plan for node in cluster.primaries for plan in plans_on(node, 8, 10_000)]
        plans += [(one[0], other[0]) for one, other in zip(plans, plans[8:], strict=False)]

        async def ask(store: AsyncStore, plan: Plan) -> bool:
            for _ in range(30):
                decision = await store.run(Call(Verb.PEEK, plan))
                assert [part.remaining for part in decision.limits] == [10_000] * len(plan)
            return True

        async def run() -> list[object]:
            store = open_async_store(cluster.address)
            asking = [asyncio.create_task(ask(store, plan)) for plan in plans]
            victims = chance.sample(asking, len(asking) // 2)
            for victim in victims:
                await asyncio.sleep(chance.random() / 500)
                victim.cancel()
            answers = await asyncio.gather(*asking, return_exceptions=True)
            assert all(await asyncio.gather(*(ask(store, plan) for plan in plans)))
            await store.close()
            return [answer for task, answer in zip(asking, answers, strict=True) if task not in victims]

        assert all(answer is True for answer in asyncio.run(run()))


def test_4_processes_of_32_tasks_admit_exactly_the_limit(cluster: RedisCluster) -> None:
    limit, address = 600, cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30")
    limits = Family(f"tasks-{time.monotonic_ns()}", [Quota(limit, AGES_US, algorithm=Algorithm.GCRA)])
    asked = in_processes(partial(ask_from_tasks, address, limits, 32, 6), 4)
    assert len(asked) == 4 * 32 * 6
    with closing(open_store(address)) as store:
        verify(asked, limit, store.run(Call(Verb.PEEK, limits.plan("shared"))).used)


def test_the_shared_cluster_is_whole(cluster: RedisCluster) -> None:
    """The tests above have moved slots and roles, and have left a cluster that works."""
    assert sum(len(slots_of(node)) for node in cluster.primaries) == 16_384
