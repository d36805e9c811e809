"""Fixed window: up to `limit` units in each window; windows are aligned to the epoch, or are the periods of a calendar.

Bound: at most `limit` units per aligned window or period, hence at most 2 * limit in any interval of a window's length,
or of the shortest period's (the boundary burst).

State: (end, used, mark): the end of the window that was counted, and the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.calendar import SHIFT_US
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    limit, window, calendar = quota.limit, quota.window_us, quota.calendar
    far = 2 * window if calendar is None else 2 * window + SHIFT_US
    (calm, _), judged = thresholds(quota), judge(quota)
    normal, throttled = Pressure.NORMAL, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            used = mark = left = 0
        else:
            end, used, mark = state
            left = end - now
            if left <= 0:
                used = mark = 0
        if left <= 0 or left > far:
            left = window - now % window if calendar is None else calendar.around(now)[1] - now
            end = now + left
            if used:  # the clock fell behind by more than a window; by less, it just takes longer
                state = end, used, mark
        if since is not None and since < beginning(end, now):
            cost = 0  # it was charged to a window that is over
        after = used + cost
        remaining = limit - after
        if remaining >= 0 or cost <= 0:
            if after <= 0:
                after, remaining, left = 0, limit, 0
            elif remaining < 0:
                remaining = 0
            if remaining >= calm:
                return (end, after, 0), Decision(True, limit, remaining, 0, left, normal, quota, 0, cost, now)
            mark, pressure = judged(mark, remaining, cost)
            return (end, after, mark), Decision(True, limit, remaining, 0, left, pressure, quota, 0, cost, now)
        remaining = limit - used if limit > used else 0
        return state, Decision(False, limit, remaining, left, left, throttled, quota)

    def beginning(end: int, now: int) -> int:
        """Return when the window began that ends at `end`; its end if that is not known."""
        if calendar is None:
            return end - window
        start, finish, after = calendar.around(now)
        return start if end == finish else finish if end == after else end

    return step


def void_at(state: Kept, _: Quota) -> int:
    end, used, _mark = state
    return int(end) if used else 0
