"""Refunds that name their charge: afterwards there is never more left than had the charge not been made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Algorithm, Calendar, Quota
from headgate.core.algorithms import State
from headgate.core.plan import Call, Charge, Limit, Plan, Verb, decide
from tests.core.quotas import QUEUES, gaps, odd_buckets, quotas

START, SECOND = 1_750_000_000_000_000, 1_000_000
DAY = 86_400 * SECOND
BUCKETS = [algorithm for algorithm in Algorithm if algorithm.is_bucket]
KINDS = [
    *(Quota(5, SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    Quota(5, SECOND, refill_every_us=SECOND // 4),
    Quota.one_off(5, keep_us=SECOND),
    Quota.per(5, Calendar("day", "Europe/Berlin")),
]


def plan_of(*limits: Quota) -> Plan:
    return tuple([Limit(f"{place}|{quota.shape}", "ada", quota) for place, quota in enumerate(limits)])


class Key:
    def __init__(self, quota: Quota) -> None:
        self.plan = plan_of(quota)
        self.state: State = None

    def check(self, cost: int, now: int) -> bool:
        states: list[State] = [self.state]
        (self.state,), decision = decide(Call(Verb.CHECK, self.plan, cost), states, now)
        return decision.allowed

    def refund(self, cost: int, now: int, since: int | None = None) -> int:
        charge = None if since is None else Charge((since,))
        call = Call(Verb.REFUND, self.plan, cost, charge=charge)
        (self.state,), decision = decide(call, [self.state], now)
        return decision.remaining

    def left(self, now: int) -> int:
        return decide(Call(Verb.PEEK, self.plan), [self.state], now)[1].remaining


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_every_kind_of_limit_is_refunded_what_counts(quota: Quota) -> None:
    later = START + (3 * DAY if quota.calendar else 3 * SECOND)
    unused = Key(quota)
    assert unused.refund(3, START) == unused.refund(3, START, START) == 5
    assert unused.state is None, "nothing comes of nothing"

    at_once = Key(quota)
    at_once.check(3, START)
    assert at_once.refund(3, START, START) == 5
    assert at_once.check(5, START)

    too_many = Key(quota)
    too_many.check(3, START)
    assert too_many.refund(100_000, START, START) == (2 if quota.queue or quota.refill_every_us > 1 else 5)

    behind = Key(quota)
    behind.check(3, START)
    behind.refund(3, START - 1, START)
    assert behind.left(START) == 2, "the clock is behind the charge"

    for since, left in ((START, 0), (None, 5)):  # only a plain number is taken off the newest use, whatever that was
        used_again = Key(quota)
        assert used_again.check(5, START)
        assert used_again.check(5, later)
        assert used_again.refund(5, later, since) == left
        assert used_again.check(1, later) == (left > 0)


class TestSlidingWindowLog:
    """The charge is taken out wherever it is, so that what is left is exact."""

    quota = Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_LOG)

    def used(self) -> Key:
        key = Key(self.quota)
        for place, cost in enumerate((1, 2, 1, 1)):
            assert key.check(cost, START + place * 100_000)
        return key

    @pytest.mark.parametrize(("since", "cost", "left"), [(0, 1, 1), (100_000, 2, 2), (100_000, 1, 1), (300_000, 1, 1)])
    def test_is_found_by_its_time(self, since: int, cost: int, left: int) -> None:
        key = self.used()
        assert key.refund(cost, START + 400_000, START + since) == left
        assert key.left(START + 400_000) == left

    @pytest.mark.parametrize("since", [-1, 1, 99_999, 250_000, 350_000])
    def test_nothing_was_charged_then(self, since: int) -> None:
        assert self.used().refund(1, START + 400_000, START + since) == 0

    def test_the_others_end_when_they_would_have(self) -> None:
        """An earlier version gave the newest back, so that the older one ended too early."""
        key = self.used()
        key.refund(2, START + 400_000, START + 100_000)
        assert [key.left(START + SECOND + after) for after in (-1, 0, 100_000, 200_000, 300_000)] == [2, 3, 3, 4, 5]

    def test_entries_that_come_to_nothing_do_not_pile_up(self) -> None:
        key = Key(self.quota)
        for now in range(START, START + 1000, 2):
            key.check(1, now)
            key.check(1, now + 1)
            key.refund(1, now + 1, now)
            key.refund(1, now + 1, now + 1)
        assert key.state is not None
        assert (key.state[2], key.left(START + 1000)) == (0, 5)


def test_a_sliding_counter_refunds_to_the_window_that_was_charged() -> None:
    key = Key(Quota(10, SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER))
    key.check(6, START)
    key.check(2, START + SECOND)
    assert key.left(START + 1_500_000) == 5
    assert key.refund(4, START + 1_500_000, START) == 7  # half of them still counted
    assert key.refund(9, START + 1_500_000, START + SECOND) == 9
    assert key.refund(1, START + 1_500_000, START - 1) == 9


def test_a_calendar_refunds_within_the_period_that_was_charged() -> None:
    quota = Quota.per(5, Calendar("day", "Europe/Berlin"))
    key, (start, end) = Key(quota), Calendar("day", "Europe/Berlin").bounds(START)
    key.check(3, start)
    assert key.refund(1, end - 1, start) == 3
    assert key.refund(1, end - 1, start - 1) == 3
    assert key.refund(1, start - 1, start - 1) == 3  # the clock fell back into the day before
    assert key.refund(1, start - 3 * DAY, start - 3 * DAY) == 4  # so far that it was pulled there


def test_a_bucket_in_steps_refunds_what_did_not_begin_the_steps() -> None:
    key = Key(Quota(5, SECOND, refill_every_us=SECOND // 4))
    key.check(1, START)
    key.check(2, START + 100_000)
    assert key.refund(2, START + 200_000, START + 100_000) == 4
    key.check(2, START + 200_000)
    assert key.refund(2, START + 250_000, START + 200_000) == 3  # a step came in between
    assert key.refund(1, START + 250_000, START) == 3


def test_an_allowance_without_refill_is_refunded_while_it_is_kept() -> None:
    key = Key(Quota.one_off(5, keep_us=SECOND))
    key.check(2, START)
    key.check(2, START + SECOND - 1)
    assert key.refund(2, START + SECOND - 1, START) == 3
    assert key.refund(2, START + SECOND, START) == 3


@pytest.mark.parametrize("algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.GCRA])
def test_a_refund_above_a_lowered_capacity(algorithm: Algorithm) -> None:
    plan, lowered = (plan_of(Quota(limit, SECOND, algorithm=algorithm, burst=2)) for limit in (10, 3))
    states, _ = decide(Call(Verb.CHECK, plan, 12), [None], START)
    states, decision = decide(Call(Verb.REFUND, lowered, 100_000), states, START)
    assert (decision.remaining, decision.reset_after_us) == (5, 0)
    assert states != [None]


@pytest.mark.parametrize(
    ("quota", "between"),
    [
        *((Quota(10, 60 * SECOND, algorithm=each), Quota(10**6, 60 * SECOND, algorithm=each)) for each in BUCKETS),
        (Quota.one_off(10, keep_us=DAY), Quota(10**6, DAY)),
        (Quota(10, DAY), Quota.one_off(11, keep_us=DAY)),
    ],
    ids=str,
)
def test_a_charge_stays_once_the_limit_was_another_even_if_it_is_back(quota: Quota, between: Quota) -> None:
    """In between, what was charged may have come back much faster."""
    key, other = Key(quota), Key(between)
    assert key.check(10, START)
    other.state = key.state
    assert other.check(1, START + SECOND)
    key.state = other.state
    left = key.left(START + 2 * SECOND)
    assert key.refund(10, START + 2 * SECOND, START) == left


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_after_a_full_refill_charges_are_refunded_again(algorithm: Algorithm) -> None:
    key, other = (Key(Quota(limit, 60 * SECOND, algorithm=algorithm)) for limit in (10, 1000))
    key.check(5, START)
    other.state = key.state
    other.check(1, START)
    key.state, later = other.state, START + 120 * SECOND
    key.check(5, later)
    key.check(1, later)
    assert key.refund(5, later, later) == 9


def test_every_limit_of_a_plan_gets_its_part() -> None:
    plan = plan_of(Quota(5, SECOND), Quota(5, 10 * SECOND), Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW))
    states, _ = decide(Call(Verb.CHECK, plan, 4), [None] * 3, START)
    undo = Call(Verb.REFUND, plan, 4, charge=Charge((START,)))
    _, decision = decide(undo, states, START + 500_000)
    assert [part.remaining for part in decision.limits] == [5, 5, 5]
    _, decision = decide(undo, states, START + SECOND)
    assert [part.remaining for part in decision.limits] == [5, 5, 5]


def test_a_refund_never_makes_two_requests_share_a_turn() -> None:
    """A request after the charge has its turn behind it; the next one must not get the same turn."""
    queue = plan_of(Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True))
    states, _ = decide(Call(Verb.CHECK, queue), [None], START)
    states, second = decide(Call(Verb.CHECK, queue), states, START)
    states, _ = decide(Call(Verb.REFUND, queue, charge=Charge((START,))), states, START)
    assert decide(Call(Verb.CHECK, queue), states, START)[1].delay_us > second.delay_us


class Histories:
    """One limit three times: with a charge that is refunded, without the charge, and with it for good."""

    def __init__(self, quota: Quota, now: int) -> None:
        self.now, self.is_stepwise = now, quota.refill_every_us > 1
        self.key, self.without, self.kept = Key(quota), Key(quota), Key(quota)
        self.is_undone = self.is_kept = True

    def check(self, cost: int) -> None:
        """What is admitted with the charge is admitted without it."""
        if self.key.check(cost, self.now):
            is_admitted = self.without.check(cost, self.now)
            self.is_undone &= is_admitted
            self.is_kept &= self.kept.check(cost, self.now)
            assert is_admitted or (self.is_stepwise and self.is_kept)

    def charge(self, cost: int) -> bool:
        self.kept.check(cost, self.now)
        return self.key.check(cost, self.now)

    def compare(self) -> None:
        """There is not more left than without the charge.

        A bucket that refills in steps does so from its first use on, be that a charge. Had the charge not been made,
        the steps might come later; so the charge stays for good there, or all is exactly as if it had not been made.
        """
        left, without = self.key.left(self.now), self.without.left(self.now)
        self.is_undone &= left == without
        self.is_kept &= left == self.kept.left(self.now)
        assert self.is_undone or self.is_kept if self.is_stepwise else left <= without


@settings(max_examples=200)
@given(st.one_of(quotas(), QUEUES, odd_buckets()), st.data())
def test_never_is_more_left_than_without_the_charge(quota: Quota, data: st.DataObject) -> None:
    between, costs = gaps(quota), st.integers(1, min(quota.capacity, 8))
    requests = st.lists(st.tuples(between, costs), max_size=4)
    three = Histories(quota, START + data.draw(st.integers(0, 2 * quota.window_us)))
    for gap, other in data.draw(requests):
        three.now += gap
        three.check(other)
    three.now += data.draw(between)
    cost, since = data.draw(costs), three.now
    if not three.charge(cost):
        return
    for gap, other in data.draw(requests):
        three.now += gap
        three.check(other)
    three.now += data.draw(between)
    assert three.key.refund(cost, three.now, since) >= three.kept.left(three.now)
    for gap, other in [(0, 1), *data.draw(requests)]:
        three.now += gap
        three.compare()
        three.check(other)
    for gap in data.draw(st.lists(between, max_size=4)):
        three.now += gap
        three.compare()


@given(quotas(), st.data())
def test_refunded_at_once_it_is_as_if_never_made(quota: Quota, data: st.DataObject) -> None:
    """Also when others were admitted in the same microsecond, as all are that travel together."""
    between, costs = gaps(quota), st.integers(1, min(quota.capacity, 8))
    three = Histories(quota, START + data.draw(st.integers(0, 2 * quota.window_us)))
    for gap, other in data.draw(st.lists(st.tuples(between, costs), max_size=4)):
        three.now += gap
        three.check(other)
    three.now += data.draw(between)
    cost = data.draw(costs)
    if not three.charge(cost):
        return
    for other in data.draw(st.lists(costs, max_size=2)):
        three.check(other)
    three.key.refund(cost, three.now, three.now)
    for gap in [0, *data.draw(st.lists(between, max_size=4))]:
        three.now += gap
        assert three.key.left(three.now) == three.without.left(three.now)
