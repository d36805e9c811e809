"""The one door to the engine: answers go through as they are, and what was decided is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate import CostTooLarge, UsageError
from headgate.engine import AsyncEngine, JointRequest
from headgate.observe.recorder import Recorder
from headgate.policy.loading import load
from headgate.policy.request import InvalidRequest, Request, UnknownRule
from headgate.server.decisions import Decisions
from tests.observe.readings import value

RULES = """
version: 1
unknown_rule: error
rules:
  - {id: single, dimension: user, limit: 3, window: 1h}
"""
ADA = Request({"user": "ada"}, "/")


@pytest.fixture
def decisions() -> Iterator[Decisions]:
    recorder = Recorder()
    yield Decisions(AsyncEngine(load(RULES)), recorder)
    recorder.close()


def counted(decisions: Decisions, name: str, **labels: str) -> float:
    return value(decisions.recorder.metrics()[1], f"headgate_{name}", **labels)


async def test_a_check_with_an_idempotency_key_takes_its_cost_once(decisions: Decisions) -> None:
    assert [(await decisions.engine.check_once(ADA, "order-1")).limits[0].decision.remaining for _ in range(3)] == [
        2,
        2,
        2,
    ]
    assert [(await decisions.check(ADA)).limits[0].decision.remaining for _ in range(2)] == [1, 0]
    assert counted(decisions, "rule_decisions_total", rule="single", outcome="allowed") == 5


async def test_what_was_given_back_can_be_taken_again_and_a_reset_gives_back_all(decisions: Decisions) -> None:
    assert [(await decisions.check(ADA)).allowed for _ in range(4)] == [True, True, True, False]
    await decisions.check_together([JointRequest(ADA, refund=True)])
    assert (await decisions.peek(ADA)).allowed
    assert [(await decisions.check(ADA)).allowed for _ in range(2)] == [True, False]
    assert (await decisions.reset(ADA)).rules == ("single",)
    by_rule = Request({"user": "ada"}, cost=2, rule_id="single")
    assert (await decisions.peek(by_rule)).limits[0].decision.remaining == 3
    assert (await decisions.check(by_rule)).allowed
    assert await decisions.reset(by_rule)
    assert (await decisions.peek(ADA)).limits[0].decision.remaining == 3
    assert counted(decisions, "refunds_total") == 1
    assert counted(decisions, "resets_total") == 2
    assert counted(decisions, "peeks_total") == 3
    assert counted(decisions, "rule_decisions_total", rule="single", outcome="denied") == 2


async def test_several_requests_at_once_are_recorded_one_by_one(decisions: Decisions) -> None:
    bob = Request({"user": "bob"}, "/")
    assert all(await decisions.check_together([JointRequest(ADA), JointRequest(bob)]))
    await decisions.check_together([JointRequest(ADA, refund=True)])
    assert counted(decisions, "rule_decisions_total", rule="single", outcome="allowed") == 2
    assert counted(decisions, "refunds_total") == 1


async def test_errors_go_through_and_nothing_is_recorded(decisions: Decisions) -> None:
    with pytest.raises(CostTooLarge):
        await decisions.check(Request({"user": "ada"}, "/", cost=4))
    with pytest.raises(UsageError):
        await decisions.check(Request({"user": ""}, "/"))
    with pytest.raises(InvalidRequest):
        await decisions.check(Request({"user": "ada"}, rule_id="missing"))
    assert b"headgate_decision_duration_seconds_count" not in decisions.recorder.metrics()[1]


async def test_a_rule_that_does_not_exist_lets_pass_and_says_so() -> None:
    recorder, unknown = Recorder(), Request({"user": "ada"}, rule_id="missing")
    decisions = Decisions(AsyncEngine(load(RULES.replace("unknown_rule: error\n", ""))), recorder)
    for ruling in (
        await decisions.check(unknown),
        await decisions.engine.check_once(unknown, "order-1"),
        await decisions.peek(unknown),
    ):
        assert (ruling.allowed, ruling.matched, ruling.limits) == (True, False, ())
    with pytest.raises(UnknownRule):
        await decisions.reset(unknown)
    assert counted(decisions, "unlimited_decisions_total", verdict="unlimited") == 2
    assert counted(decisions, "resets_total") == 0
    recorder.close()


def test_every_api_has_the_same_engine_and_recorder(decisions: Decisions) -> None:
    other = decisions.via("batch")
    assert (other.engine.policy, other.recorder) == (decisions.engine.policy, decisions.recorder)
    asyncio.run(other.engine.check(ADA))
    assert asyncio.run(decisions.engine.peek(ADA)).limits[0].decision.remaining == 2
    decisions.recorder.publish()
    assert counted(decisions, "rules") == 1
