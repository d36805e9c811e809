"""State in this process: a dictionary under a lock.

Atomic under threads and under asyncio. One lock, not several: choosing among shards costs every decision about 10 %,
and gains only where many threads do hardly anything but check (16 such threads: 1.6 to 5.5 us rather than 1.1).

Memory is bounded:

* A state disappears once nothing counts as used any more. Each key is noted once in a list for the second in which
  its state will be void; later operations clear due lists a few keys at a time. A key used meanwhile is noted again for
  later, so the work is constant per operation.
* At most `max_keys` states are kept. None that still counts is ever dropped, for that would hand its key fresh budget.
  Instead, keys that find the store full share states: each falls by its hash into one of a fixed number of *overflow*
  states of its algorithm and window. Keys in one overflow state draw on one budget, so they may be refused early but
  never pass more together than one key could; therefore nothing in it can be given back for one of them. A bucket's
  state comes back at the rate of one limit, so under another limit it is refused until nothing in it counts any more:
  what is admitted under a fast limit would else come back fast for keys of a slow one. The place of a key does not
  depend on its limit, so a change of that finds what was used. Counts of windows mean the same under all limits. When
  there is room again, a key gets a state of its own, which begins as a copy.
* Answers of `check_once` are cleared in the same way, and at most `max_keys` of them are kept.

The lock keeps other threads out, but not a signal handler or a ``__del__`` that makes a call in the middle of one, on
the same thread (see `headgate.locks`). So a call reads, decides, and then, where nothing can run in between, makes sure
that what it read is still there and replaces it (see `_replaced`). Otherwise it decides again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from operator import getitem, setitem
from time import time_ns

import msgspec

from headgate.clock import Clock, SystemClock
from headgate.core import plan as plans
from headgate.core.algorithms import Algorithm, State, void_at
from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.key import ONCE_US, Principal, checked_principal
from headgate.core.numbers import short, whole
from headgate.core.plan import Call, Family, Limit, Plan, States, Verb
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, Check

MAX_KEYS = 1_000_000
_OVERFLOW_STATES = 1024  # for each group of limits of an algorithm and window
_OVERFLOW_GROUPS = 16  # so that a flood of keys of one limit leaves room for those of others
_SWEPT_PER_CALL = 8
_SECOND = 1_000_000
_NEVER = 1 << 62
_UNTIL = Quota(1, _SECOND, algorithm=Algorithm.FIXED_WINDOW)
"""Has states that begin with the time when they are void."""
_CHECK, _CHECK_ONCE, _PEEK = Verb.CHECK, Verb.CHECK_ONCE, Verb.PEEK


class _Table:
    """The states of one space."""

    __slots__ = ("bound", "shared", "space", "states")

    def __init__(self, space: str, *, shared: bool) -> None:
        self.states: dict[Principal | int, State] = {}  # by principal, or by number where they are shared
        self.space = space
        self.shared = shared
        self.bound = shared  # in use by a function that `bind` made, and so kept even when it is empty


_Note = tuple[_Table, Principal | int, Quota]
"""A reminder to look whether a state is void: where it is, and its quota."""
_Found = tuple[_Table, Principal | int, State, tuple[_Table, int] | None]
"""Where the state of a limit is or will be kept, the state that counts for it now, and where among the overflow states
that was found, unless it is the key's own."""


class MemoryStore:
    """Keeps the state of limits in this process.

    Args:
        max_keys: the most states of single keys; each takes about 300 bytes (the sliding log more, 48 bytes per
            admission). Beyond them there are up to 16 * 1024 overflow states for each algorithm and window in use,
            1024 for the keys of one limit. A key that shares one cannot be reset, and gets no refund. It is also the
            most answers of `check_once` that are remembered, each in about 420 bytes: beyond it the oldest is
            forgotten, and its request counts again. Charges that were refunded count as states as long as they would
            count otherwise; a store that is full refunds none.
        clock: where time comes from; default: the system's clock.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        self._max_keys = whole("max_keys", max_keys, 1, 1 << 40, InvalidStore)
        if not isinstance(clock, Clock | None):
            raise InvalidStore(f"a clock has now(), ticks(), wait() and wait_async(), unlike {short(clock)}")
        self.clock = clock or SystemClock()
        self._now = None if type(self.clock) is SystemClock else self.clock.now  # None: read it without another call
        self._lock = new_lock()
        # Each step of it acquires the lock: ``for _ in self._locked: try: ... finally: release()`` is as safe as a with
        # statement and twice as fast. A plain call of acquire() is neither: a signal handler that raises (Ctrl-C) may
        # run right after the call, before the try block, and leave the lock held for ever; no handler runs between a
        # step of an iterator in C and the body of its loop.
        self._locked = iter(self._lock.acquire, False)
        self._tables: dict[str, _Table] = {}  # by space
        self._overflow: dict[str, _Table] = {}  # by shape
        self._own = self._shared = 0  # how many states there are of either kind
        self._due: dict[int, list[_Note]] = {}  # second -> states that may be void when it begins
        self._seconds: list[int] = []  # the same seconds, as a heap
        self._next_due = _NEVER  # the first of them, in microseconds
        self._is_sweeping = False
        self._once = Admissions(max_keys)
        self._refunds = _Table("!", shared=False)  # by token and principal: until when each is kept, 1, and its answer
        self._refunds.bound = True

    def __len__(self) -> int:
        """Return the number of states kept, void ones that are not cleared yet included."""
        return self._own + self._shared

    def run(self, call: Call) -> Decision:
        for _ in self._locked:
            try:
                now = time_ns() // 1000 if self._now is None else self._now()
                if now >= self._next_due:
                    self._sweep(now)
                is_check = call.verb is _CHECK
                decision = self._check(call.plan, call.cost, now, call.costs) if is_check else self._run(call, now)
                if not call.shadow:
                    return decision
                tried: tuple[Decision, ...] = ()
                if is_check and decision.allowed:
                    for plan in call.shadow:
                        tried += (self._check(plan, call.cost, now),)
                else:
                    tried = tuple([self._run(each, now) for each in plans.shadow_calls(call, decision)])
                return msgspec.structs.replace(decision, shadow=tried)
            finally:
                self._lock.release()
        raise AssertionError("the lock was not acquired")

    def ready(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        with self._lock:
            self._once.clear()
            for table in (*self._tables.values(), *self._overflow.values(), self._refunds):
                table.states.clear()
            self._due.clear()
            self._seconds.clear()
            self._next_due = _NEVER
            self._own = self._shared = 0

    def bind(self, family: Family) -> Check:
        """Return the function that checks keys of `family`.

        It decides as `run` does, in half the time, by having all it needs at hand. Text that has a state is known to be
        a good key. One limit has a function of its own, which takes 40 % less than the general one would.
        """
        store, locked, release, clock = self, self._locked, self._lock.release, self._now
        quotas, tables = family.quotas, [self._bound(space) for space in family.spaces]
        one = 1  # compared by identity: True and 1.0 equal it, but are not costs

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one and not (type(cost) is int and cost == 0):
                cost = family.checked_cost(cost)
            for _ in locked:
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= store._next_due:
                        store._sweep(now)
                    before: list[State] = []
                    for states in tables:
                        before.append(states[key])  # noqa: PERF401  a comprehension takes longer
                    if not cost:
                        return plans.look(quotas, before, (1,) * len(tables), now)[1]
                    after, decision = plans.check(quotas, before, (cost,) * len(tables), now)
                    if after is before or _replaced(tables, (key,) * len(tables), before, after):
                        return decision
                except KeyError:  # a new key, or one that must be looked for elsewhere
                    plan = family.plan(key)
                    return store._first(Call(_CHECK, plan, cost) if cost else Call(_PEEK, plan), now)
                except TypeError:
                    checked_principal(key)  # an unhashable key
                    raise
                finally:
                    release()
            raise AssertionError("the lock was not acquired")

        if len(tables) > 1:
            return check
        (table,), step, check_any = tables, quotas[0].step, check

        def check_one(key: str, cost: int = 1) -> Decision:
            if cost is not one:
                if type(cost) is int and cost == 0:
                    return check_any(key, 0)
                cost = family.checked_cost(cost)
            for _ in locked:
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= store._next_due:
                        store._sweep(now)
                    before = table[key]
                    after, decision = step(before, cost, now)
                    if after is before:
                        return decision
                    if table[key] is before:
                        table[key] = after
                        return decision
                except KeyError:
                    return store._first(Call(_CHECK, family.plan(key), cost), now)
                except TypeError:
                    checked_principal(key)
                    raise
                finally:
                    release()
            raise AssertionError("the lock was not acquired")

        return check_one

    def _bound(self, space: str) -> dict[Principal | int, State]:
        with self._lock:
            table = self._tables.setdefault(space, _Table(space, shared=False))
            table.bound = True
            return table.states

    def _run(self, call: Call, now: int) -> Decision:
        """Do what a call says. The lock is held."""
        verb, plan = call.verb, call.plan
        if verb is _CHECK:
            return self._check(plan, call.cost, now, call.costs)
        if verb is Verb.REFUND and call.token and call.charge is not None:
            return self._refund_once(call, call.charge.until, now)
        if verb is not _CHECK_ONCE:
            return self._decide(call, now)
        decision, places = self._once.find(call.token, now), plans.places_of(plan)
        if decision is not None and not self._once.is_of(call.token, places):
            return plans.replayed(plan, [self._find(limit, len(plan))[2] for limit in plan], now)
        if decision is None:
            decision = self._decide(call, now)
            if decision.allowed:
                self._once.keep(call.token, decision, now, places)
                self._due_after(now + ONCE_US)
        return decision

    def _refund_once(self, call: Call, until: int, now: int) -> Decision:
        """Refund what the call names, once. A store that is full cannot note that, and refunds nothing."""
        principal, refunds = call.plan[0].principal, self._refunds
        at = call.token + (principal.encode() if isinstance(principal, str) else principal)
        if now >= until:
            return self._decide(call, now)
        if at not in refunds.states:
            if self._own >= self._max_keys:
                return self._decide(Call(_PEEK, call.plan), now)
            decision = self._decide(call, now)
            self._own += 1
            refunds.states[at] = until, 1, decision
            self._due_after(until).append((refunds, at, _UNTIL))
        answer: Decision = (refunds.states[at] or ())[2]
        return answer

    def _check(self, plan: Plan, cost: int, now: int, costs: tuple[int, ...] = ()) -> Decision:
        """Check limits all of which have a state of their own, as nearly all do."""
        tables = self._tables
        try:
            if len(plan) == 1:
                (limit,) = plan
                states, key = tables[limit.space].states, limit.principal
                before = states[key]
                after, decision = limit.quota.step(before, cost, now)
                if after is before:
                    return decision
                if states[key] is before:
                    states[key] = after
                    return decision
            else:
                quotas = [limit.quota for limit in plan]
                places = [tables[limit.space].states for limit in plan]
                keys = [limit.principal for limit in plan]
                found = list(map(getitem, places, keys))
                made, decision = plans.check(quotas, found, costs or (cost,) * len(plan), now)
                if made is found or _replaced(places, keys, found, made):
                    return decision
        except KeyError:  # a new key, or one that must be looked for elsewhere
            pass
        return self._first(Call(_CHECK, plan, cost, costs=costs), now)

    def _first(self, call: Call, now: int) -> Decision:
        """Do what a call says about limits some of which may have no state of their own yet."""
        if len(call.plan) != 1 or call.verb is not _CHECK:
            return self._decide(call, now)
        (limit,) = call.plan
        quota = limit.quota
        while True:
            found = self._find(limit, 1)
            occupied = _occupied(found, quota, now)
            if occupied is not None:
                found, after, decision = occupied
            else:
                after, decision = quota.step(found[2], call.cost, now)
            _, at, state, _ = found
            if after is state:
                return decision
            states = self._place(found, quota, decision, now)
            if at in states and states[at] is state:
                states[at] = after
                return decision

    def _decide(self, call: Call, now: int) -> Decision:
        """Do what a call says, whatever states there are."""
        verb, plan = call.verb, call.plan
        while True:
            found = [self._find(limit, len(plan)) for limit in plan]
            before: list[State] = [each[2] for each in found]
            if self._overflow:
                after, decision = _decide_shared(call, found, before, now)
            else:
                after, decision = plans.decide(call, before, now)
            if verb is _PEEK:
                return decision
            tables: list[dict[Principal | int, State]] = []
            keys: list[Principal | int] = []
            old: list[State] = []
            new: list[State] = []
            told = decision.limits
            for index, state in enumerate(after):
                if state is not before[index]:
                    here = found[index]
                    tables.append(self._place(here, plan[index].quota, told[index], now))
                    keys.append(here[1])
                    old.append(here[2])
                    new.append(state)
            if not keys or _replaced(tables, keys, old, new):
                return decision

    def _find(self, limit: Limit, places: int) -> _Found:
        """Find the state of `limit`. The store is full for a new key when it has fewer `places` than its plan needs."""
        space, principal = limit.space, limit.principal
        name = space if type(principal) is str else f"#{space}"  # digests apart, where no key of a caller can find them
        table = self._tables.get(name)
        full = self._own + places > self._max_keys
        if table is not None and principal in table.states:
            return table, principal, table.states[principal], None
        if table is None:
            table = _Table(name, shared=False)
        if not (full or self._shared):
            return table, principal, None, None
        origin = overflow, slot = self._overflow_of(space, principal)
        state = overflow.states.get(slot)
        if full:
            return overflow, slot, state, origin
        # With room again, a key moves to a state of its own and takes along what was used in common.
        return table, principal, state, origin

    def _overflow_of(self, space: str, principal: Principal | int) -> tuple[_Table, int]:
        name, _, shape = space.partition("|")
        overflow = self._overflow.get(shape)
        if overflow is None:
            overflow = self._overflow[shape] = _Table(shape, shared=True)
        group = hash(name) % _OVERFLOW_GROUPS
        return overflow, group * _OVERFLOW_STATES + hash((space, principal)) % _OVERFLOW_STATES

    def _place(self, found: _Found, quota: Quota, told: Decision, now: int) -> dict[Principal | int, State]:
        """Return the states among which that of `found` is now, or ought to be.

        A new one is noted for clearing, when nothing counts as used any more by what its limit `told`.
        """
        table, at, state, _ = found
        if at in table.states:
            return table.states
        due, tables = self._due_after(now + told.reset_after_us), self._tables
        if not table.shared:
            table = tables.setdefault(table.space, table)  # a plan may have two new keys of a new space
        due.append((table, at, quota))
        if at not in table.states:
            if table.shared:
                self._shared += 1
                table.states[at] = state
            elif table.space not in tables or tables[table.space] is table:
                tables[table.space] = table
                self._own += 1
                table.states[at] = state
        return table.states

    def _due_after(self, when: int) -> list[_Note]:
        """Return the list of what the sweep looks at when the second after `when` begins."""
        second = when // _SECOND + 1
        due = self._due.get(second)
        if due is None:
            due = self._due.setdefault(second, [])
            heappush(self._seconds, second)
            self._next_due = self._seconds[0] * _SECOND
        return due

    def _sweep(self, now: int) -> None:
        """Look at a few due states, drop those that are void and note the others for later; forget ended answers."""
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            for _ in range(_SWEPT_PER_CALL):
                if now < self._next_due:
                    return
                due = self._due.get(self._seconds[0])
                if due:
                    self._look_again(due.pop(), now)
                elif not self._once.drop_ended(now):
                    due = self._due.pop(heappop(self._seconds), None)
                    self._next_due = self._seconds[0] * _SECOND if self._seconds else _NEVER
                    if due:  # noted meanwhile
                        self._due_after(now).extend(due)
        finally:
            self._is_sweeping = False

    def _look_again(self, note: _Note, now: int) -> None:
        """Drop a state if it is void, else note it for later."""
        table, at, quota = note
        states = table.states
        if at not in states:
            return
        state = states[at]
        void = void_at(state, quota)
        if self._shared and not table.shared:  # without a state of its own, the key would draw on its overflow state
            overflow, slot = self._overflow_of(table.space.lstrip("#"), at)
            void = max(void, void_at(overflow.states.get(slot), quota))
        if void > now:
            self._due_after(void).append(note)
        elif at in states and states[at] is state:
            del states[at]
            if table.shared:
                self._shared -= 1
            else:
                self._own -= 1
            if not states and not table.bound:
                del self._tables[table.space]
        else:
            self._due_after(now).append(note)


def _decide_shared(call: Call, found: list[_Found], before: States, now: int) -> tuple[States, Decision]:
    """Run a call in a store some of whose states may be shared."""
    quotas = [limit.quota for limit in call.plan]
    places = [each[3] or index for index, each in enumerate(found)]
    refusals: dict[int, tuple[State, Decision]] = {}
    kept: dict[object, tuple[State, Decision]] = {}  # by place, what its longest refusal leaves there
    for index, place in enumerate(places):
        occupied = _occupied(found[index], quotas[index], now, crowded=places.count(place) > 1)
        if occupied is not None:
            found[index] = occupied[0]
            refusals[index] = occupied[1:]
            known = kept.get(place)
            if known is None or occupied[2].reset_after_us > known[1].reset_after_us:
                kept[place] = occupied[1:]
    refusals = {index: (kept[places[index]][0], refusal) for index, (_, refusal) in refusals.items()}
    shared = [each[0].shared for each in found]
    costs = plans.costs_of(call)
    if call.verb is Verb.RESET:  # what keys share is not forgotten for one of them
        left = [state if is_shared else None for state, is_shared in zip(before, shared, strict=True)]
        return left, _refused(plans.look(quotas, left, costs, now), refusals)[1]
    if call.verb is Verb.REFUND and any(shared):  # nor given back
        return before, _refused(plans.look(quotas, before, (1,) * len(quotas), now), refusals)[1]
    if refusals:
        return _refused(plans.look(quotas, before, costs, now), refusals)
    after, decision = plans.decide(call, before, now)
    if decision.taken and len(set(places)) < len(places):
        after = _filled(places, quotas, after, now)
    return after, decision


def _refused(
    looked_at: tuple[States, Decision], refusals: Mapping[int, tuple[State, Decision]]
) -> tuple[States, Decision]:
    """Put the refusals of some limits (their states and decisions, by index) in the place of what those said."""
    states, parts = list(looked_at[0]), list(looked_at[1].limits)
    for index, (state, refusal) in refusals.items():
        states[index], parts[index] = state, refusal
    return states, plans.combine(parts)


def _occupied(found: _Found, quota: Quota, now: int, *, crowded: bool = False) -> tuple[_Found, State, Decision] | None:
    """Return the refusal of a key that finds its overflow state in use under another limit, if it does.

    A state that several limits of a plan share is in use if anything counts. Beside the decision there is the state
    after it, which stays where it is: a key does not move to a state of its own as long as it waits.
    """
    _, _, state, origin = found
    if origin is None or state is None:
        return None
    if not crowded and (not quota.algorithm.is_bucket or state[2] == quota.limit):
        return None
    after, decision = quota.step(state, quota.capacity, now)
    if decision.allowed:
        return None
    wait = decision.reset_after_us
    refusal = Decision(False, quota.capacity, 0, wait, wait, Pressure.THROTTLED, quota)
    return (*origin, state, origin), after, refusal


def _filled(places: Sequence[object], quotas: Sequence[Quota], after: States, now: int) -> list[State]:
    """Return the states after an admission: where limits of the plan share one, nothing is left until it is void.

    They do not know what the others took: where the limit is one request, each would be refused for ever.
    """
    full = [quota.step(None, quota.capacity, now) for quota in quotas]
    result = list(after)
    for index, place in enumerate(places):
        if places.count(place) > 1:
            sharing = [made for made, other in zip(full, places, strict=True) if other == place]
            result[index] = max(sharing, key=lambda made: made[1].reset_after_us)[0]
    return result


def _replaced(
    tables: Sequence[dict[Principal | int, State]], keys: Sequence[Principal | int], before: States, after: States
) -> bool:
    """Put the states `after` in the place of those `before`, all or, if one is not there any more, none.

    From the last look to the last replacement nothing may run in between: no call, and no loop. Iterators in C loop
    without one.
    """
    try:
        if len(after) == 2:  # two and three limits are usual; by name takes half as long
            (t, u), (k, m), (x, y) = tables, keys, before
            if t[k] is x and u[m] is y:
                t[k], u[m] = after
                return True
            return False
        if len(after) == 3:
            (t, u, v), (k, m, n), (x, y, z) = tables, keys, before
            if t[k] is x and u[m] is y and v[n] is z:
                t[k], u[m], v[n] = after
                return True
            return False
        there: list[State] = []
        done: list[None] = []
        look, put = map(getitem, tables, keys), map(setitem, tables, keys, after)
        there += look
        if there == before:
            done += put
            return True
    except KeyError:  # void, and dropped
        pass
    return False


class Admissions:
    """What CHECK_ONCE answers again: admissions by token, each for `ONCE_US`; not safe for threads by itself.

    Args:
        most: how many there may be. Beyond that the oldest is forgotten first, and its question counts again.
    """

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        # With the time when each ends, the oldest first. (A plain dict is slow to find its first key after deletions.)
        self._kept: OrderedDict[bytes, tuple[int, Decision, int]] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, token: bytes, now: int) -> Decision | None:
        """Return the answer that goes with `token`, if it is remembered."""
        until, decision, _ = self._kept.get(token, (now, None, 0))
        return decision if now < until else None

    def is_of(self, token: bytes, places: int) -> bool:
        """Whether the answer that goes with `token` is one of these limits; see `headgate.core.plan.places_of`."""
        return self._kept[token][2] == places

    def keep(self, token: bytes, decision: Decision, now: int, places: int = 0) -> None:
        """Remember an answer given `now`."""
        self._kept.pop(token, None)  # an answer that ended, which must not keep its place among the oldest
        if len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[token] = now + ONCE_US, decision, places

    def drop_ended(self, now: int) -> bool:
        """Forget the oldest answer if it has ended; says whether it had.

        After the clock was set back, answers that end earlier may be behind it; those wait for their turn.
        """
        for until, _, _ in self._kept.values():
            if until <= now:
                self._kept.popitem(last=False)
                return True
            break
        return False

    def clear(self) -> None:
        self._kept.clear()


class AsyncMemoryStore:
    """The same states for callers in an event loop; an operation is too short to be worth a thread."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = self._store = store
        """What keeps them, for callers who need not await."""
        self.clock = store.clock

    async def run(self, call: Call) -> Decision:
        return self._store.run(call)

    def bind(self, family: Family) -> AsyncCheck:
        bound = self._store.bind(family)

        async def check(key: str, cost: int = 1) -> Decision:
            return bound(key, cost)

        return check

    async def ready(self) -> None:
        self._store.ready()

    async def close(self) -> None:
        self._store.close()
