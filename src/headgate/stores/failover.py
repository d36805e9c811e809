"""A store around a store, which always answers: asks the inner one, and decides by itself when that one does not.

Every answer the inner store did not give says so: `Decision.degraded` has the reason. While the store is away nobody
waits for it (see `headgate.stores.breaker`); when it is back, that is noticed without anybody's help.

What the modes promise while the store is away, for a limit of capacity C on N nodes:

* ``local``: this node decides with its share. All nodes together admit at most N * ceil(C / N), which is less than
  C + N, in addition to what the store admits before and after, however often it comes and goes (and a bucket refills by
  at most N * ceil(limit / N) per window). So where C may pass, less than 2 C + N do around an outage if the store kept
  its state, and less than 3 C + N if it came back empty. More nodes than N admit a share each; fewer admit less.
* ``allow``: no limit holds. ``deny``: nothing passes.

A question whose outcome is unknown is never asked again: the mode answers. Perhaps the store has taken the cost all the
same; then it admits that much less later.

What sync and async share is `_Failover`; the two stores differ in their awaits only.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import TypedDict, Unpack

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, StoreError, StoreUnavailable
from headgate.core.numbers import short, whole
from headgate.core.plan import Family, Plan
from headgate.stores import breaker as breakers
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Store
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit
from headgate.stores.fallback import Allow, Deny, Fallback, Local, Mode, marked
from headgate.stores.memory import MAX_KEYS

MAX_NODES = 100_000
ONLY_SHARD = ""
"""The shard of a store that has no others."""
_CLOSED = Circuit.CLOSED
_LOG = logging.getLogger("headgate.stores")


class Reason(StrEnum):
    """Why the store did not decide."""

    STORE_UNAVAILABLE = "store_unavailable"
    """It could not be asked; it surely took nothing."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It was asked and did not answer; perhaps it took the cost."""
    CIRCUIT_OPEN = "circuit_open"
    """It was not asked, since it failed before."""


class Options(TypedDict, total=False):
    """What both failover stores accept besides the store."""

    mode: str
    """What to answer when the store does not: "local" unless told, "allow" or "deny"."""
    nodes: int
    """How many nodes share the limits, this one included, for the mode "local"; 1 unless told."""
    max_keys: int
    """The most states of single keys that the mode "local" keeps; see `MemoryStore`."""
    failures: int
    """So many failures in a row open the circuit; 5 unless told."""
    pause: float
    """Seconds until the first probe; 0.25 unless told. Each probe that fails doubles it, and chance shortens it."""
    longest_pause: float
    """The most it grows to, in seconds; 2 unless told."""
    shard_of: Callable[[Plan], str] | None
    """Names the part of the store that a plan lives on; each has a circuit of its own. One for all unless told."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a failover store has done so far."""

    calls: int
    """Calls of any verb."""
    failures: Mapping[Reason, int]
    """Calls that the store was asked and did not answer, by kind."""
    degraded: Mapping[tuple[Mode, Reason], int]
    """Decisions that the store did not make, by mode and reason."""
    breakers: Mapping[str, BreakerStatistics]
    """Each shard's circuit."""

    @property
    def openings(self) -> int:
        """How often a circuit opened: the number of outages."""
        return sum(each.openings for each in self.breakers.values())

    @property
    def recoveries(self) -> int:
        """How often a circuit closed again."""
        return sum(each.recoveries for each in self.breakers.values())


class FailoverStore:
    """A `Store` that always answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=FailoverStore(open_store("redis://localhost:6379/0"), nodes=4))

    Args:
        store: the store to ask. It answers or raises a `StoreError`, and that before callers lose patience: a call that
            is cancelled says nothing about the store, and so never opens the circuit.
        options: see `Options`.

    Of the verbs, only `reset` raises StoreError: it forgets what this node decided, and whoever asked for a reset must
    know when the store was not reset.
    """

    def __init__(self, store: Store, **options: Unpack[Options]) -> None:
        _check_colour(store, asynchronous=False)
        self._store = store
        self.clock = store.clock
        self._failover = _Failover(store.clock, **options)

    def check(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.check(plan, cost)
        return attempt.check(plan, cost)

    def peek(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.peek(plan, cost)
        return attempt.peek(plan, cost)

    def refund(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return self._store.refund(plan, cost)
        return attempt.refund(plan, cost)

    def reset(self, plan: Plan) -> None:
        attempt = self._failover.attempt(plan)
        attempt.reset(plan)
        with attempt as may_ask:
            if may_ask:
                self._store.reset(plan)
                return
        raise attempt.error()

    def bind(self, family: Family) -> Check:
        bound, failover = self._store.bind(family), self._failover

        def check(key: str, cost: int = 1) -> Decision:
            attempt = failover.attempt_for(family, key)
            if attempt.is_calm:
                with attempt as may_ask:
                    if may_ask:
                        return bound(key, cost)
                return attempt.bound_check(family, key, cost)
            # What is not acceptable must not become the probe, so look first.
            plan = family.plan(key)
            if type(cost) is int and cost == 0:
                return self.peek(plan, 1)
            return self.check(plan, family.checked_cost(cost))

        return check

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    def close(self) -> None:
        self._failover.close()
        self._store.close()


class AsyncFailoverStore:
    """The same for callers in an event loop: an `AsyncStore` that always answers."""

    def __init__(self, store: AsyncStore, **options: Unpack[Options]) -> None:
        _check_colour(store, asynchronous=True)
        self._store = store
        self.clock = store.clock
        self._failover = _Failover(store.clock, **options)

    async def check(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.check(plan, cost)
        return attempt.check(plan, cost)

    async def peek(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.peek(plan, cost)
        return attempt.peek(plan, cost)

    async def refund(self, plan: Plan, cost: int) -> Decision:
        attempt = self._failover.attempt(plan)
        with attempt as may_ask:
            if may_ask:
                return await self._store.refund(plan, cost)
        return attempt.refund(plan, cost)

    async def reset(self, plan: Plan) -> None:
        attempt = self._failover.attempt(plan)
        attempt.reset(plan)
        with attempt as may_ask:
            if may_ask:
                await self._store.reset(plan)
                return
        raise attempt.error()

    def bind(self, family: Family) -> AsyncCheck:
        bound, failover = self._store.bind(family), self._failover

        async def check(key: str, cost: int = 1) -> Decision:
            attempt = failover.attempt_for(family, key)
            if attempt.is_calm:
                with attempt as may_ask:
                    if may_ask:
                        return await bound(key, cost)
                return attempt.bound_check(family, key, cost)
            # What is not acceptable must not become the probe, so look first.
            plan = family.plan(key)
            if type(cost) is int and cost == 0:
                return await self.peek(plan, 1)
            return await self.check(plan, family.checked_cost(cost))

        return check

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    async def close(self) -> None:
        self._failover.close()
        await self._store.close()


class _Failover:
    """What both stores share: the circuits, the fallback, and the counters, all under one lock."""

    def __init__(
        self,
        clock: Clock,
        *,
        mode: str = Mode.LOCAL,
        nodes: int = 1,
        max_keys: int = MAX_KEYS,
        failures: int = breakers.THRESHOLD,
        pause: float = breakers.PAUSE_US / 1_000_000,
        longest_pause: float = breakers.LONGEST_PAUSE_US / 1_000_000,
        shard_of: Callable[[Plan], str] | None = None,
    ) -> None:
        whole("nodes", nodes, 1, MAX_NODES, InvalidStore)
        self.ticks = clock.ticks
        self.mode, self.fallback = _chosen(mode, nodes, max_keys, clock)
        self.lock = threading.Lock()
        self.calls = 0
        self.failures: Counter[Reason] = Counter()
        self.degraded: Counter[tuple[Mode, Reason]] = Counter()
        self._shard_of = shard_of
        self._threshold = failures
        self._pause_us, self._longest_pause_us = _us("pause", pause), _us("longest_pause", longest_pause)
        self._only = self._breaker()
        self._breakers = {} if shard_of else {ONLY_SHARD: self._only}

    def attempt(self, plan: Plan) -> _Attempt:
        """Begin a call about `plan`."""
        if self._shard_of is None:
            return _Attempt(self, self._only, ONLY_SHARD)
        shard = self._shard_of(plan)
        with self.lock:
            breaker = self._breakers.get(shard)
            if breaker is None:
                breaker = self._breakers[shard] = self._breaker()
        return _Attempt(self, breaker, shard)

    def attempt_for(self, family: Family, key: str) -> _Attempt:
        """Begin a call about `key`, whose plan is made only if somebody wants to know the shard."""
        return _Attempt(self, self._only, ONLY_SHARD) if self._shard_of is None else self.attempt(family.plan(key))

    def statistics(self) -> Statistics:
        with self.lock:
            return Statistics(
                self.calls,
                MappingProxyType(dict(self.failures)),
                MappingProxyType(dict(self.degraded)),
                MappingProxyType({shard: each.statistics() for shard, each in self._breakers.items()}),
            )

    def close(self) -> None:
        self.fallback.close()

    def _breaker(self) -> Breaker:
        return Breaker(threshold=self._threshold, pause_us=self._pause_us, longest_pause_us=self._longest_pause_us)


class _Attempt:
    """One call. As a context manager: says whether to ask the store, notes how that went, and keeps StoreErrors in.

    After a with block in which the store did not answer, its verbs do.
    """

    __slots__ = ("_breaker", "_error", "_failover", "_reason", "_shard", "_ticket")

    def __init__(self, failover: _Failover, breaker: Breaker, shard: str) -> None:
        self._failover, self._breaker, self._shard = failover, breaker, shard
        self._ticket = 0
        self._reason = Reason.CIRCUIT_OPEN
        self._error: StoreError | None = None

    @property
    def is_calm(self) -> bool:
        """Is the circuit closed?"""
        return self._breaker.state is _CLOSED

    def __enter__(self) -> bool:
        failover, breaker = self._failover, self._breaker
        with failover.lock:
            failover.calls += 1
            now = 0 if breaker.state is _CLOSED else failover.ticks()  # no clock is read while all is well
            ticket = self._ticket = breaker.ask(now)
        return ticket != 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self._ticket:
            return False
        if error is None:
            if not self._breaker.is_untroubled:
                self._succeeded()
            return False
        if isinstance(error, StoreError):
            self._failed(error)
            return True
        with self._failover.lock:  # misuse, or a caller that was cancelled: no news about the store
            self._breaker.abandoned(self._ticket, self._failover.ticks())
        return False

    def check(self, plan: Plan, cost: int) -> Decision:
        return self._noted(self._failover.fallback.check(plan, cost, self._wait_us()))

    def peek(self, plan: Plan, cost: int) -> Decision:
        return self._noted(self._failover.fallback.peek(plan, cost, self._wait_us()))

    def refund(self, plan: Plan, cost: int) -> Decision:
        """Give back here what the store surely did not give back. Otherwise it might be given back twice."""
        if self._reason is Reason.OUTCOME_UNKNOWN:
            return self.peek(plan, 1)
        return self._noted(self._failover.fallback.refund(plan, cost, self._wait_us()))

    def bound_check(self, family: Family, key: str, cost: int) -> Decision:
        plan = family.plan(key)
        if type(cost) is int and cost == 0:
            return self.peek(plan, 1)
        return self.check(plan, family.checked_cost(cost))

    def reset(self, plan: Plan) -> None:
        self._failover.fallback.reset(plan)

    def error(self) -> StoreError:
        """Return why the store did not answer, to be raised."""
        if self._error:
            return self._error
        seconds = self._wait_us() / 1_000_000
        return StoreUnavailable(f"the store{self._where()} failed before, and is asked again in {seconds:g} s")

    def _succeeded(self) -> None:
        with self._failover.lock:
            recovered = self._breaker.succeeded(self._ticket)
        if recovered:
            _LOG.warning("the store%s answers again", self._where())

    def _failed(self, error: StoreError) -> None:
        failover, self._error = self._failover, error
        unavailable = isinstance(error, StoreUnavailable)
        self._reason = Reason.STORE_UNAVAILABLE if unavailable else Reason.OUTCOME_UNKNOWN
        with failover.lock:
            failover.failures[self._reason] += 1
            opened = self._breaker.failed(self._ticket, failover.ticks())
        if opened:
            _LOG.warning("the store%s does not answer (%s): mode %s until it does", self._where(), error, failover.mode)

    def _noted(self, decision: Decision) -> Decision:
        with self._failover.lock:
            self._failover.degraded[self._failover.mode, self._reason] += 1
        return marked(decision, self._reason)

    def _wait_us(self) -> int:
        with self._failover.lock:
            return self._breaker.wait_us(self._failover.ticks())

    def _where(self) -> str:
        return f" (shard {self._shard})" if self._shard else ""


def _chosen(mode: object, nodes: int, max_keys: int, clock: Clock) -> tuple[Mode, Fallback]:
    if mode == Mode.LOCAL:
        return Mode.LOCAL, Local(nodes, max_keys, clock)
    if mode == Mode.ALLOW:
        return Mode.ALLOW, Allow()
    if mode == Mode.DENY:
        return Mode.DENY, Deny()
    raise InvalidStore(f"mode must be one of {', '.join(Mode)}, not {short(mode)}")


def _us(name: str, seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise InvalidStore(f"{name} must be a number of seconds up to 3600, not {short(seconds)}")
    return max(1, round(seconds * 1_000_000))


def _check_colour(store: object, *, asynchronous: bool) -> None:
    check = getattr(store, "check", None)
    if isinstance(store, str | type) or check is None:
        raise InvalidStore(f"a store object is needed, not {short(store)}: open it with open_store or open_async_store")
    if inspect.iscoroutinefunction(check) != asynchronous:
        raise InvalidStore(f"{type(store).__name__} is for the other of FailoverStore and AsyncFailoverStore")
