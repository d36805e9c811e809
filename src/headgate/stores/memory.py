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
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from time import time_ns
from typing import NamedTuple

from headgate.clock import Clock, SystemClock
from headgate.core import plan as plans
from headgate.core.algorithms import State, void_at
from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.key import ONCE_US, Principal, checked_principal
from headgate.core.numbers import short, whole
from headgate.core.plan import Family, Limit, Plan
from headgate.core.quota import Quota
from headgate.stores.base import AsyncCheck, Check
from headgate.stores.once import Answers

MAX_KEYS = 1_000_000
_OVERFLOW_STATES = 1024
_SWEPT_PER_CALL = 8
_SECOND = 1_000_000
_NEVER = 1 << 62

Transaction = Callable[[Plan, Sequence[State], int, int], tuple[Sequence[State], Decision]]


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


class MemoryStore:
    """Keeps the state of limits in this process.

    Args:
        max_keys: the most states of single keys; each takes about 300 bytes (the sliding log more, 48 bytes per
            admission). Beyond them there are up to 1024 overflow states for each algorithm and window in use. A key
            that shares one cannot be reset, and gets no refund. It is also the most answers of `check_once` that are
            remembered, each in about 420 bytes.
        clock: where time comes from; the system's clock unless given.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS, clock: Clock | None = None) -> None:
        self._max_keys = whole("max_keys", max_keys, 1, 1 << 40, InvalidStore)
        if not isinstance(clock, Clock | None):
            raise InvalidStore(f"a clock has now(), ticks(), wait() and wait_async(), unlike {short(clock)}")
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}  # by space
        self._overflow: dict[str, _Table] = {}  # by shape
        self._own = self._shared = 0  # how many states there are of either kind
        self._due: dict[int, list[_Note]] = {}  # second -> states that may be void when it begins
        self._seconds: list[int] = []  # the same seconds, as a heap
        self._next_due = _NEVER  # the first of them, in microseconds
        self._answers = Answers(max_keys)

    def __len__(self) -> int:
        """Return the number of states kept, void ones that are not cleared yet included."""
        return self._own + self._shared

    def check(self, plan: Plan, cost: int) -> Decision:
        with self._lock:
            now = self.clock.now()
            if len(plan) != 1:
                return self._run(plans.check, plan, cost, now)
            if now >= self._next_due:
                self._sweep(now)
            space, principal, quota = limit = plan[0]
            table = self._tables.get(space)
            state = table.states.get(principal) if table is not None else None
            if state is None or table is None or type(principal) is not str:
                return self._first(limit, cost, now)
            after, decision = quota.step(state, cost, now)
            if after is not state:
                table.states[principal] = after
            return decision

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        with self._lock:
            now = self.clock.now()
            decision = self._answers.find(token, now)
            if decision is None:
                decision = self._run(plans.check, plan, cost, now)
                if decision.allowed:
                    self._answers.keep(token, decision, now)
                    self._due_after(now + ONCE_US)
            return decision

    def refund(self, plan: Plan, cost: int) -> Decision:
        with self._lock:
            found = [self._find(limit) for limit in plan]
            if any(table.shared for table, _, _ in found):
                return plans.peek(plan, [state for _, _, state in found], 1, self.clock.now())
            return self._run(plans.refund, plan, cost, self.clock.now())

    def peek(self, plan: Plan, cost: int) -> Decision:
        with self._lock:
            states = [self._find(limit)[2] for limit in plan]
            return plans.peek(plan, states, cost, self.clock.now())

    def reset(self, plan: Plan) -> None:
        with self._lock:
            for limit in plan:
                table, at, state = self._find(limit)
                if not table.shared and state is not None:
                    # None is kept, not just dropped: it says that no overflow state counts for this key.
                    self._keep(table, at, limit.quota, None, self.clock.now())

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
                    return self.peek(family.plan(key), 1)
                cost = family.checked_cost(cost)
            for _ in locked:
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= self._next_due:
                        self._sweep(now)
                    state = states[key]
                    after, decision = step(state, cost, now)
                    if after is not state:
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

        def refuse(key: str, cost: int, now: int, refusal: tuple[int, State, Decision]) -> Decision:
            before = [states[key] for states in tables]
            after, decision = plans.look(quotas, before, cost, now, refusal)
            for index, states in enumerate(tables):
                if after[index] is not before[index]:
                    states[key] = after[index]
            return decision

        def check(key: str, cost: int = 1) -> Decision:
            if cost is not one:
                if type(cost) is int and cost == 0:
                    return self.peek(family.plan(key), 1)
                cost = family.checked_cost(cost)
            after: list[State] = []
            decisions: list[Decision] = []
            for _ in locked:
                try:
                    now = time_ns() // 1000 if clock is None else clock()
                    if now >= self._next_due:
                        self._sweep(now)
                    for states, step in lanes:
                        new, decision = step(states[key], cost, now)
                        if not decision.allowed:
                            return refuse(key, cost, now, (len(after), new, decision))
                        after.append(new)
                        decisions.append(decision)
                    index = 0
                    for states in tables:
                        states[key] = after[index]
                        index += 1  # noqa: SIM113  enumerate() costs more than it saves
                    return plans.most_restrictive(decisions)
                except KeyError:  # a new key, or one that must be looked for elsewhere
                    return self._run(plans.check, family.plan(key), cost, now)
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
        table, at, state = self._find(limit)
        after, decision = limit.quota.step(state, cost, now)
        if after is not state:
            self._keep(table, at, limit.quota, after, now)
        return decision

    def _run(self, transact: Transaction, plan: Plan, cost: int, now: int) -> Decision:
        if now >= self._next_due:
            self._sweep(now)
        found = [self._find(limit, len(plan)) for limit in plan]
        if self._overflow and len({(id(table), at) for table, at, _ in found}) < len(plan):
            return self._in_turn(plan, found, cost, now)
        after, decision = transact(plan, [state for _, _, state in found], cost, now)
        for (table, at, old), new, limit in zip(found, after, plan, strict=True):
            if new is not old:
                self._keep(table, at, limit.quota, new, now)
        return decision

    def _in_turn(
        self, plan: Plan, found: Sequence[tuple[_Table, Principal | int, State]], cost: int, now: int
    ) -> Decision:
        """Check limits some of which share an overflow state: each sees what those before it took."""
        taken: dict[tuple[int, Principal | int], State] = {}
        decisions = []
        for index, ((table, at, state), limit) in enumerate(zip(found, plan, strict=True)):
            after, decision = limit.quota.step(taken.get((id(table), at), state), cost, now)
            if not decision.allowed:
                quotas, states = [each.quota for each in plan], [before for _, _, before in found]
                return plans.look(quotas, states, cost, now, (index, after, decision))[1]
            taken[id(table), at] = after
            decisions.append(decision)
        for (table, at, _), limit in zip(found, plan, strict=True):
            self._keep(table, at, limit.quota, taken[id(table), at], now)
        return plans.most_restrictive(decisions)

    def _find(self, limit: Limit, places: int = 1) -> tuple[_Table, Principal | int, State]:
        """Return where the state of `limit` is or will be kept, and the state that counts for it now.

        The store is full for a new key when it has not as many `places` as the key's plan needs.
        """
        space, principal, _ = limit
        name = space if type(principal) is str else f"#{space}"  # digests apart, where no key of a caller can find them
        table = self._tables.get(name)
        full = self._own + places > self._max_keys
        if table is not None and principal in table.states:
            return table, principal, table.states[principal]
        if table is None:
            table = _Table(name, shared=False)
        if not (full or self._shared):
            return table, principal, None
        overflow, slot = self._overflow_of(space, principal)
        if full:
            return overflow, slot, overflow.states.get(slot)
        # With room again, a key moves to a state of its own and takes along what was used in common.
        return table, principal, overflow.states.get(slot)

    def _overflow_of(self, space: str, principal: Principal | int) -> tuple[_Table, int]:
        _, _, shape = space.partition("|")
        overflow = self._overflow.get(shape)
        if overflow is None:
            overflow = self._overflow[shape] = _Table(shape, shared=True)
        return overflow, hash((space, principal)) % _OVERFLOW_STATES

    def _keep(self, table: _Table, at: Principal | int, quota: Quota, state: State, now: int) -> None:
        if at not in table.states:
            if table.shared:
                self._shared += 1
            else:
                self._own += 1
                table = self._tables.setdefault(table.space, table)  # a plan may have two new keys of a new space
            self._due_after(max(now, void_at(state, quota))).append(_Note(table, at, quota))
        table.states[at] = state

    def _due_after(self, when: int) -> list[_Note]:
        """Return the list of what the sweep looks at when the second after `when` begins."""
        second = when // _SECOND + 1
        due = self._due.get(second)
        if due is None:
            due = self._due[second] = []
            heappush(self._seconds, second)
            self._next_due = self._seconds[0] * _SECOND
        return due

    def _sweep(self, now: int) -> None:
        """Look at a few due states, drop those that are void and note the others for later; forget ended answers."""
        for _ in range(_SWEPT_PER_CALL):
            second = self._seconds[0]
            due = self._due[second]
            if due:
                note = due.pop()
                void = self._void_at(note)
                if void <= now:
                    self._drop(note)
                else:
                    self._due_after(void).append(note)
            elif not self._answers.drop_ended(now):
                del self._due[second]
                heappop(self._seconds)
                self._next_due = self._seconds[0] * _SECOND if self._seconds else _NEVER
                if now < self._next_due:
                    return

    def _void_at(self, note: _Note) -> int:
        table, at, quota = note
        void = void_at(table.states[at], quota)
        if self._shared and not table.shared:  # without a state of its own, the key would draw on its overflow state
            overflow, slot = self._overflow_of(table.space.lstrip("#"), at)
            void = max(void, void_at(overflow.states.get(slot), quota))
        return void

    def _drop(self, note: _Note) -> None:
        table = note.table
        del table.states[note.at]
        if table.shared:
            self._shared -= 1
        else:
            self._own -= 1
        if not table.states and not table.bound:
            del self._tables[table.space]


class AsyncMemoryStore:
    """The same states for callers in an event loop; an operation is too short to be worth a thread."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = self._store = store
        """What keeps them, for callers who need not await."""
        self.clock = store.clock

    async def check(self, plan: Plan, cost: int) -> Decision:
        return self._store.check(plan, cost)

    async def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        return self._store.check_once(plan, cost, token)

    async def peek(self, plan: Plan, cost: int) -> Decision:
        return self._store.peek(plan, cost)

    async def refund(self, plan: Plan, cost: int) -> Decision:
        return self._store.refund(plan, cost)

    async def reset(self, plan: Plan) -> None:
        self._store.reset(plan)

    def bind(self, family: Family) -> AsyncCheck:
        bound = self._store.bind(family)

        async def check(key: str, cost: int = 1) -> Decision:
            return bound(key, cost)

        return check

    async def ready(self) -> None:
        self._store.ready()

    async def close(self) -> None:
        self._store.close()
