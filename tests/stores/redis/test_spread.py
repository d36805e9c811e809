"""Plans over several shards, without a server: what is asked, taken back, and told when a shard is gone."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Call, Charge, Limit, Plan, Verb
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.stores.redis import spread
from headgate.stores.redis.script import NOT_REPLICATED, unconfirmed

QUOTA = Quota(5, 3_600_000_000)
PLAN: Plan = tuple(Limit(f"limit|{QUOTA.shape}", principal, QUOTA) for principal in ("ada", "bob", "eve"))
YES = Decision(True, 5, 4, 0, 60, Pressure.NORMAL, QUOTA, 0, 1, 77)
NO = Decision(False, 5, 0, 1000, 1000, Pressure.THROTTLED, QUOTA)
GONE = StoreUnavailable("gone")


def played(flow: spread.Flow, *happenings: Decision | StoreError) -> tuple[list[str], Decision | StoreError]:
    """Play a flow: each happening answers a question. Returns verb and principal of the questions, and the outcome."""
    asked, left = [], list(happenings)
    try:
        step = next(flow)
        while True:
            verb = next(verb for verb in VERBS if step.call == VERBS[verb](step.call.plan))
            assert step.late == (verb == "undo") <= step.attempt
            asked.append(f"{verb} {step.call.plan[0].principal!s}")
            happening = left.pop(0)
            step = flow.throw(happening) if isinstance(happening, StoreError) else flow.send(happening)
    except StopIteration as stop:
        return asked, stop.value
    except StoreError as error:
        return asked, error


VERBS = {
    "check": lambda plan: Call(Verb.CHECK, plan),
    "peek": lambda plan: Call(Verb.PEEK, plan),
    "refund": lambda plan: Call(Verb.REFUND, plan),
    "undo": lambda plan: Call(Verb.REFUND, plan, charge=Charge((77,))),
}


def test_all_admit() -> None:
    asked, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, YES, YES)
    assert asked == ["check ada", "check bob", "check eve"]
    assert isinstance(decision, Decision)
    assert decision.allowed
    assert len(decision.limits) == 3


def test_a_later_one_refuses_and_what_was_taken_is_taken_back() -> None:
    asked, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, YES, NO, YES, YES)
    assert asked == ["check ada", "check bob", "check eve", "undo bob", "undo ada"]
    assert isinstance(decision, Decision)
    assert [part.allowed for part in decision.limits] == [True, True, False]


def test_a_refusal_stands_though_other_shards_do_not_answer() -> None:
    _, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, NO, GONE, GONE)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.retry_after_us, decision.degraded) == (False, 1000, "storage_unavailable")
    assert [part.degraded for part in decision.limits] == ["storage_unavailable", "", "storage_unavailable"]


def test_a_shard_that_is_gone_admits_nothing_and_asking_again_is_safe_if_all_was_taken_back() -> None:
    asked, error = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, GONE, YES)
    assert asked == ["check ada", "check bob", "undo ada"]
    assert type(error) is StoreUnavailable


def test_asking_again_is_not_safe_if_something_could_not_be_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate.stores"):
        _, error = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, GONE, StoreUnavailable("gone too"))
    assert isinstance(error, OutcomeUnknown)
    assert "stays counted: gone too" in caplog.text


def test_a_refund_that_was_done_in_part_is_not_safe_to_repeat() -> None:
    assert type(played(spread.decide(Call(Verb.REFUND, PLAN)), GONE)[1]) is StoreUnavailable
    asked, error = played(spread.decide(Call(Verb.REFUND, PLAN)), YES, GONE)
    assert asked == ["refund ada", "refund bob"]
    assert isinstance(error, OutcomeUnknown)
    assert type(played(spread.decide(Call(Verb.PEEK, PLAN)), YES, GONE)[1]) is StoreUnavailable


def test_what_replicas_do_not_have_is_told_of_the_whole() -> None:
    _, decision = played(spread.decide(Call(Verb.CHECK, PLAN)), YES, unconfirmed(YES), YES)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.degraded) == (True, NOT_REPLICATED)


ADA, BOB, EVE = ((limit,) for limit in PLAN)


def with_shadow(plan: Plan, *shadow: Plan) -> spread.Flow:
    return spread.decide(Call(Verb.CHECK, plan, shadow=shadow))


def test_a_shadow_plan_in_the_same_slot_goes_with_its_call() -> None:
    flow = with_shadow(ADA, ADA, BOB)
    first = next(flow)
    assert first.call == Call(Verb.CHECK, ADA, shadow=(ADA,))
    second = flow.send(replace(YES, shadow=(NO,)))
    assert second.call == Call(Verb.CHECK, BOB)
    with pytest.raises(StopIteration) as stop:
        flow.send(YES)
    assert stop.value.value == replace(YES, shadow=(NO, YES))


def test_a_shadow_plan_elsewhere_is_asked_afterwards_and_only_looked_at_if_the_request_is_refused() -> None:
    asked, decision = played(with_shadow(ADA, BOB, EVE), NO, YES, YES)
    assert asked == ["check ada", "peek bob", "peek eve"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, [tried.allowed for tried in decision.shadow]) == (False, [True, True])


def test_a_shadow_plan_that_is_not_answered_changes_nothing() -> None:
    asked, decision = played(with_shadow(ADA, BOB, EVE), YES, GONE, YES)
    assert asked == ["check ada", "check bob", "check eve"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.degraded) == (True, "")
    assert [tried.degraded for tried in decision.shadow] == ["storage_unavailable", ""]


def test_shadow_plans_alone_are_asked_one_by_one() -> None:
    asked, decision = played(with_shadow((), ADA, BOB), YES, NO)
    assert asked == ["check ada", "check bob"]
    assert isinstance(decision, Decision)
    assert (decision.allowed, [tried.allowed for tried in decision.shadow]) == (True, [True, False])
