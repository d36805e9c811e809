"""Refunds that name their charge: afterwards there is never more left than had the charge not been made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Algorithm, Calendar, Quota
from headgate.core.algorithms import State
from headgate.core.plan import Call, Charge, Limit, Plan, Verb, decide
from tests.core.quotas import odd_buckets, quotas

START, SECOND = 1_750_000_000_000_000, 1_000_000
DAY = 86_400 * SECOND
BUCKETS = [Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET, Algorithm.GCRA]
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
    """The state of one key, and what happens to it."""

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
def test_at_once_a_charge_is_given_back_whole(quota: Quota) -> None:
    key = Key(quota)
    key.check(3, START)
    assert key.refund(3, START, START) == 5
    assert key.check(5, START)


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_what_is_over_is_not_given_back(quota: Quota) -> None:
    """All was used, came back, and was used again: nothing of the first use counts any more."""
    key, later = Key(quota), START + (3 * DAY if quota.calendar else 3 * SECOND)
    assert key.check(5, START)
    assert key.check(5, later)
    assert key.refund(5, later, START) == 0
    assert not key.check(1, later)


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_a_plain_number_is_taken_off_the_newest_use(quota: Quota) -> None:
    """Whatever that was for: the bound is then that of what was used without what was given back."""
    key, later = Key(quota), START + (3 * DAY if quota.calendar else 3 * SECOND)
    key.check(5, START)
    key.check(5, later)
    assert key.refund(5, later) == 5


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_nothing_comes_of_nothing(quota: Quota) -> None:
    key = Key(quota)
    assert key.refund(3, START) == key.refund(3, START, START) == 5
    assert key.state is None


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_a_clock_that_falls_behind_the_charge_gives_nothing_back(quota: Quota) -> None:
    key = Key(quota)
    key.check(3, START)
    key.refund(3, START - 1, START)
    assert key.left(START) == 2


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_more_than_was_charged_gives_back_no_more_than_counts(quota: Quota) -> None:
    key = Key(quota)
    key.check(3, START)
    assert key.refund(100_000, START, START) == (2 if quota.queue or quota.refill_every_us > 1 else 5)


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


def test_a_sliding_counter_gives_back_to_the_window_that_was_charged() -> None:
    key = Key(Quota(10, SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER))
    key.check(6, START)
    key.check(2, START + SECOND)
    assert key.left(START + 1_500_000) == 5
    assert key.refund(4, START + 1_500_000, START) == 7  # half of them still counted
    assert key.refund(9, START + 1_500_000, START + SECOND) == 9
    assert key.refund(1, START + 1_500_000, START - 1) == 9


def test_a_calendar_gives_back_within_the_period_that_was_charged() -> None:
    quota = Quota.per(5, Calendar("day", "Europe/Berlin"))
    key, (start, end) = Key(quota), Calendar("day", "Europe/Berlin").bounds(START)
    key.check(3, start)
    assert key.refund(1, end - 1, start) == 3
    assert key.refund(1, end - 1, start - 1) == 3
    assert key.refund(1, start - 1, start - 1) == 3  # the clock fell back into the day before
    assert key.refund(1, start - 3 * DAY, start - 3 * DAY) == 4  # so far that it was pulled there


def test_a_bucket_in_steps_gives_back_what_did_not_begin_the_steps() -> None:
    key = Key(Quota(5, SECOND, refill_every_us=SECOND // 4))
    key.check(1, START)
    key.check(2, START + 100_000)
    assert key.refund(2, START + 200_000, START + 100_000) == 4
    key.check(2, START + 200_000)
    assert key.refund(2, START + 250_000, START + 200_000) == 3  # a step came in between
    assert key.refund(1, START + 250_000, START) == 3


def test_an_allowance_without_refill_is_given_back_while_it_is_remembered() -> None:
    key = Key(Quota.one_off(5, keep_us=SECOND))
    key.check(2, START)
    key.check(2, START + SECOND - 1)
    assert key.refund(2, START + SECOND - 1, START) == 3
    assert key.refund(2, START + SECOND, START) == 3


@pytest.mark.parametrize("algorithm", [Algorithm.TOKEN_BUCKET, Algorithm.GCRA])
def test_more_is_given_back_than_a_lowered_capacity_has(algorithm: Algorithm) -> None:
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
def test_once_nothing_is_used_any_more_charges_are_given_back_again(algorithm: Algorithm) -> None:
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


_QUEUES = st.builds(
    lambda limit, window, burst: Quota(limit, window, burst=burst, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    st.integers(1, 12),
    st.integers(1, 10**7),
    st.integers(0, 6),
)
_STEPLESS = odd_buckets().filter(lambda quota: quota.refill_every_us == 1)  # the steps are those of the first use


@settings(max_examples=200)
@given(st.one_of(quotas(), _QUEUES, _STEPLESS), st.data())
def test_never_is_more_left_than_without_the_charge(quota: Quota, data: st.DataObject) -> None:
    interval = max(1, quota.window_us // max(1, quota.limit))
    gaps = st.one_of(
        st.sampled_from([0, 0, 0, 1, interval // 2, interval]),
        st.integers(0, 2 * interval),
        st.integers(0, 2 * quota.window_us),
    )
    costs = st.integers(1, min(quota.capacity, 8))
    requests = st.lists(st.tuples(gaps, costs), max_size=4)
    key, without = Key(quota), Key(quota)
    now = START + data.draw(st.integers(0, 2 * quota.window_us))

    def others(asked: list[tuple[int, int]]) -> int:
        at = now
        for gap, cost in asked:
            at += gap
            assert key.left(at) <= without.left(at) or charged is None
            if key.check(cost, at):
                assert without.check(cost, at)
        return at + data.draw(gaps)

    charged: int | None = None
    now = others(data.draw(requests))
    cost = data.draw(costs)
    if not key.check(cost, now):
        return
    charged, since = cost, now
    now = others(data.draw(requests))
    before = key.left(now)
    assert before <= key.refund(charged, now, since) <= without.left(now)
    now = others([(0, 1), *data.draw(requests)])
    assert key.left(now) <= without.left(now)
