"""Token bucket: a bucket of `capacity` tokens, full at first, into which `limit` tokens fall per window.

Bound: at most capacity + floor(limit * t / window) units pass in any interval of t microseconds, and exactly that many
when demand never pauses: no fraction of a token is lost.

State: (used, at, limit, mark). `used` is what is missing from a full bucket as of `at`, in fractions of a token (one
token is `unit` of them) that make the refill a whole number, `gain`, per microsecond. These fractions depend on the
limit, so the state names the limit it was written under; after a change `used` is carried over, rounded up.

The leaky bucket is the same function, with the delay of a queue if asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headgate.core.decision import Decision, held
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT, carried_over, exact_rate, reduced
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    """Compile the pure function of a token bucket."""
    if quota.limit == 0:
        return _one_off(quota)
    if quota.refill_every_us != 1:
        return _stepwise(quota)
    return _steady(quota)


def _steady(quota: Quota) -> Transition:
    """A bucket that refills every microsecond."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    gain, unit = exact_rate(limit, window, capacity)
    full, round_up = capacity * unit, gain - 1
    longest, queue = EXACT // gain, quota.queue  # no state takes longer to refill
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        if state is None:
            used = mark = 0
        else:
            used, at, written_under, mark = state
            elapsed = now - at
            if elapsed < 0:
                if elapsed < -window:
                    return step((used, now, written_under, mark), cost, now)
                return held(step(state, cost, at), -elapsed)
            if written_under != limit:
                used = carried_over(used, elapsed, written_under, limit, window)
                return step((used, now, limit, mark), cost, now)
            if gain == 1:
                used -= elapsed
            else:
                used = used - elapsed * gain if elapsed < longest else 0
            if used < 0:
                used = 0
        after = used + unit if cost == 1 else used + cost * unit
        room = full - after
        if room >= 0 or cost < 0:
            if after < 0:
                after, room = 0, full
            remaining = room // unit
            reset = after if gain == 1 else (after + round_up) // gain
            delay = (used + round_up) // gain if queue and cost >= 0 else 0
            if remaining >= calm:
                return (after, now, limit, 0), Decision(True, capacity, remaining, 0, reset, normal, quota, delay)
            if 0 < remaining < warn:
                return (after, now, limit, 1), Decision(True, capacity, remaining, 0, reset, warning, quota, delay)
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark, remaining, cost)
            return (after, now, limit, mark), Decision(True, capacity, remaining, 0, reset, pressure, quota, delay)
        remaining = 0 if cost == 1 else max(0, (full - used) // unit)
        if gain == 1:
            return state, Decision(False, capacity, remaining, -room, used, throttled, quota)
        retry, reset = (round_up - room) // gain, (used + round_up) // gain
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    return step


def _stepwise(quota: Quota) -> Transition:
    """A bucket that refills in steps: the steady one, seen through a clock that ticks once per step from `at` on."""
    every = quota.refill_every_us
    if quota.limit * every > EXACT:
        raise InvalidQuota(f"refill_every_us of {quota} must be at most {EXACT // quota.limit}, not {every}")
    steady = _steady(quota)

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        seen = at = now
        if state is not None:
            used, at, written_under, mark = state
            if at - now > quota.window_us:
                return step((used, now, written_under, mark), cost, now)
            if void_at(state, quota) <= now:
                state, at = None, now
            elif at < now:
                seen = now - (now - at) % every
        after, decision = steady(state, cost, seen)

        def wait(us: int) -> int:
            return at - now - (at - seen - us) // every * every if us else 0

        retry, reset = wait(decision.retry_after_us), wait(decision.reset_after_us)
        return after, msgspec.structs.replace(decision, retry_after_us=retry, reset_after_us=reset)

    return step


def void_at(state: Kept, quota: Quota) -> int:
    """Return the time from which `state`, written by any quota of the same shape, means that nothing is used."""
    used, at, written_under, _ = state
    if not used:
        return int(at)
    if not written_under:
        return int(at + quota.window_us)
    gain, _ = reduced(written_under, quota.window_us)
    batch = gain * quota.refill_every_us
    return int(at - -used // batch * quota.refill_every_us)


def _one_off(quota: Quota) -> Transition:
    """A bucket without refill: full again only when it was not drawn from for a whole window, and so forgotten."""
    window, capacity = quota.window_us, quota.capacity
    judged = judge(quota)

    def step(state: State, cost: int, now: int) -> tuple[State, Decision]:
        used, at, mark = 0, now, 0
        if state is not None:
            used, at, written_under, mark = state
            if written_under:
                used = carried_over(used, max(0, now - at), written_under, 0, window)
                return step((used, max(at, now), 0, mark), cost, now)
            if now - at >= window:
                used, at, mark = 0, now, 0
            elif at - now > window:
                return step((used, now, 0, mark), cost, now)
        after = max(0, used + cost)
        if after <= capacity or cost < 0:
            if cost > 0:
                at = max(at, now)
            remaining = max(0, capacity - after)
            mark, pressure = judged(mark, remaining, cost)
            reset = at + window - now if after else 0
            return (after, at, 0, mark), Decision(True, capacity, remaining, 0, reset, pressure, quota)
        wait = at + window - now
        remaining = max(0, capacity - used)
        return state, Decision(False, capacity, remaining, wait, wait, Pressure.THROTTLED, quota)

    return step
