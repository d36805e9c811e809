"""Refunds that name their charge: what a decision took is given back as far as it still counts, and only once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from headgate import (
    Algorithm,
    AsyncLimiter,
    Decision,
    Engine,
    InvalidCost,
    Limiter,
    OutcomeUnknown,
    Quota,
    Request,
    StoreUnavailable,
    UsageError,
    load_rules,
)
from headgate.core.plan import Call, Family
from headgate.stores import open_store
from headgate.stores.base import Check, Store
from headgate.stores.cached import CachedStore
from headgate.stores.failover import FailoverStore
from headgate.stores.memory import MemoryStore
from headgate.stores.wrapping import plain_check
from headgate.testing import ManualClock
from tests.clusters import RedisCluster, redis_cluster
from tests.servers import RedisServer, redis_server, until

MINUTE = 60_000_000
Make = Callable[[], Store]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as started:
        yield started


@pytest.fixture(params=["memory", "cached", "redis", "cluster", "failover"])
def store(request: pytest.FixtureRequest, manual_clock: ManualClock) -> Iterator[Store]:
    with ExitStack() as stack:
        if request.param == "memory":
            made: Store = MemoryStore(clock=manual_clock)
        elif request.param == "cached":
            made = CachedStore(MemoryStore(clock=manual_clock), denials=3600)
        elif request.param == "cluster":
            cluster: RedisCluster = request.getfixturevalue("cluster")
            cluster.flush()
            made = open_store(cluster.address, clock=manual_clock)
        else:
            server: RedisServer = request.getfixturevalue("server")
            server.ask("FLUSHALL")
            made = open_store(server.address, clock=manual_clock)
            made = FailoverStore(made) if request.param == "failover" else made
        stack.callback(made.close)
        yield made


ALGORITHMS = [*Algorithm, "token_bucket burst 0; 10/h fixed_window"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_no_longer_counts_is_not_given_back(store: Store, manual_clock: ManualClock, algorithm: str) -> None:
    limiter = Limiter(f"10/minute {algorithm}", store=store)
    first = limiter.check("ada", 10)
    manual_clock.advance(120 if ";" not in algorithm else 7200)
    second = limiter.check("ada", 10)
    assert (first.taken, second.taken) == (10, 10)
    assert first.taken_at_us == ManualClock.START
    assert limiter.refund("ada", first).remaining == 0
    assert not limiter.check("ada")
    assert limiter.refund("ada", second).remaining == 10
    assert limiter.check("ada", 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_decision_is_refunded_once(store: Store, algorithm: str) -> None:
    limiter = Limiter(f"10/minute {algorithm}", store=store)
    first, _ = limiter.check("ada", 4), limiter.check("ada", 4)
    assert limiter.refund("ada", first).remaining == 6
    limiter.check("ada", 1)
    assert {first: "is found"}[first], "it is the value that it was"
    assert limiter.refund("ada", first).remaining == 6, "the first answer"
    assert limiter.peek("ada").remaining == 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_decisions_are_refunded_each(store: Store, algorithm: str) -> None:
    limiter = Limiter(f"10/minute {algorithm}", store=store)
    for decision in [limiter.check("ada", 3), limiter.check("ada", 3)] * 2:
        limiter.refund("ada", decision)
    assert limiter.peek("ada").remaining == 10


def test_answers_to_one_request_are_one_charge(store: Store) -> None:
    limiter = Limiter("10/minute", store=store)
    answers = [limiter.check_once("ada", "request-1", 3) for _ in range(3)]
    limiter.check("ada", 5)
    assert {limiter.refund("ada", each).remaining for each in answers * 2} == {5}
    assert limiter.peek("ada").remaining == 5


def test_what_took_nothing_gives_nothing_back(store: Store) -> None:
    limiter = Limiter("10/minute; 20/hour", store=store)
    peeked = limiter.peek("ada")
    limiter.check("ada", 10)
    refused = limiter.check("ada")
    refunded = limiter.refund("ada", 2)
    assert [decision.taken for decision in (peeked, refused, refunded)] == [0, 0, 0]
    for decision in (peeked, refused, refunded):
        assert limiter.refund("ada", decision).remaining == 2


def test_refunds_are_clamped(store: Store) -> None:
    """Above the capacity, after the limit was lowered, and of what is not counted any more: never an error."""
    generous, strict = (Limiter(quota, store=store) for quota in ("100/minute fixed_window", "5/minute fixed_window"))
    assert generous.refund("ada", 5000).remaining == 100
    decision = generous.check("ada", 60)
    assert strict.refund("ada", 20).remaining == 0
    assert generous.peek("ada").remaining == 60
    assert strict.refund("ada", decision).remaining == 5
    assert generous.refund("ada", 100_000).remaining == 100
    for bad in (0, -1, 1.5, True, "1", None, 100_001):
        with pytest.raises(InvalidCost):
            generous.refund("ada", bad)  # type: ignore[arg-type]


def test_a_refund_of_an_unused_key_leaves_no_state(server: RedisServer) -> None:
    server.ask("FLUSHALL")
    with Limiter("5/hour; 9/day gcra", store=server.address) as limiter:
        assert limiter.refund("ada", 3).remaining == 5
    assert server.ask("DBSIZE") == 0


def test_a_decision_of_other_limits_is_refused() -> None:
    decision = Limiter("10/minute; 100/day").check("ada")
    with pytest.raises(UsageError, match=r"is not a decision of a limiter of 10/minute"):
        Limiter("10/minute").refund("ada", decision)


def test_acquired_turns_can_be_given_back_while_nobody_else_stands_in_the_queue(manual_clock: ManualClock) -> None:
    limiter = Limiter("2/s leaky_bucket queue", clock=manual_clock)
    first = limiter.acquire("ada", timeout=0)
    assert limiter.refund("ada", first).remaining == 2
    first, second = limiter.acquire("ada", timeout=0), limiter.check("ada")
    assert limiter.refund("ada", first).remaining == 0
    assert limiter.refund("ada", second).remaining == 0


async def test_who_waits_in_line_is_woken(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("1/hour", clock=manual_clock)
    decision = await limiter.check("ada")
    waiting = asyncio.create_task(limiter.acquire("ada"))
    await asyncio.sleep(0)
    await limiter.refund("ada", decision)
    assert (await waiting).allowed


def test_an_answer_that_is_given_again_stays_as_it_was(store: Store) -> None:
    limiter = Limiter("10/minute", store=store)
    first = limiter.check_once("ada", "request-1", 3)
    limiter.refund("ada", first)
    again = limiter.check_once("ada", "request-1", 3)
    assert (again.taken, again.taken_at_us) == (3, first.taken_at_us)


class Moody(MemoryStore):
    """A store that can be away."""

    fault: type[Exception] | None = None

    def run(self, call: Call) -> Decision:
        if self.fault is not None:
            raise self.fault("away")
        return super().run(call)

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)


def test_what_was_decided_here_goes_back_here_and_what_the_store_took_never_does(manual_clock: ManualClock) -> None:
    inner = Moody(clock=manual_clock)
    limiter = Limiter(Quota(10, MINUTE), store=FailoverStore(inner, failures=1, pause=0.01), name="x")
    of_the_store = limiter.check("ada", 6)
    inner.fault = StoreUnavailable
    here = limiter.check("ada", 2)
    assert (of_the_store.degraded, here.degraded) == ("", "storage_unavailable")
    left = limiter.peek("ada").remaining
    assert limiter.refund("ada", of_the_store).remaining == left, "nothing of it was taken here"
    assert limiter.refund("ada", here).remaining == left + 2
    inner.fault = None
    manual_clock.advance(us=20_000)
    assert limiter.refund("ada", of_the_store).remaining == 10


def test_what_was_decided_here_never_goes_to_the_store(manual_clock: ManualClock) -> None:
    inner = Moody(clock=manual_clock)
    limiter = Limiter(Quota(10, MINUTE), store=FailoverStore(inner, failures=1, pause=0.01), name="x")
    inner.fault = StoreUnavailable
    here = limiter.check("ada", 2)
    inner.fault = None
    manual_clock.advance(us=20_000)
    assert limiter.check("ada", 10)
    assert limiter.refund("ada", here).degraded
    assert not limiter.check("ada")


@pytest.mark.parametrize("fault", [StoreUnavailable, OutcomeUnknown])
def test_a_refund_that_failed_can_be_tried_again(manual_clock: ManualClock, fault: type[Exception]) -> None:
    inner = Moody(clock=manual_clock)
    limiter = Limiter("10/minute", store=inner)
    decision = limiter.check("ada", 6)
    inner.fault = fault
    with pytest.raises(fault):
        limiter.refund("ada", decision)
    inner.fault = None
    assert limiter.refund("ada", decision).remaining == 10


def test_a_refund_whose_answer_was_lost_is_made_once() -> None:
    options = "timeout=1&connect_timeout=20"
    with redis_server() as own, Limiter("10/hour", store=f"redis://127.0.0.1:{own.port}/0?{options}") as limiter:
        decision = limiter.check("ada", 6)
        limiter.check("ada", 4)
        own.send(signal.SIGSTOP)
        try:
            refunded = limiter.refund("ada", decision)
        finally:
            own.send(signal.SIGCONT)
        assert refunded.degraded == "outcome_unknown"
        until(lambda: not limiter.refund("ada", decision).degraded, "the server answers")
        assert limiter.peek("ada").remaining == 6


RULES = """
version: 1
rules:
  - {id: users, dimension: user, limit: 10, window: 1m, algorithm: fixed_window}
  - {id: addresses, dimension: ip, limit: 20, window: 1m}
  - {id: tried, dimension: user, limit: 15, window: 1h, shadow: true}
"""
ASKED = Request({"user": "ada", "ip": "203.0.113.9"}, cost=4)


def remaining(engine: Engine) -> dict[str, int]:
    ruling = engine.peek(ASKED)
    return {each.rule_id: each.decision.remaining for each in (*ruling.limits, *ruling.shadow)}


def test_an_engine_gives_back_what_a_ruling_took(store: Store, manual_clock: ManualClock) -> None:
    """To enforced and to shadow rules, on one shard or several, once, and only what still counts."""
    with Engine(load_rules(RULES), store=store) as engine:
        first = engine.check(ASKED)
        manual_clock.advance(120)
        second = engine.check(ASKED)
        assert remaining(engine) == {"users": 6, "addresses": 16, "tried": 7}
        engine.refund(first)
        assert remaining(engine) == {"users": 6, "addresses": 16, "tried": 11}
        for _ in range(2):
            ruling = engine.refund(second)
            assert ruling.allowed
            assert remaining(engine) == {"users": 10, "addresses": 20, "tried": 15}


def test_an_engine_gives_back_to_the_limits_that_were_asked(manual_clock: ManualClock) -> None:
    """Also where the rules have changed meanwhile."""
    store = MemoryStore(clock=manual_clock)
    ruling = Engine(load_rules(RULES), store=store).check(ASKED)
    other = Engine(load_rules(RULES.replace("users", "people")), store=store)
    other.check(ASKED)
    other.refund(ruling)
    assert remaining(other) == {"people": 6, "addresses": 16, "tried": 11}


def test_of_several_that_passed_together_each_is_refunded_by_its_request(manual_clock: ManualClock) -> None:
    from headgate.engine import JointRequest  # noqa: PLC0415  not among the public names of headgate

    engine = Engine(load_rules(RULES), clock=manual_clock)
    rulings = engine.check_together([JointRequest(ASKED), JointRequest(ASKED)])
    with pytest.raises(UsageError, match="by its request"):
        engine.refund(rulings[0])
    assert engine.refund(ASKED).allowed
