"""Sliding window counter: two aligned windows, the previous one weighted by how much of it the trailing window covers.

Bound: current + previous * overlap <= limit at every admission, hence at most `limit` units per aligned window and less
than 2 * limit in any interval of a window's length. On steady traffic the estimate is close to the sliding log's.

State: (end, current, previous, mark). The overlap is measured in grains: microseconds for windows up to 100 s, powers
of ten of them beyond, and for limits so large that limit * grains would not be exact (`Quota.grain_us`). An overlap is
rounded up to a grain, and where the window is not a whole number of grains, they are counted rounded down.

Counts that a limit does not allow, since it was lowered, make negative sums that may leave 53 bits. They are only
compared with 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision, held
from headgate.core.numbers import EXACT
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota

FINEST = 100_000_000
"""A window is cut into at most this many grains."""


def transition(quota: Quota) -> Transition:
    limit, window = quota.limit, quota.window_us
    grain, grains = grains_of(quota)
    round_up = grain - 1
    full = limit * grains
    (calm, _), judged = thresholds(quota), judge(quota)
    normal, throttled = Pressure.NORMAL, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
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
                    return step((now + window - now % window, current + previous, 0, mark), cost, now, since)
                return held(step(state, cost, end - window, since), left - window)
        overlap = 0
        if previous:
            overlap = min(grains, (left + round_up) // grain) if round_up else left
        if cost < 0:
            if since is None:
                current += cost
                if current < 0:
                    previous, current = max(0, previous + current), 0
            elif since >= end - window:
                current = max(0, current + cost)
            elif since >= end - 2 * window:
                previous = max(0, previous + cost)
            remaining = spare(current, previous, overlap) // grains
            mark, pressure = judged(mark, remaining, cost)
            reset = left + window if current else left if previous else 0
            return (end, current, previous, mark), Decision(
                True, limit, remaining, 0, reset, pressure, quota, 0, cost, now
            )
        after = current + cost
        room = full - after * grains - previous * overlap if previous else limit - after
        if room >= 0 or not cost:
            remaining = room // grains if previous else room
            if remaining < 0:
                remaining = 0
            reset = left + window if after else left if previous else 0
            if remaining >= calm:
                return (end, after, previous, 0), Decision(
                    True, limit, remaining, 0, reset, normal, quota, 0, cost, now
                )
            mark, pressure = judged(mark, remaining, cost)
            return (end, after, previous, mark), Decision(
                True, limit, remaining, 0, reset, pressure, quota, 0, cost, now
            )
        remaining = 0 if cost == 1 else spare(current, previous, overlap) // grains
        if after <= limit:
            retry = left - (full - after * grains) // previous * grain
        else:
            retry = left + window - (limit - cost) * grains // current * grain
        reset = left + window if current else left
        return state, Decision(False, limit, remaining, retry, reset, throttled, quota)

    def spare(current: int, previous: int, overlap: int) -> int:
        """Return the remainder, in grains of units."""
        room = full - current * grains - previous * overlap
        return max(0, room)

    return step


def void_at(state: Kept, quota: Quota) -> int:
    end, current, previous, _mark = state
    if current:
        return int(end + quota.window_us)
    return int(end) if previous else 0


def grains_of(quota: Quota) -> tuple[int, int]:
    """Return the length of a grain in microseconds, and how many whole ones the window has."""
    most = min(FINEST, EXACT // quota.limit)
    grain = 1
    while quota.window_us // grain > most:
        grain *= 10
    return grain, max(1, quota.window_us // grain)
