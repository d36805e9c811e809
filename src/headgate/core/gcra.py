"""GCRA: one timestamp per key, the theoretical arrival time (TAT), from which the key has no usage.

Each unit of cost moves the TAT one emission interval (window / limit) into the future; a request passes while the TAT
stays within the time that the capacity is worth. It decides as the token bucket does.

Bound: at most capacity + floor(limit * t / window) units in any interval of t microseconds, and exactly that many when
demand never pauses, unless the quota must be rounded (see `Quota.rounding`).

State: (tat, fraction, limit, capacity, mark). The interval is rarely a whole number of microseconds, so the TAT carries
its fraction, in units of 1/gain. The state names the limit and the capacity that it was written under, which
distinguish a debt from a clock that fell behind. The mark, and what becomes of a state under another limit, are
those of the token bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.core.numbers import EXACT, Rate, fineness, rate, scaled
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a GCRA limit: here what is usual, a state written under the same limit."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    any_state = _any_state(quota)
    fine = fineness(limit, window, capacity)
    gain, per, unit = counting = rate(limit, window, fine)
    exact, plain, full, round_up = per == 1, gain == per == 1, capacity * unit, gain - 1
    far = _longest(counting, capacity, window)
    calm_mark, warn_mark = 4 * fine, 4 * fine + 1
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            debt = ahead = fraction = mark = 0
        else:
            tat, fraction, written_under, capacity_then, mark = state
            debt = ahead = tat - now
            if ahead < 0:
                debt = ahead = fraction = 0
            elif (
                written_under != limit
                or capacity_then != capacity
                or ahead > far
                or mark > warn_mark
                or mark < calm_mark
            ):
                return any_state(state, cost, now, since)
            elif not plain:
                debt = ahead * gain + fraction if exact else _debt_of(counting, ahead, fraction)
        if cost == 1:
            after = debt + unit
        else:
            after = debt + cost * unit
            if cost < 0:
                if since is not None:
                    after = min(debt, after + scaled(now - since, gain, per)[0])
                if after < 0:
                    after = 0
        room = full - after
        if room >= 0 or cost <= 0:
            remaining = room // unit
            if plain:
                tat, fraction, reset = now + after, 0, after
            else:
                if exact:
                    ahead, fraction = divmod(after, gain)
                elif cost:
                    ahead, fraction = scaled(after, per, gain)
                tat, reset = now + ahead, ahead + 1 if fraction else ahead
            if remaining >= calm:
                state = (tat, fraction, limit, capacity, calm_mark)
                return state, Decision(True, capacity, remaining, 0, reset, normal, quota, 0, cost, now)
            if 0 < remaining < warn:
                state = (tat, fraction, limit, capacity, warn_mark)
                return state, Decision(True, capacity, remaining, 0, reset, warning, quota, 0, cost, now)
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark & 1, remaining, cost)
            state = (tat, fraction, limit, capacity, calm_mark + mark)
            return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, 0, cost, now)
        remaining = 0 if cost == 1 else max(0, (full - debt) // unit)
        if plain:
            return state, Decision(False, capacity, remaining, -room, debt, throttled, quota)
        if exact:
            retry, reset = (round_up - room) // gain, (debt + round_up) // gain
        else:  # the debt is rounded up, so that waiting is counted to the TAT itself
            spare, rest = scaled((capacity - cost) * unit, per, gain)
            retry = ahead - spare + 1 if rest < fraction else ahead - spare
            reset = ahead + 1 if fraction else ahead
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    return step


def _any_state(quota: Quota) -> Callable[[Kept, int, int, int | None], tuple[State, Decision]]:
    """Return the transition of any state with a debt, written under any limit."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    fine = fineness(limit, window, capacity)
    counting = rate(limit, window, fine)
    judged = judge(quota)

    def step(state: Kept, cost: int, now: int, since: int | None) -> tuple[State, Decision]:
        tat, fraction, written_under, capacity_then, mark = state
        then = rate(written_under, window, mark >> 2)
        if tat - now > _longest(then, capacity_then, window):
            tat, fraction = _full(then, capacity_then, now)
            state = tat, fraction, written_under, capacity_then, mark
        debt = _debt_of(then, tat - now, fraction)
        carried = mark & 2 or (2 if debt and (written_under != limit or mark >> 2 != fine) else 0)
        if since is not None and carried:
            cost = 0
        if cost < 0:
            if since is None:
                after = debt + max(cost, -then.units(debt)) * then.unit
            else:
                after = min(debt, debt + cost * then.unit + scaled(now - since, then.gain, then.per)[0])
            debt = max(0, after)
            wait, fraction = scaled(debt, then.per, then.gain)
            tat = now + wait
        taken = then.units(debt)
        if 0 < cost <= capacity - taken:
            after = then.carried(debt, counting) + cost * counting.unit
            remaining = capacity - counting.units(after)
            marked, pressure = judged(mark & 1, remaining, cost)
            wait, fraction = scaled(after, counting.per, counting.gain)
            return (now + wait, fraction, limit, capacity, 4 * fine + carried + marked), Decision(
                True, capacity, remaining, 0, wait + 1 if fraction else wait, pressure, quota, 0, cost, now
            )
        remaining, reset = max(0, capacity - taken), tat - now + (1 if fraction else 0)
        if cost > 0:
            whole, rest = scaled((capacity - cost) * then.unit, then.per, then.gain)
            retry = tat - now - whole + (1 if rest < fraction else 0)
            return state, Decision(False, capacity, remaining, retry, reset, Pressure.THROTTLED, quota)
        marked, pressure = judged(mark & 1, remaining, cost)
        if cost < 0 or not debt:
            state = tat, fraction, written_under, capacity_then, mark - (mark & 1) + marked
        return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, 0, cost, now)

    return step


def _debt_of(counting: Rate, ahead: int, fraction: int) -> int:
    """Return the debt of a key whose TAT is `ahead` microseconds away, in fractions of a unit, rounded up."""
    whole, rest = scaled(ahead, counting.gain, counting.per)
    return whole - -(rest + fraction) // counting.per


def _longest(counting: Rate, capacity: int, window: int) -> int:
    """Return how many microseconds a TAT can be away; if it is more, the clock has made a mistake."""
    lag = window if counting.per > 1 else min(window, EXACT // counting.gain)
    return counting.wait(capacity * counting.unit) + lag


def _full(counting: Rate, capacity: int, now: int) -> tuple[int, int]:
    """Return the TAT, and its fraction, of a key that owes all that it can."""
    wait, fraction = scaled(capacity * counting.unit, counting.per, counting.gain)
    return now + wait, fraction


def void_at(state: Kept, _: Quota) -> int:
    tat, fraction, *_rest = state
    return int(tat + 1 if fraction else tat)
