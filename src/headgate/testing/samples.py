"""What the tests of a store ask it about: quotas of every kind, and limits that no other test shares."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count

from headgate.core.algorithms import Algorithm, State
from headgate.core.calendar import Calendar
from headgate.core.decision import Decision
from headgate.core.plan import Family
from headgate.core.quota import Quota
from headgate.stores.base import Store
from headgate.testing.clock import ManualClock

SECOND = 1_000_000
QUOTAS = [
    *(Quota(5, SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(3, SECOND, burst=2),
    Quota(3, SECOND, burst=2, algorithm=Algorithm.GCRA),
    Quota(3, SECOND, burst=2, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    Quota(5, SECOND, refill_every_us=SECOND // 4),
    Quota.one_off(5, keep_us=10 * SECOND),
]
"""One of each kind, all with a capacity of 5."""

CALENDARS = [Quota.per(5, Calendar("day", "Europe/Berlin")), Quota.per(5, Calendar("month", "Australia/Lord_Howe"))]
"""Likewise, in windows of the calendar."""

LARGE = [
    *(Quota(20_011, 86_400 * SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(1_000_003, 999_983, burst=2_250_000),
    Quota(2_251, SECOND, burst=2_251_797_000, algorithm=Algorithm.GCRA),
    Quota(22_517_000, 100 * SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER),
    Quota(7, 3650 * 86_400 * SECOND, algorithm=Algorithm.LEAKY_BUCKET),
]
"""Quotas whose arithmetic comes near the bound of what is exact."""

FEW = [QUOTAS[0], CALENDARS[0]]
"""Enough for a store that asks another one, which is tested with all: what is counted, and in windows of what."""

names = (f"limit-{number}" for number in count())
"""Names of limits that no other test uses."""


def family(*quotas: Quota) -> Family:
    """Return limits that no other test shares, even in a store that outlives the test."""
    return Family(next(names), quotas)


def hesitating(quota: Quota) -> Quota:
    """Return `quota` with a step that lets other threads run before it answers.

    A store that is not atomic is between reading and writing then, and is found out. (One that does not decide in this
    process never calls it.)
    """
    quota = replace(quota)
    step = quota.step

    def hesitant(state: State, cost: int, now: int) -> tuple[State, Decision]:
        outcome = step(state, cost, now)
        time.sleep(0)
        return outcome

    object.__setattr__(quota, "step", hesitant)
    return quota


class WithStore:
    """A class of tests for one store."""

    def make_store(self, clock: ManualClock) -> Store:
        """Return a new store that takes its time from `clock`."""
        raise NotImplementedError(f"{type(self).__name__} must define make_store(clock)")
