"""Fixed window: up to `limit` units in each window; windows are aligned to the epoch.

Bound: at most `limit` units per aligned window, hence at most 2 * limit in any interval of a window's length (the
boundary burst).

State: (end, used, mark): the end of the window that was counted, and the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision, held
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a fixed window."""
    limit, window = quota.limit, quota.window_us
    (calm, _), judged = thresholds(quota), judge(quota)
    normal, throttled = Pressure.NORMAL, Pressure.THROTTLED

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        if state is None:
            used = mark = 0
            left = window - now % window
            end = now + left
        else:
            end, used, mark = state
            left = end - now
            if left <= 0:
                used = mark = 0
                left = window - now % window
                end = now + left
            elif left > window:
                if left > 2 * window:
                    return step((now + window - now % window, used, mark), cost, now)
                return held(step(state, cost, end - window), left - window)
        after = used + cost
        remaining = limit - after
        if remaining >= 0 or cost < 0:
            if after <= 0:
                after, remaining, left = 0, limit, 0
            elif remaining < 0:
                remaining = 0
            if remaining >= calm:
                return (end, after, 0), Decision(True, limit, remaining, 0, left, normal, quota)
            mark, pressure = judged(mark, remaining, cost)
            return (end, after, mark), Decision(True, limit, remaining, 0, left, pressure, quota)
        remaining = limit - used if limit > used else 0
        return state, Decision(False, limit, remaining, left, left, throttled, quota)

    return step


def void_at(state: Kept, _: Quota) -> int:
    """Return the time from which `state` means that nothing is used."""
    end, used, _mark = state
    return int(end) if used else 0
