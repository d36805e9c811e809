"""Token bucket: a bucket of `capacity` tokens, full at first, which gains `limit` tokens per window.

Bound: at most capacity + floor(limit * t / window) units pass in any interval of t microseconds, and exactly that many
when demand never pauses, unless the quota must be rounded (see `Quota.rounding`). If it refills in steps, one of them
may come right after the bucket was drawn from: at most capacity + floor(limit * (t + refill_every) / window).

State: (used, at, limit, mark). `used` is what is missing from a full bucket as of `at`, in the fractions of a token
that `headgate.core.numbers.rate` chooses. They depend on the limit and on how finely it can be counted, so the state
names the limit it was written under. The lowest bit of the mark is the pressure's; the next says that something of it
was carried over from another limit; the next six are the fineness; the rest is by how many microseconds the last refill
step ends later than the bucket would be full without steps, by the longest answer: `void_at` knows by it how long that
holds. (A peek writes none: where `refill_every` was just raised, its waiting times hold from the next check on. In
Redis, the key's time to live has the same effect.)

A state that was written under another limit keeps its fractions, and refills by that limit, until a request is admitted
under the present one: then `used` is carried over, rounded up. So a refusal never changes a state, nothing that was
used is forgotten however far a limit moves, and waiting times are exact from the first request on.

The leaky bucket is the same function, with the delay of a queue as an option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headgate.core.decision import Decision, held
from headgate.core.numbers import EXACT, fineness, rate, scaled
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


_STEP = 256  # by how much a microsecond raises the mark


def transition(quota: Quota) -> Transition:
    if quota.limit == 0:
        return _any_state(quota)
    return _steady(quota) if quota.refill_every_us == 1 else _stepwise(quota)


def _steady(quota: Quota) -> Transition:
    """A bucket that refills every microsecond: here what is usual, a state written under the same limit."""
    limit, window, capacity = quota.limit, quota.window_us, quota.capacity
    any_state = _any_state(quota)
    fine = fineness(limit, window, capacity)
    gain, per, unit = counting = rate(limit, window, fine)
    exact, plain, full, round_up = per == 1, gain == per == 1, capacity * unit, gain - 1
    longest, queue = EXACT // gain, quota.queue  # no state takes longer to refill
    calm_mark, warn_mark = 4 * fine, 4 * fine + 1
    (calm, warn), judged = thresholds(quota), judge(quota)
    normal, warning, throttled = Pressure.NORMAL, Pressure.WARNING, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            used = level = elapsed = mark = 0
        else:
            used, at, written_under, mark = state
            elapsed = now - at
            if elapsed < 0 or written_under != limit or mark > warn_mark or mark < calm_mark:
                return any_state(state, cost, now, since)
            if plain:
                level = used - elapsed
            elif exact:
                level = used - elapsed * gain if elapsed < longest else 0
            else:
                level = used - scaled(elapsed, gain, per)[0]
            if level <= 0:
                used = level = elapsed = 0
        if cost == 1:
            after = level + unit
        else:
            after = level + cost * unit
            if cost < 0:
                if queue:
                    return any_state(state, cost, now, since)
                if since is not None:
                    after = min(level, after + scaled(now - since, gain, per)[0])
                if after < 0:
                    after = 0
        room = full - after
        if room >= 0 or cost <= 0:
            remaining = room // unit
            if plain:
                reset = after
            elif exact:
                reset = (after + round_up) // gain
            else:
                reset = counting.wait(after) if cost else counting.wait(used) - elapsed
            delay = 0
            if queue:
                delay = (level + round_up) // gain if exact else counting.wait(used) - elapsed
            if remaining >= calm:
                return (after, now, limit, calm_mark), Decision(
                    True, capacity, remaining, 0, reset, normal, quota, delay, cost, now
                )
            if 0 < remaining < warn:
                return (after, now, limit, warn_mark), Decision(
                    True, capacity, remaining, 0, reset, warning, quota, delay, cost, now
                )
            if remaining < 0:
                remaining = 0
            mark, pressure = judged(mark & 1, remaining, cost)
            return (after, now, limit, calm_mark + mark), Decision(
                True, capacity, remaining, 0, reset, pressure, quota, delay, cost, now
            )
        remaining = 0 if cost == 1 else max(0, (full - level) // unit)
        if plain:
            return state, Decision(False, capacity, remaining, -room, level, throttled, quota)
        if exact:
            retry, reset = (round_up - room) // gain, (level + round_up) // gain
        else:  # what is left is rounded up, so that waiting is counted from when it was used
            retry = counting.wait(used - (capacity - cost) * unit) - elapsed
            reset = counting.wait(used) - elapsed
        return state, Decision(False, capacity, remaining, retry, reset, throttled, quota)

    return step


def _any_state(quota: Quota) -> Transition:
    """Return the transition of any state, written under any limit, and of any cost."""
    limit, window, capacity, queue = quota.limit, quota.window_us, quota.capacity, quota.queue
    fine = fineness(limit, window, capacity) if limit else 0
    counting = rate(limit, window, fine)
    judged = judge(quota)

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        used, at, written_under, mark = state or (0, now, limit, 4 * fine)
        mark %= _STEP
        if at > now:
            if at > now + window:
                return step((used, now, written_under, mark), cost, now, since)
            return held(step(state, cost, at, since), at - now)
        then, elapsed = rate(written_under, window, mark >> 2), now - at
        level = then.left(used, elapsed)
        if not level:
            used, at, then, elapsed, written_under, mark = 0, now, counting, 0, limit, 4 * fine
        carried = mark & 2 or (2 if written_under != limit or mark >> 2 != fine else 0)
        if since is not None:
            alone = at == since and used == -cost * then.unit  # else others may have been given their turn by it
            if carried or (queue and not alone) or (not limit and now - since >= window):
                cost = 0  # it may be over, or be charged to another limit
        if cost < 0:
            if since is None:
                after = level + max(cost, -then.units(level)) * then.unit
            else:
                after = min(level, level + cost * then.unit + scaled(now - since, then.gain, then.per)[0])
            used = level = max(0, after)
            if then.gain or not level:
                at, elapsed = now, 0
        taken = then.units(level)
        if 0 < cost <= capacity - taken:
            before = then.carried(level, counting)
            after = before + cost * counting.unit
            remaining = capacity - counting.units(after)
            marked, pressure = judged(mark & 1, remaining, cost)
            delay = counting.wait(before) if carried else then.wait(used) - elapsed
            return (after, now, limit, 4 * fine + carried + marked), Decision(
                True, capacity, remaining, 0, counting.wait(after), pressure, quota, delay if queue else 0, cost, now
            )
        remaining, reset = max(0, capacity - taken), then.wait(used) - elapsed
        if cost > 0:
            retry = then.wait(used - (capacity - cost) * then.unit) - elapsed
            return state, Decision(False, capacity, remaining, retry, reset, Pressure.THROTTLED, quota)
        marked, pressure = judged(mark & 1, remaining, cost)
        if cost < 0 or not level:
            state = used, at, written_under, mark - (mark & 1) + marked
        delay = reset if queue and not cost else 0
        return state, Decision(True, capacity, remaining, 0, reset, pressure, quota, delay, cost, now)

    return step


def _stepwise(quota: Quota) -> Transition:
    """A bucket that refills in steps: the steady one, seen through a clock that ticks once per step from `at` on.

    The steps are counted from the first use of a full bucket, which may be the refunded charge: without it, they would
    come later. So a charge is refunded whole before the next step, if it surely was not that first use or
    if there was no other, and otherwise not at all.
    """
    every, steady = quota.refill_every_us, _steady(quota)
    unit = rate(quota.limit, quota.window_us, fineness(quota.limit, quota.window_us, quota.capacity)).unit

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        seen = at = now
        if state is not None:
            used, at, written_under, mark = state
            if at - now > quota.window_us:
                return step((used, now, written_under, mark), cost, now, since)
            if _void_at(state, quota.window_us, every) <= now:
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
        stepped, decision = steady(state, cost, seen, since)
        after: Any = stepped  # never None: a full bucket refuses nothing

        def wait(us: int) -> int:
            return at - now - -(seen + us - at) // every * every if us else 0

        retry, reset = wait(decision.retry_after_us), wait(decision.reset_after_us)
        taken_at = now if decision.allowed else 0
        later = now + reset - _void_at(after, quota.window_us, 1)
        if later > after[3] // _STEP or after is not state:
            after = *after[:3], after[3] % _STEP + max(0, later) * _STEP
        return after, msgspec.structs.replace(
            decision, retry_after_us=retry, reset_after_us=reset, taken_at_us=taken_at
        )

    return step


def void_at(state: Kept, quota: Quota) -> int:
    """Return the time from which `state`, written by any quota of the same shape, means that nothing is used."""
    answered = _void_at(state, quota.window_us, 1) + (state[3] // _STEP if state[0] else 0)
    return max(answered, _void_at(state, quota.window_us, quota.refill_every_us))


def _void_at(state: Kept, window: int, every: int) -> int:
    used, at, written_under, mark = state
    if not used:
        return int(at)
    if not written_under:
        every = 1
    return int(at - -rate(written_under, window, mark % _STEP >> 2).wait(used) // every * every)
