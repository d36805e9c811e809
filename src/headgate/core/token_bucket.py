"""Token bucket: a bucket of `capacity` tokens, full at first, into which `limit` tokens fall per window.

Bound: at most capacity + floor(limit * t / window) units pass in any interval of t microseconds, and exactly that many
when demand never pauses, unless the quota must be rounded (see `Quota.rounding`). If it refills in steps, one of them
may come right after the bucket was drawn from: at most capacity + floor(limit * (t + refill_every) / window).

State: (used, at, limit, mark). `used` is what is missing from a full bucket as of `at`, in the fractions of a token
that `headgate.core.numbers.rate` chooses. They depend on the limit and on how finely it can be counted, so the state
names the limit it was written under; the fineness stands above the lowest bit of the mark, which is the pressure's.

A state that was written under another limit keeps its fractions, and refills by that limit, until a request is admitted
under the present one: then `used` is carried over, rounded up. So a refusal never changes a state, nothing that was
used is forgotten however far a limit moves, and what is said of waiting is exact from the first question on.

The leaky bucket is the same function, with the delay of a queue if asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headgate.core.decision import Decision, held
from headgate.core.errors import InvalidQuota
from headgate.core.numbers import EXACT, Rate, fineness, rate, scaled
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
    fine = fineness(limit, window, capacity)
    counting = gain, per, unit = rate(limit, window, fine)
    exact, plain = per == 1, gain == per == 1
    full, round_up = capacity * unit, gain - 1
    longest, queue = EXACT // gain, quota.queue  # no state takes longer to refill
    low, high = 2 * fine, 2 * fine + 1
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            used = mark = 0
        else:
            used, at, written_under, mark = state
            elapsed = now - at
            if elapsed < 0:
                if elapsed < -window:
                    return step((used, now, written_under, mark), cost, now, since)
                return held(step(state, cost, at, since), -elapsed)
            if written_under != limit or mark | 1 != high:
                return changed(state, cost, now, since)
            if queue and since is not None and (at != since or used != -cost * unit):
                cost = 0  # others may have been given their turn by it
            if plain:
                used -= elapsed
            elif exact:
                used = used - elapsed * gain if elapsed < longest else 0
            else:
                used = counting.left(used, elapsed)
            if used < 0:
                used = 0
        after = used + unit if cost == 1 else used + cost * unit
        room = full - after
        if room >= 0 or cost <= 0:
            if cost < 0:
                if since is not None:
                    after = min(used, after + scaled(now - since, gain, per)[0])
                if after < 0:
                    after = 0
                room = full - after
            remaining = room // unit
            reset = after if plain else (after + round_up) // gain if exact else counting.wait(after)
            delay = counting.wait(used) if queue and cost >= 0 else 0
            if remaining >= calm:
                return (after, now, limit, low), Decision(
                    True, capacity, remaining, 0, reset, normal, quota, delay, cost, now
                )
            if 0 < remaining < warn:
                return (after, now, limit, high), Decision(
                    True, capacity, remaining, 0, reset, warning, quota, delay, cost, now
                )
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark & 1, remaining, cost)
            return (after, now, limit, low | mark), Decision(
                True, capacity, remaining, 0, reset, pressure, quota, delay, cost, now
            )
        remaining = 0 if cost == 1 else max(0, (full - used) // unit)
        if plain:
            return state, Decision(False, capacity, remaining, -room, used, throttled, quota)
        if exact:
            retry, reset = (round_up - room) // gain, (used + round_up) // gain
        else:
            retry, reset = counting.wait(-room), counting.wait(used)
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    changed = _changed(quota, step, counting, low)
    return step


def _changed(quota: Quota, step: Transition, counting: Rate, low: int) -> Transition:
    """Return the transition of a state, not ahead of the clock, that was written under another limit.

    An admission is left to `step`, after `used` was carried over to the way of `counting`.
    """
    window, capacity, judged = quota.window_us, quota.capacity, judge(quota)

    def changed(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        used, at, written_under, mark = state or (0, now, 0, 0)
        then, elapsed = rate(written_under, window, mark >> 1), now - at
        if since is not None:
            cost = 0  # it may have been charged under yet another limit
        used = then.left(used, elapsed)
        if cost < 0:
            used = max(0, used - min(-cost, then.units(used)) * then.unit)
            if then.gain:
                at, elapsed = now, 0
        taken = then.units(used)
        if 0 < cost <= capacity - taken:
            return step((then.carried(used, counting), now, quota.limit, low | mark & 1), cost, now)
        remaining, reset = max(0, capacity - taken), then.wait(used, elapsed)
        if cost > 0:
            retry = then.wait(used - (capacity - cost) * then.unit, elapsed)
            return state, Decision(False, capacity, remaining, retry, reset, Pressure.THROTTLED, quota)
        delay = reset if quota.queue and not cost else 0
        marked, pressure = judged(mark & 1, remaining, cost)
        if cost < 0:
            state = used, at, written_under, mark - (mark & 1) + marked
        return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, delay, cost, now)

    return changed


def _stepwise(quota: Quota) -> Transition:
    """A bucket that refills in steps: the steady one, seen through a clock that ticks once per step from `at` on.

    The steps are counted from the first use of a bucket that was full, be that a charge to be given back: without it,
    they would come later. So a charge is given back whole before the next step, if it surely was not that first use or
    if there was no other, and otherwise not at all.
    """
    every = quota.refill_every_us
    if quota.limit * every > EXACT:
        raise InvalidQuota(f"refill_every_us of {quota} must be at most {EXACT // quota.limit}, not {every}")
    steady = _steady(quota)
    unit = rate(quota.limit, quota.window_us, fineness(quota.limit, quota.window_us, quota.capacity)).unit

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        seen = at = now
        if state is not None:
            used, at, written_under, mark = state
            if at - now > quota.window_us:
                return step((used, now, written_under, mark), cost, now, since)
            if void_at(state, quota) <= now:
                state, at = None, now
            elif not written_under:  # a one-off allowance comes back whole
                return steady(state, cost, now, since)
            elif at < now:
                seen = now - (now - at) % every
            if since is not None:
                ticked = since - (since - at) % every
                alone = since == at and used == -cost * unit
                if not alone and (seen != ticked or since == ticked):
                    cost = 0
                since = seen
        after, decision = steady(state, cost, seen, since)

        def wait(us: int) -> int:
            return at - now - -(seen + us - at) // every * every if us else 0

        retry, reset = wait(decision.retry_after_us), wait(decision.reset_after_us)
        taken_at = now if decision.allowed else 0
        return after, msgspec.structs.replace(
            decision, retry_after_us=retry, reset_after_us=reset, taken_at_us=taken_at
        )

    return step


def void_at(state: Kept, quota: Quota) -> int:
    """Return the time from which `state`, written by any quota of the same shape, means that nothing is used."""
    used, at, written_under, mark = state
    if not used:
        return int(at)
    every = quota.refill_every_us if written_under else 1
    return int(at - -rate(written_under, quota.window_us, mark >> 1).wait(used) // every * every)


def _one_off(quota: Quota) -> Transition:
    """A bucket without refill: full again only when it was not drawn from for a whole window, and so forgotten."""
    window, capacity = quota.window_us, quota.capacity
    judged = judge(quota)

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        used, at, mark = 0, now, 0
        if state is not None:
            used, at, written_under, mark = state
            if at - now > window:
                return step((used, now, written_under, mark), cost, now, since)
            if written_under and at > now:
                return held(changed(state, cost, at, since), at - now)
            if written_under:
                return changed(state, cost, now, since)
            if now - at >= window:
                used, at, mark = 0, now, 0
        if since is not None and now - since >= window:
            cost = 0  # it may have been forgotten meanwhile
        after = max(0, used + cost)
        if after <= capacity or cost <= 0:
            if cost > 0:
                at = max(at, now)
            remaining = max(0, capacity - after)
            mark, pressure = judged(mark, remaining, cost)
            reset = at + window - now if after else 0
            return (after, at, 0, mark), Decision(True, capacity, remaining, 0, reset, pressure, quota, 0, cost, now)
        wait = at + window - now
        remaining = max(0, capacity - used)
        return state, Decision(False, capacity, remaining, wait, wait, Pressure.THROTTLED, quota)

    changed = _changed(quota, step, rate(0, window, 0), 0)
    return step
