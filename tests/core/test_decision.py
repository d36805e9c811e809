"""Decisions: what a caller reads from them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from pydantic import TypeAdapter

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision, held, marked
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
QUOTA = Quota(5, SECOND)
ADMISSION = Decision(True, 5, 3, 0, 400_000, Pressure.NORMAL, QUOTA)
REFUSAL = Decision(False, 5, 0, 200_000, 1_500_000, Pressure.THROTTLED, QUOTA)
QUEUED = Decision(True, 5, 3, 0, 400_000, Pressure.WARNING, QUOTA, 250_000)
SEVERAL = msgspec.structs.replace(REFUSAL, made_of=(ADMISSION, REFUSAL))
DEGRADED = msgspec.structs.replace(ADMISSION, degraded="circuit_open")


def test_is_true_when_the_request_may_pass() -> None:
    assert ADMISSION
    assert not REFUSAL


def test_offers_its_durations_in_seconds() -> None:
    assert (REFUSAL.retry_after, REFUSAL.reset_after, QUEUED.delay) == (0.2, 1.5, 0.25)
    assert (ADMISSION.retry_after, ADMISSION.delay) == (0, 0)


def test_used_and_remaining_make_the_limit() -> None:
    assert (ADMISSION.used, REFUSAL.used) == (2, 5)


def test_limits_are_its_parts_or_itself() -> None:
    assert SEVERAL.limits == (ADMISSION, REFUSAL)
    assert ADMISSION.limits == (ADMISSION,)


def test_pydantic_writes_it_with_its_limits() -> None:
    shown = TypeAdapter(Decision).dump_python(SEVERAL, mode="json")
    assert [limit["allowed"] for limit in shown.pop("limits")] == [True, False]
    assert shown == {
        "allowed": False,
        "limit": 5,
        "remaining": 0,
        "retry_after": 0.2,
        "reset_after": 1.5,
        "delay": 0.0,
        "state": "throttled",
        "quota": "5/second",
        "degraded": "",
    }


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (ADMISSION, "<Decision '5/second': allowed, remaining=3 of 5, reset_after=0.4, normal>"),
        (REFUSAL, "<Decision '5/second': denied, retry_after=0.2, remaining=0 of 5, reset_after=1.5, throttled>"),
        (QUEUED, "<Decision '5/second': allowed, remaining=3 of 5, reset_after=0.4, warning, delay=0.25>"),
        (
            SEVERAL,
            "<Decision '5/second': denied, retry_after=0.2, remaining=0 of 5, reset_after=1.5, throttled, 2 limits>",
        ),
        (
            DEGRADED,
            "<Decision '5/second': allowed, remaining=3 of 5, reset_after=0.4, normal, degraded=circuit_open>",
        ),
    ],
)
def test_repr_tells_the_story(decision: Decision, text: str) -> None:
    assert repr(decision) == text


def test_is_not_degraded_unless_told() -> None:
    assert (ADMISSION.degraded, DEGRADED.degraded) == ("", "circuit_open")
    assert ADMISSION != DEGRADED


def test_each_of_its_limits_has_the_reason_too() -> None:
    decision = marked(SEVERAL, "circuit_open")
    assert [each.degraded for each in (decision, *decision.limits)] == ["circuit_open"] * 3


def test_is_a_frozen_value() -> None:
    changed: Any = copy.copy(ADMISSION)
    with pytest.raises(AttributeError):
        changed.allowed = False
    assert changed == ADMISSION != REFUSAL
    assert len({ADMISSION, changed, REFUSAL}) == 2


@pytest.mark.parametrize("decision", [ADMISSION, REFUSAL, QUEUED, SEVERAL, DEGRADED], ids=repr)
def test_copies_are_equal(decision: Decision) -> None:
    assert pickle.loads(pickle.dumps(decision)) == decision  # noqa: S301  our own bytes
    assert copy.deepcopy(decision) == decision


def test_held_adds_the_time_that_the_clock_lost() -> None:
    """To what is waited for, and not to a wait of nothing."""
    state = (1, 2)
    assert held((state, REFUSAL), 7) == (
        state,
        Decision(False, 5, 0, 200_007, 1_500_007, Pressure.THROTTLED, QUOTA),
    )
    unused = Decision(True, 5, 5, 0, 0, Pressure.NORMAL, QUOTA)
    assert held((None, unused), 7) == (None, unused)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_every_algorithm_names_its_quota(algorithm: Algorithm) -> None:
    quota = Quota(2, SECOND, algorithm=algorithm)
    state, admission = quota.step(None, 2, START)
    refusal = quota.step(state, 1, START)[1]
    assert admission.quota is refusal.quota is quota
    assert admission.limit == refusal.limit == 2
