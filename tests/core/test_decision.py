"""Decisions as callers see them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest

from headgate import Decision, Pressure, Quota
from headgate.core.decision import exhausted, marked, refused

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
QUOTA = Quota(5, SECOND)
ADMISSION = Decision(True, 5, 3, 0, 400_000, Pressure.NORMAL, QUOTA)
REFUSAL = Decision(False, 5, 0, 200_000, 1_500_000, Pressure.THROTTLED, QUOTA)
QUEUED = Decision(True, 5, 3, 0, 400_000, Pressure.WARNING, QUOTA, 250_000)
SEVERAL = msgspec.structs.replace(REFUSAL, parts=(ADMISSION, REFUSAL))
DEGRADED = msgspec.structs.replace(ADMISSION, degraded="circuit_open")


def test_has_its_durations_in_seconds_what_is_used_and_its_limits() -> None:
    assert (bool(ADMISSION), bool(REFUSAL)) == (True, False)
    assert (REFUSAL.retry_after, REFUSAL.reset_after, QUEUED.delay) == (0.2, 1.5, 0.25)
    assert (ADMISSION.retry_after, ADMISSION.delay, ADMISSION.used, REFUSAL.used) == (0, 0, 2, 5)
    assert SEVERAL.limits == (ADMISSION, REFUSAL)
    assert ADMISSION.limits == (ADMISSION,)


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
        (DEGRADED, "<Decision '5/second': allowed, remaining=3 of 5, reset_after=0.4, normal, degraded=circuit_open>"),
    ],
)
def test_repr_shows_the_numbers(decision: Decision, text: str) -> None:
    assert repr(decision) == text


def test_each_of_its_limits_has_the_reason_too() -> None:
    decision = marked(SEVERAL, "circuit_open")
    assert [each.degraded for each in (decision, *decision.limits)] == ["circuit_open"] * 3


def test_a_refusal_is_throttled_and_has_no_delay() -> None:
    assert exhausted(QUOTA, 9) == Decision(False, 5, 0, 9, 9, Pressure.THROTTLED, QUOTA)
    assert refused(QUEUED, 7) == Decision(False, 5, 3, 7, 400_000, Pressure.THROTTLED, QUOTA)


def test_is_a_frozen_value() -> None:
    assert ADMISSION != DEGRADED
    changed: Any = copy.copy(ADMISSION)
    with pytest.raises(AttributeError):
        changed.allowed = False
    assert changed == ADMISSION != REFUSAL
    assert len({ADMISSION, changed, REFUSAL}) == 2


@pytest.mark.parametrize("decision", [ADMISSION, REFUSAL, QUEUED, SEVERAL, DEGRADED], ids=repr)
def test_copies_are_equal(decision: Decision) -> None:
    assert pickle.loads(pickle.dumps(decision)) == decision  # noqa: S301  our own bytes
    assert copy.deepcopy(decision) == decision
