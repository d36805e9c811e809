"""Several requests that pass together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncEngine, Decision, Engine, InvalidCost, InvalidRequest, MemoryStore, Quota, Request, Ruling
from headgate.core.decision import marked
from headgate.core.key import space
from headgate.core.plan import Call, Limit, Verb
from headgate.engine import JointRequest
from headgate.engine.joint import JointCheck, JointFlow
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.policy.selection import Limits
from headgate.testing import ManualClock
from tests.clusters import RedisCluster, redis_cluster
from tests.engine.conftest import Make

RULES = """
version: 1
rules:
  - {id: per-user, dimension: user, limit: 3, window: 1h, algorithm: fixed_window}
  - {id: per-ip, dimension: ip, limit: 5, window: 1h, algorithm: fixed_window}
  - {id: trial, dimension: user, limit: 1, window: 1h, shadow: true}
deny: [{user: mallory}]
allow: [{user: root}]
"""


TIERS = """
version: 1
rules: [{id: r, dimension: user, limit: 4, window: 1h, algorithm: fixed_window}]
tiers: {gold: {r: {limit: 8}}}
"""
GOLD = JointRequest(Request({"user": "ada"}, tier="gold"))


def user(name: str = "ada", cost: int = 1, *, refund: bool = False) -> JointRequest:
    return JointRequest(Request({"user": name}, cost=cost), refund)


def ip(address: str = "203.0.113.9", cost: int = 1, *, refund: bool = False) -> JointRequest:
    return JointRequest(Request({"ip": address}, cost=cost), refund)


def left(engine: Any, *parts: JointRequest) -> list[int]:
    return [engine.peek(part.request).decision.remaining for part in parts]


def passed(engine: Any, *parts: JointRequest) -> list[bool]:
    return [ruling.allowed for ruling in engine.check_together(parts)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(2, 0) as servers:
        yield servers


@pytest.fixture(params=["memory", "cluster"])
def engine(request: pytest.FixtureRequest, make: Make) -> Any:
    if request.param == "memory":
        return make(load(RULES), clock=ManualClock())
    cluster: RedisCluster = request.getfixturevalue("cluster")
    cluster.flush()
    return make(load(RULES), store=cluster.address, clock=ManualClock())  # no hour ends during the test


def test_all_take_their_cost_if_all_pass(engine: Any) -> None:
    first, second = engine.check_together([user(), ip()])
    assert (first.allowed, first.rule_id, first.decision.remaining) == (True, "per-user", 2)
    assert (second.allowed, second.rule_id, second.decision.remaining) == (True, "per-ip", 4)


def test_one_rule_may_count_several_principals(engine: Any) -> None:
    for remaining in (2, 1, 0):
        assert passed(engine, user("ada"), user("bob"), user("eve")) == [True, True, True]
        assert left(engine, user("ada"), user("bob"), user("eve")) == [remaining] * 3
    assert passed(engine, user("zoe"), user("bob")) == [True, False]


def test_nothing_is_taken_if_one_refuses(engine: Any) -> None:
    for _ in range(3):
        engine.check(user().request)
    first, second = engine.check_together([ip(), user()])
    assert (first.allowed, first.decision.remaining, second.allowed) == (True, 5, False)
    assert left(engine, ip()) == [5]


Step = tuple[list[JointRequest], list[bool]]
STORIES: dict[str, tuple[list[Step], list[tuple[JointRequest, int]]]] = {
    "a shared limit is charged with the sum of the costs": (
        [([user(), user()], [True, True]), ([user(), user()], [False, False])],
        [(user(), 1)],
    ),
    "nothing is taken if one of different costs is refused": (
        [([ip(cost=2), user(cost=3)], [True, True]), ([ip(cost=2), user(cost=1)], [True, False])],
        [(ip(), 3), (user(), 0)],
    ),
    "a cost of 0 takes nothing and can refuse the others": (
        [([user(cost=0), ip()], [True, True]), ([user(cost=3)], [True]), ([user(cost=0), ip()], [False, True])],
        [(ip(), 4), (user(), 0)],
    ),
    "refunds are made even if others are refused": (
        [([user(cost=3), ip(cost=3)], [True, True]), ([ip(cost=2, refund=True), user()], [True, False])],
        [(ip(), 4)],
    ),
    "a refund of a limit does not hide that it refused": (
        [([user(cost=3)], [True]), ([user(), user(refund=True)], [False, True])],
        [(user(), 1)],
    ),
    "a refund above the capacity refunds the usage": (
        [([user(cost=3)], [True]), ([user(cost=100, refund=True)], [True])],
        [(user(), 3)],
    ),
    "a deny list refuses all, and an allow list does not": (
        [([user("mallory"), ip()], [False, True]), ([user("root"), ip()], [True, True])],
        [(ip(), 4)],
    ),
}
"""Requests in turn, which of their parts pass, and what is left."""


@pytest.mark.parametrize("story", STORIES)
def test_all_pass_together_or_not_at_all(engine: Any, story: str) -> None:
    steps, expected = STORIES[story]
    for parts, allowed in steps:
        assert passed(engine, *parts) == allowed
    for part, remaining in expected:
        assert left(engine, part) == [remaining]


def test_a_cost_above_the_capacity_is_refused_and_no_error(engine: Any) -> None:
    first, second = engine.check_together([user(cost=4), ip()])
    assert (first.allowed, first.state, second.allowed) == (False, "throttled", True)
    assert first.reason.startswith("rule 'per-user': cost 4 is above the capacity of 3/hour fixed_window, 3: it could")
    assert second.reason == ""
    assert left(engine, user(), ip()) == [3, 5]


def test_a_sum_above_the_capacity_is_the_reason(engine: Any) -> None:
    first, second, third = engine.check_together([user(cost=2), user(cost=2), user(cost=0)])
    assert [first.allowed, second.allowed, third.allowed] == [False, False, True]
    assert first.reason == second.reason
    assert first.reason.startswith("rule 'per-user': cost 4 is above")
    assert third.reason == ""


def test_shadow_rules_count_only_what_passes(engine: Any) -> None:
    def shadows(*parts: JointRequest) -> list[bool]:
        return [each.decision.allowed for ruling in engine.check_together(parts) for each in ruling.shadow]

    assert shadows(user(), user("bob", 4)) == [True, False]  # the cost is too large, so nothing is taken
    assert shadows(user(), user("bob")) == [True, True]
    assert shadows(user(), user("bob")) == [False, False]
    assert shadows(user(cost=0)) == [False]
    assert shadows(user(refund=True)) == [True]


def test_shadow_rules_of_all_requests_are_tried_concurrently() -> None:
    """One after the other, Envoy would wait once for each while the store hangs."""
    store = MemoryStore(clock=ManualClock())
    steps, rulings = played(joint(RULES, user(), user("bob"), ip(), user("bob", 2)), store.run)
    assert steps[-1] == [Verb.CHECK, Verb.CHECK, Verb.PEEK]  # the last one is too much for a limit of 1
    assert [[each.decision.allowed for each in ruling.shadow] for ruling in rulings] == [[True], [True], [], [False]]


def test_a_limit_in_the_request_replaces_the_rules_but_not_the_lists(engine: Any) -> None:
    quota = Quota(1, 3_600_000_000)
    limits = Limits((Limit(space("own", quota), "ada", quota),), ("own",))

    def check_own(name: str) -> Any:
        return engine.check_together([JointRequest(Request({"user": name}), instead=limits)])[0]

    first = check_own("ada")
    assert (first.allowed, first.rule_id) == (True, "own")
    assert not check_own("ada").allowed
    assert check_own("root").allowed
    assert check_own("mallory").verdict == "denied"
    assert left(engine, user()) == [3]


def test_a_limit_in_the_request_refuses_nothing_without_enforcement() -> None:
    quota = Quota(1, 3_600_000_000)
    part = JointRequest(Request({"user": "ada"}), instead=Limits((Limit(space("own", quota), "ada", quota),), ("own",)))
    with Engine(Policy(load(RULES), enforcing=False)) as engine:
        rulings = [engine.check_together([part])[0] for _ in range(2)]
    assert [(ruling.allowed, ruling.shadow[0].decision.allowed) for ruling in rulings] == [(True, True), (True, False)]


def test_invalid_requests_are_errors_before_anything_is_taken(engine: Any) -> None:
    with pytest.raises(InvalidRequest):
        engine.check_together([user(), JointRequest(Request(endpoint="/a/../b"))])
    with pytest.raises(InvalidCost):
        engine.check_together([user(), ip(cost=-1)])
    assert left(engine, user()) == [3]


def test_usage_that_was_not_admitted_takes_the_remainder(engine: Any) -> None:
    engine.use_up(user(cost=2))
    assert left(engine, user()) == [1]
    engine.use_up(JointRequest(Request({"user": "ada", "ip": "203.0.113.9"}, cost=4)))
    assert left(engine, user(), ip()) == [0, 1]
    engine.use_up(user("root", 2))
    quota = Quota(5, 3_600_000_000)
    own = JointRequest(
        Request({"user": "bob"}, cost=9), instead=Limits((Limit(space("own", quota), "b", quota),), ("own",))
    )
    engine.use_up(own)
    assert left(engine, user("bob")) == [3]
    assert passed(engine, JointRequest(Request({"user": "bob"}), instead=own.instead)) == [False]


def test_one_limit_under_two_sets_of_terms_takes_both_costs() -> None:
    """Only one of the requests has a tier, and the state is the same."""
    with Engine(load(TIERS), clock=ManualClock()) as engine:
        parts = [user(), GOLD]
        assert passed(engine, *parts) == [True, True]
        assert passed(engine, *parts) == [True, True]
        assert passed(engine, *parts) == [False, True]
        assert left(engine, parts[0]) == [0]
        assert left(engine, parts[1]) == [4]


async def test_a_charge_on_equal_terms_of_two_tiers_is_undone_once() -> None:
    """One limit was charged with the sum of the costs, although each tier has its quota."""
    equal = TIERS.replace("limit: 8", "limit: 4")
    async with AsyncEngine(load(equal), clock=ManualClock()) as engine:
        await engine.check(user(cost=2).request)
        rulings = await engine.check_together([user(), GOLD])
        assert [ruling.limits[0].decision.used for ruling in rulings] == [4, 4]
        await engine.undo(rulings)
        assert (await engine.peek(user().request)).limits[0].decision.used == 2


async def test_charges_of_shadow_rules_are_undone() -> None:
    async with AsyncEngine(load(TIERS.replace("limit: 4", "limit: 4, shadow: true")), clock=ManualClock()) as engine:
        await engine.check(user().request)
        rulings = await engine.check_together([user(), user(cost=2), GOLD])
        assert [ruling.shadow_decisions[0].used for ruling in rulings] == [2, 4, 5]
        await engine.undo(rulings)
        assert (await engine.peek(user().request)).shadow_decisions[0].used == 1


def played(flow: JointFlow, answer: Callable[[Call], Decision]) -> tuple[list[list[Verb]], tuple[Ruling, ...]]:
    steps: list[list[Verb]] = []
    try:
        calls = next(flow)
        while True:
            steps.append([call.verb for call in calls])
            calls = flow.send([answer(call) for call in calls])
    except StopIteration as stop:
        return steps, stop.value


def joint(rules: str, *parts: JointRequest) -> JointFlow:
    return JointCheck(Policy(load(rules)), parts, 0).flow()


def test_a_refusal_of_different_costs_takes_nothing() -> None:
    store, rules = MemoryStore(clock=ManualClock()), RULES.replace("shadow: true", "enabled: false")
    played(joint(rules, user(cost=3)), store.run)
    steps, rulings = played(joint(rules, ip(cost=2), user()), store.run)
    assert steps == [[Verb.CHECK]]
    assert [ruling.allowed for ruling in rulings] == [True, False]
    assert [limit.decision.remaining for ruling in rulings for limit in ruling.limits] == [5, 0]


def is_gold(call: Call) -> bool:
    return call.plan[0].quota.limit == 8


def test_a_limit_on_two_terms_is_peeked_at_first() -> None:
    store = MemoryStore(clock=ManualClock())
    played(joint(TIERS, user(cost=4)), store.run)
    steps, rulings = played(joint(TIERS, GOLD, user()), store.run)
    assert steps == [[Verb.PEEK, Verb.PEEK]]
    assert [ruling.allowed for ruling in rulings] == [True, False]


def test_a_charge_on_other_terms_is_refunded_if_others_are_quicker() -> None:
    store = MemoryStore(clock=ManualClock())

    def raced(call: Call) -> Decision:
        if call.verb is Verb.CHECK and is_gold(call):
            store.run(Call(Verb.CHECK, call.plan, 7))
        return store.run(call)

    steps, rulings = played(joint(TIERS, user(), GOLD), raced)
    assert steps == [[Verb.PEEK, Verb.PEEK], [Verb.CHECK], [Verb.CHECK], [Verb.REFUND]]
    decisions = [ruling.decision for ruling in rulings]
    assert [(each.allowed, each.remaining) for each in decisions if each is not None] == [(True, 0), (False, 0)]
    ((after,),) = (ruling.limits for ruling in played(joint(TIERS, GOLD), store.run)[1])
    assert (after.decision.allowed, after.decision.used) == (True, 8)


@pytest.mark.parametrize("gold_is_local", [False, True])
def test_nothing_is_refunded_to_a_store_that_did_not_take_it(gold_is_local: bool) -> None:  # noqa: FBT001  pytest passes it
    """The store becomes unavailable, or available, between two plans."""
    store, local = MemoryStore(clock=ManualClock()), MemoryStore(clock=ManualClock())

    def changing(call: Call) -> Decision:
        if call.verb is Verb.PEEK:
            return store.run(call)
        is_local = call.charge.degraded != "" if call.charge else is_gold(call) == gold_is_local
        answering = local if is_local else store
        if is_gold(call):
            answering.run(Call(Verb.CHECK, call.plan, 8))  # others are quicker
        decision = answering.run(call)
        return marked(decision, "storage_unavailable") if is_local else decision

    steps, rulings = played(joint(TIERS, user(), GOLD), changing)
    assert steps == [[Verb.PEEK, Verb.PEEK], [Verb.CHECK], [Verb.CHECK], [Verb.REFUND]]
    assert [ruling.allowed for ruling in rulings] == [True, False]
    assert [(len(each), rulings[0].limits[0].decision.used) for each in (local, store) if len(each)] == [(1, 0), (1, 0)]


def test_rulings_without_a_store_are_degraded(make: Make) -> None:
    engine = make(load(RULES), store="redis://127.0.0.1:1/0?timeout=0.1")
    parts = [JointRequest(Request({"user": "ada", "ip": "203.0.113.9"})), user("bob")]
    assert {ruling.degraded for ruling in engine.check_together(parts)} == {"storage_unavailable"}


WHO = st.sampled_from(["ada", "bob"])
PARTS = st.lists(st.builds(user, WHO, st.integers(0, 3)), min_size=1, max_size=4)


@given(st.lists(PARTS, max_size=8))
def test_no_limit_is_exceeded(requests: list[list[JointRequest]]) -> None:
    with Engine(load(RULES), clock=ManualClock()) as engine:
        used = {"ada": 0, "bob": 0}
        for parts in requests:
            rulings = engine.check_together(parts)
            if all(rulings):
                for part in parts:
                    used[part.request.principal["user"]] += part.request.cost
            assert [3 - each for each in used.values()] == left(engine, user("ada"), user("bob"))
