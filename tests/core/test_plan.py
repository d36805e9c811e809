"""Plans: all limits of a request, decided together or not at all."""

from __future__ import annotations

from math import nan
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, CostTooLarge, Decision, InvalidCost, InvalidQuota, Pressure, Quota
from headgate.core.plan import (
    MAX_COST,
    Call,
    Charge,
    Family,
    Limit,
    Plan,
    States,
    Verb,
    call_of,
    checked_cost,
    combine,
    decide,
    hash_of,
    part_of,
    refund_of,
    replayed,
    shadowed,
)
from headgate.flows import drive
from tests.core.quotas import quotas

SECOND = 1_000_000
MINUTE = 60 * SECOND
START = 29_166_667 * MINUTE
FIXED, LEAKY, GCRA = Algorithm.FIXED_WINDOW, Algorithm.LEAKY_BUCKET, Algorithm.GCRA


def plan_of(*several: Quota) -> Plan:
    return Family("test", several).plan("user")


def check(plan: Plan, states: States, cost: int, now: int) -> tuple[States, Decision]:
    return decide(Call(Verb.CHECK, plan, cost), states, now)


def peek(plan: Plan, states: States, cost: int, now: int) -> Decision:
    return decide(Call(Verb.PEEK, plan, cost), states, now)[1]


def refund(plan: Plan, states: States, cost: int, now: int) -> tuple[States, Decision]:
    return decide(Call(Verb.REFUND, plan, cost), states, now)


def checked(plan: Plan, *costs: int, now: int = START) -> tuple[States, Decision]:
    states: States = [None] * len(plan)
    for cost in costs:
        states, decision = check(plan, states, cost, now)
    return states, decision


class TestCheck:
    @pytest.mark.parametrize("turned", [False, True])
    def test_takes_from_none_if_one_refuses(self, turned: bool) -> None:  # noqa: FBT001  pytest passes it
        """The limit that would have admitted reports what it has, and its state is the one there was."""
        several = (Quota(5, SECOND), Quota(2, MINUTE, algorithm=FIXED))
        plan = plan_of(*(reversed(several) if turned else several))
        states, _ = checked(plan, 2)
        after, decision = check(plan, states, 1, START)
        assert not decision
        assert all(new is old for new, old in zip(after, states, strict=True))
        by_quota = {part.quota: (part.allowed, part.remaining, part.retry_after_us) for part in decision.parts}
        assert by_quota == {several[0]: (True, 3, 0), several[1]: (False, 0, MINUTE)}

    def test_a_refused_limit_keeps_its_mended_state(self) -> None:
        """The clock fell back by a day: the limit that refuses is pulled to the present, the other is left alone."""
        early = START - 86_400 * SECOND
        plan = plan_of(Quota(5, SECOND), Quota(1, SECOND, algorithm=GCRA))
        states, _ = checked(plan, 1)
        mended, refusal = check(plan, states, 1, early)
        assert (refusal.allowed, refusal.retry_after_us) == (False, SECOND)
        assert mended[0] is states[0]
        assert mended[1] != states[1]
        assert not check(plan, mended, 1, early + SECOND - 1)[1]
        assert check(plan, mended, 1, early + SECOND)[1]

    @given(st.lists(quotas(), min_size=1, max_size=4, unique_by=lambda quota: quota.shape), st.data())
    def test_is_what_the_limits_say_alone(self, several: list[Quota], data: st.DataObject) -> None:
        plan = plan_of(*several)
        states: States = [None] * len(plan)
        now = START
        for _ in range(data.draw(st.integers(1, 12))):
            now += data.draw(st.integers(0, 2 * min(quota.window_us for quota in several)))
            cost = data.draw(st.integers(1, min(quota.capacity for quota in several)))
            alone = [quota.step(state, cost, now) for quota, state in zip(several, states, strict=True)]
            after, decision = check(plan, states, cost, now)
            assert decision.allowed == all(said.allowed for _, said in alone)
            assert [part.allowed for part in decision.limits] == [said.allowed for _, said in alone]
            assert decision.retry_after_us == max(said.retry_after_us for _, said in alone)
            assert after == ([state for state, _ in alone] if decision else states)
            assert peek(plan, states, cost, now).allowed == decision.allowed
            states = after


class TestCosts:
    plan = plan_of(Quota(5, SECOND), Quota(9, MINUTE, algorithm=FIXED))

    def test_equal_costs_are_one(self) -> None:
        assert call_of(Verb.CHECK, self.plan, [2, 2]) == Call(Verb.CHECK, self.plan, 2)
        assert call_of(Verb.CHECK, self.plan, [2, 3]) == Call(Verb.CHECK, self.plan, 3, costs=(2, 3))

    def test_every_limit_takes_its_own_or_none_does(self) -> None:
        call = call_of(Verb.CHECK, self.plan, [2, 6])
        states, decision = decide(call, [None, None], START)
        assert [(part.remaining, part.taken) for part in decision.parts] == [(3, 2), (3, 6)]
        after, refusal = decide(call, states, START)
        assert [(part.allowed, part.remaining) for part in refusal.parts] == [(True, 3), (False, 3)]
        assert all(new is old for new, old in zip(after, states, strict=True))

    def test_a_peek_compares_each_limit_with_its_cost(self) -> None:
        states, _ = checked(self.plan, 4)
        for costs, allowed in (([1, 5], [True, True]), ([2, 5], [False, True]), ([1, 6], [True, False])):
            _, decision = decide(call_of(Verb.PEEK, self.plan, costs), states, START)
            assert [part.allowed for part in decision.parts] == allowed

    def test_a_refund_returns_to_each_what_it_took(self) -> None:
        states, decision = decide(call_of(Verb.CHECK, self.plan, [2, 6]), [None, None], START)
        refund = refund_of(self.plan, decision)
        assert refund.costs == (2, 6)
        _, after = decide(refund, states, START)
        assert [part.remaining for part in after.parts] == [5, 9]

    def test_a_part_of_a_call_has_the_costs_of_its_limits(self) -> None:
        call = call_of(Verb.CHECK, self.plan, [2, 6])
        assert part_of(call, [1]) == Call(Verb.CHECK, self.plan[1:], 6)
        assert part_of(call, [1, 0]) == Call(Verb.CHECK, self.plan[::-1], 6, costs=(6, 2))
        assert part_of(call, []) == Call(Verb.CHECK, (), 6)


class TestTheAnswer:
    """A refusal describes the limit that blocks longest, an admission the most restrictive one."""

    def test_a_refusal_describes_the_longest_wait(self) -> None:
        fast, slow, wide = Quota(1, SECOND), Quota(1, MINUTE), Quota(9, 2 * MINUTE)
        for several in ([fast, slow, wide], [wide, slow, fast], [slow, fast, wide]):
            _, refusal = checked(plan_of(*several), 1, 1)
            assert (refusal.quota, refusal.retry_after_us) == (slow, MINUTE)
            assert [part.quota for part in refusal.parts] == several

    def test_of_two_equal_waits_the_first(self) -> None:
        one, two = Quota(1, SECOND), Quota(1, SECOND, algorithm=GCRA)
        assert checked(plan_of(one, two), 1, 1)[1].quota == one
        assert checked(plan_of(two, one), 1, 1)[1].quota == two

    @pytest.mark.parametrize(
        ("limits", "cost", "tightest"),
        [
            ((100, 10), 3, 10),  # 97/100 and 7/10
            ((10, 100), 3, 10),
            ((10, 9, 8), 8, 8),
            ((3, 4), 1, 3),  # 2/3 and 3/4
            ((5, 5), 1, 5),
        ],
    )
    def test_an_admission_describes_the_smallest_share_left(
        self, limits: tuple[int, ...], cost: int, tightest: int
    ) -> None:
        plan = plan_of(*(Quota(limit, (index + 1) * SECOND) for index, limit in enumerate(limits)))
        _, decision = checked(plan, cost)
        assert (decision.limit, decision.remaining) == (tightest, tightest - cost)
        assert [part.limit for part in decision.parts] == list(limits)

    def test_of_two_equal_shares_the_first(self) -> None:
        _, decision = checked(plan_of(Quota(4, SECOND), Quota(2, 2 * SECOND)), 2)
        assert decision.limit == 2
        states, _ = checked(plan_of(Quota(4, SECOND), Quota(2, 2 * SECOND)), 1)
        decision = refund(plan_of(Quota(4, SECOND), Quota(2, 2 * SECOND)), states, 1, START)[1]
        assert (decision.limit, decision.remaining) == (4, 4)

    def test_the_delay_is_that_of_the_longest_queue(self) -> None:
        slow, fast = Quota(4, SECOND, algorithm=LEAKY, queue=True), Quota(4, 2 * SECOND, algorithm=LEAKY, queue=True)
        _, decision = checked(plan_of(Quota(2, MINUTE), slow, fast), 1, 1)
        assert [part.delay_us for part in decision.parts] == [0, 250_000, 500_000]
        assert decision.delay_us == 500_000
        assert combine(decision.limits) == decision
        assert decision.quota == Quota(2, MINUTE)

    def test_a_refusal_has_no_delay(self) -> None:
        """A refused request has no turn."""
        queue = Quota(4, SECOND, algorithm=LEAKY, queue=True)
        _, refusal = checked(plan_of(queue, Quota(1, MINUTE)), 1, 1)
        assert not refusal
        assert refusal.delay_us == 0


class TestPeek:
    def test_returns_what_is_left_now(self) -> None:
        plan = plan_of(Quota(5, SECOND), Quota(4, MINUTE))
        states, _ = checked(plan, 2)
        decision = peek(plan, states, 2, START)
        assert (decision.allowed, decision.limit, decision.remaining) == (True, 4, 2)
        assert [part.remaining for part in decision.parts] == [3, 2]


class TestRefund:
    def test_refunds_no_more_than_each_limit_counts(self) -> None:
        plan = plan_of(Quota(5, SECOND), Quota(9, MINUTE, algorithm=FIXED))
        states, _ = checked(plan, 4)
        _, decision = refund(plan, states, 3, START + SECOND)
        assert [part.remaining for part in decision.parts] == [5, 8]

    def test_what_took_nothing_is_only_looked_at(self) -> None:
        plan = plan_of(Quota(5, SECOND))
        states, decision = checked(plan, 4)
        assert refund_of(plan, decision) == Call(Verb.REFUND, plan, 4, charge=Charge((START,)))
        _, refusal = check(plan, states, 2, START)
        assert refund_of(plan, refusal) == Call(Verb.PEEK, plan)


def test_a_part_of_a_call_has_the_charges_of_its_limits() -> None:
    plan = plan_of(Quota(5, SECOND), Quota(9, MINUTE), Quota(99, 60 * MINUTE))
    call = Call(Verb.REFUND, plan, 2, charge=Charge((10, 20, 30), "away"), shadow=(plan[:1],))
    part = part_of(call, [0, 2])
    assert part == Call(Verb.REFUND, (plan[0], plan[2]), 2, charge=Charge((10, 30), "away"), shadow=(plan[:1],))
    assert part_of(Call(Verb.CHECK, plan), [1]) == Call(Verb.CHECK, (plan[1],))


def test_a_reset_leaves_nothing_used() -> None:
    plan = plan_of(Quota(5, SECOND), Quota(9, MINUTE))
    states, _ = checked(plan, 4)
    states, decision = decide(Call(Verb.RESET, plan), states, START)
    assert states == [None, None]
    assert [part.remaining for part in decision.limits] == [5, 9]


def test_an_admission_by_other_limits_names_what_these_have() -> None:
    plan = plan_of(Quota(1, SECOND), Quota(9, MINUTE))
    states = [limit.quota.step(None, 1, START)[0] for limit in plan]
    decision = replayed(plan, states, START)
    assert (decision.allowed, decision.taken, [part.remaining for part in decision.limits]) == (True, 0, [0, 8])
    assert hash_of(plan) != hash_of(plan[:1])


class TestCombine:
    def test_a_decision_has_the_index_of_the_limit_that_it_describes(self) -> None:
        _, decision = checked(plan_of(Quota(9, SECOND), Quota(3, MINUTE), Quota(5, 2 * MINUTE)), 1)
        assert (decision.index, decision.quota) == (1, Quota(3, MINUTE))
        assert combine(decision.limits) == decision
        assert combine([decision]) is decision
        assert combine(()).allowed
        assert checked((), 1) == ([], combine(()))

    def test_a_degraded_decision_has_its_first_reason_and_a_refusal_needs_no_wait(self) -> None:
        _, own = checked(plan_of(Quota(9, SECOND)), 1)
        others = [msgspec.structs.replace(own, degraded=reason) for reason in ("unknown", "storage_unavailable")]
        assert combine([own, *others]).degraded == "unknown"
        unknown = Decision(False, 9, 0, 0, 0, Pressure.THROTTLED, Quota(9, MINUTE), degraded="unknown")
        together = combine([own, unknown])
        assert (together.allowed, together.index, together.degraded) == (False, 1, "unknown")


class TestShadow:
    plan, tried = plan_of(Quota(2, SECOND)), plan_of(Quota(3, MINUTE))

    @pytest.mark.parametrize(
        ("verb", "cost", "plan", "calls", "taken"),
        [
            (Verb.CHECK, 2, plan, [Verb.CHECK, Verb.CHECK], 2),
            (Verb.CHECK, 3, plan, [Verb.CHECK, Verb.PEEK], 0),  # the plan refuses
            (Verb.CHECK, 2, (), [Verb.CHECK], 2),
            (Verb.PEEK, 2, plan, [Verb.PEEK, Verb.PEEK], 0),
        ],
    )
    def test_is_checked_where_the_plan_passes_and_peeked_at_otherwise(
        self, verb: Verb, cost: int, plan: Plan, calls: list[Verb], taken: int
    ) -> None:
        seen: list[Call] = []

        def do(each: Call) -> Decision:
            seen.append(each)
            return decide(each, [None] * len(each.plan), START)[1]

        decision = drive(shadowed(Call(verb, plan, cost, shadow=(self.tried,))), do)
        plans = [plan, self.tried] if plan else [self.tried]
        assert seen == [Call(each, one, cost) for each, one in zip(calls, plans, strict=True)]
        assert decision.shadow[0].taken == taken
        assert decision.allowed == (cost == 2)


class TestCost:
    quotas = (Quota(10, SECOND, burst=5), Quota(200_000, MINUTE))

    def test_good(self) -> None:
        for cost in (1, 15):
            assert checked_cost(cost, self.quotas) == Family("test", self.quotas).checked_cost(cost) == cost
        assert checked_cost(100_000, self.quotas[1:]) == 100_000

    @pytest.mark.parametrize("cost", [0, -1, MAX_COST + 1, 10**30, 1.0, nan, True, False, "1", None], ids=repr)
    def test_out_of_range_or_not_whole(self, cost: Any) -> None:
        with pytest.raises(InvalidCost) as error:
            checked_cost(cost, self.quotas)
        assert str(error.value) == f"cost must be a whole number from 1 to 100000, not {cost!r}"

    @pytest.mark.parametrize("cost", [16, 100_000])
    def test_above_the_capacity_of_one_limit(self, cost: int) -> None:
        """It names that limit: no wait would ever admit this."""
        with pytest.raises(CostTooLarge) as error:
            checked_cost(cost, self.quotas)
        assert str(error.value) == (f"cost {cost} is above the capacity of 10/second burst 5, 15: it could never pass")


class TestFamily:
    def test_makes_the_plan_of_a_key(self) -> None:
        one, two = Quota(5, SECOND), Quota(9, MINUTE, algorithm=GCRA)
        assert Family("api", [one, two]).plan("user:42") == (
            Limit("api|tb:1000000", "user:42", one),
            Limit("api|gcra:60000000", "user:42", two),
        )

    def test_without_quotas(self) -> None:
        with pytest.raises(InvalidQuota, match=r'^at least one quota is needed, such as "100/minute"'):
            Family("api", [])

    @pytest.mark.parametrize(
        ("several", "text"),
        [
            ([Quota(5, SECOND), Quota(9, SECOND)], "5/second; 9/second"),
            ([Quota(5, SECOND), Quota(1, MINUTE), Quota(5, SECOND)], "5/second; 1/minute; 5/second"),
            (
                [Quota(5, SECOND, algorithm=LEAKY), Quota(5, SECOND, algorithm=LEAKY, queue=True)],
                "5/second leaky_bucket; 5/second leaky_bucket queue",
            ),
        ],
    )
    def test_two_quotas_that_would_count_in_one_place(self, several: list[Quota], text: str) -> None:
        with pytest.raises(InvalidQuota) as error:
            Family("api", several)
        assert str(error.value) == (
            f"two of the quotas {text!r} have the same algorithm and window: keep the stricter one"
        )

    def test_the_caller_may_reuse_its_list(self) -> None:
        several = [Quota(5, SECOND)]
        family = Family("api", several)
        several.clear()
        assert family.quotas == (Quota(5, SECOND),)


@pytest.mark.parametrize("algorithm", [GCRA, FIXED, Algorithm.SLIDING_WINDOW_LOG], ids=str)
def test_a_named_charge_is_refunded_until_it_alone_would_be_void(algorithm: Algorithm) -> None:
    plan = Family("name", [Quota(6, MINUTE, algorithm=algorithm)]).plan("user")
    states, decision = decide(Call(Verb.CHECK, plan, 3), [None], START)
    refund = refund_of(plan, decision, b"token")
    assert refund.charge is not None
    until = refund.charge.until
    assert until == START + (MINUTE // 2 if algorithm is GCRA else MINUTE)
    states, _ = decide(Call(Verb.CHECK, plan, 2), states, START)
    assert (
        decide(refund, states, until - 1)[1].remaining > decide(Call(Verb.PEEK, plan), states, until - 1)[1].remaining
    )
    assert decide(refund, states, until)[0] == states
