"""GCRA: one timestamp per key, the theoretical arrival time (TAT), from which on the key owes nothing.

Each unit of cost moves the TAT one emission interval (window / limit) into the future; a request passes while the TAT
stays within the time that the capacity is worth. It decides as the token bucket does.

Bound: at most capacity + floor(limit * t / window) units in any interval of t microseconds, and exactly that many when
demand never pauses, unless the quota must be rounded (see `Quota.rounding`).

State: (tat, fraction, limit, capacity, mark). The interval is rarely a whole number of microseconds, so the TAT carries
its fraction, in units of 1/gain. The state names the limit and the capacity that it was written under, by which alone
a debt is told from a clock that fell behind; the fineness stands above the lowest bit of the mark. As in a token
bucket, a debt is paid off at the rate it was made under until a request is admitted under another limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.decision import Decision
from headgate.core.numbers import EXACT, Rate, fineness, rate, scaled
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a GCRA limit."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    fine = fineness(limit, window, capacity)
    counting = gain, per, unit = rate(limit, window, fine)
    exact, plain = per == 1, gain == per == 1
    full, round_up = capacity * unit, gain - 1
    far = _longest(counting, capacity, window)
    low, high = 2 * fine, 2 * fine + 1
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            debt = mark = kept = 0
        else:
            tat, fraction, written_under, kept, mark = state
            debt = tat - now
            if debt < 0:
                debt = 0
            elif written_under != limit or mark | 1 != high:
                return changed(state, cost, now, since)
            elif debt > far and debt > _longest(counting, kept, window):
                return step(_full(state, counting, now), cost, now, since)
            elif not plain:
                debt = debt * gain + fraction if exact else _owed(counting, debt, fraction)
        after = debt + unit if cost == 1 else debt + cost * unit
        room = full - after
        if room >= 0 or cost <= 0:
            if cost < 0:
                if since is not None:
                    after = min(debt, after + scaled(now - since, gain, per)[0])
                if after < 0:
                    after = 0
                room = full - after
            most = capacity if room >= 0 else kept  # a capacity that was lowered meanwhile
            remaining = room // unit
            if plain:
                tat, fraction, reset = now + after, 0, after
            else:
                wait, fraction = divmod(after, gain) if exact else scaled(after, per, gain)
                tat, reset = now + wait, wait + 1 if fraction else wait
            if remaining >= calm:
                state = (tat, fraction, limit, most, low)
                return state, Decision(True, capacity, remaining, 0, reset, normal, quota, 0, cost, now)
            if 0 < remaining < warn:
                state = (tat, fraction, limit, most, high)
                return state, Decision(True, capacity, remaining, 0, reset, warning, quota, 0, cost, now)
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark & 1, remaining, cost)
            state = (tat, fraction, limit, most, low | mark)
            return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, 0, cost, now)
        remaining = 0 if cost == 1 else max(0, (full - debt) // unit)
        if plain:
            return state, Decision(False, capacity, remaining, -room, debt, throttled, quota)
        if exact:
            retry, reset = (round_up - room) // gain, (debt + round_up) // gain
        else:
            retry, reset = counting.wait(-room), counting.wait(debt)
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    def changed(state: Kept, cost: int, now: int, since: int | None) -> tuple[State, Decision]:
        """The transition of a state that owes something, and was written under another limit."""
        tat, fraction, written_under, kept, mark = state
        then = rate(written_under, window, mark >> 1)
        if tat - now > _longest(then, kept, window):
            state = tat, fraction, _, _, _ = _full(state, then, now)
        debt = _owed(then, tat - now, fraction)
        if since is not None:
            cost = 0  # it may have been charged under yet another limit
        if cost < 0:
            debt = max(0, debt - min(-cost, then.units(debt)) * then.unit)
        taken = then.units(debt)
        if 0 < cost <= capacity - taken:
            wait, fraction = scaled(then.carried(debt, counting), per, gain)
            return step((now + wait, fraction, limit, capacity, low | mark & 1), cost, now)
        remaining = max(0, capacity - taken)
        wait, fraction = scaled(debt, then.per, then.gain)
        reset = wait + 1 if fraction else wait
        if cost > 0:
            retry = then.wait(debt - (capacity - cost) * then.unit)
            return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)
        marked, pressure = judged(mark & 1, remaining, cost)
        if cost < 0:
            state = now + wait, fraction, written_under, kept, mark - (mark & 1) + marked
        return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, 0, cost, now)

    return step


def _owed(counting: Rate, ahead: int, fraction: int) -> int:
    """Return what a key owes whose TAT is `ahead` microseconds away, in fractions of a unit, rounded up."""
    whole, rest = scaled(ahead, counting.gain, counting.per)
    return whole - -(rest + fraction) // counting.per


def _longest(counting: Rate, capacity: int, window: int) -> int:
    """Return how many microseconds a TAT can be away; if it is more, the clock has made a mistake."""
    lag = window if counting.per > 1 else min(window, EXACT // counting.gain)
    return counting.wait(capacity * counting.unit) + lag


def _full(state: Kept, counting: Rate, now: int) -> Kept:
    """Return the state that owes all that it can."""
    _, _, written_under, kept, mark = state
    wait, fraction = scaled(kept * counting.unit, counting.per, counting.gain)
    return now + wait, fraction, written_under, kept, mark


def void_at(state: Kept, _: Quota) -> int:
    """Return the time from which `state` means that nothing is used."""
    tat, fraction, *_rest = state
    return int(tat + 1 if fraction else tat)
