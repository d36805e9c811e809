"""Data for the tests of stores: quotas of every kind, and limits that no other test uses."""

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
"""The same for calendar windows."""

LARGE = [
    *(Quota(20_011, 86_400 * SECOND, algorithm=algorithm) for algorithm in Algorithm),
    *(Quota(999_983, 86_400 * SECOND, algorithm=algorithm) for algorithm in Algorithm if algorithm.is_bucket),
    Quota(1_000_003, 999_983, burst=2_250_000),
    Quota(2_251, SECOND, burst=2_251_797_000, algorithm=Algorithm.GCRA),
    Quota(22_517_000, 100 * SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER),
    Quota(7, 3650 * 86_400 * SECOND, algorithm=Algorithm.LEAKY_BUCKET),
]
"""Quotas whose arithmetic is close to the bound of exactness, among them buckets that round."""

FEW = [QUOTAS[0], CALENDARS[0]]
"""Enough for a store that wraps another one, which is tested with all quotas."""

names = (f"limit-{number}" for number in count())
"""Names of limits that no other test uses."""


def family(*quotas: Quota) -> Family:
    """Return limits that no other test uses, even in a store that outlives the test."""
    return Family(next(names), quotas)


def hesitating(quota: Quota) -> Quota:
    """Return `quota` with a step that lets other threads run before it returns.

    A store that is not atomic is then between reading and writing, so that the test fails. (A store that decides in
    another process never calls the step.)
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
    """Tests of one store."""

    def make_store(self, clock: ManualClock) -> Store:
        """Return a new store that uses `clock`."""
        raise NotImplementedError(f"{type(self).__name__} must define make_store(clock)")
