"""Refunds that name their charge: what a decision took is refunded as far as it still counts, and only once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from pickle import dumps, loads

import pytest

from headgate import (
    AsyncLimiter,
    Decision,
    Engine,
    InvalidCost,
    Limiter,
    OutcomeUnknown,
    Request,
    StoreUnavailable,
    UsageError,
    load_rules,
)
from headgate.core.plan import Call
from headgate.stores import open_store
from headgate.stores.base import Store
from headgate.stores.failover import FailoverStore
from headgate.stores.memory import MemoryStore
from headgate.stores.refunds import identities
from headgate.testing import ManualClock
from tests.clusters import RedisCluster, redis_cluster
from tests.servers import RedisServer, until

Make = Callable[[], Store]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as started:
        yield started


@pytest.fixture(params=["memory", "cluster"])
def store(request: pytest.FixtureRequest, manual_clock: ManualClock) -> Iterator[Store]:
    """One shard and several; `headgate.testing.conformance` has the refunds of every store and algorithm."""
    made: Store = MemoryStore(clock=manual_clock)
    if request.param == "cluster":
        cluster: RedisCluster = request.getfixturevalue("cluster")
        cluster.flush()
        made = open_store(cluster.address, clock=manual_clock)
    yield made
    made.close()


QUOTAS = "10/minute; 10/h fixed_window"


def test_what_no_longer_counts_is_not_refunded(store: Store, manual_clock: ManualClock) -> None:
    limiter = Limiter(QUOTAS, store=store)
    first = limiter.check("ada", 10)
    manual_clock.advance(7200)
    second = limiter.check("ada", 10)
    assert (first.taken, second.taken) == (10, 10)
    assert first.taken_at_us == ManualClock.START
    assert limiter.refund("ada", first).remaining == 0
    assert not limiter.check("ada")
    assert limiter.refund("ada", second).remaining == 10
    assert limiter.check("ada", 10)


def test_a_decision_is_refunded_once(store: Store) -> None:
    limiter = Limiter(QUOTAS, store=store)
    first, _ = limiter.check("ada", 4), limiter.check("ada", 4)
    assert limiter.refund("ada", first).remaining == 6
    limiter.check("ada", 1)
    assert limiter.refund("ada", first).remaining == 6, "the first answer"
    assert limiter.peek("ada").remaining == 5


def test_equal_decisions_are_refunded_each_and_answers_to_one_request_once(store: Store) -> None:
    limiter = Limiter(QUOTAS, store=store)
    for decision in [limiter.check("ada", 3), limiter.check("ada", 3)] * 2:
        limiter.refund("ada", decision)
    assert limiter.peek("ada").remaining == 10
    answers = [limiter.check_once("ada", "request-1", 3) for _ in range(3)]
    limiter.check("ada", 5)
    assert {limiter.refund("ada", each).remaining for each in answers * 2} == {5}
    again = limiter.check_once("ada", "request-1", 3)
    assert (again.taken, again.taken_at_us) == (3, answers[0].taken_at_us), "a repeated answer stays as it was"
    assert limiter.peek("ada").remaining == 5


def test_what_took_nothing_refunds_nothing(store: Store) -> None:
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


def test_a_decision_of_other_limits_is_refused() -> None:
    decision = Limiter("10/minute; 100/day").check("ada")
    with pytest.raises(UsageError, match=r"is not a decision of a limiter of 10/minute"):
        Limiter("10/minute").refund("ada", decision)


def test_acquired_turns_are_refunded_while_no_other_is_in_the_queue(manual_clock: ManualClock) -> None:
    limiter = Limiter("2/s leaky_bucket queue", clock=manual_clock)
    first = limiter.acquire("ada", timeout=0)
    assert limiter.refund("ada", first).remaining == 2
    first, second = limiter.acquire("ada", timeout=0), limiter.check("ada")
    assert limiter.refund("ada", first).remaining == 0
    assert limiter.refund("ada", second).remaining == 0


async def test_a_refund_wakes_a_waiting_caller(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("1/hour", clock=manual_clock)
    decision = await limiter.check("ada")
    waiting = asyncio.create_task(limiter.acquire("ada"))
    await asyncio.sleep(0)
    await limiter.refund("ada", decision)
    assert (await waiting).allowed


def test_a_refund_acts_once_however_many_others_come_between(manual_clock: ManualClock) -> None:
    limiter = Limiter("1000000/hour fixed_window", clock=manual_clock)
    first = limiter.check("ada", 10)
    limiter.refund("ada", first)
    limiter.check("ada", 10)
    others = [limiter.check("bob") for _ in range(5000)]
    for other in others:
        limiter.refund("bob", other)
    del others, other
    for _ in range(70_000):
        limiter.refund("bob", limiter.check("bob"))
    limiter.refund("ada", first)
    assert limiter.peek("ada").remaining == 999_990
    assert len(identities) <= 10_000, "decisions that were dropped are forgotten"


def test_a_copied_or_pickled_decision_is_the_same_charge() -> None:
    limiter = Limiter("1000/day fixed_window; 1000/hour fixed_window")
    before, after = limiter.check("ada", 10), limiter.check("ada", 10)
    limiter.check("ada", 50)
    limiter.refund("ada", before)
    copies = [each for both in (copy, deepcopy) for each in (both(before), both(after))]
    copies += loads(dumps([before, after]))  # noqa: S301  our own bytes
    assert copies == [before, after] * 3
    limiter.refund("ada", after)
    for each in copies:
        limiter.refund("ada", each)
    assert limiter.peek("ada").remaining == 950


class Moody(MemoryStore):
    fault: type[Exception] | None = None

    def run(self, call: Call) -> Decision:
        if self.fault is not None:
            raise self.fault("away")
        return super().run(call)


def test_charges_are_refunded_where_they_were_made(manual_clock: ManualClock) -> None:
    inner = Moody(clock=manual_clock)
    limiter = Limiter("10/minute", store=FailoverStore(inner, failures=1, pause=0.01))
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
    assert limiter.check("ada", 10)
    assert limiter.refund("ada", here).degraded, "what was decided here never goes to the store"
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


def test_a_refund_whose_answer_was_lost_is_made_once(own_redis: RedisServer) -> None:
    address = f"redis://127.0.0.1:{own_redis.port}/0?timeout=1&connect_timeout=20"
    with Limiter("10/hour", store=address) as limiter:
        decision = limiter.check("ada", 6)
        limiter.check("ada", 4)
        own_redis.send(signal.SIGSTOP)
        try:
            refunded = limiter.refund("ada", decision)
        finally:
            own_redis.send(signal.SIGCONT)
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


def test_an_engine_refunds_what_a_ruling_took(store: Store, manual_clock: ManualClock) -> None:
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


def test_an_engine_refunds_to_the_limits_that_were_checked(manual_clock: ManualClock) -> None:
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
    with pytest.raises(UsageError, match="pass the request, not its ruling"):
        engine.refund(rulings[0])
    assert engine.refund(ASKED).allowed
