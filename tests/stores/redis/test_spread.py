"""Plans over several shards, without a server: what is asked, taken back, and told when a shard is gone."""

from __future__ import annotations

import logging

import pytest

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Limit, Plan
from headgate.core.quota import Quota
from headgate.stores.redis import scripts, spread
from headgate.stores.redis.answers import NOT_REPLICATED, Answer, Unconfirmed

QUOTA = Quota(5, 3_600_000_000)
PLAN: Plan = tuple(Limit(f"limit|{QUOTA.shape}", principal, QUOTA) for principal in ("ada", "bob", "eve"))
YES, NO = [77, 1, 4, 0, 60, 0, 0], [77, 0, 0, 1000, 1000, 2, 0]
GONE = StoreUnavailable("gone")


def played(flow: spread.Flow, *happenings: Answer | StoreError) -> tuple[list[str], Decision | StoreError]:
    """Play a flow: each happening answers a question. Returns verb and principal of the questions, and the outcome."""
    asked, left = [], list(happenings)
    try:
        step = next(flow)
        while True:
            verb = next(verb for verb in VERBS if step.question == VERBS[verb](step.question.plan))
            assert step.late == (verb == "undo")
            asked.append(f"{verb} {step.question.plan[0].principal!s}")
            happening = left.pop(0)
            step = flow.throw(happening) if isinstance(happening, StoreError) else flow.send(happening)
    except StopIteration as stop:
        return asked, stop.value
    except StoreError as error:
        return asked, error


VERBS = {
    "check": lambda plan: scripts.question(scripts.CHECK, plan, 1),
    "peek": lambda plan: scripts.question(scripts.PEEK, plan, 1),
    "refund": lambda plan: scripts.question(scripts.REFUND, plan, 1),
    "undo": lambda plan: scripts.question(scripts.UNDO, plan, 1, since=77),
}


def test_all_admit() -> None:
    asked, decision = played(spread.check(PLAN, 1), YES, YES, YES)
    assert asked == ["check ada", "check bob", "check eve"]
    assert isinstance(decision, Decision)
    assert decision.allowed
    assert len(decision.limits) == 3


def test_a_later_one_refuses_and_what_was_taken_is_taken_back() -> None:
    asked, decision = played(spread.check(PLAN, 1), YES, YES, NO, YES, YES, YES, YES)
    assert asked == ["check ada", "check bob", "check eve", "undo bob", "undo ada", "peek ada", "peek bob"]
    assert isinstance(decision, Decision)
    assert [part.allowed for part in decision.limits] == [True, True, False]


def test_a_refusal_stands_though_other_shards_do_not_answer() -> None:
    _, decision = played(spread.check(PLAN, 1), YES, NO, YES, GONE, GONE)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.retry_after_us, decision.degraded) == (False, 1000, "storage_unavailable")
    assert [part.degraded for part in decision.limits] == ["storage_unavailable", "", "storage_unavailable"]


def test_a_shard_that_is_gone_admits_nothing_and_asking_again_is_safe_if_all_was_taken_back() -> None:
    asked, error = played(spread.check(PLAN, 1), YES, GONE, YES)
    assert asked == ["check ada", "check bob", "undo ada"]
    assert type(error) is StoreUnavailable


def test_asking_again_is_not_safe_if_something_could_not_be_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headgate.stores"):
        _, error = played(spread.check(PLAN, 1), YES, GONE, StoreUnavailable("gone too"))
    assert isinstance(error, OutcomeUnknown)
    assert "stays counted: gone too" in caplog.text


def test_a_refund_that_was_done_in_part_is_not_safe_to_repeat() -> None:
    assert type(played(spread.all_of(scripts.REFUND, PLAN, 1), GONE)[1]) is StoreUnavailable
    asked, error = played(spread.all_of(scripts.REFUND, PLAN, 1), YES, GONE)
    assert asked == ["refund ada", "refund bob"]
    assert isinstance(error, OutcomeUnknown)
    assert type(played(spread.all_of(scripts.PEEK, PLAN, 1), YES, GONE)[1]) is StoreUnavailable


def test_what_replicas_do_not_have_is_told_of_the_whole() -> None:
    _, decision = played(spread.check(PLAN, 1), YES, Unconfirmed(YES), YES)
    assert isinstance(decision, Decision)
    assert (decision.allowed, decision.degraded) == (True, NOT_REPLICATED)
