"""Requests whose plan is kept are decided as any others."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest

from headgate import CostTooLarge
from headgate.engine import AsyncEngine
from headgate.engine.kept import KeptRequest
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.policy.request import InvalidRequest, Request
from headgate.testing import ManualClock

RULES = """
version: 1
rules:
  - {id: per-user, dimension: user, limit: 3, window: 1h, algorithm: fixed_window}
  - {id: trial, dimension: ip, limit: 1, window: 1h, shadow: true}
users:
  ada: {overrides: {per-user: {limit: 5, until: "2030-01-01T00:00:00Z"}}}
deny: [{user: mallory}]
allow: [{user: root}]
"""
IN_2029 = 1_861_920_000_000_000
YEAR = 366 * 24 * 3600


def test_it_is_planned_once_for_each_policy_and_until_an_override_ends() -> None:
    policy, other = Policy(load(RULES)), Policy(load(RULES))
    kept = KeptRequest(Request({"user": "ada"}))
    first = kept.selection(policy, IN_2029)
    assert first.enforced.plan[0].quota.limit == 5
    assert kept.selection(policy, IN_2029 + 1) is first
    later = kept.selection(policy, IN_2029 + YEAR * 1_000_000)
    assert later.enforced.plan[0].quota.limit == 3
    assert kept.selection(other, IN_2029) is not later


def test_it_does_not_keep_old_rules() -> None:
    policy = Policy(load(RULES))
    kept, alive = KeptRequest(Request({"user": "ada"})), ref(policy)
    kept.selection(policy, IN_2029)
    del policy
    gc.collect()
    assert alive() is None
    assert kept.selection(Policy(load(RULES)), IN_2029).enforced.plan


@pytest.mark.parametrize(
    "request_",
    [
        Request({"user": name, "ip": "203.0.113.9"}, cost=cost)
        for name in ("ada", "bob", "root", "mallory")
        for cost in (0, 1)
    ]
    + [Request()],
)
def test_it_is_planned_as_any_other(request_: Request) -> None:
    policy = Policy(load(RULES))
    kept = KeptRequest(request_)
    for _ in range(2):
        assert kept.selection(policy, IN_2029) == policy.plan(request_, IN_2029)


def test_it_is_decided_as_any_other() -> None:
    async def run() -> None:
        async with AsyncEngine(load(RULES), clock=ManualClock(IN_2029)) as engine:
            kept = KeptRequest(Request({"user": "bob", "ip": "203.0.113.9"}))
            rulings = [await engine.check_kept(kept) for _ in range(4)]
            assert [ruling.allowed for ruling in rulings] == [True, True, True, False]
            assert [ruling.shadow[0].decision.allowed for ruling in rulings] == [True, False, False, False]
            assert not (await engine.check_kept(KeptRequest(Request({"user": "mallory"})))).allowed
            assert (await engine.check_kept(KeptRequest(Request({"user": "eve"}, cost=2)))).allowed

    asyncio.run(run())


def test_what_makes_no_sense_is_an_error_each_time() -> None:
    policy = Policy(load(RULES))
    for kept, error in (
        (KeptRequest(Request(endpoint="/../a")), InvalidRequest),
        (KeptRequest(Request({"user": "bob"}, cost=4)), CostTooLarge),
    ):
        for _ in range(2):
            with pytest.raises(error):
                kept.selection(policy, IN_2029)
