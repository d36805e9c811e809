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
  never pass more together than one key could; therefore nothing in it can be given back for one of them. When there
  is room again, a key gets a state of its own, which begins as a copy.
* Answers of `check_once` are cleared in the same way, and at most `max_keys` of them are kept (see
  `headgate.stores.once`).

The lock keeps other threads out, but not a signal handler or a ``__del__`` that makes a call in the middle of one, on
the same thread (see `headgate.locks`). Such code runs where a function is called or returns and where a loop begins
again, nowhere else. So a call reads, decides, and then, in lines that call nothing, makes sure that what it read is
still there and replaces it. Otherwise it decides again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import repeat
from operator import getitem, is_not, setitem
from time import time_ns
from typing import NamedTuple

from headgate.clock import Clock, SystemClock
from headgate.core import plan as plans
from headgate.core.algorithms import State, void_at
from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.key import ONCE_US, Principal, checked_principal
from headgate.core.numbers import short, whole
from headgate.core.plan import Call, Family, Limit, Plan, Verb, shadowed
from headgate.core.quota import Quota
from headgate.flows import drive
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, Check
from headgate.stores.once import Answers

MAX_KEYS = 1_000_000
_OVERFLOW_STATES = 1024
_SWEPT_PER_CALL = 8
_SECOND = 1_000_000
_NEVER = 1 << 62


class _Table:
    """The states of one space."""

    __slots__ = ("bound", "shared", "space", "states")

    def __init__(self, space: str, *, shared: bool) -> None:
        self.states: dict[Principal | int, State] = {}  # by principal, or by number where they are shared
        self.space = space
        self.shared = shared
        self.bound = shared  # in use by a function that `bind` made, and so kept even when it is empty


class _Note(NamedTuple):
    """A reminder to look whether a state is void."""

    table: _Table
    at: Principal | int
    quota: Quota


class _Found(NamedTuple):
    """Where the state of a limit is or will be kept, and the state that counts for it now."""

    table: _Table
    at: Principal | int
    state: State


class MemoryStore:
    """Keeps the state of limits in this process.

    Args:
        max_keys: the most states of single keys; each takes about 300 bytes (the sliding log more, 48 bytes per
            admission). Beyond them there are up to 1024 overflow states for each algorithm and window in use. A key
            that shares one cannot be reset, and gets no refund. It is also the most answers of `check_once` that are
            remembered, each in about 420 bytes.
        clock: where time comes from; default: the system's clock.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        self._max_keys = whole("max_keys", max_keys, 1, 1 << 40, InvalidStore)
        if not isinstance(clock, Clock | None):
            raise InvalidStore(f"a clock has now(), ticks(), wait() and wait_async(), unlike {short(clock)}")
        self.clock = clock or SystemClock()
        self._lock = new_lock()
        self._tables: dict[str, _Table] = {}  # by space
        self._overflow: dict[str, _Table] = {}  # by shape
        self._own = self._shared = 0  # how many states there are of either kind
        self._due: dict[int, list[_Note]] = {}  # second -> states that may be void when it begins
        self._seconds: list[int] = []  # the same seconds, as a heap
        self._next_due = _NEVER  # the first of them, in microseconds
        self._is_sweeping = False
        self._answers = Answers(max_keys)

    def __len__(self) -> int:
        """Return the number of states kept, void ones that are not cleared yet included."""
        return self._own + self._shared

    def run(self, call: Call) -> Decision:
        with self._lock:
            now = self.clock.now()
            if now >= self._next_due:
                self._sweep(now)
            if call.shadow:
                return drive(shadowed(call), lambda each: self._run(each, now))
            return self._run(call, now)

    def _run(self, call: Call, now: int) -> Decision:
        verb, plan, cost, token, _, _ = call
        if verb is Verb.CHECK and len(plan) == 1:
            return self._check_one(plan[0], cost, now)
        if verb is Verb.CHECK_ONCE:
            decision = self._answers.find(token, now)
            if decision is None:
                decision = self._decide(call, now)
                if decision.allowed:
                    self._answers.keep(token, decision, now)
                    self._due_after(now + ONCE_US)
            return decision
        return self._decide(call, now)

    def _check_one(self, limit: Limit, cost: int, now: int) -> Decision:
        space, principal, quota = limit
        table = self._tables.get(space)
        state = table.states.get(principal) if table is not None else None
        if state is None or table is None or type(principal) is not str:
            return self._first(limit, cost, now)
        after, decision = quota.step(state, cost, now)
        states = table.states
        if after is state:
            return decision
        if principal in states and states[principal] is state:
            states[principal] = after
            return decision
        return self._first(limit, cost, now)

    def ready(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        with self._lock:
            self._answers.clear()
            for table in (*self._tables.values(), *self._overflow.values()):
                table.states.clear()
            self._due.clear()
            self._seconds.clear()
            self._next_due = _NEVER
            self._own = self._shared = 0

    def bind(self, family: Family) -> Check:
        """Return the function that checks keys of `family`.

        For a single limit this is the fast lane: it decides as `check` does, in half the time, by having all it needs
        at hand in one function. Text that has a state is known to be a good key.
        """
        if len(family.quotas) != 1:
            return self._bind_several(family)
        clock = None if type(self.clock) is SystemClock else self.clock.now  # None: read it without another call
        states, step = self._bound(family.spaces[0]), family.quotas[0].step
        release, locked = self._lock.release, self._locked()
        one = 1  # compared by identity: True and 1.0 equal it, but are no costs

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one:
                if type(cost) is int and cost == 0:
                    return self.run(Call(Verb.PEEK, family.plan(key)))
                cost = family.checked_cost(cost)
            for _ in locked:
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= self._next_due:
                        self._sweep(now)
                    state = states[key]
                    after, decision = step(state, cost, now)
                    if after is state:
                        return decision
                    if states[key] is state:
                        states[key] = after
                        return decision
                except KeyError:  # a new key, or one that must be looked for elsewhere
                    return self._first(family.plan(key)[0], cost, now)
                except TypeError:
                    checked_principal(key)  # an unhashable key
                    raise
                finally:
                    release()
            raise AssertionError("the lock was not acquired")

        return check

    def _bind_several(self, family: Family) -> Check:
        clock = None if type(self.clock) is SystemClock else self.clock.now
        quotas, tables = family.quotas, [self._bound(space) for space in family.spaces]
        lanes = [(states, quota.step) for states, quota in zip(tables, quotas, strict=True)]
        release, locked = self._lock.release, self._locked()
        one = 1

        def refuse(
            key: str, cost: int, now: int, before: list[State], refusal: tuple[int, State, Decision]
        ) -> Decision:
            before += [states[key] for states in tables[len(before) :]]
            after, decision = plans.look(quotas, before, cost, now, refusal)
            if any(map(is_not, after, before)):
                _replaced(tables, repeat(key), before, after)
            return decision

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one:
                if type(cost) is int and cost == 0:
                    return self.run(Call(Verb.PEEK, family.plan(key)))
                cost = family.checked_cost(cost)
            for _ in locked:
                before: list[State] = []
                after: list[State] = []
                decisions: list[Decision] = []
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= self._next_due:
                        self._sweep(now)
                    for states, step in lanes:
                        state = states[key]
                        new, decision = step(state, cost, now)
                        before.append(state)
                        if not decision.allowed:
                            return refuse(key, cost, now, before, (len(after), new, decision))
                        after.append(new)
                        decisions.append(decision)
                    if _replaced(tables, repeat(key), before, after):
                        return plans.combine(decisions)
                except KeyError:  # a new key, or one that must be looked for elsewhere
                    return self._decide(Call(Verb.CHECK, family.plan(key), cost), now)
                except TypeError:
                    checked_principal(key)  # an unhashable key
                    raise
                finally:
                    release()
            raise AssertionError("the lock was not acquired")

        return check

    def _locked(self) -> Iterator[bool]:
        """Return an iterator each step of which acquires the lock: ``for _ in locked: try: ... finally: release()``.

        It is as safe as a with statement and twice as fast. A plain call of acquire() is neither: a signal handler that
        raises (Ctrl-C) may run right after the call, before the try block, and leave the lock held for ever; no handler
        runs between a step of an iterator in C and the body of its loop.
        """
        return iter(self._lock.acquire, False)

    def _bound(self, space: str) -> dict[Principal | int, State]:
        with self._lock:
            table = self._tables.setdefault(space, _Table(space, shared=False))
            table.bound = True
            return table.states

    def _first(self, limit: Limit, cost: int, now: int) -> Decision:
        """Check a single limit whose principal may have no state of its own yet."""
        while True:
            found = self._find(limit, 1)
            after, decision = limit.quota.step(found.state, cost, now)
            if after is found.state:
                return decision
            states, at = self._place(found, limit.quota, after, now), found.at
            if at in states and states[at] is found.state:
                states[at] = after
                return decision

    def _decide(self, call: Call, now: int) -> Decision:
        verb, plan = call.verb, call.plan
        while True:
            found = self._find_all(plan)
            before = [each.state for each in found]
            if not self._overflow:
                after, decision = plans.decide(call, before, now)
            elif verb is Verb.RESET:  # what keys share is not forgotten for one of them
                after = [each.state if each.table.shared else None for each in found]
                _, decision = plans.decide(Call(Verb.PEEK, plan), after, now)
            elif verb is Verb.REFUND and any(each.table.shared for each in found):  # nor given back
                after, decision = plans.decide(Call(Verb.PEEK, plan), before, now)
            elif verb is not Verb.PEEK and len({(id(each.table), each.at) for each in found}) < len(plan):
                after, decision = _in_turn(plan, found, call.cost, now)
            else:
                after, decision = plans.decide(call, before, now)
            changed = [index for index, new in enumerate(after) if new is not before[index]]
            tables = [self._place(found[index], plan[index].quota, after[index], now) for index in changed]
            keys = [found[index].at for index in changed]
            if _replaced(tables, keys, [before[index] for index in changed], [after[index] for index in changed]):
                return decision

    def _find_all(self, plan: Plan) -> list[_Found]:
        places = len(plan)
        return [self._find(limit, places) for limit in plan]

    def _find(self, limit: Limit, places: int) -> _Found:
        """Find the state of `limit`. The store is full for a new key when it has fewer `places` than its plan needs."""
        space, principal, _ = limit
        name = space if type(principal) is str else f"#{space}"  # digests apart, where no key of a caller can find them
        table = self._tables.get(name)
        full = self._own + places > self._max_keys
        if table is not None and principal in table.states:
            return _Found(table, principal, table.states[principal])
        if table is None:
            table = _Table(name, shared=False)
        if not (full or self._shared):
            return _Found(table, principal, None)
        overflow, slot = self._overflow_of(space, principal)
        if full:
            return _Found(overflow, slot, overflow.states.get(slot))
        # With room again, a key moves to a state of its own and takes along what was used in common.
        return _Found(table, principal, overflow.states.get(slot))

    def _overflow_of(self, space: str, principal: Principal | int) -> tuple[_Table, int]:
        _, _, shape = space.partition("|")
        overflow = self._overflow.get(shape)
        if overflow is None:
            overflow = self._overflow[shape] = _Table(shape, shared=True)
        return overflow, hash((space, principal)) % _OVERFLOW_STATES

    def _place(self, found: _Found, quota: Quota, after: State, now: int) -> dict[Principal | int, State]:
        """Return the states among which that of `found` is now, or ought to be; it will be `after`.

        A new one is noted for clearing.
        """
        table, at, state = found
        if at in table.states:
            return table.states
        due, tables = self._due_after(max(now, void_at(after, quota))), self._tables
        if not table.shared:
            table = tables.setdefault(table.space, table)  # a plan may have two new keys of a new space
        due.append(_Note(table, at, quota))
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
                elif not self._answers.drop_ended(now):
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


def _replaced(
    tables: Sequence[dict[Principal | int, State]],
    keys: Iterable[Principal | int],
    before: list[State],
    after: list[State],
) -> bool:
    """Put the states `after` in the place of those `before`, all or, if one is not there any more, none."""
    there: list[State] = []
    done: list[None] = []
    look, put = map(getitem, tables, keys), map(setitem, tables, keys, after)
    try:
        # From here on nothing runs in between: extending a list by what is computed in C calls no code of Python.
        there += look
        if there == before:
            done += put
            return True
    except KeyError:  # void, and dropped
        pass
    return False


def _in_turn(plan: Plan, found: Sequence[_Found], cost: int, now: int) -> tuple[Sequence[State], Decision]:
    """Check limits some of which share an overflow state: each sees what those before it took."""
    taken: dict[tuple[int, Principal | int], State] = {}
    decisions = []
    before = [each.state for each in found]
    for index, (each, limit) in enumerate(zip(found, plan, strict=True)):
        after, decision = limit.quota.step(taken.get((id(each.table), each.at), each.state), cost, now)
        if not decision.allowed:
            quotas = [limit.quota for limit in plan]
            return before, plans.look(quotas, before, cost, now, (index, after, decision))[1]
        taken[id(each.table), each.at] = after
        decisions.append(decision)
    return [taken[id(each.table), each.at] for each in found], plans.combine(decisions)


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
