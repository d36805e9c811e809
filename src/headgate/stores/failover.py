"""A store around a store that always answers: it calls the inner one, and decides itself when that does not answer.

`Decision.degraded` has the reason for every answer that the inner store did not give. While a server is down, no call
waits for it (see `headgate.stores.breaker` and `headgate.stores.circuits`); its return is noticed automatically.

What the modes guarantee while the store is unavailable, for a limit of capacity C on N nodes:

* ``local``: each node decides with its share. All nodes together admit at most N * ceil(C / N), which is less than
  C + N, in addition to what the store admits before and after, however often it fails and returns (and a bucket
  refills by at most N * ceil(limit / N) per window). So where C may pass, less than 2 C + N pass around an outage if
  the store kept its state, and less than 3 C + N if it lost it. More nodes than N admit a share each; fewer admit less.
  A process that starts during an outage is one more node, since the state of the process that it replaces is lost.
  docs/operate.md has the guarantees where N is counted, and nodes come and go.
* ``allow``: no limit holds. ``deny``: nothing passes.

A call with an unknown outcome is never repeated: the mode answers. If the store took the cost all the same, it admits
that much less later. An answer after its deadline is recorded for the next decisions of this node, and shows that the
server is not down. The guarantee of `check_once` holds for the store and the mode separately: a retry that the other
one answers counts there as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypedDict, Unpack

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, OutcomeUnknown, StoreError
from headgate.core.mode import Mode
from headgate.core.numbers import whole
from headgate.core.plan import Call, Limit, Verb, shadowed
from headgate.flows import drive, drive_async
from headgate.stores import breaker as breakers
from headgate.stores.base import AsyncStore, Store
from headgate.stores.breaker import Breaker, BreakerStatistics
from headgate.stores.circuits import DECIDED_HERE, Attempt, Circuits, Reason
from headgate.stores.fallback import Fallback
from headgate.stores.heartbeat import Heartbeat
from headgate.stores.memory import MAX_KEYS
from headgate.stores.wrapper import AsyncWrapper, Wrapper, microseconds

__all__ = ["AsyncFailoverStore", "FailoverStore", "Options", "Reason", "Statistics"]

MAX_NODES = 100_000
LATE_EVERY_US = 10_000_000
"""Microseconds between log messages about late answers."""
_LOG = logging.getLogger("headgate.stores")
_RESET = Verb.RESET  # a global is found faster than an enum member
_TAKING = (Verb.CHECK, Verb.CHECK_ONCE)


class OutageOptions(TypedDict, total=False):
    fewest: int
    """The least number of processes that share the limits, if they are counted; 1 by default."""
    failures: int
    """Failures in a row that open the circuit of a server; 5 by default."""
    pause: float
    """Seconds until the first probe; 0.25 by default. Each failed probe doubles it, and chance shortens it."""
    longest_pause: float
    """The longest pause, in seconds; 2 by default."""


class Options(OutageOptions, total=False):
    mode: str | Callable[[Limit], Mode]
    """What to answer when the store does not: "local" (the default), "allow" or "deny"; or a function of each limit."""
    nodes: int | None
    """How many processes share the limits, including this one, for the mode "local"; 1 by default. None: as many as the
    store counts; see `headgate.stores.heartbeat`."""
    shared: str
    """The name of what the counted processes share, "" by default."""
    max_keys: int
    """The most states of single keys for the mode "local"; see `MemoryStore`."""


@dataclass(frozen=True, slots=True)
class Statistics:
    calls: int
    """Calls of any verb."""
    failures: Mapping[Reason, int]
    """Calls that the store did not answer, by kind."""
    degraded: Mapping[tuple[Mode, Reason], int]
    """Decisions in place of the store, by mode and reason."""
    openings: int
    """How often a circuit opened: the number of outages, including those of forgotten servers."""
    recoveries: int
    """How often a circuit closed again."""
    breakers: Mapping[str, BreakerStatistics]
    """The circuit of each server."""
    late: int = 0
    """Answers after their deadline: failures, but not outages."""
    nodes: int = 1
    """How many processes share the limits, as set or counted."""


class FailoverStore(Wrapper):
    """A `Store` that always answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=FailoverStore(open_store("redis://localhost:6379/0"), nodes=4))

    Args:
        store: the inner store. It must answer or raise a `StoreError` before callers give up: a cancelled call is no
            evidence about the store, and so never opens a circuit.
        options: see `Options`.

    Of the verbs, only `reset` raises StoreError: it resets this node's own state, and the caller must know that the
    store was not reset.
    """

    _layer: _Failover

    def __init__(self, store: Store, **options: Unpack[Options]) -> None:
        super().__init__(store)
        self._layer = _Failover(store, self._beat, **options)
        self.statistics = self._layer.statistics

    def _beat(self) -> None:
        with suppress(StoreError):
            drive(self._layer.heartbeat(), self._store.run)


class AsyncFailoverStore(AsyncWrapper):
    """The same for an event loop."""

    _layer: _Failover

    def __init__(self, store: AsyncStore, **options: Unpack[Options]) -> None:
        super().__init__(store)
        self._layer = _Failover(store, self._start_beat, **options)
        self.statistics = self._layer.statistics
        self._beating: set[asyncio.Task[None]] = set()

    def trip(self, error: StoreError) -> None:
        """Answer without the store until a probe succeeds, since it is known to be down."""
        self._layer.circuits.trip(error)

    def beat(self) -> None:
        """Send a heartbeat, if one is due: for a service without requests."""
        self._layer.beat_if_due(self.clock.now())

    async def close(self) -> None:
        for each in self._beating:
            each.cancel()
        await super().close()

    def _start_beat(self) -> None:  # in a task: the caller of the present call should not wait
        task = asyncio.get_running_loop().create_task(self._beat())
        self._beating.add(task)
        task.add_done_callback(self._beating.discard)

    async def _beat(self) -> None:
        with suppress(StoreError):
            await drive_async(self._layer.heartbeat(), self._store.run)


class _Failover:
    """The logic of both stores: circuits, fallback and counters. It never waits for a store."""

    def __init__(
        self,
        store: Store | AsyncStore,
        beat: Callable[[], None],
        *,
        mode: str | Callable[[Limit], Mode] = Mode.LOCAL,
        nodes: int | None = 1,
        shared: str = "",
        fewest: int = 1,
        max_keys: int = MAX_KEYS,
        failures: int = breakers.THRESHOLD,
        pause: float = breakers.PAUSE_US / 1_000_000,
        longest_pause: float = breakers.LONGEST_PAUSE_US / 1_000_000,
    ) -> None:
        if nodes is not None:  # otherwise they are counted
            whole("nodes", nodes, 1, MAX_NODES, InvalidStore)
        pause_us, longest_us = microseconds("pause", pause), microseconds("longest_pause", longest_pause)
        self._heartbeat = Heartbeat(shared, fewest) if nodes is None else None
        self._beat = beat
        known = self._heartbeat.count if self._heartbeat is not None else nodes or 1
        self.fallback = Fallback(mode, known, max_keys, store.clock)
        self.circuits = Circuits(
            store,
            lambda: Breaker(threshold=failures, pause_us=pause_us, longest_pause_us=longest_us),
            store.clock.ticks,
        )
        self.degraded: Counter[tuple[Mode, Reason]] = Counter()
        self._silent_until = 0

    def begin(self, call: Call) -> Decision | Attempt | None:
        """Begin a call. What this node took in place of the store is refunded or reset here."""
        if call.shadow and self.circuits.is_apart(call):
            return None
        if call.verb is _RESET:
            self.fallback.reset(call.plan)
        plan = call.plan or call.shadow[0]
        if call.charge is not None and call.charge.degraded in DECIDED_HERE:
            attempt = self.circuits.bypass(plan)
        else:
            attempt = self.circuits.begin(plan)
        return attempt if attempt.tickets else self._decide(call, attempt, Reason.CIRCUIT_OPEN)

    def answered(self, call: Call, attempt: Attempt, decision: Decision) -> Decision:
        """Record an answer of the store, and return it."""
        if decision.degraded or not self.circuits.is_healthy:
            attempt.succeeded(decision)
        if self.fallback.learns:
            now = self.fallback.record(call, decision)
            heartbeat = self._heartbeat
            if (
                heartbeat is not None
                and not heartbeat.quiet_from <= now < heartbeat.quiet_until
                and call.verb in _TAKING
            ):
                self.beat_if_due(now)
        return decision

    def beat_if_due(self, now: int) -> None:
        """Start a heartbeat, if processes are counted, the count is used, and one is due."""
        heartbeat = self._heartbeat
        if heartbeat is not None and self.fallback.learns and heartbeat.is_due(now):
            self._beat()

    def heartbeat(self) -> Generator[Call, Decision, None]:
        """Return the flow of a heartbeat, whose count applies to the next decisions."""
        if self._heartbeat is not None:
            yield from self._heartbeat.beat()
            self.fallback.nodes = self._heartbeat.count

    def failed(self, call: Call, attempt: Attempt, error: BaseException) -> Decision:
        """Record a failure, and a later answer if one arrives; decide in place of the store."""
        reason = attempt.failed(error)
        if isinstance(error, OutcomeUnknown):
            error.on_late_answer = partial(self._answered_late, attempt, error.server)
        return self._decide(call, attempt, reason, error)

    def _answered_late(self, attempt: Attempt, server: str, call: Call, decision: Decision) -> None:
        attempt.answered_late(server)
        self.fallback.record(call, decision)
        now = self.circuits.ticks()
        if now >= self._silent_until:
            self._silent_until = now + LATE_EVERY_US
            _LOG.warning(
                "the store responded after the deadline, so this node had decided (%d so far): the store, "
                "the network or this process is slow",
                self.circuits.late,
            )

    def _decide(self, call: Call, attempt: Attempt, reason: Reason, error: BaseException | None = None) -> Decision:
        """Answer in place of the store; `error` is what it raised, if it was called."""
        if call.shadow:
            return drive(shadowed(call), lambda each: self._decide(each, attempt, reason, error))
        if call.verb is _RESET:
            raise error or attempt.refusal()
        decision = self.fallback.answer_for(call, reason, attempt.wait_us())
        with self.circuits.lock:
            self.degraded[self.fallback.mode_of(call.plan), reason] += 1
        return decision

    def close(self) -> None:
        self.fallback.close()

    def statistics(self) -> Statistics:
        circuits = self.circuits
        with circuits.lock:
            seen, openings, recoveries = circuits.statistics()
            return Statistics(
                circuits.calls,
                MappingProxyType(dict(circuits.failures)),
                MappingProxyType(dict(self.degraded)),
                openings,
                recoveries,
                MappingProxyType(seen),
                circuits.late,
                self.fallback.nodes,
            )
