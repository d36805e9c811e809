"""Checks that are written out limit by limit, with the steps of their algorithms in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import getsource
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Decision, Limiter, MemoryStore, Pressure, Quota
from headgate.core.plan import Call, Family, Verb
from headgate.stores import inlined, unrolled
from headgate.testing import ManualClock
from headgate.testing.reference import ReferenceStore
from headgate.testing.samples import CALENDARS, LARGE, QUOTAS
from tests.core.quotas import odd_buckets, quotas

QUEUE = Quota(5, 1_000_000, algorithm=Algorithm.LEAKY_BUCKET, queue=True)
STEPWISE = Quota(5, 1_000_000, refill_every_us=250_000)
MANY = st.lists(
    st.one_of(quotas(), odd_buckets(), st.sampled_from([QUEUE, *CALENDARS])),
    min_size=1,
    max_size=4,
    unique_by=lambda quota: quota.shape,
)
MOMENTS = st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 3)), min_size=1, max_size=30)
"""What passes before a call, in microseconds, and its cost."""


def both(limits: Sequence[Quota], moments: list[tuple[int, int]]) -> Iterator[tuple[Decision, Decision]]:
    """Yield what a bound check and the pure core say at each of the moments."""
    clock, family = ManualClock(), Family("both", limits)
    check, reference = MemoryStore(clock=clock).bind(family), ReferenceStore(clock)
    most = min(quota.capacity for quota in limits)
    for passes, asked in moments:
        clock.advance(us=passes)
        cost = min(asked, most)
        call = Call(Verb.CHECK, family.plan("user"), cost) if cost else Call(Verb.PEEK, family.plan("user"))
        yield check("user", cost), reference.run(call)


@given(MANY, MOMENTS)
def test_limits_decide_as_the_pure_core_does_also_if_they_are_read_late(
    limits: list[Quota], moments: list[tuple[int, int]]
) -> None:
    for told, expected in list(both(limits, moments)):
        assert told.limits == expected.limits
        assert told == expected


@pytest.mark.parametrize("peeks", [False, True])
@pytest.mark.parametrize("quota", [*QUOTAS, *CALENDARS, *LARGE], ids=str)
def test_every_algorithm_stands_in_place(quota: Quota, *, peeks: bool) -> None:
    lines = unrolled.lines_of((inlined.shape_of(quota.step),) * 2, peeks=peeks, queues=True)
    assert any("_step0(state" in line for line in lines) == (quota.refill_every_us > 1)


def _returns_within_while(state: Any, cost: int, now: int, since: int | None = None) -> Any:
    while cost:
        return state, Decision(True, cost, now, 0, since or 0, Pressure.NORMAL, QUEUE)
    return state, Decision(False, 0, 0, 0, 0, Pressure.THROTTLED, QUEUE)


def _returns_within_for(state: Any, cost: int, now: int, since: int | None = None) -> Any:
    for each in range(cost):
        return state, Decision(True, each, now, 0, since or 0, Pressure.NORMAL, QUEUE)
    return state, Decision(False, 0, 0, 0, 0, Pressure.THROTTLED, QUEUE)


@pytest.mark.parametrize("step", [_returns_within_while, _returns_within_for])
def test_a_step_that_returns_from_a_loop_is_called(step: Any) -> None:
    lines = unrolled.lines_of([inlined.shape_of(step)], peeks=False, queues=True)
    assert any("_step0(state" in line for line in lines)


@pytest.fixture(params=["none", "of another version", "torn"])
def other_source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Source of steps that is not theirs: there is none, or the file was replaced after the program had started."""

    def read(code: CodeType) -> str:
        if request.param == "none":
            raise OSError("could not get source code")
        return getsource(code).replace("- ", "+ " if request.param == "of another version" else "- (")

    monkeypatch.setattr(inlined, "getsource", read)
    for each in (unrolled.compiled_bound, inlined.source_of):
        each.cache_clear()
    yield
    unrolled.compiled_bound.cache_clear()


@pytest.mark.usefixtures("other_source")
@pytest.mark.parametrize("limits", [[QUEUE], [STEPWISE, *CALENDARS], QUOTAS[:6]], ids=["one", "three", "six"])
def test_steps_are_called_where_their_source_is_not_there(limits: list[Quota]) -> None:
    lines = unrolled.lines_of([inlined.shape_of(quota.step) for quota in limits], peeks=False, queues=True)
    assert sum("_step" in line for line in lines) == len(limits)
    moments = [(number * 37_000, number % 4) for number in range(30)]
    assert all(told == expected for told, expected in both(limits, moments))


@given(st.permutations([0, 1, 2]))
def test_several_limits_describe_the_one_that_blocks_longest(order: list[int]) -> None:
    texts = ["2/second", "2/minute", "2/hour"]
    limiter = Limiter([texts[number] for number in order], clock=ManualClock())
    assert limiter.check("user", 2)
    refusal = limiter.check("user")
    assert (refusal.index, str(refusal.quota)) == (order.index(2), "2/hour")
    assert [part.allowed for part in refusal.limits] == [False, False, False]
