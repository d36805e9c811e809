"""One call of a store that may fail: whether to ask it, how that went, and who answers instead.

What `FailoverStore` and `AsyncFailoverStore` share; nothing here waits for a store.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType, TracebackType

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, StoreBusy, StoreError, StoreUnavailable
from headgate.core.mode import Mode
from headgate.core.numbers import short, whole
from headgate.core.plan import Limit, Plan
from headgate.locks import new_lock
from headgate.stores import breaker as breakers
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit
from headgate.stores.fallback import Allow, Deny, Fallback, Local, Mixed, marked
from headgate.stores.inner import microseconds
from headgate.stores.memory import MAX_KEYS

MAX_NODES = 100_000
MAX_SHARDS = 1000
"""The most circuits that are kept. Shards come and go, as the nodes of a cluster are replaced."""
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


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a failover store has done so far."""

    calls: int
    """Calls of any verb."""
    failures: Mapping[Reason, int]
    """Calls that the store was asked and did not answer, by kind."""
    degraded: Mapping[tuple[Mode, Reason], int]
    """Decisions that the store did not make, by mode and reason."""
    openings: int
    """How often a circuit opened: the number of outages. Shards that are forgotten count too."""
    recoveries: int
    """How often a circuit closed again."""
    breakers: Mapping[str, BreakerStatistics]
    """Each shard's circuit."""


class Failover:
    """What both failover stores share: the circuits, the fallback, and the counters, all under one lock."""

    def __init__(
        self,
        clock: Clock,
        *,
        mode: str | Callable[[Limit], Mode] = Mode.LOCAL,
        nodes: int = 1,
        max_keys: int = MAX_KEYS,
        failures: int = breakers.THRESHOLD,
        pause: float = breakers.PAUSE_US / 1_000_000,
        longest_pause: float = breakers.LONGEST_PAUSE_US / 1_000_000,
        shard_of: Callable[[Plan], str] | None = None,
    ) -> None:
        whole("nodes", nodes, 1, MAX_NODES, InvalidStore)
        self.ticks = clock.ticks
        self.fallback = _chosen(mode, nodes, max_keys, clock)
        self.lock = new_lock()
        self.calls = 0
        self.failures: Counter[Reason] = Counter()
        self.degraded: Counter[tuple[Mode, Reason]] = Counter()
        self._shard_of = shard_of
        self._threshold = failures
        self._pause_us, self._longest_pause_us = (
            microseconds("pause", pause),
            microseconds("longest_pause", longest_pause),
        )
        self._only = self._breaker()
        self._breakers = {} if shard_of else {ONLY_SHARD: self._only}
        self._openings = self._recoveries = 0  # of circuits that are forgotten
        self.incident: object = None  # what failed last

    @property
    def is_sharded(self) -> bool:
        """Has each part of the store a circuit of its own?"""
        return self._shard_of is not None

    def attempt(self, plan: Plan) -> Attempt:
        """Begin a call about `plan`."""
        if self._shard_of is None:
            return Attempt(self, self._only, ONLY_SHARD)
        shard = self._shard_of(plan)
        with self.lock:
            breaker = self._breakers.get(shard)
            if breaker is None:
                if len(self._breakers) >= MAX_SHARDS:
                    self._forget_shards()
                breaker = self._breakers[shard] = self._breaker()
        return Attempt(self, breaker, shard)

    def attempt_any(self) -> Attempt:
        """Begin a call about any plan of a store that has no shards."""
        return Attempt(self, self._only, ONLY_SHARD)

    @property
    def is_untroubled(self) -> bool:
        """Is the only circuit closed, with no failure to forget? Then a call needs no attempt unless it fails."""
        return self._only.is_untroubled

    @property
    def ticket(self) -> int:
        """What a call that goes through the only circuit, while that is closed, reports with."""
        return self._only.epoch

    def failed(self, ticket: int, error: StoreError) -> Attempt:
        """Note that such a call failed; returns who answers it."""
        attempt = self.attempt_any()
        attempt.failed(ticket, error)
        return attempt

    def succeeded(self, ticket: int) -> None:
        """Note that such a call was answered, though others failed meanwhile."""
        self.attempt_any().succeeded(ticket)

    def statistics(self) -> Statistics:
        with self.lock:
            seen = {shard: each.statistics() for shard, each in self._breakers.items()}
            return Statistics(
                self.calls,
                MappingProxyType(dict(self.failures)),
                MappingProxyType(dict(self.degraded)),
                self._openings + sum(each.openings for each in seen.values()),
                self._recoveries + sum(each.recoveries for each in seen.values()),
                MappingProxyType(seen),
            )

    def close(self) -> None:
        self.fallback.close()

    def _forget_shards(self) -> None:
        """Make room: forget all circuits that are untroubled and, unless those are half of all, the oldest others."""
        circuits = sorted(self._breakers.items(), key=lambda item: not item[1].is_untroubled)
        untroubled = sum(each.is_untroubled for _, each in circuits)
        for shard, each in circuits[: max(untroubled, MAX_SHARDS // 2)]:
            seen = each.statistics()
            self._openings += seen.openings
            self._recoveries += seen.recoveries
            del self._breakers[shard]

    def _breaker(self) -> Breaker:
        return Breaker(threshold=self._threshold, pause_us=self._pause_us, longest_pause_us=self._longest_pause_us)


class Attempt:
    """One call. As a context manager: says whether to ask the store, notes how that went, and keeps StoreErrors in.

    After a with block in which the store did not answer, its verbs do.
    """

    __slots__ = ("_breaker", "_error", "_failover", "_reason", "_shard", "_ticket")

    def __init__(self, failover: Failover, breaker: Breaker, shard: str) -> None:
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
                self.succeeded(self._ticket)
            return False
        if isinstance(error, StoreError):
            self.failed(self._ticket, error)
            return True
        with self._failover.lock:  # misuse, or a caller that was cancelled: no news about the store
            self._breaker.abandoned(self._ticket, self._failover.ticks())
        return False

    def check(self, plan: Plan, cost: int) -> Decision:
        return self._noted(plan, self._failover.fallback.check(plan, cost, self._wait_us()))

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        return self._noted(plan, self._failover.fallback.check_once(plan, cost, token, self._wait_us()))

    def peek(self, plan: Plan, cost: int) -> Decision:
        return self._noted(plan, self._failover.fallback.peek(plan, cost, self._wait_us()))

    def refund(self, plan: Plan, cost: int) -> Decision:
        """Give back here what the store surely did not give back. Otherwise it might be given back twice."""
        if self._reason is Reason.OUTCOME_UNKNOWN:
            return self.peek(plan, 1)
        return self._noted(plan, self._failover.fallback.refund(plan, cost, self._wait_us()))

    def reset(self, plan: Plan) -> None:
        self._failover.fallback.reset(plan)

    def error(self) -> StoreError:
        """Return why the store did not answer, to be raised."""
        if self._error:
            return self._error
        seconds = self._wait_us() / 1_000_000
        return StoreUnavailable(f"the store{self._where()} failed before, and is asked again in {seconds:g} s")

    def succeeded(self, ticket: int) -> None:
        with self._failover.lock:
            recovered = self._breaker.succeeded(ticket)
        if recovered:
            _LOG.warning("the store%s answers again", self._where())

    def failed(self, ticket: int, error: StoreError) -> None:
        failover, self._error = self._failover, error
        unavailable = isinstance(error, StoreUnavailable)
        self._reason = Reason.STORE_UNAVAILABLE if unavailable else Reason.OUTCOME_UNKNOWN
        incident = error.incident or error  # many who lose one connection are one failure
        with failover.lock:
            failover.failures[self._reason] += 1
            if isinstance(error, StoreBusy):  # no news: the store as such is well
                self._breaker.abandoned(ticket, failover.ticks())
                return
            if incident is failover.incident:
                return
            failover.incident = incident
            opened = self._breaker.failed(ticket, failover.ticks())
        if opened:
            _LOG.warning("the store%s does not answer (%s): decided without it until it does", self._where(), error)

    def _noted(self, plan: Plan, decision: Decision) -> Decision:
        mode = self._failover.fallback.mode_of(plan)
        with self._failover.lock:
            self._failover.degraded[mode, self._reason] += 1
        return marked(decision, self._reason)

    def _wait_us(self) -> int:
        with self._failover.lock:
            return self._breaker.wait_us(self._failover.ticks())

    def _where(self) -> str:
        return f" (shard {self._shard})" if self._shard else ""


def _chosen(mode: object, nodes: int, max_keys: int, clock: Clock) -> Fallback:
    if mode == Mode.LOCAL:
        return Local(nodes, max_keys, clock)
    if mode == Mode.ALLOW:
        return Allow()
    if mode == Mode.DENY:
        return Deny()
    if callable(mode):
        return Mixed(mode, nodes, max_keys, clock)
    raise InvalidStore(f"mode must be one of {', '.join(Mode)}, not {short(mode)}")
