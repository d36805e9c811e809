"""The primary is found through any Sentinel that knows it, and found again after a failover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headgate.core.errors import OutcomeUnknown, StoreUnavailable
from headgate.core.plan import Call, Plan, Verb
from headgate.stores.base import Store
from headgate.testing.conformance import family
from tests.sentinels import SERVICE, RedisSentinels, redis_sentinels
from tests.servers import RedisServer, ending, free_port, own_folder, until
from tests.stores.redis.load import GIVE_UP, KINDS, RESUME, Load, lasting, load, resumed, store_for

Open = Callable[[str], Store]
LIMIT = 50
PHRASE = "hunter2"

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def own() -> Iterator[RedisSentinels]:
    """Servers and sentinels that a test may disturb."""
    with redis_sentinels() as sentinels:
        yield sentinels


def a_plan(limit: int = LIMIT) -> Plan:
    return family(lasting(limit)).plan("ada")


class TestDiscovery:
    def test_any_sentinel_knows_the_primary(self, sentinels: RedisSentinels, opened: Open) -> None:
        plan = a_plan(10)
        for turn, watcher in enumerate(sentinels.watchers):
            assert opened(sentinels.address_with(watcher)).run(Call(Verb.CHECK, plan)).remaining == 9 - turn

    @pytest.mark.parametrize("place", [0, 1, 3])
    def test_sentinels_that_are_dead_are_passed_over(self, sentinels: RedisSentinels, opened: Open, place: int) -> None:
        alive = [f"127.0.0.1:{watcher.port}" for watcher in sentinels.watchers]
        alive.insert(place, f"127.0.0.1:{free_port()}")
        address = f"redis+sentinel://{','.join(alive)}/limits?timeout=20&connect_timeout=20"
        assert opened(address).run(Call(Verb.CHECK, a_plan()))

    def test_all_sentinels_are_dead(self, opened: Open) -> None:
        places = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        store = opened(f"redis+sentinel://{places}/limits?timeout=20&connect_timeout=20")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"Sentinel.*cannot connect"):
                store.run(Call(Verb.CHECK, a_plan()))

    def test_an_unknown_service(self, sentinels: RedisSentinels, opened: Open) -> None:
        store = opened(sentinels.address_with(*sentinels.watchers, service="limitz"))
        with pytest.raises(StoreUnavailable, match="does not know the service 'limitz'"):
            store.run(Call(Verb.CHECK, a_plan()))

    def test_a_server_that_is_no_sentinel(self, server: RedisServer, opened: Open) -> None:
        store = opened(f"redis+sentinel://127.0.0.1:{server.port}/limits?timeout=20&connect_timeout=20")
        with pytest.raises(StoreUnavailable, match=r"(?i)sentinel"):
            store.run(Call(Verb.CHECK, a_plan()))

    def test_passwords_of_the_servers_and_of_the_sentinels(self, opened: Open) -> None:
        """They are not the same."""
        inner, outer = "hunter2", "hunter3"
        with redis_sentinels(password=inner, sentinel_password=outer) as own:
            right = f"{own.address}&sentinel_password={outer}"
            assert opened(right).run(Call(Verb.CHECK, a_plan()))
            for wrong in (
                own.address,
                f"{own.address}&sentinel_password=hunter4",
                right.replace(inner, "hunter4"),
                right.replace(f":{inner}@", ""),
            ):
                with pytest.raises(StoreUnavailable, match=r"authentication is required|password is wrong") as caught:
                    opened(wrong).run(Call(Verb.CHECK, a_plan()))
                assert "hunter" not in str(caught.value)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisSentinels]:
    """Servers that only their own sentinels can look at."""
    with redis_sentinels(watchers=1, replicas=1, password=PHRASE) as sentinels:
        yield sentinels


@contextmanager
def stale(named: RedisServer) -> Iterator[RedisServer]:
    """A sentinel that once took `named` for the primary, and has heard of no other server since."""
    lines = f"sentinel monitor {SERVICE} 127.0.0.1 {named.port} 1", f"sentinel down-after-milliseconds {SERVICE} 999999"
    with own_folder() as folder, ending([sentinel := RedisServer(folder, *lines, sentinel=True)]):
        yield sentinel.start()


class TestAStaleView:
    def test_a_sentinel_that_takes_a_replica_for_the_primary_is_passed_over(
        self, guarded: RedisSentinels, opened: Open
    ) -> None:
        _, replica = guarded.servers
        with stale(replica) as sentinel:
            store, plan = opened(guarded.address_with(sentinel, *guarded.watchers)), a_plan()
            with pytest.raises(StoreUnavailable, match="not the primary"):
                store.run(Call(Verb.CHECK, plan))
            assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == LIMIT - 1

    def test_a_sentinel_that_takes_a_dead_server_for_the_primary_is_passed_over(
        self, guarded: RedisSentinels, opened: Open
    ) -> None:
        with own_folder() as folder, stale(RedisServer(folder)) as sentinel:
            store, plan = opened(guarded.address_with(sentinel, *guarded.watchers)), a_plan()
            with pytest.raises(StoreUnavailable, match="cannot connect"):
                store.run(Call(Verb.CHECK, plan))
            assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == LIMIT - 1

    def test_after_a_primary_lost_its_replicas_another_sentinel_is_queried(
        self, guarded: RedisSentinels, opened: Open
    ) -> None:
        """It is still a primary by its own account; but the others have replaced it."""
        with own_folder() as folder, ending([replaced := RedisServer(folder, password=PHRASE)]):
            replaced.start()
            with stale(replaced) as sentinel:
                store, plan = opened(guarded.address_with(sentinel, *guarded.watchers)), a_plan()
                assert store.run(Call(Verb.CHECK, plan)).remaining == LIMIT - 1
                replaced.ask("CONFIG", "SET", "min-replicas-to-write", "1")
                with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                    store.run(Call(Verb.CHECK, plan))
                assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == LIMIT - 1, (
                    "it is the other server's"
                )
                assert store.run(Call(Verb.CHECK, plan)).remaining == LIMIT - 2


class TestFailover:
    @each_kind
    def test_the_primary_is_killed_under_load(self, own: RedisSentinels, kind: str) -> None:
        plans = [family(lasting(LIMIT)).plan(f"user-{number}") for number in range(KINDS[kind])]
        with load(store_for(kind, own.address), plans, KINDS[kind]) as asked:
            asked.until_answered(range(len(plans)), 5)
            old = own.primary
            assert old
            with own.alert():
                old.stop()
                asked.until_answered(range(len(plans)), seconds=RESUME)
                until(lambda: own.is_at_peace, "a new primary", GIVE_UP)
            self.no_errors_from_now_on(asked)
            old.start()  # it takes itself for the primary until the sentinels make it a replica
            until(lambda: own.is_at_peace, "the old primary is a replica", GIVE_UP)
            self.no_errors_from_now_on(asked, LIMIT)
        assert own.primary is not old
        self.verify(asked, 2 * LIMIT)

    @each_kind
    def test_the_primary_is_replaced_though_it_lives(self, own: RedisSentinels, kind: str) -> None:
        """The old one is read-only then: callers do not stay with it."""
        plans = [family(lasting(LIMIT)).plan(f"user-{number}") for number in range(KINDS[kind])]
        with load(store_for(kind, own.address), plans, KINDS[kind]) as asked:
            for _ in range(2):
                asked.until_answered(range(len(plans)), 5)
                own.failover()
                asked.until_answered(range(len(plans)), seconds=RESUME)
                self.no_errors_from_now_on(asked)
            asked.until_answered(range(len(plans)), LIMIT)
        self.verify(asked, 3 * LIMIT)

    def test_a_store_that_slept_meanwhile_finds_the_new_primary(self, own: RedisSentinels, opened: Open) -> None:
        store, plan = opened(own.address), a_plan()
        assert store.run(Call(Verb.PEEK, plan))
        assert opened(f"{own.address}&replicas=2").run(Call(Verb.CHECK, plan)).degraded == "", "it is on the replicas"
        own.failover()
        assert resumed(lambda: store.run(Call(Verb.CHECK, plan))).remaining == LIMIT - 2, "it has what the old one had"
        for turn in range(3, 20):
            assert store.run(Call(Verb.CHECK, plan)).remaining == LIMIT - turn

    def test_without_sentinels_the_primary_still_serves(self, own: RedisSentinels, opened: Open) -> None:
        store, plan = opened(own.address), a_plan()
        assert store.run(Call(Verb.CHECK, plan))
        for watcher in own.watchers:
            watcher.stop()
        for turn in range(2, 10):
            assert store.run(Call(Verb.CHECK, plan)).remaining == LIMIT - turn

    @staticmethod
    def verify(asked: Load, most: int) -> None:
        """Some charges may be lost with a primary; and a charge whose outcome is unknown may have been made."""
        for number in range(len(asked.plans)):
            unknown = sum(isinstance(error, OutcomeUnknown) for error in asked.errors([number]))
            assert LIMIT - unknown <= asked.admitted(number) <= most

    @staticmethod
    def no_errors_from_now_on(asked: Load, count: int = 5) -> None:
        before = len(asked.errors())
        asked.until_answered(range(len(asked.plans)), count)
        assert asked.errors()[before:] == []
