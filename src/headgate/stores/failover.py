"""A store around a store, which always answers: asks the inner one, and decides by itself when that one does not.

Every answer the inner store did not give says so: `Decision.degraded` has the reason. While a server is away nobody
waits for it (see `headgate.stores.breaker` and `headgate.stores.circuits`); when it is back, that is noticed without
anybody's help.

What the modes promise while the store is away, for a limit of capacity C on N nodes:

* ``local``: this node decides with its share. All nodes together admit at most N * ceil(C / N), which is less than
  C + N, in addition to what the store admits before and after, however often it comes and goes (and a bucket refills by
  at most N * ceil(limit / N) per window). So where C may pass, less than 2 C + N do around an outage if the store kept
  its state, and less than 3 C + N if it came back empty. More nodes than N admit a share each; fewer admit less. A
  process that is started while the store is away is one more node: what another admitted is lost with that one. What is
  promised where N is counted, and nodes come and go, is in docs/operate.md.
* ``allow``: no limit holds. ``deny``: nothing passes.

A question whose outcome is unknown is never asked again: the mode answers. Perhaps the store has taken the cost all the
same; then it admits that much less later. An answer that comes after its deadline is noted for the next decisions of
this node, and shows that the server is not away. What `check_once` promises holds for each that answers, the store and
the mode: a retry that the other one answers counts there as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypedDict, Unpack

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore, OutcomeUnknown, StoreError
from headgate.core.mode import Mode
from headgate.core.numbers import whole
from headgate.core.plan import Call, Family, Limit, Verb, shadowed
from headgate.flows import drive, drive_async
from headgate.stores import breaker as breakers
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Sharded, Store, WithDeadlines
from headgate.stores.breaker import Breaker, BreakerStatistics
from headgate.stores.circuits import DECIDED_HERE, Absence, Circuits, Passage, Reason
from headgate.stores.fallback import Fallback
from headgate.stores.heartbeat import Heartbeat
from headgate.stores.memory import MAX_KEYS
from headgate.stores.wrapping import check_colour, microseconds, plain_async_check, plain_check

__all__ = ["AsyncFailoverStore", "FailoverStore", "Options", "Reason", "Statistics"]

MAX_NODES = 100_000
LATE_EVERY_US = 10_000_000
"""Microseconds for which nothing more is logged about late answers."""
_LOG = logging.getLogger("headgate.stores")
_RESET = Verb.RESET  # a name is found faster than a member
_TAKING = (Verb.CHECK, Verb.CHECK_ONCE)
_NEVER = 1 << 63


class Options(TypedDict, total=False):
    """What both failover stores accept besides the store."""

    mode: str | Callable[[Limit], Mode]
    """What to answer when the store does not: "local" (the default), "allow" or "deny"; or a function that tells for
    each limit."""
    nodes: int | None
    """How many processes share the limits, this one included, for the mode "local"; 1 by default. None: as many as the
    store counts; see `headgate.stores.heartbeat`."""
    shared: str
    """What those that are counted share: a name, "" by default."""
    fewest: int
    """How many they are at least, as far as is known without counting; 1 by default."""
    max_keys: int
    """The most states of single keys that the mode "local" keeps; see `MemoryStore`."""
    failures: int
    """So many failures in a row open the circuit of a server; 5 by default."""
    pause: float
    """Seconds until the first probe; 0.25 by default. Each probe that fails doubles it, and chance shortens it."""
    longest_pause: float
    """The most it grows to, in seconds; 2 by default."""


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
    """How often a circuit opened: the number of outages. Servers that are forgotten count too."""
    recoveries: int
    """How often a circuit closed again."""
    breakers: Mapping[str, BreakerStatistics]
    """Each server's circuit."""
    late: int = 0
    """Answers of the store that came after their deadline: they are failures, too, but not outages."""
    nodes: int = 1
    """How many processes share the limits, as set or counted."""


class FailoverStore:
    """A `Store` that always answers, for callers that may block.

    >>> from headgate import Limiter
    >>> from headgate.stores import open_store
    >>> limiter = Limiter("100/minute", store=FailoverStore(open_store("redis://localhost:6379/0"), nodes=4))

    Args:
        store: the store to ask. It answers or raises a `StoreError`, and that before callers lose patience: a call that
            is cancelled says nothing about the store, and so never opens a circuit.
        options: see `Options`.

    Of the verbs, only `reset` raises StoreError: it forgets what this node decided, and whoever asked for a reset must
    know when the store was not reset.
    """

    def __init__(self, store: Store, **options: Unpack[Options]) -> None:
        check_colour(store, asynchronous=False, outer=type(self))
        self._store = store
        self.clock = store.clock
        self._failover = _Failover(store, self._beat, **options)
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers

    def run(self, call: Call) -> Decision:
        failover = self._failover
        if call.shadow and failover.circuits.is_apart(call):
            return drive(shadowed(call), self.run)
        passage = failover.enter(call)
        if not passage.tickets:
            return failover.decide(call, passage.refused())
        try:
            decision = self._store.run(call)
        except BaseException as error:  # noqa: BLE001  what is not the store's is raised again
            return failover.decide(call, failover.failed(passage, error))
        return failover.answered(call, passage, decision)

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)

    def ready(self) -> None:
        """Return when the inner store can decide now, else raise its StoreError: for health checks.

        This store answers all the same.
        """
        self._store.ready()

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    def close(self) -> None:
        self._failover.fallback.close()
        self._store.close()

    def _beat(self) -> None:
        with suppress(StoreError):
            drive(self._failover.heartbeat(), self._store.run)


class AsyncFailoverStore:
    """The same for callers in an event loop: an `AsyncStore` that always answers."""

    def __init__(self, store: AsyncStore, **options: Unpack[Options]) -> None:
        check_colour(store, asynchronous=True, outer=type(self))
        self._store = store
        self.clock = store.clock
        self._failover = _Failover(store, self._start_beat, **options)
        self._beating: set[asyncio.Task[None]] = set()
        if isinstance(store, Sharded):
            self.servers_of, self.servers = store.servers_of, store.servers

    def within(self, seconds: float) -> AsyncFailoverStore:
        """Return the same store for callers that wait no longer than so many seconds for it.

        It is the same if the inner store cannot be asked so. All share circuits, states and statistics.
        """
        if not isinstance(self._store, WithDeadlines):
            return self
        copied = copy(self)
        copied._store = self._store.within(seconds)  # noqa: SLF001  of the same class
        return copied

    async def run(self, call: Call) -> Decision:
        failover = self._failover
        if call.shadow and failover.circuits.is_apart(call):
            return await drive_async(shadowed(call), self.run)
        passage = failover.enter(call)
        if not passage.tickets:
            return failover.decide(call, passage.refused())
        try:
            decision = await self._store.run(call)
        except BaseException as error:  # noqa: BLE001  what is not the store's is raised again
            return failover.decide(call, failover.failed(passage, error))
        return failover.answered(call, passage, decision)

    def bind(self, family: Family) -> AsyncCheck:
        return plain_async_check(self, family)

    async def ready(self) -> None:
        """Return when the inner store can decide now, else raise its StoreError: for health checks."""
        await self._store.ready()

    def trip(self, error: StoreError) -> None:
        """Answer without the store, as it is known to be away, until a probe finds that it is not."""
        self._failover.circuits.trip(error)

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    def beat(self) -> None:
        """Be counted among those that share the limits, if that is due: for a service that waits for requests."""
        self._failover.beat_if_due(self.clock.now())

    async def close(self) -> None:
        for each in self._beating:
            each.cancel()
        self._failover.fallback.close()
        await self._store.close()

    def _start_beat(self) -> None:  # beside the call that brought it up, whose caller may be in a hurry
        task = asyncio.get_running_loop().create_task(self._beat())
        self._beating.add(task)
        task.add_done_callback(self._beating.discard)

    async def _beat(self) -> None:
        with suppress(StoreError):
            await drive_async(self._failover.heartbeat(), self._store.run)


class _Failover:
    """What both stores share: the circuits, who answers instead, and the counters. Nothing here waits for a store."""

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
        if nodes is not None:  # else they are counted
            whole("nodes", nodes, 1, MAX_NODES, InvalidStore)
        pause_us, longest_us = microseconds("pause", pause), microseconds("longest_pause", longest_pause)
        self._heartbeat = Heartbeat(shared, fewest) if nodes is None else None
        self._beat, self._rests_from, self._rests_until = beat, -_NEVER, -_NEVER if nodes is None else _NEVER
        known = self._heartbeat.count if self._heartbeat is not None else nodes or 1
        self.fallback = Fallback(mode, known, max_keys, store.clock)
        self.circuits = Circuits(
            store,
            lambda: Breaker(threshold=failures, pause_us=pause_us, longest_pause_us=longest_us),
            store.clock.ticks,
        )
        self.degraded: Counter[tuple[Mode, Reason]] = Counter()
        self._silent_until = 0

    def enter(self, call: Call) -> Passage:
        """Begin a call. What this node took in place of the store goes back here."""
        if call.verb is _RESET:
            self.fallback.reset(call.plan)
        plan = call.plan or call.shadow[0]
        if call.charge is not None and call.charge.degraded in DECIDED_HERE:
            return self.circuits.without_asking(plan)
        return self.circuits.enter(plan)

    def answered(self, call: Call, passage: Passage, decision: Decision) -> Decision:
        """Note that the store answered, and return what it did."""
        if decision.degraded or not self.circuits.is_calm:
            passage.succeeded(decision)
        if self.fallback.is_curious:
            now = self.fallback.saw(call, decision)
            if not self._rests_from <= now < self._rests_until and call.verb in _TAKING:
                self.beat_if_due(now)
        return decision

    def beat_if_due(self, now: int) -> None:
        """Start a heartbeat, unless there was one a moment ago, nobody is counted, or it is of no use."""
        heartbeat = self._heartbeat
        if heartbeat is not None and self.fallback.is_curious and heartbeat.is_due(now):
            self._rests_from, self._rests_until = heartbeat.rests_from, heartbeat.rests_until
            self._beat()

    def heartbeat(self) -> Generator[Call, Decision, None]:
        """Return the flow of a heartbeat. What it counts holds for the next decisions."""
        if self._heartbeat is not None:
            yield from self._heartbeat.beat()
            self.fallback.nodes = self._heartbeat.count

    def failed(self, passage: Passage, error: BaseException) -> Absence:
        """Note that the store did not answer; if it does after all, that is noted when it comes."""
        absence = passage.failed(error)
        if isinstance(error, OutcomeUnknown):
            error.told_late = partial(self._answered_late, passage, error.server)
        return absence

    def _answered_late(self, passage: Passage, server: str, call: Call, decision: Decision) -> None:
        passage.answered_late(server)
        self.fallback.saw(call, decision)
        now = self.circuits.ticks()
        if now >= self._silent_until:
            self._silent_until = now + LATE_EVERY_US
            _LOG.warning(
                "an answer of the store came after its deadline, so this node had decided (%d so far): the store, "
                "the network or this process is slow",
                self.circuits.late,
            )

    def decide(self, call: Call, absence: Absence) -> Decision:
        """Answer instead of the store."""
        if call.shadow:
            return drive(shadowed(call), lambda each: self.decide(each, absence))
        if call.verb is _RESET:
            raise absence.to_raise()
        decision = self.fallback.instead(call, absence.reason, absence.passage.wait_us())
        with self.circuits.lock:
            self.degraded[self.fallback.mode_of(call.plan), absence.reason] += 1
        return decision

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
