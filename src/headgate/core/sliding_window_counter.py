"""Sliding window counter: two aligned windows, the previous one weighted by how much of it the trailing window covers.

Bound: current + previous * overlap <= limit at every admission, hence at most `limit` units per aligned window and less
than 2 * limit in any interval of a window's length. On steady traffic the estimate is close to the sliding log's.

State: (end, current, previous, mark). The overlap is measured in `grains`, the whole window in `grains_per_window` of
them: microseconds for windows up to 100 s, coarser beyond, so that limit * grains stays exact. An overlap is rounded
up, which costs less than one unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision, held
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota

FINEST = 100_000_000
"""A window is cut into at most this many grains."""


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a sliding window counter."""
    limit, window = quota.limit, quota.window_us
    grain, grains = grains_of(quota)
    round_up = grain - 1
    full = limit * grains
    (calm, _), judged = thresholds(quota), judge(quota)
    normal, throttled = Pressure.NORMAL, Pressure.THROTTLED

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        if state is None:
            current = previous = mark = 0
            left = window - now % window
            end = now + left
        else:
            end, current, previous, mark = state
            left = end - now
            if left <= 0:
                previous = current if left > -window else 0
                current = 0
                left = window - now % window
                end = now + left
            elif left > window:
                if left > 2 * window:
                    current = min(current + previous, EXACT // grains)
                    return step((now + window - now % window, current, 0, mark), cost, now)
                return held(step(state, cost, end - window), left - window)
        room = spare = full - (current + cost) * grains
        overlap = 0
        if previous:
            overlap = (left + round_up) // grain if round_up else left
            room -= previous * overlap
        if room >= 0 or cost < 0:
            current += cost
            if current < 0:
                previous, current = max(0, previous + current), 0
                room = full - previous * overlap
            remaining = room // grains
            reset = left + window if current else left if previous else 0
            if remaining >= calm:
                return (end, current, previous, 0), Decision(True, limit, remaining, 0, reset, normal, quota)
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark, remaining, cost)
            return (end, current, previous, mark), Decision(True, limit, remaining, 0, reset, pressure, quota)
        remaining = 0 if cost == 1 else max(0, (room + cost * grains) // grains)
        if spare >= 0:
            retry = left - spare // previous * grain
        else:
            retry = left + window - (limit - cost) * grains // current * grain
        reset = left + window if current else left
        return state, Decision(False, limit, remaining, retry, reset, throttled, quota)

    return step


def void_at(state: Kept, quota: Quota) -> int:
    """Return the time from which `state` means that nothing is used."""
    end, current, previous, _mark = state
    if current:
        return int(end + quota.window_us)
    return int(end) if previous else 0


def grains_of(quota: Quota) -> tuple[int, int]:
    """Return the length of a grain in microseconds, and how many make the window."""
    grain = 1
    while quota.window_us // grain > FINEST:
        grain *= 10
    if quota.window_us % grain:
        raise InvalidQuota(f"a window of {quota.window_us} us must be a multiple of {grain} us")
    grains = quota.window_us // grain
    if quota.limit * grains > EXACT or (grain > 1 and quota.limit > grains):
        raise InvalidQuota(
            f"{quota.limit} per {quota.window_us} us cannot be computed exactly by sliding_window_counter: "
            "use a shorter window, or fixed_window"
        )
    return grain, grains
