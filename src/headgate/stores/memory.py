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
  never pass more together than one key could; therefore nothing in it can be refunded for one of them. A bucket's
  state comes back at the rate of one limit, so under another limit it is refused until nothing in it counts any more:
  otherwise what is admitted under a fast limit would come back fast for keys of a slow one. The place of a key does not
  depend on its limit, so a change of that finds what was used. Counts of windows mean the same under all limits. When
  there is room again, a key gets a state of its own, which begins as a copy.
* Answers of `check_once` are cleared in the same way, and at most `max_keys` of them are kept.

The lock keeps other threads out, but not a signal handler or a ``__del__`` that makes a call in the middle of one, on
the same thread (see `headgate.locks`). So a call reads, decides, and then, where nothing can run in between, makes sure
that what it read is still there and replaces it (see `_replace`). Otherwise it decides again. Where states are made or
shared, it is also not enough that single states are the same: so such calls are numbered (`_TURN`), and one decides
again if another was made in the middle of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from operator import getitem, setitem
from time import time_ns
from typing import Any

import msgspec

from headgate.clock import Clock, SystemClock
from headgate.core import plan as plans
from headgate.core.algorithms import Algorithm, State, void_at
from headgate.core.decision import Decision, exhausted, refused
from headgate.core.errors import InvalidStore
from headgate.core.key import ONCE_US, Principal
from headgate.core.numbers import short, whole
from headgate.core.plan import Call, Family, Limit, States, Verb
from headgate.core.quota import Quota
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, Check, plain_check
from headgate.stores.refunds import Admissions

MAX_KEYS = 1_000_000
_OVERFLOW_STATES = 1024  # for each group of limits of an algorithm and window
_OVERFLOW_GROUPS = 16  # so that a flood of keys of one limit leaves room for those of others
_SWEPT_PER_CALL = 8
_SECOND = 1_000_000
_NEVER = 1 << 62
_UNTIL = Quota(1, _SECOND, algorithm=Algorithm.FIXED_WINDOW)
"""Has states that begin with the time when they are void."""
_TURN = 0
"""The key of the number of calls that took the slow path, in a dictionary of its own: it is replaced like a state."""
_CHECK, _CHECK_ONCE, _PEEK = Verb.CHECK, Verb.CHECK_ONCE, Verb.PEEK


class _Table:
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
        self._tables: dict[str, _Table] = {}  # by space
        self._overflow: dict[str, _Table] = {}  # by shape
        self._own = self._shared = 0  # how many states there are of either kind
        self._due: dict[int, list[_Note]] = {}  # second -> states that may be void when it begins
        self._seconds: list[int] = []  # the same seconds, as a heap
        self._next_due = _NEVER  # the first of them, in microseconds
        self._is_sweeping = False
        self._turns: dict[Principal | int, Any] = {_TURN: 0}
        self._once = Admissions(max_keys)
        self._deciding: set[bytes] = set()  # tokens of CHECK_ONCE that are being decided
        self._refunds = _Table("!", shared=False)  # by token and principal: until when each is kept, 1, and its answer
        self._refunds.bound = True

    def __len__(self) -> int:
        """Return the number of states kept, void ones that are not cleared yet included."""
        return self._own + self._shared

    def run(self, call: Call) -> Decision:
        with self._lock:
            now = time_ns() // 1000 if self._now is None else self._now()
            if now >= self._next_due:
                self._sweep(now)
            decision = self._check(call, now) if call.verb is _CHECK else self._run(call, now)
            if call.shadow:
                tried = [self._run(each, now) for each in plans.shadow_calls(call, decision)]
                return msgspec.structs.replace(decision, shadow=tuple(tried))
            return decision

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

        It is faster than `run`, since it looks nothing up. A key that has states is valid.
        """
        if len(family.quotas) > 1:
            return self._bind_any(family)
        store, lock, clock, step = self, self._lock, self._now, family.quotas[0].step
        states, check_any = self._bound(family.spaces[0]), self._bind_any(family)
        one = 1  # compared by identity: True and 1.0 equal it, but are not costs

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one:
                return check_any(key, cost)
            with lock:
                now = time_ns() // 1000 if clock is None else clock()
                if now >= store._next_due:
                    store._sweep(now)
                try:
                    before = states[key]
                    after, decision = step(before, 1, now)
                    if after is before:
                        return decision
                    if states[key] is before:
                        states[key] = after
                        return decision
                except (KeyError, TypeError):  # a new or unhashable key, or one that must be looked for elsewhere
                    pass
                return store._decide(Call(_CHECK, family.plan(key)), now)

        return check

    def _bind_any(self, family: Family) -> Check:
        """Return the function for any number of limits. It looks nothing up for a cost of 1 or, as a peek, of 0."""
        store, lock, clock, quotas = self, self._lock, self._now, family.quotas
        tables, run = [self._bound(space) for space in family.spaces], plain_check(self, family)
        costs, one, peek = (1,) * len(quotas), 1, 0

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one and cost is not peek:
                return run(key, cost)
            with lock:
                now = time_ns() // 1000 if clock is None else clock()
                if now >= store._next_due:
                    store._sweep(now)
                try:
                    before = [states[key] for states in tables]
                    if cost is peek:
                        return plans.peek(quotas, before, costs, now)[1]
                    after, decision = plans.check(quotas, before, costs, now)
                    if after is before or _replace(tables, [key] * len(tables), before, after):
                        return decision
                except (KeyError, TypeError):  # as for one limit
                    pass
                return store._decide(Call(_CHECK if cost else _PEEK, family.plan(key)), now)

        return check

    def _bound(self, space: str) -> dict[Principal | int, State]:
        with self._lock:
            table = self._tables.setdefault(space, _Table(space, shared=False))
            table.bound = True
            return table.states

    def _run(self, call: Call, now: int) -> Decision:
        """Run a call. The lock is held."""
        verb, plan = call.verb, call.plan
        if verb is _CHECK:
            return self._check(call, now)
        if verb is Verb.REFUND and call.token and call.charge is not None:
            return self._refund_once(call, call.charge.until, now)
        if verb is not _CHECK_ONCE:
            return self._decide(call, now)
        if call.token in self._deciding:  # by the call that this one interrupts, whose answer is not known yet
            return refused(self._decide(Call(_PEEK, plan, call.cost, costs=call.costs), now), 1)
        self._deciding.add(call.token)
        try:
            return self._check_once(call, now)
        finally:
            self._deciding.discard(call.token)

    def _check_once(self, call: Call, now: int) -> Decision:
        plan = call.plan
        limits, (decision, known) = plans.hash_of(plan), self._once.find(call.token, now)
        if decision is None:
            decision = self._decide(call, now)
            if decision.allowed:
                self._once.keep(call.token, decision, now, limits)
                self._due_after(now + ONCE_US)
        elif known != limits:
            return plans.replayed(plan, [self._find(limit, len(plan))[2] for limit in plan], now)
        return decision

    def _refund_once(self, call: Call, until: int, now: int) -> Decision:
        """Refund what the call names, once. A store that is full cannot note that, and refunds nothing.

        It is noted first: a call that interrupts this one, or repeats it after an exception, refunds nothing either.
        """
        principal, refunds = call.plan[0].principal, self._refunds
        at, noted = call.token + (principal.encode() if isinstance(principal, str) else principal), refunds.states
        if now >= until:
            return self._decide(call, now)
        if at not in noted and self._own < self._max_keys:
            due = self._due_after(until)
            if at not in noted:
                noted[at] = until, 1, None
                self._own += 1
                due.append((refunds, at, _UNTIL))
                decision = self._decide(call, now)
                if at in noted:
                    noted[at] = until, 1, decision
                return decision
        _, _, answer = noted.get(at) or (0, 0, None)
        return self._decide(Call(_PEEK, call.plan), now) if answer is None else answer

    def _check(self, call: Call, now: int) -> Decision:
        """Check limits all of which have a state of their own, as nearly all do."""
        plan, tables = call.plan, self._tables
        try:
            if len(plan) == 1:
                (limit,) = plan
                states, key = tables[limit.space].states, limit.principal
                before = states[key]
                after, decision = limit.quota.step(before, call.cost, now)
                if after is before:
                    return decision
                if states[key] is before:
                    states[key] = after
                    return decision
            else:
                kept = [tables[limit.space].states for limit in plan]
                keys = [limit.principal for limit in plan]
                found = list(map(getitem, kept, keys))
                made, decision = plans.check([limit.quota for limit in plan], found, plans.costs_of(call), now)
                if made is found or _replace(kept, keys, found, made):
                    return decision
        except KeyError:  # a new key, or one that must be looked for elsewhere
            pass
        return self._decide(call, now)

    def _decide(self, call: Call, now: int) -> Decision:
        """Run a call with any states."""
        plan, turns = call.plan, self._turns
        while True:
            turn = turns[_TURN]
            found = [self._find(limit, len(plan)) for limit in plan]
            before: list[State] = [each[2] for each in found]
            if self._overflow:
                after, decision = _decide_shared(call, found, before, now)
            else:
                after, decision = plans.decide(call, before, now)
            if call.verb is _PEEK:
                return decision
            tables: list[dict[Principal | int, State]] = [turns]
            keys: list[Principal | int] = [_TURN]
            old: list[Any] = [turn]
            new: list[Any] = [turn + 1]
            for here, limit, part, state in zip(found, plan, decision.limits, after, strict=False):
                if state is not here[2]:
                    tables.append(self._states_for(here, limit.quota, part, now, turn))
                    keys.append(here[1])
                    old.append(here[2])
                    new.append(state)
            if len(keys) == 1 or _replace(tables, keys, old, new):
                return decision

    def _find(self, limit: Limit, needed: int) -> _Found:
        """Find the state of `limit`. A new key needs room for all states of its plan."""
        space, principal = limit.space, limit.principal
        name = space if type(principal) is str else f"#{space}"  # digests apart, where no key of a caller can find them
        table = self._tables.get(name)
        full = self._own + needed > self._max_keys
        if table is not None and principal in table.states:
            return table, principal, table.states[principal], None
        if table is None:
            table = _Table(name, shared=False)
        if not (full or self._shared):
            return table, principal, None, None
        origin = overflow, number = self._overflow_of(space, principal)
        state = overflow.states.get(number)
        if full:
            return overflow, number, state, origin
        # With room again, a key moves to a state of its own and takes along what was used in common.
        return table, principal, state, origin

    def _overflow_of(self, space: str, principal: Principal | int) -> tuple[_Table, int]:
        name, _, shape = space.partition("|")
        overflow = self._overflow.get(shape)
        if overflow is None:
            overflow = self._overflow[shape] = _Table(shape, shared=True)
        group = hash(name) % _OVERFLOW_GROUPS
        return overflow, group * _OVERFLOW_STATES + hash((space, principal)) % _OVERFLOW_STATES

    def _states_for(
        self, found: _Found, quota: Quota, part: Decision, now: int, turn: int
    ) -> dict[Principal | int, State]:
        """Return the states that the state of `found` is among, or belongs to.

        A new one is noted for clearing, when nothing counts as used any more by the decision of its limit. It is not
        made if another call was made since `turn`: then the room may be gone, or the overflow state have changed.
        """
        table, at, state, _ = found
        if at in table.states:
            return table.states
        due, tables = self._due_after(now + part.reset_after_us), self._tables
        if not table.shared:
            table = tables.setdefault(table.space, table)  # a plan may have two new keys of a new space
        due.append((table, at, quota))
        if at not in table.states and self._turns[_TURN] == turn:
            if table.shared:
                self._shared += 1
                table.states[at] = state
            elif table.space not in tables or tables[table.space] is table:
                tables[table.space] = table
                self._own += 1
                table.states[at] = state
        return table.states

    def _due_after(self, when: int) -> list[_Note]:
        """Return the notes that the sweep reads when the second after `when` begins."""
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
            overflow, number = self._overflow_of(table.space.lstrip("#"), at)
            void = max(void, void_at(overflow.states.get(number), quota))
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
        occupied = _shared_refusal(found[index], quotas[index], now, crowded=places.count(place) > 1)
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
        return left, _put_refusals(plans.peek(quotas, left, costs, now), refusals)[1]
    if call.verb is Verb.REFUND and any(shared):  # or refunded
        return before, _put_refusals(plans.peek(quotas, before, (1,) * len(quotas), now), refusals)[1]
    if refusals:
        return _put_refusals(plans.peek(quotas, before, costs, now), refusals)
    after, decision = plans.decide(call, before, now)
    if decision.taken and len(set(places)) < len(places):
        after = _fill(places, quotas, after, now)
    return after, decision


def _put_refusals(
    looked_at: tuple[States, Decision], refusals: Mapping[int, tuple[State, Decision]]
) -> tuple[States, Decision]:
    """Replace the states and decisions of some limits, by index, with those of their refusals."""
    states, parts = list(looked_at[0]), list(looked_at[1].limits)
    for index, (state, refusal) in refusals.items():
        states[index], parts[index] = state, refusal
    return states, plans.combine(parts)


def _shared_refusal(
    found: _Found, quota: Quota, now: int, *, crowded: bool = False
) -> tuple[_Found, State, Decision] | None:
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
    return (*origin, state, origin), after, exhausted(quota, decision.reset_after_us)


def _fill(places: Sequence[object], quotas: Sequence[Quota], after: States, now: int) -> list[State]:
    """Return the states after an admission: where limits of the plan share one, nothing is left until it is void.

    They do not know what the others took: with a limit of one request, each would be refused forever.
    """
    full = [quota.step(None, quota.capacity, now) for quota in quotas]
    result = list(after)
    for index, place in enumerate(places):
        if places.count(place) > 1:
            sharing = [made for made, other in zip(full, places, strict=True) if other == place]
            result[index] = max(sharing, key=lambda made: made[1].reset_after_us)[0]
    return result


def _replace(
    tables: Sequence[dict[Principal | int, State]], keys: Sequence[Principal | int], before: States, after: States
) -> bool:
    """Put the states `after` in the place of those `before`, all or, if one is not there any more, none.

    From the last look to the last replacement nothing may run in between: no call, and no loop. Iterators in C loop
    without one.
    """
    try:
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


class AsyncMemoryStore:
    """The same states for callers in an event loop; an operation is too short to be worth a thread."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = self._store = store
        """The store of the states, for callers that may block."""
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
