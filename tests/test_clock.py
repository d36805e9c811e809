"""The clocks, the machine's and the one that stands still; and the buckets of durations: the bounds say which."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Clock, SystemClock
from headgate.clock import BOUNDS_NS, BUCKETS, FINEST_NS, bucket_of
from headgate.testing import ManualClock


def test_the_system_clock_returns_microseconds_since_the_epoch() -> None:
    before = time.time_ns() // 1000
    assert before <= SystemClock().now() <= time.time_ns() // 1000


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_a_wait_for_the_past_ends_at_once(clock: Clock) -> None:
    clock.wait(threading.Event(), clock.ticks())
    asyncio.run(clock.wait_async(asyncio.Event(), clock.ticks()))


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
@pytest.mark.parametrize("until", [None, 1 << 62])
async def test_a_set_event_ends_a_wait(clock: Clock, until: int | None) -> None:
    is_set = threading.Event()
    is_set.set()
    clock.wait(is_set, until)
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)
    await clock.wait_async(event, until)


def test_the_system_clock_waits_until_the_time_has_come() -> None:
    clock = SystemClock()
    until = clock.ticks() + 3000
    clock.wait(threading.Event(), until)
    assert clock.ticks() >= until
    until = clock.ticks() + 3000
    asyncio.run(clock.wait_async(asyncio.Event(), until))
    assert clock.ticks() >= until


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock(5)
    assert clock.now() == clock.now() == 5
    clock.advance(1.5, us=2)
    assert clock.now() == 1_500_007
    clock.advance(-1)
    assert clock.now() == 500_007
    clock.set(9)
    assert clock.now() == 9


async def test_a_manual_clock_wakes_those_whose_time_has_come(manual_clock: ManualClock) -> None:
    now = manual_clock.now()
    early, late = (asyncio.create_task(manual_clock.wait_async(asyncio.Event(), now + wait)) for wait in (1000, 2000))
    await asyncio.sleep(0)
    assert manual_clock.sleepers == 2
    manual_clock.advance(us=1999)
    await early
    assert not late.done()
    manual_clock.advance(us=1)
    await late
    assert manual_clock.sleepers == 0


@given(st.integers(0, 2**63 - 1))
def test_every_duration_has_the_first_bucket_whose_bound_is_above_it(elapsed_ns: int) -> None:
    bucket = bucket_of(elapsed_ns)
    assert 0 <= bucket < BUCKETS
    assert elapsed_ns < FINEST_NS << bucket
    assert bucket == 0 or elapsed_ns >= FINEST_NS << (bucket - 1)


def test_the_bounds_that_are_shown_go_from_10_microseconds_to_over_a_second() -> None:
    assert (BOUNDS_NS[0], BOUNDS_NS[-1]) == (10_000, 1_310_720_000)
