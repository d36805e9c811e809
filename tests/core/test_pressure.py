"""The state of a key: normal, warning above a threshold until usage falls below a lower one, throttled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Decision, Pressure, Quota
from headgate.core.algorithms import State
from tests.core.quotas import quotas

SECOND = 1_000_000
START = 29_166_667 * 60 * SECOND
NORMAL, WARNING, THROTTLED = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

KINDS = [
    *(Quota(10, SECOND, algorithm=algorithm) for algorithm in Algorithm),
    Quota(4, SECOND, burst=6),
    Quota(40, SECOND, burst=-30),
    Quota(10, SECOND, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    Quota(10, SECOND, refill_every_us=250_000),
    Quota.one_off(10, keep_us=SECOND),
]


class Hysteresis:
    """The definition, as slow as it comes: usage is judged before and after each request."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.warned = False

    def judge(self, found: int, said: Decision) -> Pressure:
        """Return the state of a key of which `found` units were used when the request came, and what was said then."""
        self._see(found)
        if said.allowed:
            self._see(said.used)
        if not said.allowed or said.used == said.limit:
            return THROTTLED
        return WARNING if self.warned else NORMAL

    def _see(self, used: int) -> None:
        if 100 * used > self.quota.warn_percent * self.quota.capacity:
            self.warned = True
        elif 100 * used < self.quota.calm_percent * self.quota.capacity:
            self.warned = False


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_up_and_down_again(quota: Quota) -> None:
    """80 % is not above 80 %, and 70 % is not below 70 %."""
    state: State = None
    seen = []
    for cost in (7, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1):
        state, decision = quota.step(state, cost, START)
        seen.append((decision.used, decision.state))
    assert seen == [
        (7, NORMAL),
        (8, NORMAL),
        (9, WARNING),
        (10, THROTTLED),
        (9, WARNING),
        (8, WARNING),
        (7, WARNING),
        (6, NORMAL),
        (7, NORMAL),
        (8, NORMAL),
        (9, WARNING),
    ]


def test_a_lowered_limit_throttles_at_once() -> None:
    state, _ = Quota(10, SECOND).step(None, 5, START)
    assert Quota(5, SECOND).step(state, 0, START)[1].state is THROTTLED
    assert Quota(6, SECOND).step(state, 0, START)[1].state is WARNING
    assert Quota(20, SECOND).step(state, 0, START)[1].state is NORMAL


@given(st.one_of(quotas(), st.sampled_from(KINDS)), st.data())
def test_agrees_with_the_definition(quota: Quota, data: st.DataObject) -> None:
    """On random traces of requests, refunds and looks, for random thresholds."""
    warn = data.draw(st.one_of(st.just(80), st.integers(1, 100)))
    calm = data.draw(st.one_of(st.just(min(warn, 70)), st.integers(1, warn)))
    quota = replace(quota, warn_percent=warn, calm_percent=calm)
    hysteresis = Hysteresis(quota)
    state: State = None
    now = START
    small = max(1, quota.capacity // 10)
    rest = st.one_of(st.just(0), st.integers(0, max(1, quota.window_us // 5)), st.integers(0, 2 * quota.window_us))
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(rest)
        cost = data.draw(st.one_of(st.integers(-small, 2 * small), st.integers(-quota.capacity, quota.capacity)))
        found = quota.step(state, 0, now)[1].used
        after, said = quota.step(state, min(cost, quota.capacity), now)
        assert said.state is hysteresis.judge(found, said)
        state = after if cost else state
