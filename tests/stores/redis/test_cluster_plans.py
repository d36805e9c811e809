"""Plans over several shards of a cluster: no script reaches all of them, and yet they are taken whole or not at all.

They never admit too much. They may refuse too much for a moment, while others' requests are tried; so whatever is
compared with an oracle here is asked by one caller at a time.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from headgate import Algorithm, Decision, MemoryStore, Quota, StoreError, open_async_store, open_store
from headgate.core.key import once_token, space
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.stores.base import Store
from headgate.testing import ManualClock
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import QUOTAS
from tests.clusters import RedisCluster, redis_cluster, slots_of
from tests.stores.redis.load import lasting, slot_of

Open = Callable[[str], Store]
SECOND = 1_000_000


def limit(name: str, principal: str, quota: Quota) -> Limit:
    return Limit(space(name, quota), principal, quota)


def a_plan(user: str, last: Quota, *first: Quota) -> Plan:
    """Return limits of a user, of an address and of all together, which do not live on one primary."""
    mine, its = (first * 2)[:2] if first else (lasting(1000), lasting(1000))
    return limit("user", user, mine), limit("ip", f"10.0.0.1/{user}", its), limit("global", "all", last)


def remaining(store: Store, plan: Plan) -> list[int]:
    return [store.run(Call(Verb.PEEK, (each,))).remaining for each in plan]


Timed = Callable[..., Store]


@pytest.fixture
def timed(request: pytest.FixtureRequest, cluster: RedisCluster) -> Timed:
    """Opens a store of either kind whose time is that of a clock. Both kinds share the route of a plan."""

    def open_one(clock: ManualClock, *, is_async: int = False) -> Store:
        if is_async:
            store: Store = Blocking(open_async_store(cluster.address, clock=clock))
        else:
            store = open_store(cluster.address, clock=clock)
        request.addfinalizer(store.close)
        return store

    return open_one


class TestOneCallerAtATime:
    @pytest.mark.parametrize("quota", QUOTAS, ids=str)
    def test_nothing_is_taken_when_the_last_limit_refuses(self, timed: Timed, quota: Quota) -> None:
        clock = ManualClock()
        store, memory = timed(clock), MemoryStore(clock=clock)
        plan = a_plan("ada", Quota(2, 3600 * SECOND, algorithm=Algorithm.FIXED_WINDOW), quota)
        for _ in range(6):
            assert store.run(Call(Verb.CHECK, plan)) == memory.run(Call(Verb.CHECK, plan))
            clock.advance(us=137)
        assert remaining(store, plan) == remaining(memory, plan) == [3, 3, 0]

    @pytest.mark.parametrize("algorithm", Algorithm, ids=str)
    @pytest.mark.parametrize("once", [False, True], ids=["check", "check_once"])
    def test_nothing_is_taken_of_a_limit_that_a_tier_has_raised_before(
        self, timed: Timed, algorithm: Algorithm, *, once: bool
    ) -> None:
        """Nor does it warn: the 80th of 100 is undone."""
        clock = ManualClock()
        store, memory = timed(clock), MemoryStore(clock=clock)
        everybodys = limit("all", "all", Quota(80, 3600 * SECOND, algorithm=Algorithm.FIXED_WINDOW))
        gold, plain = (
            (limit("user", "ada", Quota(of, 3600 * SECOND, algorithm=algorithm)), everybodys) for of in (200, 100)
        )
        for plan, cost in ((gold, 1), (plain, 78), *[(plain, 2)] * 50):
            call = Call(Verb.CHECK, plan, cost)
            if once:
                call = Call(Verb.CHECK_ONCE, plan, cost, once_token(plan, cost, f"{clock.now()}"))
            assert store.run(call) == memory.run(call)
            clock.advance(us=137)
        assert store.run(Call(Verb.PEEK, plain)) == memory.run(Call(Verb.PEEK, plain))

    @pytest.mark.parametrize("blocked", [0, 1, 2])
    def test_the_answer_has_all_limits_in_order_and_names_the_one_that_blocks(
        self, cluster: RedisCluster, opened: Open, blocked: int
    ) -> None:
        quotas = [lasting(10, Algorithm.GCRA), lasting(20), lasting(30, Algorithm.SLIDING_WINDOW_LOG)]
        quotas[blocked] = lasting(2, quotas[blocked].algorithm)
        plan, store = a_plan("ada", quotas[2], quotas[0], quotas[1]), opened(cluster.address)
        assert store.run(Call(Verb.CHECK, plan))
        admission = store.run(Call(Verb.CHECK, plan))
        assert admission
        assert admission.quota == quotas[blocked], "the most restrictive one"
        refusal = store.run(Call(Verb.CHECK, plan))
        assert not refusal
        assert (refusal.quota, refusal.limit, refusal.remaining) == (quotas[blocked], 2, 0)
        assert refusal.retry_after_us > 0
        for decision in (admission, refusal):
            assert [part.quota for part in decision.limits] == quotas
        assert [part.allowed for part in refusal.limits] == [place != blocked for place in range(3)]
        assert [part.remaining for part in refusal.limits] == [quota.capacity - 2 for quota in quotas]

    @pytest.mark.parametrize("seed", range(4))
    def test_random_plans_are_decided_as_in_memory(self, timed: Timed, seed: int) -> None:
        clock, chance = ManualClock(), random.Random(seed)
        store, memory = timed(clock, is_async=seed % 2), MemoryStore(clock=clock)
        for turn in range(120):
            quotas = chance.sample(QUOTAS, chance.randint(1, 4))
            plan = tuple(limit(f"rule-{place}", f"p{chance.randrange(3)}", each) for place, each in enumerate(quotas))
            verb = Verb.RESET if turn == 60 else {4: Verb.PEEK, 9: Verb.REFUND}.get(turn % 10, Verb.CHECK)
            call = Call(verb, plan, chance.choice([1, 1, 2, 5]))
            assert store.run(call) == memory.run(call), f"turn {turn}"
            clock.advance(us=chance.choice([0, 0, 1_000, 137_000, 600_000]))

    @pytest.mark.parametrize("seed", range(4))
    def test_random_shadow_plans_are_tried_out_as_in_memory(self, timed: Timed, seed: int) -> None:
        """In the slot of the request's own plan, in others, and in several."""
        clock, chance = ManualClock(), random.Random(seed)
        store, memory = timed(clock, is_async=seed % 2), MemoryStore(clock=clock)
        steady = [quota for quota in QUOTAS if quota.refill_every_us == 1]

        def some_plan(name: str, least: int) -> Plan:
            quotas, alone = chance.sample(steady, chance.randint(least, 2)), f"p{chance.randrange(3)}"
            everywhere = chance.random() < 0.3
            return tuple(
                limit(f"{name}-{place}", f"p{chance.randrange(3)}" if everywhere else alone, each)
                for place, each in enumerate(quotas)
            )

        for turn in range(120):
            shadow = tuple(some_plan(f"shadow-{number}", 1) for number in range(chance.randint(1, 3)))
            verb, cost = chance.choice([Verb.CHECK, Verb.CHECK, Verb.PEEK]), chance.choice([1, 1, 2, 5])
            call = Call(verb, some_plan("rule", 0), cost, shadow=shadow)
            assert store.run(call) == memory.run(call), f"turn {turn}"
            clock.advance(us=chance.choice([0, 0, 1_000, 137_000]))

    def test_the_plans_of_these_tests_are_spread(self, cluster: RedisCluster) -> None:
        plan = a_plan("ada", lasting(1))
        assert len({cluster.owner(slot_of(each)).port for each in plan}) > 1


class TestManyCallers:
    @pytest.mark.parametrize("algorithm", Algorithm, ids=str)
    def test_64_tasks_never_exceed_any_limit(self, cluster: RedisCluster, algorithm: Algorithm) -> None:
        """A limit of all that is asked for more than it has, limits of users, and of their addresses."""
        plans = [a_plan(f"user-{number}", lasting(100, algorithm), lasting(20, algorithm)) for number in range(8)]

        async def caller(number: int) -> list[tuple[int, Decision]]:
            answers = []
            for turn in range(8):
                user = (number + turn) % len(plans)
                answers.append((user, await store.run(Call(Verb.CHECK, plans[user]))))
            return answers

        async def run() -> list[tuple[int, Decision]]:
            try:
                answers = await asyncio.gather(*map(caller, range(64)))
            finally:
                await store.close()
            return [one for answer in answers for one in answer]

        store = open_async_store(cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30"))
        answers = asyncio.run(run())
        admitted = [sum(decision.allowed for user, decision in answers if user == place) for place in range(8)]
        self.verify(cluster, plans, admitted)

    def test_16_threads_never_exceed_any_limit(self, cluster: RedisCluster) -> None:
        plans = [a_plan(f"user-{number}", lasting(60), lasting(12)) for number in range(8)]
        address = cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30")
        with closing(open_store(address)) as store, ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda turn: store.run(Call(Verb.CHECK, plans[turn % 8])).allowed, range(320)))
        self.verify(cluster, plans, [sum(answers[user::8]) for user in range(8)])

    @staticmethod
    def verify(cluster: RedisCluster, plans: list[Plan], admitted: list[int]) -> None:
        mine, _, everybodys = plans[0]
        assert 0 < sum(admitted) <= everybodys.quota.limit
        assert max(admitted) <= mine.quota.limit
        expected = [[count, count, sum(admitted)] for count in admitted]
        with closing(open_store(cluster.address)) as store:

            def used() -> list[list[int]]:
                return [[part.used for part in store.run(Call(Verb.PEEK, plan)).limits] for plan in plans]

            assert used() == expected, "a refusal leaves nothing behind"

    def test_enough_for_all_is_enough(self, cluster: RedisCluster) -> None:
        """Nobody is refused where no limit is ever reached."""
        plans = [a_plan(f"user-{number}", lasting(10_000), lasting(1000)) for number in range(8)]
        address = cluster.address_with(*cluster.nodes, options="timeout=30&connect_timeout=30")
        with closing(open_store(address)) as store:
            with ThreadPoolExecutor(16) as pool:
                assert all(pool.map(lambda turn: store.run(Call(Verb.CHECK, plans[turn % 8])).allowed, range(320)))
            assert remaining(store, plans[0]) == [960, 960, 10_000 - 320]


class TestAShardThatIsGone:
    @pytest.mark.parametrize(
        ("opened", "fault"), [("sync", signal.SIGKILL), ("async", signal.SIGSTOP)], indirect=["opened"]
    )
    def test_nothing_is_admitted_and_nothing_taken_elsewhere(self, opened: Open, fault: signal.Signals) -> None:
        with redis_cluster(3, 0) as own:
            store, lost = opened(own.address_with(*own.nodes, options="timeout=1&connect_timeout=1")), own.nodes[0]
            gone = slots_of(lost)
            here = [limit("user", f"user-{number}", lasting(50)) for number in range(60)]
            living = tuple([each for each in here if slot_of(each) not in gone][:6])
            dead = next(each for each in here if slot_of(each) in gone)
            assert store.run(Call(Verb.CHECK, (*living, dead)))
            lost.stop() if fault == signal.SIGKILL else lost.send(fault)
            for _ in range(4):
                with pytest.raises(StoreError):
                    store.run(Call(Verb.CHECK, (*living, dead)))
            assert remaining(store, living) == [49] * len(living)
            assert store.run(Call(Verb.CHECK, living))
