"""Sliding window log: remembers each admission until it is a window old. Exact, at the price of memory.

Bound: at most `limit` units in any interval of a window's length. At most `limit` entries per key.

State: (entries, first, size, used, stamp, cost, mark). The newest admission is (stamp, cost); `entries` holds the
older ones, as `entries[first:size]`, a run of stamp, cost, stamp, cost ...; `used` is the sum of all costs.

The list is shared between a state and its successors, which makes a step cheap, and yet the function stays pure: a
state reads only its own run, and a step appends only where no other state has written something else.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from headgate.core.decision import Decision, held
from headgate.core.pressure import Pressure, judge, thresholds

if TYPE_CHECKING:
    from headgate.core.algorithms import Kept, State, Transition
    from headgate.core.quota import Quota


def transition(quota: Quota) -> Transition:
    limit, window = quota.limit, quota.window_us
    (calm, _), judged = thresholds(quota), judge(quota)
    normal, throttled = Pressure.NORMAL, Pressure.THROTTLED

    def step(state: State, cost: int, now: int, since: int | None = None) -> tuple[State, Decision]:
        if state is None:
            entries, first, size, used, stamp, newest, mark = [], 0, 0, 0, now, 0, 0
        else:
            entries, first, size, used, stamp, newest, mark = state
            if stamp > now:
                if stamp - now > window:
                    return step((entries, 0, 0, used, now, used, mark), cost, now, since)
                return held(step(state, cost, stamp, since), stamp - now)
            cutoff = now - window
            if stamp <= cutoff:
                first, used, newest = size, 0, 0
            else:
                while first < size and entries[first] <= cutoff:
                    used -= entries[first + 1]
                    first += 2
        after = used + cost
        if after <= limit and cost > 0:
            if stamp == now:
                newest += cost
            else:
                if newest:
                    beyond = len(entries) - size
                    if not beyond and first + first <= size:
                        entries.append(stamp)
                        entries.append(newest)
                    elif beyond < 2 or entries[size] != stamp or entries[size + 1] != newest:
                        entries = entries[first:size]  # half of the list is stale, or another state wrote in it
                        entries.append(stamp)
                        entries.append(newest)
                        size -= first
                        first = 0
                    size += 2
                newest = cost
            remaining = limit - after
            if remaining >= calm:
                mark, pressure = 0, normal
            else:
                mark, pressure = judged(mark, remaining, cost)
            after_state = (entries, first, size, after, now, newest, mark)
            return after_state, Decision(True, limit, remaining, 0, window, pressure, quota, 0, cost, now)
        if cost <= 0:
            if cost < 0 and since is not None and since != stamp:
                entries, first, size, after = _remove_charge(entries, first, size, used, since, -cost)
            elif cost < 0:
                if since is not None:
                    cost = max(cost, -newest)
                    after = used + cost
                size, after, stamp, newest = _remove_newest(entries, first, size, after, stamp, newest, cost)
            remaining = limit - after if limit > after else 0
            mark, pressure = (0, normal) if remaining >= calm else judged(mark, remaining, cost)
            reset = stamp + window - now if after else 0
            after_state = (entries, first, size, after, stamp, newest, mark)
            return after_state, Decision(True, limit, remaining, 0, reset, pressure, quota, 0, cost, now)
        remaining = limit - used if limit > used else 0
        excess = after - limit
        freed_by = stamp
        while first < size:
            excess -= entries[first + 1]
            if excess <= 0:
                freed_by = entries[first]
                break
            first += 2
        retry, reset = freed_by + window - now, stamp + window - now
        return state, Decision(False, limit, remaining, retry, reset, throttled, quota)

    return step


def void_at(state: Kept, quota: Quota) -> int:
    _entries, _first, _size, used, stamp, _newest, _mark = state
    return int(stamp + quota.window_us) if used else 0


def _remove_charge(
    entries: list[int], first: int, size: int, used: int, since: int, cost: int
) -> tuple[list[int], int, int, int]:
    """Take up to `cost` units out of what was admitted at `since`, if that is in the run: (entries, first, size, used).

    An entry that comes to nothing is removed, so that there are never more of them than units.
    """
    place = first + 2 * bisect_left(range(first, size, 2), since, key=entries.__getitem__)
    if place >= size or entries[place] != since:
        return entries, first, size, used
    kept = entries[place + 1] - cost
    replaced = [since, kept] if kept > 0 else []
    run = entries[first:place] + replaced + entries[place + 2 : size]
    return run, 0, len(run), used - min(cost, entries[place + 1])


def _remove_newest(
    entries: list[int], first: int, size: int, after: int, stamp: int, newest: int, cost: int
) -> tuple[int, int, int, int]:
    """Refund -cost units, of the newest admissions; returns (size, used, stamp, newest)."""
    newest += cost
    while newest <= 0 and size > first:
        size -= 2
        stamp = entries[size]
        newest += entries[size + 1]
    return size, max(0, after), stamp, max(0, newest)
