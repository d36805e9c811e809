"""Several requests that pass together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidCost, MemoryStore
from headgate.core.decision import Decision, marked
from headgate.core.key import space
from headgate.core.plan import Call, Limit, Verb
from headgate.core.quota import Quota
from headgate.engine import AsyncEngine, Engine, JointRequest, Ruling
from headgate.engine.joint import JointCheck, JointFlow
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.policy.request import InvalidRequest, Request
from headgate.policy.selection import Limits
from headgate.testing import ManualClock
from tests.clusters import RedisCluster, redis_cluster
from tests.engine.conftest import Make
from tests.servers import RedisServer

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


class Counting(MemoryStore):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(clock=ManualClock())
        self.calls: list[str] = []

    def run(self, call: Call) -> Decision:
        if call.verb is Verb.CHECK:
            self.calls.append(f"check {len(call.plan)}")
        return super().run(call)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(2, 0) as servers:
        yield servers


@pytest.fixture(params=["memory", "redis", "cluster"])
def engine(request: pytest.FixtureRequest, make: Make) -> Any:
    if request.param == "memory":
        return make(load(RULES), clock=ManualClock())
    found: RedisServer | RedisCluster = request.getfixturevalue(request.param)
    for server in found.nodes if isinstance(found, RedisCluster) else [found]:
        server.ask("FLUSHALL")
    return make(load(RULES), store=found.address, clock=ManualClock())  # no hour ends meanwhile


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


def test_a_limit_that_two_share_is_asked_for_the_sum_of_their_costs(engine: Any) -> None:
    assert passed(engine, user(), user()) == [True, True]
    assert left(engine, user()) == [1]
    assert passed(engine, user(), user()) == [False, False]
    assert left(engine, user()) == [1]


def test_what_was_taken_is_given_back_if_a_request_of_another_cost_is_refused(engine: Any) -> None:
    assert passed(engine, ip(cost=2), user(cost=3)) == [True, True]
    assert passed(engine, ip(cost=2), user(cost=1)) == [True, False]
    assert left(engine, ip(), user()) == [3, 0]


def test_a_cost_of_nothing_only_asks_and_refuses_the_others_too(engine: Any) -> None:
    assert passed(engine, user(cost=0), ip()) == [True, True]
    assert left(engine, user(), ip()) == [3, 4]
    engine.check(user(cost=3).request)
    assert passed(engine, user(cost=0), ip()) == [False, True]
    assert left(engine, ip()) == [4]


def test_refunds_are_made_whatever_the_others_say(engine: Any) -> None:
    engine.check(user(cost=3).request)
    engine.check(ip(cost=3).request)
    assert passed(engine, ip(cost=2, refund=True), user()) == [True, False]
    assert left(engine, ip()) == [4]


def test_a_refund_of_a_limit_does_not_hide_that_it_refused(engine: Any) -> None:
    engine.check(user(cost=3).request)
    assert passed(engine, user(), user(refund=True)) == [False, True]
    assert left(engine, user()) == [1]


def test_more_than_a_limit_could_ever_admit_is_refused_and_not_an_error(engine: Any) -> None:
    first, second = engine.check_together([user(cost=4), ip()])
    assert (first.allowed, first.state, second.allowed) == (False, "throttled", True)
    assert first.reason.startswith("rule 'per-user': cost 4 is above the capacity of 3/hour fixed_window, 3: it could")
    assert second.reason == ""
    assert left(engine, user(), ip()) == [3, 5]


def test_what_is_too_much_only_together_says_so(engine: Any) -> None:
    first, second, third = engine.check_together([user(cost=2), user(cost=2), user(cost=0)])
    assert [first.allowed, second.allowed, third.allowed] == [False, False, True]
    assert first.reason == second.reason
    assert first.reason.startswith("rule 'per-user': cost 4 is above")
    assert third.reason == ""


def test_more_than_a_limit_could_hold_is_given_back_as_far_as_it_was_used(engine: Any) -> None:
    engine.check(user(cost=3).request)
    assert passed(engine, user(cost=100, refund=True)) == [True]
    assert left(engine, user()) == [3]


def test_who_is_denied_by_a_list_stops_the_others_and_who_is_allowed_does_not(engine: Any) -> None:
    assert passed(engine, user("mallory"), ip()) == [False, True]
    assert passed(engine, user("root"), ip()) == [True, True]
    assert left(engine, ip()) == [4]


def test_shadow_rules_count_only_what_passes(engine: Any) -> None:
    def shadows(*parts: JointRequest) -> list[bool]:
        return [each.decision.allowed for ruling in engine.check_together(parts) for each in ruling.shadow]

    assert shadows(user(), user("bob", 4)) == [True, False]  # bob asks for too much, so that nothing is taken
    assert shadows(user(), user("bob")) == [True, True]
    assert shadows(user(), user("bob")) == [False, False]
    assert shadows(user(cost=0)) == [False]
    assert shadows(user(refund=True)) == [True]


def test_shadow_rules_of_all_requests_are_asked_at_the_same_time() -> None:
    """One after the other, a store that hangs would keep Envoy waiting once for each."""
    store = MemoryStore(clock=ManualClock())
    asked, rulings = played(joint(RULES, user(), user("bob"), ip(), user("bob", 2)), store.run)
    assert asked[-1] == [Verb.CHECK, Verb.CHECK, Verb.PEEK]  # the last one is too much for a limit of 1
    assert [[each.decision.allowed for each in ruling.shadow] for ruling in rulings] == [[True], [True], [], [False]]


def test_a_limit_that_comes_with_a_request_stands_for_the_rules_but_not_for_the_lists(engine: Any) -> None:
    quota = Quota(1, 3_600_000_000)
    limits = Limits((Limit(space("own", quota), "ada", quota),), ("own",))

    def asked(name: str) -> Any:
        return engine.check_together([JointRequest(Request({"user": name}), instead=limits)])[0]

    assert [(asked("ada").allowed, asked("ada").rule_id)] == [(True, "own")]
    assert not asked("ada").allowed
    assert asked("root").allowed
    assert asked("mallory").verdict == "denied"
    assert left(engine, user()) == [3]


def test_a_limit_that_comes_with_a_request_refuses_nothing_where_nothing_is_enforced() -> None:
    quota = Quota(1, 3_600_000_000)
    part = JointRequest(Request({"user": "ada"}), instead=Limits((Limit(space("own", quota), "ada", quota),), ("own",)))
    with Engine(Policy(load(RULES), enforcing=False)) as engine:
        rulings = [engine.check_together([part])[0] for _ in range(2)]
    assert [(ruling.allowed, ruling.shadow[0].decision.allowed) for ruling in rulings] == [(True, True), (True, False)]


def test_what_makes_no_sense_is_an_error_before_anything_is_taken(engine: Any) -> None:
    with pytest.raises(InvalidRequest):
        engine.check_together([user(), JointRequest(Request(endpoint="/a/../b"))])
    with pytest.raises(InvalidCost):
        engine.check_together([user(), ip(cost=-1)])
    assert left(engine, user()) == [3]


def test_what_was_used_already_takes_what_is_left(engine: Any) -> None:
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


def test_one_call_of_the_store_decides_whatever_the_costs_are() -> None:
    with Engine(load(RULES.replace("shadow: true", "enabled: false")), store=(store := Counting())) as engine:
        engine.check_together([user(), ip(), user("bob"), ip("203.0.113.10")])
        engine.check_together([user(), user("bob"), ip(cost=2)])
    assert store.calls == ["check 4", "check 3"]


def test_one_limit_under_two_sets_of_terms_takes_both_costs() -> None:
    """Those of a tier that only one of the requests has: the state is the same."""
    with Engine(load(TIERS), clock=ManualClock()) as engine:
        parts = [user(), GOLD]
        assert passed(engine, *parts) == [True, True]
        assert passed(engine, *parts) == [True, True]
        assert passed(engine, *parts) == [False, True]
        assert left(engine, parts[0]) == [0]
        assert left(engine, parts[1]) == [4]


async def test_what_requests_took_on_equal_terms_of_two_tiers_is_undone_once() -> None:
    """One limit was asked, for the sum of their costs, though each tier has a quota of its own."""
    equal = TIERS.replace("limit: 8", "limit: 4")
    async with AsyncEngine(load(equal), clock=ManualClock()) as engine:
        await engine.check(user(cost=2).request)
        rulings = await engine.check_together([user(), GOLD])
        assert [ruling.limits[0].decision.used for ruling in rulings] == [4, 4]
        await engine.undo(rulings)
        assert (await engine.peek(user().request)).limits[0].decision.used == 2


async def test_what_each_request_took_from_a_shadow_rule_is_undone() -> None:
    async with AsyncEngine(load(TIERS.replace("limit: 4", "limit: 4, shadow: true")), clock=ManualClock()) as engine:
        await engine.check(user().request)
        rulings = await engine.check_together([user(), user(cost=2), GOLD])
        assert [ruling.shadow_decisions[0].used for ruling in rulings] == [2, 4, 5]
        await engine.undo(rulings)
        assert (await engine.peek(user().request)).shadow_decisions[0].used == 1


def played(flow: JointFlow, answer: Callable[[Call], Decision]) -> tuple[list[list[Verb]], tuple[Ruling, ...]]:
    """Return what a flow asked for, call by call and at the same time or not, and how it ended."""
    asked: list[list[Verb]] = []
    try:
        calls = next(flow)
        while True:
            asked.append([call.verb for call in calls])
            calls = flow.send([answer(call) for call in calls])
    except StopIteration as stop:
        return asked, stop.value


def joint(rules: str, *parts: JointRequest) -> JointFlow:
    return JointCheck(Policy(load(rules)), parts, 0).flow()


def test_a_refusal_takes_nothing_whatever_the_costs_are() -> None:
    store, rules = MemoryStore(clock=ManualClock()), RULES.replace("shadow: true", "enabled: false")
    played(joint(rules, user(cost=3)), store.run)
    asked, rulings = played(joint(rules, ip(cost=2), user()), store.run)
    assert asked == [[Verb.CHECK]]
    assert [ruling.allowed for ruling in rulings] == [True, False]
    assert [limit.decision.remaining for ruling in rulings for limit in ruling.limits] == [5, 0]


def is_gold(call: Call) -> bool:
    return call.plan[0].quota.limit == 8


def test_a_limit_on_two_terms_is_looked_at_first() -> None:
    store = MemoryStore(clock=ManualClock())
    played(joint(TIERS, user(cost=4)), store.run)
    asked, rulings = played(joint(TIERS, GOLD, user()), store.run)
    assert asked == [[Verb.PEEK, Verb.PEEK]]
    assert [ruling.allowed for ruling in rulings] == [True, False]


def test_what_was_taken_on_other_terms_is_refunded_if_others_are_quicker() -> None:
    store = MemoryStore(clock=ManualClock())

    def raced(call: Call) -> Decision:
        if call.verb is Verb.CHECK and is_gold(call):
            store.run(Call(Verb.CHECK, call.plan, 7))
        return store.run(call)

    asked, rulings = played(joint(TIERS, user(), GOLD), raced)
    assert asked == [[Verb.PEEK, Verb.PEEK], [Verb.CHECK], [Verb.CHECK], [Verb.REFUND]]
    decisions = [ruling.decision for ruling in rulings]
    assert [(each.allowed, each.remaining) for each in decisions if each is not None] == [(True, 0), (False, 0)]
    ((after,),) = (ruling.limits for ruling in played(joint(TIERS, GOLD), store.run)[1])
    assert (after.decision.allowed, after.decision.used) == (True, 8)


@pytest.mark.parametrize("gold_is_away", [False, True])
def test_nothing_is_refunded_to_those_who_did_not_take_it(gold_is_away: bool) -> None:  # noqa: FBT001  pytest passes it
    """The store goes away, or comes back, between two plans; whoever answers then knows nothing of the first one."""
    store, local = MemoryStore(clock=ManualClock()), MemoryStore(clock=ManualClock())

    def changing(call: Call) -> Decision:
        if call.verb is Verb.PEEK:
            return store.run(call)
        is_away = call.charge.degraded != "" if call.charge else is_gold(call) == gold_is_away
        answering = local if is_away else store
        if is_gold(call):
            answering.run(Call(Verb.CHECK, call.plan, 8))  # others are quicker
        decision = answering.run(call)
        return marked(decision, "storage_unavailable") if is_away else decision

    asked, rulings = played(joint(TIERS, user(), GOLD), changing)
    assert asked == [[Verb.PEEK, Verb.PEEK], [Verb.CHECK], [Verb.CHECK], [Verb.REFUND]]
    assert [ruling.allowed for ruling in rulings] == [True, False]
    assert [(len(each), rulings[0].limits[0].decision.used) for each in (local, store) if len(each)] == [(1, 0), (1, 0)]


def test_answers_without_a_store_say_so(make: Make) -> None:
    engine = make(load(RULES), store="redis://127.0.0.1:1/0?timeout=0.1")
    parts = [JointRequest(Request({"user": "ada", "ip": "203.0.113.9"})), user("bob")]
    assert {ruling.degraded for ruling in engine.check_together(parts)} == {"storage_unavailable"}


WHO = st.sampled_from(["ada", "bob"])
PARTS = st.lists(st.builds(user, WHO, st.integers(0, 3)), min_size=1, max_size=4)


@given(st.lists(PARTS, max_size=8))
def test_no_limit_ever_admits_more_than_it_has(asked: list[list[JointRequest]]) -> None:
    with Engine(load(RULES), clock=ManualClock()) as engine:
        used = {"ada": 0, "bob": 0}
        for parts in asked:
            rulings = engine.check_together(parts)
            if all(rulings):
                for part in parts:
                    used[part.request.principal["user"]] += part.request.cost
            assert [3 - each for each in used.values()] == left(engine, user("ada"), user("bob"))
