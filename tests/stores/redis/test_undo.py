"""Refunding a charge: afterwards there is never more left than had the charge not been made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm, State
from headgate.core.errors import InvalidQuota
from headgate.core.plan import Call, Charge, Family, Plan, Verb, decide
from headgate.core.quota import Quota
from headgate.stores.redis.script import key_of
from headgate.testing import ManualClock
from headgate.testing.conformance import QUOTAS, family
from headgate.testing.samples import names
from tests.core.quotas import odd_buckets, quotas
from tests.servers import RedisServer
from tests.stores.redis.script import Script

START = ManualClock.START
SECOND = 1_000_000
_QUEUES = st.builds(
    lambda limit, window, burst: Quota(limit, window, burst=burst, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    st.integers(1, 12),
    st.integers(1, 10**7),
    st.integers(0, 6),
)
ANY = st.one_of(quotas(), odd_buckets(), _QUEUES)


@pytest.fixture(scope="module")
def script(server: RedisServer) -> Iterator[Script]:
    with Script(server) as script:
        yield script


class Histories:
    """One limit four times: on the server, and in the pure core alike, without the charge, and with it for good."""

    def __init__(self, script: Script, quota: Quota, now: int) -> None:
        self.script, self.quota, self.now = script, quota, now
        self.plan = family(quota).plan("user")
        self.state: State = None
        self.without: State = None
        self.kept: State = None
        self.is_stepwise = quota.refill_every_us > 1
        self.kept_so_far = self.undone_so_far = True

    def check(self, cost: int) -> None:
        """Somebody asks, and what is admitted with the charge is admitted without it."""
        if self._taken(cost):
            self.without, without = self.quota.step(self.without, cost, self.now)
            self.kept, kept = self.quota.step(self.kept, cost, self.now)
            self.undone_so_far &= without.allowed
            self.kept_so_far &= kept.allowed
            assert without or (self.is_stepwise and self.kept_so_far)

    def charge(self, cost: int) -> bool:
        self.kept, _ = self.quota.step(self.kept, cost, self.now)
        return self._taken(cost)

    def undo(self, cost: int, since: int) -> None:
        call = Call(Verb.REFUND, self.plan, cost, charge=Charge((since,)))
        (self.state,), decision = decide(call, [self.state], self.now)
        assert self.script.refund(self.plan, cost, since, self.now) == decision

    def left(self) -> int:
        return self.script.peek(self.plan, self.now).remaining

    def left_without(self) -> int:
        return self.quota.step(self.without, 0, self.now)[1].remaining

    def left_if_kept(self) -> int:
        return self.quota.step(self.kept, 0, self.now)[1].remaining

    def compare(self) -> None:
        """Is there not more left than allowed?

        A bucket that refills in steps does so from its first use on, be that a charge. Had the charge not been made,
        the steps might come later; so the charge stays for good there, or all is exactly as if it had not been made.
        """
        left = self.left()
        if not self.is_stepwise:
            assert left <= self.left_without()
        self.undone_so_far &= left == self.left_without()
        self.kept_so_far &= left == self.left_if_kept()
        assert not self.is_stepwise or self.undone_so_far or self.kept_so_far

    def _taken(self, cost: int) -> bool:
        self.state, decision = self.quota.step(self.state, cost, self.now)
        assert self.script.check(self.plan, cost, self.now) == decision
        return decision.allowed


def gaps(quota: Quota) -> st.SearchStrategy[int]:
    """Return times between requests that matter for `quota`: mostly short ones."""
    interval = max(1, quota.window_us // max(1, quota.limit))
    short = st.sampled_from([0, 0, 0, 1, interval // 2, interval, quota.refill_every_us])
    return st.one_of(short, st.integers(0, 2 * interval), st.integers(0, 2 * quota.window_us))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Quota, int, list[list[tuple[int, int]]]]:
    """A quota, the charge, and what others ask for before it, before the undo and after that, as (gap, cost)."""
    quota = draw(ANY)
    costs = st.integers(1, min(quota.capacity, 8))
    requests = st.lists(st.tuples(gaps(quota), costs), max_size=4)
    return quota, draw(costs), [draw(requests), draw(requests), draw(requests)]


@settings(max_examples=200)
@given(histories(), st.data())
def test_never_is_more_left_than_without_the_charge(
    script: Script, history: tuple[Quota, int, list[list[tuple[int, int]]]], data: st.DataObject
) -> None:
    quota, cost, (before, between, later) = history
    both = Histories(script, quota, START + data.draw(st.integers(0, 2 * quota.window_us)))
    for gap, other in before:
        both.now += gap
        both.check(other)
    both.now += data.draw(gaps(quota))
    since = both.now
    if not both.charge(cost):
        return
    for gap, other in between:
        both.now += gap
        both.check(other)
    both.now += data.draw(gaps(quota))
    both.undo(cost, since)
    assert both.left() >= both.left_if_kept()
    for gap, other in [(0, 1), *later]:
        both.now += gap
        both.compare()
        both.check(other)
    for _ in range(4):
        both.now += data.draw(gaps(quota))
        both.compare()


@given(quotas(), st.data())
def test_undone_at_once_it_is_as_if_never_made(script: Script, quota: Quota, data: st.DataObject) -> None:
    """Also when others were admitted in the same microsecond, as all are that travel together."""
    both = Histories(script, quota, START + data.draw(st.integers(0, 2 * quota.window_us)))
    costs = st.integers(1, min(quota.capacity, 8))
    for gap, other in data.draw(st.lists(st.tuples(gaps(quota), costs), max_size=4)):
        both.now += gap
        both.check(other)
    both.now += data.draw(gaps(quota))
    cost = data.draw(costs)
    if not both.charge(cost):
        return
    for other in data.draw(st.lists(costs, max_size=2)):
        both.check(other)
    both.undo(cost, both.now)
    for gap in [0, *data.draw(st.lists(gaps(quota), max_size=4))]:
        both.now += gap
        assert both.left() == both.left_without()


def test_nobody_gets_a_turn_in_a_queue_that_another_has(script: Script) -> None:
    """Who came after the charge was told to wait for it; the next one must not be sent there as well."""
    plan = family(Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True)).plan("user")
    script.check(plan, 1, START)
    second = script.check(plan, 1, START).delay_us
    script.refund(plan, 1, START, START)
    assert script.check(plan, 1, START).delay_us > second


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_alone_a_charge_is_taken_back_whole(script: Script, quota: Quota) -> None:
    plan = family(quota).plan("user")
    script.check(plan, 3, START)
    assert script.refund(plan, 3, START, START).remaining == 5
    assert script.check(plan, 5, START)


@pytest.mark.parametrize(
    "quota", [quota for quota in QUOTAS if quota.limit == 5 and quota.algorithm.is_bucket], ids=str
)
def test_what_may_have_drained_since_is_not_given_back(script: Script, quota: Quota) -> None:
    """Five per second: in 0.2 s one unit drains, be it of the charge or of what was there before."""
    plan = family(quota).plan("user")
    script.check(plan, 2, START)
    script.check(plan, 2, START)
    later = START + SECOND // 5
    assert script.peek(plan, later).remaining == (1 if quota.refill_every_us > 1 else 2)
    given_back = 2 if quota.refill_every_us > 1 else 1
    before = script.peek(plan, later).remaining
    after = script.refund(plan, 2, START, later).remaining
    assert after - before <= given_back


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_a_charge_that_is_forgotten_is_not_given_back(script: Script, quota: Quota) -> None:
    """A window later others have used the limit up; not a unit of theirs is given away."""
    plan = family(quota).plan("user")
    script.check(plan, 3, START)
    later = START + 20 * SECOND
    assert script.check(plan, 5, later)
    script.refund(plan, 3, START, later)
    assert not script.check(plan, 1, later)


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_when_the_clock_falls_back_the_charge_stays(script: Script, quota: Quota) -> None:
    plan = family(quota).plan("user")
    script.check(plan, 3, START)
    script.refund(plan, 3, START, START - 1)
    assert script.peek(plan, START).remaining == 2


@pytest.mark.parametrize("quota", [quota for quota in QUOTAS if quota.limit], ids=str)
def test_after_a_change_of_the_limit_a_bucket_keeps_the_charge(script: Script, quota: Quota) -> None:
    name = family(quota).spaces[0].partition("|")[0]
    plan, raised = (Family(name, [each]).plan("user") for each in (quota, Quota(9, SECOND, algorithm=quota.algorithm)))
    script.check(plan, 3, START)
    script.check(raised, 1, START)
    after = script.refund(plan, 3, START, START).remaining
    assert after == (1 if quota.algorithm.is_bucket else 4)


def test_a_charge_that_others_refill_by_stays(script: Script) -> None:
    """It was the first use, from which the steps are counted: without it theirs would come later."""
    plan = family(Quota(5, SECOND, refill_every_us=SECOND // 4)).plan("user")
    script.check(plan, 1, START)
    script.check(plan, 1, START + 100_000)
    assert script.refund(plan, 1, START, START + 200_000).remaining == 3


def test_a_key_that_is_gone_stays_gone(script: Script, server: RedisServer) -> None:
    plan = family(QUOTAS[0]).plan("user")
    assert script.refund(plan, 3, START, START).remaining == 5
    assert server.command("EXISTS", key_of(plan[0].space, plan[0].principal).decode()) == "0"


def test_every_limit_of_a_plan_is_undone(script: Script) -> None:
    plan = family(*[Quota(5, SECOND * (1 + place), algorithm=each) for place, each in enumerate(Algorithm)]).plan(
        "user"
    )
    script.check(plan, 2, START)
    script.check(plan, 3, START)
    undone = script.refund(plan, 3, START, START)
    assert [part.remaining for part in undone.limits] == [3] * 6


def state_after(checks: list[tuple[Plan, int, int]]) -> State:
    """Return the state of a limit after checks of it, each by its plan, cost and time."""
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
        now += gap or quota.queue  # equal ones cannot be told apart
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
    key = key_of(plan[0].space, plan[0].principal).decode()
    script.attempt(plan, 3, START)
    assert script.undo(plan, 3, START, START).remaining == quota.capacity
    assert server.command("EXISTS", key) == "0" or quota.algorithm is Algorithm.SLIDING_WINDOW_LOG
    script.check(plan, 1, START)
    assert script.attempt(plan, 4, START + 5).state == "throttled"
    assert script.undo(plan, 4, START + 5, START + 9).state == "normal"
    assert script.undo(plan, 4, START + 5, START + 9).remaining == 4, "once"


def test_in_a_queue_equal_attempts_of_one_moment_are_undone_together_or_not_at_all(script: Script) -> None:
    """They cannot be told apart, and one that was admitted was told its turn."""
    plan = family(Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True)).plan("user")
    script.attempt(plan, 1, START)
    second = script.attempt(plan, 1, START)
    assert script.undo(plan, 1, START, START).remaining == second.remaining
    assert script.undo(plan, 1, START, START).remaining == 5


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_attempts_of_different_tiers_at_one_key_are_undone(script: Script, quota: Quota) -> None:
    name = next(names)
    gold = Family(name, [replace(quota, limit=9)]).plan("user")
    silver = Family(name, [quota]).plan("user")
    script.attempt(gold, 1, START)
    script.attempt(silver, 2, START + 1)
    script.attempt(gold, 1, START + 2)
    for plan, cost, when in ((gold, 1, START + 2), (silver, 2, START + 1), (gold, 1, START)):
        script.undo(plan, cost, when, START + 3)
    assert script.peek(silver, START + 3).remaining == quota.capacity


@pytest.mark.parametrize("quota", [quota for quota in QUOTAS if not quota.queue], ids=str)
def test_of_equal_attempts_of_one_moment_the_last_is_undone(script: Script, quota: Quota) -> None:
    """What another tier admitted between them stays before it, so everything comes back as it was used."""
    name = next(names)
    gold = Family(name, [replace(quota, limit=9)]).plan("user")
    silver = Family(name, [quota]).plan("user")
    script.attempt(silver, 1, START)
    script.check(gold, 1, START)
    before = script.peek(silver, START)
    script.attempt(silver, 1, START)
    assert script.undo(silver, 1, START, START) == before


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
    assert int(server.command("STRLEN", key)) < 2000
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
    key = key_of(plan[0].space, plan[0].principal).decode()
    for number in range(200):
        script.attempt(plan, 1, START + number)
    assert int(server.command("STRLEN", key)) < 1200
    script.check(plan, 1, START + 5 * SECOND)
    assert int(server.command("STRLEN", key)) < 40


def test_the_record_of_an_attempt_is_forgotten_with_it(script: Script) -> None:
    plan = family(QUOTAS[0]).plan("user")
    token = b"of this one test"
    script.attempt(plan, 3, START, token)
    script.undo(plan, 3, START, START, token)
    assert script.once(plan, 4, START, token).remaining == 1
