"""GCRA: one timestamp per key, the theoretical arrival time (TAT), from which on the key owes nothing.

Each unit of cost moves the TAT one emission interval (window / limit) into the future; a request passes while the TAT
stays within the time that the capacity is worth. It decides as the token bucket does, with the smallest state.

Bound: at most capacity + floor(limit * t / window) units in any interval of t microseconds, and exactly that many when
demand never pauses.

State: (tat, fraction, limit, mark). The interval is rarely a whole number of microseconds, so the TAT carries its
fraction, in units of 1/gain. The state names the limit it was written under: after a change what was used is carried
over, rounded up, except that debt beyond the capacity by more than a window is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.core.numbers import EXACT, carried_over, exact_rate, reduced
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a GCRA limit."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    gain, unit = exact_rate(limit, window, capacity)
    full, round_up = capacity * unit, gain - 1
    beyond = full + min(window * gain, EXACT)  # more debt than this is a mistake of the clock
    longest = beyond // gain
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        if state is None:
            debt = mark = 0
        else:
            tat, fraction, written_under, mark = state
            debt = tat - now
            if debt < 0:
                debt = 0
            elif written_under != limit:
                return step(carried(state, now), cost, now)
            elif gain != 1:
                debt = debt * gain + fraction if debt <= longest else beyond + 1
        after = debt + unit if cost == 1 else debt + cost * unit
        room = full - after
        if room >= 0 or cost < 0:
            if after < 0:
                after, room = 0, full
            remaining = room // unit
            if gain == 1:
                if remaining >= calm:
                    return (now + after, 0, limit, 0), Decision(True, capacity, remaining, 0, after, normal, quota)
                wait, fraction, reset = after, 0, after
            else:
                wait, fraction = divmod(after, gain)
                reset = wait + 1 if fraction else wait
            if remaining >= calm:
                return (now + wait, fraction, limit, 0), Decision(True, capacity, remaining, 0, reset, normal, quota)
            if 0 < remaining < warn:
                return (now + wait, fraction, limit, 1), Decision(True, capacity, remaining, 0, reset, warning, quota)
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark, remaining, cost)
            return (now + wait, fraction, limit, mark), Decision(True, capacity, remaining, 0, reset, pressure, quota)
        if debt > beyond:  # or the capacity was lowered
            return step((now + full // gain, full % gain, limit, mark), cost, now)
        remaining = 0 if cost == 1 else max(0, (full - debt) // unit)
        if gain == 1:
            return state, Decision(False, capacity, remaining, -room, debt, throttled, quota)
        retry, reset = (round_up - room) // gain, (debt + round_up) // gain
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    def carried(state: Kept, now: int) -> Kept:
        tat, fraction, written_under, mark = state
        then_gain, _ = reduced(written_under, window)
        debt = min(tat - now, EXACT // then_gain) * then_gain + fraction
        debt = carried_over(debt, 0, written_under, limit, window)
        return now + debt // gain, debt % gain, limit, mark

    return step


def void_at(state: Kept, _: Quota) -> int:
    """Return the time from which `state` means that nothing is used."""
    tat, fraction, _limit, _mark = state
    return int(tat + 1 if fraction else tat)
