"""Refunding a charge: afterwards there is never more left than had the charge not been made."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Algorithm, InvalidQuota, Quota
from headgate.core.algorithms import State
from headgate.core.plan import Call, Charge, Family, Plan, Verb, decide
from headgate.stores.redis.script import key_of
from headgate.testing import ManualClock
from headgate.testing.conformance import QUOTAS, family
from headgate.testing.samples import names
from tests.core.quotas import QUEUES, calendars, gaps, odd_buckets, quotas
from tests.servers import RedisServer
from tests.stores.redis.script import Script

START = ManualClock.START
SECOND = 1_000_000
ANY = st.one_of(quotas(), odd_buckets(), QUEUES)


@settings(max_examples=200)
@given(st.one_of(ANY, calendars), st.data())
def test_refunds_of_charges_are_those_of_the_core(script: Script, quota: Quota, data: st.DataObject) -> None:
    """The laws of these refunds are shown for the core; see `tests.core.test_refund`."""
    plan, now = family(quota).plan("user"), START + data.draw(st.integers(0, 2 * quota.window_us))
    state, charges = None, list[tuple[int, int]]()
    costs, kinds = st.integers(1, min(quota.capacity, 8)), st.sampled_from(["check", "check", "refund"])
    for gap, cost, kind in data.draw(st.lists(st.tuples(gaps(quota), costs, kinds), max_size=16)):
        now += gap
        call = Call(Verb.CHECK, plan, cost)
        if kind == "refund" and charges:
            charged, since = data.draw(st.sampled_from(charges))
            call = Call(Verb.REFUND, plan, charged, charge=Charge((since,)))
        else:
            charges.append((cost, now))
        for each in (call, Call(Verb.PEEK, plan)):
            (state,), decision = decide(each, [state], now)
            assert script.run(each, now) == decision


def test_a_key_that_is_gone_stays_gone(script: Script, server: RedisServer) -> None:
    plan = family(QUOTAS[0]).plan("user")
    assert script.refund(plan, 3, START, START).remaining == 5
    assert server.ask("EXISTS", key_of(plan[0].space, plan[0].principal)) == 0


def state_after(checks: list[tuple[Plan, int, int]]) -> State:
    state: State = None
    for plan, cost, when in checks:
        state, _ = plan[0].quota.step(state, cost, when)
    return state


@settings(max_examples=100)
@given(
    ANY,
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 1_000, 90_001]), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans()
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_an_attempt_that_is_undone_is_as_if_never_made(
    script: Script, quota: Quota, asked: list[tuple[int, int, bool, bool, bool]], chance: random.Random
) -> None:
    """Whatever others of either tier took in between, undone in any order; in a queue the last first, or it stays."""
    name = next(names)
    plan = Family(name, [quota]).plan("user")
    try:
        other = Family(name, [replace(quota, limit=quota.limit + 7)]).plan("user")  # of another tier
    except InvalidQuota:
        other = plan
    now, history, undone, gone = START, list[tuple[Plan, int, int]](), list[tuple[Plan, int, int]](), set[int]()
    if quota.limit and script.check(other, 1, now):
        history.append((other, 1, now))
    for gap, cost, is_attempt, is_refused, is_other in asked:
        now += gap or quota.queue  # equal ones are not distinguished
        made = (other if is_other else plan, min(cost, quota.capacity), now)
        if (script.attempt if is_attempt else script.check)(*made):
            history.append(made)
            if is_attempt and is_refused:
                undone.append(made)
    chance.shuffle(undone)
    for made in undone:
        script.undo(*made, now)
        alike = [at for at, each in enumerate(history) if each == made and at not in gone]
        gone.add(alike[0 if quota.queue else -1])
    while len(history) - 1 in gone:
        history.pop()
    state = state_after([each for at, each in enumerate(history) if quota.queue or at not in gone])
    for later in (now, now + SECOND // 3):
        assert script.peek(plan, later) == decide(Call(Verb.PEEK, plan), [state], later)[1]


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_what_is_undone_leaves_a_key_as_it_was(script: Script, server: RedisServer, quota: Quota) -> None:
    plan = family(quota).plan("user")
    key = key_of(plan[0].space, plan[0].principal)
    script.attempt(plan, 3, START)
    assert script.undo(plan, 3, START, START).remaining == quota.capacity
    assert server.ask("EXISTS", key) == 0 or quota.algorithm is Algorithm.SLIDING_WINDOW_LOG
    script.check(plan, 1, START)
    assert script.attempt(plan, 4, START + 5).state == "throttled"
    assert script.undo(plan, 4, START + 5, START + 9).state == "normal"
    assert script.undo(plan, 4, START + 5, START + 9).remaining == 4, "once"


def test_in_a_queue_equal_attempts_of_one_moment_are_undone_together_or_not_at_all(script: Script) -> None:
    """They are not distinguished, and the turn of each was returned."""
    plan = family(Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True)).plan("user")
    script.attempt(plan, 1, START)
    second = script.attempt(plan, 1, START)
    assert script.undo(plan, 1, START, START).remaining == second.remaining
    assert script.undo(plan, 1, START, START).remaining == 5


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_an_attempt_is_undone_after_more_checks_than_the_journal_keeps(script: Script, quota: Quota) -> None:
    """A queue keeps it, for others have their turns behind it."""
    plan = family(replace(quota, limit=400)).plan("user")
    script.check(plan, 1, START)
    for number in range(200):
        script.attempt(plan, 1 + number % 2, START + 1)
    for number in range(200):
        script.undo(plan, 1 + number % 2, START + 1, START + 2)
    left = script.peek(plan, START + 2).remaining
    assert left == 399 + quota.burst or (quota.queue and left >= 99)


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_however_many_checks_are_in_between_never_is_more_left_than_without_the_attempts(
    script: Script, quota: Quota
) -> None:
    chance, window = random.Random(str(quota)), quota.window_us
    name = next(names)
    tiers = [Family(name, [replace(quota, limit=limit)]).plan("user") for limit in (300, 200)]
    now, kept, undone = START, list[tuple[Plan, int, int]](), list[tuple[Plan, int, int]]()
    for _ in range(150):
        now += chance.choice([0, 1, window // 400, window // 100])
        made = (chance.choice(tiers[: 1 + chance.randrange(2)]), chance.randint(1, 2), now)
        if script.attempt(*made):
            (undone if chance.random() < 0.7 else kept).append(made)
    chance.shuffle(undone)
    for made in undone:
        script.undo(*made, now)
    for later in (now, now + window // 3, now + window):
        for plan in tiers:
            without = decide(Call(Verb.PEEK, plan), [state_after(kept)], later)[1]
            assert script.peek(plan, later).remaining <= without.remaining


def test_of_many_quotas_at_one_key_the_journal_keeps_the_last(script: Script, server: RedisServer) -> None:
    name = next(names)
    plans = [Family(name, [Quota(1000 + number, SECOND)]).plan("user") for number in range(40)]
    key = key_of(plans[0][0].space, plans[0][0].principal).decode()
    for number in range(400):
        script.attempt(plans[number % 40], 1, START + number)
    assert server.ask("STRLEN", key) < 2000
    left = script.peek(plans[39], START + 400).remaining
    assert script.undo(plans[39], 1, START + 399, START + 400).remaining == left + 1


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_what_was_refunded_or_reset_is_not_undone_as_well(script: Script, quota: Quota) -> None:
    for verb in (Verb.REFUND, Verb.RESET):
        plan = family(quota).plan("user")
        script.attempt(plan, 2, START)
        script.run(Call(verb, plan, 2), START + 1)
        script.check(plan, 2, START + 1)
        assert script.undo(plan, 2, START, START + 1).remaining == 3


def test_the_journal_of_a_key_is_bounded(script: Script, server: RedisServer) -> None:
    plan = family(Quota(1000, SECOND)).plan("user")
    key = key_of(plan[0].space, plan[0].principal)
    for number in range(200):
        script.attempt(plan, 1, START + number)
    assert server.ask("STRLEN", key) < 1200
    script.check(plan, 1, START + 5 * SECOND)
    assert server.ask("STRLEN", key) < 40


def test_the_record_of_an_attempt_is_forgotten_with_it(script: Script) -> None:
    plan = family(QUOTAS[0]).plan("user")
    token = b"of this one test"
    script.attempt(plan, 3, START, token)
    script.undo(plan, 3, START, START, token)
    assert script.once(plan, 4, START, token).remaining == 1
