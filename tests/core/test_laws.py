"""The laws of the core, for every algorithm, on random quotas and random traces."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import floor

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Algorithm, Decision, Quota
from headgate.core.algorithms import State, void_at
from headgate.core.calendar import DAY_US
from tests.core.oracle import Oracle
from tests.core.quotas import ALGORITHMS, calendar_traces, calendars, odd_buckets, quotas, traces

ANY = st.one_of(quotas(), odd_buckets(), calendars)


def play(quota: Quota, trace: list[tuple[int, int]]) -> State:
    state: State = None
    for now, cost in trace:
        state, _ = quota.step(state, cost, now)
    return state


def ask(quota: Quota, state: State, cost: int, now: int) -> Decision:
    return quota.step(state, cost, now)[1]


def rounded(quota: Quota) -> int:
    """Return how many units less than the definition allows `quota` may report, since it rounds."""
    if quota.grain_us == 1:
        return 1 if quota.rounding else 0
    return 1 + quota.limit * quota.grain_us // quota.window_us


@given(st.data())
def test_agrees_with_the_oracle(data: st.DataObject) -> None:
    """Never admits more than the definition allows, and reports at most one unit less than there is."""
    quota = data.draw(quotas())
    oracle, state = Oracle(quota), None
    slack = rounded(quota)
    for now, cost in data.draw(traces(quota)):
        left = oracle.left(now)
        state, decision = quota.step(state, cost, now)
        assert decision.allowed <= (cost <= left)
        assert decision.allowed >= (cost <= left - slack)
        if decision.allowed:
            oracle.admit(cost, now)
            left -= cost
        assert floor(left) - slack <= decision.remaining <= floor(left)


@given(st.data())
def test_no_interval_passes_more_than_the_published_bound(data: st.DataObject) -> None:
    """In steps, too: for a bucket that refills every so often, one refill more."""
    quota = data.draw(st.one_of(quotas(), odd_buckets().filter(lambda quota: quota.limit > 0)))
    oracle, state = Oracle(quota), None
    for now, cost in data.draw(traces(quota)):
        state, decision = quota.step(state, cost, now)
        if decision.allowed:
            oracle.admit(cost, now)
    assert oracle.worst() is None


def moved(quota: Quota, factor: Fraction) -> Quota:
    """Return `quota` with its limit raised or lowered by a factor, and its burst as it was."""
    return replace(quota, limit=min(10**9, max(1, 1 - quota.burst, floor(quota.limit * factor))))


FACTORS = st.builds(
    Fraction, st.sampled_from([1, 2, 3, 10, 101, 1000, 10**6]), st.sampled_from([1, 1, 2, 7, 100, 10**6])
)


@given(st.data())
def test_limits_that_move_back_and_forth_hand_out_nothing(data: st.DataObject) -> None:
    """By factors of up to a million, at any request, refused or not: it is as if all had been counted by hand."""
    base = data.draw(quotas())
    versions = [base, *(moved(base, factor) for factor in data.draw(st.lists(FACTORS, min_size=1, max_size=3)))]
    oracle, state = Oracle(base), None
    for now, cost in data.draw(traces(base)):
        quota = oracle.quota = data.draw(st.sampled_from(versions))
        asked = min(data.draw(st.sampled_from([1, cost, quota.capacity])), quota.capacity)
        left, slack = oracle.left(now), max(map(rounded, versions))
        before = state
        state, decision = quota.step(before, asked, now)
        assert decision.allowed <= (asked <= left)
        assert decision.allowed >= (asked <= left - slack)
        if decision.allowed:
            oracle.admit(asked, now)
            continue
        assert state is before
        assert not ask(quota, state, asked, now + decision.retry_after_us - 1).allowed
        assert ask(quota, state, asked, now + decision.retry_after_us).allowed
    assert oracle.worst() is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("high", "low", "window_us"),
    [(100, 1, 60_000_000), (1000, 7, 1_000_000), (100_000, 1, 30 * 86_400_000_000), (999_983, 3, 86_400_000_000)],
)
def test_a_tier_that_flaps_admits_the_higher_limit_once(
    algorithm: Algorithm, high: int, low: int, window_us: int
) -> None:
    both = [Quota(limit, window_us, algorithm=algorithm) for limit in (high, low)]
    state, admitted, unit = None, 0, max(1, high // 1000)
    for number in range(2020):
        quota, cost = (both[1], 1) if number % 101 == 100 else (both[0], unit)
        state, decision = quota.step(state, cost, 10**15)
        admitted += cost if decision.allowed else 0
    assert high - unit < admitted <= high


@given(st.data())
def test_a_denied_request_changes_nothing(data: st.DataObject) -> None:
    quota = data.draw(ANY)
    state: State = None
    for now, cost in data.draw(traces(quota)):
        before = state
        state, decision = quota.step(before, cost, now)
        if not decision.allowed:
            assert state is before


@given(st.data())
def test_retry_after_is_exact(data: st.DataObject) -> None:
    """Denied until one microsecond before, admitted at that very moment."""
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    cost = data.draw(st.integers(1, min(quota.capacity, 100_000)))
    refusal = ask(quota, state, cost, now)
    if refusal.allowed:
        assert refusal.retry_after_us == 0
        return
    assert refusal.retry_after_us > 0
    assert not ask(quota, state, cost, now + refusal.retry_after_us - 1).allowed
    assert ask(quota, state, cost, now + refusal.retry_after_us).allowed


ROUNDED = [
    *(
        Quota(limit, window, burst=burst, algorithm=algorithm)
        for algorithm in Algorithm
        if algorithm.is_bucket
        for limit, window, burst in [
            (997, 30 * 86_400_000_000, 0),
            (10_007, 7 * 86_400_000_000, 0),
            (997, 3660 * 86_400_000_000, 6000),
            (999_999_937, 366 * 86_400_000_000, 0),
        ]
    ),
    Quota(997, 30 * 86_400_000_000, refill_every_us=3_600_000_000),
    *(
        Quota(limit, window, algorithm=Algorithm.SLIDING_WINDOW_COUNTER)
        for limit, window in [(10, 1_000_000_001), (2, 30_175_649_560_847), (10**8, 60_000_000)]
    ),
]


@given(st.sampled_from(ROUNDED), st.data())
def test_retry_and_reset_are_exact_though_fractions_are_rounded(quota: Quota, data: st.DataObject) -> None:
    """Usage is rounded when it is read; waits are counted from the time of the usage."""
    now, state = 10**15, None
    gaps = st.one_of(st.integers(0, 10**7), st.integers(0, quota.window_us), st.just(quota.refill_every_us))
    costs = st.one_of(st.just(1), st.just(quota.capacity), st.integers(1, quota.capacity))
    for gap, cost in data.draw(st.lists(st.tuples(gaps, costs), min_size=2, max_size=6)):
        now += gap
        before = state
        state, decision = quota.step(before, cost, now)
        if not decision.allowed:
            assert not ask(quota, before, cost, now + decision.retry_after_us - 1).allowed
            assert ask(quota, before, cost, now + decision.retry_after_us).allowed
        looked = ask(quota, state, 0, now)
        assert void_at(state, quota) == now + looked.reset_after_us


@given(st.data())
def test_remaining_is_what_can_be_taken_now(data: st.DataObject) -> None:
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    remaining = ask(quota, state, 0, now).remaining
    assert 0 <= remaining <= quota.capacity
    if remaining:
        assert ask(quota, state, remaining, now).remaining == 0
    if remaining < quota.capacity:
        assert not ask(quota, state, remaining + 1, now).allowed


@given(st.data())
def test_from_reset_after_on_the_state_is_void(data: st.DataObject) -> None:
    """A state can be forgotten from then on, and not a microsecond earlier: this is the time to live in a store."""
    quota = data.draw(ANY)
    state: State = None
    for now, cost in data.draw(traces(quota)):
        state, decision = quota.step(state, cost, now)
        reset = now + decision.reset_after_us
        assert void_at(state, quota) == reset
        fresh, kept = ask(quota, None, cost, reset), ask(quota, state, cost, reset)
        assert (kept.allowed, kept.remaining, kept.state) == (fresh.allowed, fresh.remaining, fresh.state)
        assert ask(quota, state, 0, reset - 1).reset_after_us == 1


@given(st.data())
def test_refund_undoes_a_check(data: st.DataObject) -> None:
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    before = ask(quota, state, 0, now)
    assume(before.remaining)
    cost = data.draw(st.integers(1, min(before.remaining, 100_000)))
    taken, _ = quota.step(state, cost, now)
    given_back, refund = quota.step(taken, -cost, now)
    assert refund.remaining == before.remaining
    assert ask(quota, given_back, 0, now).remaining == before.remaining


@given(st.data())
def test_a_refund_never_exceeds_the_usage(data: st.DataObject) -> None:
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    later = now + data.draw(st.integers(0, 2 * quota.window_us))
    state, refund = quota.step(state, -data.draw(st.integers(1, 100_000)), later)
    assert refund.remaining == ask(quota, state, 0, later).remaining <= quota.capacity
    assert void_at(state, quota) <= later + refund.reset_after_us


@given(st.data())
def test_a_refund_by_number_refunds_no_more_than_the_number(data: st.DataObject) -> None:
    """Then and later, whatever it was for: to give n units back that no longer count lets n more pass."""
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    number = data.draw(st.integers(1, 10))
    now += data.draw(st.integers(0, quota.window_us))
    refunded, _ = quota.step(state, -number, now)
    later = now + data.draw(st.integers(0, 2 * quota.window_us))
    for time in (now, later):
        assert ask(quota, refunded, 0, time).remaining <= ask(quota, state, 0, time).remaining + number


@given(st.data())
def test_what_was_used_stays_used_under_another_limit(data: st.DataObject) -> None:
    """Law 7: in whole units, rounded up where the two limits count in different fractions."""
    quota = data.draw(st.one_of(quotas(), calendars))
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    used = ask(quota, state, 0, now).used
    other = moved(quota, data.draw(FACTORS))
    decision = ask(other, state, 0, now)
    if quota.algorithm is Algorithm.SLIDING_WINDOW_COUNTER and other.limit < used:
        assert decision.remaining == 0
    else:
        slack = 1 + rounded(other) + rounded(quota)
        assert max(0, other.capacity - used - slack) <= decision.remaining <= max(0, other.capacity - used + slack)
        if quota.algorithm is not Algorithm.SLIDING_WINDOW_COUNTER:
            assert decision.remaining == max(0, other.capacity - used)


@pytest.mark.parametrize("algorithm", [algorithm for algorithm in Algorithm if algorithm.is_bucket])
def test_limits_that_alternate_starve_no_caller(algorithm: Algorithm) -> None:
    """Two versions of a rule at once, as in a rolling deployment: what comes back in between is not lost."""
    quotas_at_odds = [Quota(limit, 60_000_000, algorithm=algorithm) for limit in (10, 11)]
    state, admitted = None, 0
    for tick in range(36_000):
        state, decision = quotas_at_odds[tick % 2].step(state, 2, tick * 100_000)
        admitted += decision.allowed
    assert 300 <= admitted <= 340


@given(st.data())
def test_a_clock_that_falls_back_never_gives_budget(data: st.DataObject) -> None:
    """Up to a window back: not more than at the latest time seen. Beyond: all that was used is still used.

    Nobody waits more than one window longer than without it, or than anybody who has just used all there is.
    """
    quota = data.draw(st.one_of(quotas(), odd_buckets()))
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    back = data.draw(st.one_of(st.integers(0, quota.window_us), st.integers(0, 10**14)))
    here, there = ask(quota, state, 0, now), ask(quota, state, 0, now - back)
    assert there.remaining <= here.remaining
    wait = ask(quota, state, 1, now - back)
    if wait.allowed:
        return
    mended, _ = quota.step(state, 1, now - back)
    assert not ask(quota, mended, 1, now - back + wait.retry_after_us - 1).allowed
    assert ask(quota, mended, 1, now - back + wait.retry_after_us).allowed
    usual = ask(quota, state, 1, now)
    longest = max(usual.retry_after_us, *used_up(quota, now), *used_up(quota, now - back))
    assert wait.retry_after_us <= quota.window_us + longest


def used_up(quota: Quota, now: int) -> tuple[int, int]:
    """Return the waits of a caller that has just used the whole capacity: for one unit, and for all."""
    full = ask(quota, quota.step(None, quota.capacity, now)[0], 1, now)
    return full.retry_after_us, full.reset_after_us


def test_a_clock_that_falls_back_into_the_window_before_makes_one_window_more() -> None:
    """A fixed window has the time of its beginning, not of its last use: how far the clock fell is not known."""
    day, now = 86_400_000_000, 1_000_000_000_000_000
    quota = Quota(1, day, algorithm=Algorithm.FIXED_WINDOW)
    state, _ = quota.step(None, 1, now)
    back = now - day - 1
    assert ask(quota, state, 1, back).retry_after_us == day + used_up(quota, back)[0]


@given(st.data())
def test_a_clock_that_stands_still_admits_the_capacity_once(data: st.DataObject) -> None:
    quota = data.draw(quotas().filter(lambda quota: quota.capacity <= 20))
    state, admitted = None, 0
    for _ in range(quota.capacity + 5):
        state, decision = quota.step(state, 1, 10**15)
        admitted += decision.allowed
    assert admitted == quota.capacity


@given(st.data())
def test_a_clock_that_leaps_forward_gives_one_full_refill_at_most(data: st.DataObject) -> None:
    quota = data.draw(ANY)
    trace = data.draw(traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    assert ask(quota, state, 0, now + 10**15).remaining <= quota.capacity


class Int53(int):
    """An integer that a Lua number can hold; so is every result it takes part in, or this fails."""

    def _checked(self, result: int) -> Int53:
        assert -(1 << 53) < result < 1 << 53, f"{result} needs more than 53 bits"
        return Int53(result)

    def __add__(self, other: int) -> Int53:
        return self._checked(int(self) + int(other))

    def __sub__(self, other: int) -> Int53:
        return self._checked(int(self) - int(other))

    def __rsub__(self, other: int) -> Int53:
        return self._checked(int(other) - int(self))

    def __mul__(self, other: int) -> Int53:
        return self._checked(int(self) * int(other))

    def __floordiv__(self, other: int) -> Int53:
        return self._checked(int(self) // int(other))

    def __mod__(self, other: int) -> Int53:
        return self._checked(int(self) % int(other))

    def __divmod__(self, other: int) -> tuple[Int53, Int53]:
        return self // other, self % other

    def __neg__(self) -> Int53:
        return self._checked(-int(self))

    __radd__, __rmul__ = __add__, __mul__


@given(st.data())
def test_no_number_leaves_53_bits(data: st.DataObject) -> None:
    """At the edge of what is accepted as well: the twin in Lua can compute the same."""
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    window = data.draw(st.sampled_from([1, 999_983, 10**6, 6 * 10**7, 8_640_000_0000, 31_536_000_000_000]))
    low, high = 1, 1 << 53
    while low < high:  # the largest limit that is accepted
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _accepted(middle, window, algorithm) else (low, middle - 1)
    quota = Quota(low, window, algorithm=algorithm)
    state: State = None
    for now, cost in data.draw(traces(quota)):
        for asked in (cost, 1, 0, -1):
            after, _ = quota.step(state, Int53(asked), Int53(now))
            state = after if asked == cost else state
        quota.step(state, Int53(1), Int53(now - data.draw(st.sampled_from([1, window, 3 * window, 10**15]))))
        other = replace(quota, limit=data.draw(st.sampled_from([1, 2, 7])))
        other.step(state, Int53(1), Int53(now + data.draw(st.sampled_from([0, 1, window, 10**15]))))


def _accepted(limit: int, window: int, algorithm: Algorithm) -> bool:
    try:
        Quota(limit, window, algorithm=algorithm)
    except ValueError:
        return False
    return True


@given(st.data())
def test_a_queue_lets_out_at_a_constant_rate(data: st.DataObject) -> None:
    """Each admitted request's turn comes when all before it have had their time."""
    base = data.draw(quotas(algorithms=[Algorithm.LEAKY_BUCKET]))
    quota = replace(base, queue=True)
    interval = Fraction(quota.window_us, quota.limit)
    state, free_at = None, Fraction(0)
    let_out: list[tuple[int, int]] = []
    for now, cost in data.draw(traces(quota)):
        state, decision = quota.step(state, cost, now)
        if decision.allowed:
            turn = max(Fraction(now), free_at)
            assert turn <= now + decision.delay_us < turn + 1
            free_at = turn + cost * interval
            let_out.append((now + decision.delay_us, cost))
            for start, _ in let_out:
                passed = sum(each for at, each in let_out if at >= start)
                assert passed <= (now + decision.delay_us - start + 1) / interval + cost


@given(st.sampled_from([Algorithm.GCRA, Algorithm.LEAKY_BUCKET]), st.data())
def test_bucket_algorithms_decide_alike(algorithm: Algorithm, data: st.DataObject) -> None:
    quota = data.draw(quotas(algorithms=[Algorithm.TOKEN_BUCKET]))
    other = replace(quota, algorithm=algorithm)
    one: State = None
    two: State = None
    for now, cost in data.draw(traces(quota)):
        one, first = quota.step(one, cost, now)
        two, second = other.step(two, cost, now)
        assert msgspec.structs.replace(second, quota=quota) == first


@given(st.data())
def test_a_clock_that_falls_back_never_gives_budget_of_a_period(data: st.DataObject) -> None:
    """Up to a window, it takes longer; further, what was used is pulled to the present."""
    quota = data.draw(calendars)
    trace = data.draw(calendar_traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    back = data.draw(st.integers(0, quota.window_us) | st.integers(0, 10**15))
    then = now - back
    here, there = ask(quota, state, 0, now), ask(quota, state, 0, then)
    assert there.remaining == here.remaining
    wait = ask(quota, state, quota.limit, then)
    if wait.allowed:
        return
    mended, _ = quota.step(state, quota.limit, then)
    if back <= quota.window_us:
        assert mended is state
    assert not ask(quota, mended, quota.limit, then + wait.retry_after_us - 1).allowed
    assert ask(quota, mended, quota.limit, then + wait.retry_after_us).allowed
    assert wait.retry_after_us <= 2 * quota.window_us + DAY_US


@given(st.data())
def test_admits_the_limit_in_each_period_and_not_one_more(data: st.DataObject) -> None:
    """Against a dictionary of what was admitted in which period."""
    quota = data.draw(calendars)
    assert quota.calendar
    state, used = None, dict[tuple[int, int], int]()
    for now, cost in data.draw(calendar_traces(quota)):
        start, end = quota.calendar.bounds(now)
        before = used.get((start, end), 0)
        state, said = quota.step(state, cost, now)
        assert said.allowed == (before + cost <= quota.limit)
        used[start, end] = after = before + cost * said.allowed
        assert said.remaining == quota.limit - after
        assert said.reset_after_us == end - now
        assert said.retry_after_us == (0 if said.allowed else end - now)


@given(st.data())
def test_no_number_of_a_calendar_leaves_53_bits(data: st.DataObject) -> None:
    quota = data.draw(calendars)
    trace = data.draw(calendar_traces(quota))
    state, (now, _) = play(quota, trace), trace[-1]
    for then in (now, now + 10**15, now - 10**14, now - quota.window_us):
        for cost in (1, 0, -1):
            quota.step(state, Int53(cost), Int53(then))
