"""The state of a key: normal, warning above a threshold until usage falls below a lower one, throttled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm, State
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
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


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_a_refused_request_is_throttled_however_little_is_used(quota: Quota) -> None:
    state, _ = quota.step(None, 2, START)
    state, refusal = quota.step(state, 9, START)
    assert (refusal.used, refusal.state) == (2, THROTTLED)
    assert quota.step(state, 1, START)[1].state is NORMAL


@pytest.mark.parametrize("quota", KINDS, ids=str)
def test_a_look_does_not_change_it(quota: Quota) -> None:
    state, _ = quota.step(None, 9, START)
    assert [quota.step(state, 0, START)[1].state for _ in range(2)] == [WARNING, WARNING]
    state, _ = quota.step(state, -1, START)
    assert quota.step(state, 0, START)[1].state is WARNING


def test_warning_ends_while_the_key_rests() -> None:
    """It falls to 6 of 10 within 300 ms; back at 8 it is a normal 8."""
    quota = Quota(10, SECOND)
    warned, _ = quota.step(None, 9, START)
    assert quota.step(warned, 0, START + 200_000)[1].state is WARNING
    assert quota.step(warned, 1, START + 200_000)[1].state is WARNING  # found 7, made it 8
    assert quota.step(warned, 0, START + 300_000)[1].state is NORMAL
    assert quota.step(warned, 2, START + 300_000)[1].state is NORMAL  # found 6, made it 8
    assert quota.step(warned, 3, START + 300_000)[1].state is WARNING


def test_denied_requests_do_not_keep_a_key_in_warning() -> None:
    quota = Quota(10, SECOND)
    state, _ = quota.step(None, 9, START)
    for at in range(0, 300_001, 50_000):
        state, refusal = quota.step(state, 8, START + at)
        assert refusal.state is THROTTLED
    assert quota.step(state, 2, START + 300_000)[1].state is NORMAL


@pytest.mark.parametrize(
    ("warn", "calm", "expected"),
    [
        (100, 100, "nnnnnnnnnt"),  # never a warning
        (100, 1, "nnnnnnnnnt"),
        (1, 1, "wwwwwwwwwt"),
        (50, 50, "nnnnnwwwwt"),
        (55, 30, "nnnnnwwwwt"),
        (99, 10, "nnnnnnnnnt"),
        (89, 10, "nnnnnnnnwt"),
    ],
)
def test_thresholds_are_configurable(warn: int, calm: int, expected: str) -> None:
    quota = Quota(10, SECOND, warn_percent=warn, calm_percent=calm)
    state: State = None
    letters = ""
    for _ in range(10):
        state, decision = quota.step(state, 1, START)
        letters += decision.state[0]
    assert letters == expected


def test_at_a_hundred_percent_there_is_no_warning_on_the_way_down_either() -> None:
    """No key uses more than all of its capacity."""
    quota = Quota(10, SECOND, warn_percent=100, calm_percent=70)
    state, spent = quota.step(None, 10, START)
    assert spent.state is THROTTLED
    assert quota.step(state, -1, START)[1].state is NORMAL


def test_a_limit_of_one_is_normal_or_throttled() -> None:
    quota = Quota(1, SECOND)
    state, decision = quota.step(None, 0, START)
    assert decision.state is NORMAL
    state, decision = quota.step(state, 1, START)
    assert decision.state is THROTTLED
    assert quota.step(state, 0, START)[1].state is THROTTLED
    assert quota.step(state, -1, START)[1].state is NORMAL


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


def test_they_are_words() -> None:
    assert [str(pressure) for pressure in Pressure] == ["normal", "warning", "throttled"]
