"""A store around a store, which always answers: asks the inner one, and decides by itself when that one does not.

Every answer the inner store did not give says so: `Decision.degraded` has the reason. While a server is away nobody
waits for it (see `headgate.stores.breaker` and `headgate.stores.circuits`); when it is back, that is noticed without
anybody's help.

What the modes promise while the store is away, for a limit of capacity C on N nodes:

* ``local``: this node decides with its share. All nodes together admit at most N * ceil(C / N), which is less than
  C + N, in addition to what the store admits before and after, however often it comes and goes (and a bucket refills by
  at most N * ceil(limit / N) per window). So where C may pass, less than 2 C + N do around an outage if the store kept
  its state, and less than 3 C + N if it came back empty. More nodes than N admit a share each; fewer admit less. A
  process that is started while the store is away is one more node: what another admitted is lost with that one.
* ``allow``: no limit holds. ``deny``: nothing passes.

A question whose outcome is unknown is never asked again: the mode answers. Perhaps the store has taken the cost all the
same; then it admits that much less later. An answer that comes after its deadline is noted for the next decisions of
this node, and shows that the server is not away. What `check_once` promises holds for each that answers, the store and
the mode: a retry that the other one answers counts there as well.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TypedDict, Unpack

from headgate.core.decision import Decision, marked
from headgate.core.errors import InvalidStore, OutcomeUnknown, StoreError
from headgate.core.mode import Mode
from headgate.core.numbers import whole
from headgate.core.plan import Call, Charge, Family, Limit, Plan, Verb, shadowed
from headgate.flows import drive, drive_async
from headgate.stores import breaker as breakers
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Hurried, Store
from headgate.stores.breaker import Breaker, BreakerStatistics
from headgate.stores.circuits import Circuits, Passage, Reason
from headgate.stores.fallback import chosen
from headgate.stores.memory import MAX_KEYS
from headgate.stores.wrapping import (
    call_for,
    check_colour,
    microseconds,
    plain_async_check,
    plain_check,
)

__all__ = ["AsyncFailoverStore", "FailoverStore", "Options", "Reason", "Statistics"]

MAX_NODES = 100_000
LATE_EVERY_US = 10_000_000
"""Microseconds for which nothing more is logged about late answers."""
_LOG = logging.getLogger("headgate.stores")


class Options(TypedDict, total=False):
    """What both failover stores accept besides the store."""

    mode: str | Callable[[Limit], Mode]
    """What to answer when the store does not: "local" (the default), "allow" or "deny"; or a function that tells for
    each limit."""
    nodes: int
    """How many nodes share the limits, this one included, for the mode "local"; 1 by default."""
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
        self._failover = _Failover(store, **options)

    def run(self, call: Call) -> Decision:
        if call.shadow and self._failover.circuits.are_several:  # which may be on other servers
            return drive(shadowed(call), self.run)
        if call.verb is Verb.RESET:
            self._failover.fallback.reset(call.plan)
        attempt = self._failover.attempt(call.plan)
        if _was_taken_here(call.charge):
            return attempt.decide(call)
        with attempt as may_ask:
            if may_ask:
                return attempt.answered(call, self._store.run(call))
        return attempt.decide(call)

    def bind(self, family: Family) -> Check:
        failover, careful = self._failover, plain_check(self, family)
        if failover.circuits.are_several:
            return careful
        bound = self._store.bind(family)

        def check(key: str, cost: int = 1) -> Decision:
            attempt = failover.attempt()
            if not attempt.passage.is_calm:  # what is not acceptable must not become the probe, so look first
                return careful(key, cost)
            with attempt as may_ask:
                if may_ask:
                    return attempt.answered(Call(Verb.CHECK, family.plan(key)), bound(key, cost))
            return attempt.decide(call_for(family, key, cost))

        return check

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


class AsyncFailoverStore:
    """The same for callers in an event loop: an `AsyncStore` that always answers."""

    def __init__(self, store: AsyncStore, **options: Unpack[Options]) -> None:
        check_colour(store, asynchronous=True, outer=type(self))
        self._store = store
        self.clock = store.clock
        self._failover = _Failover(store, **options)

    def within(self, seconds: float) -> AsyncFailoverStore:
        """Return the same store for callers that wait no longer than so many seconds for it.

        It is the same if the inner store cannot be asked so. All share circuits, states and statistics.
        """
        if not isinstance(self._store, Hurried):
            return self
        hurried = copy(self)
        hurried._store = self._store.within(seconds)  # noqa: SLF001  it is one of us
        return hurried

    async def run(self, call: Call) -> Decision:
        failover, circuits = self._failover, self._failover.circuits
        if call.verb is Verb.CHECK and circuits.is_untroubled and not circuits.are_several:
            circuits.calls += 1  # an event loop has one thread
            ticket = circuits.ticket
            try:
                decision = await self._store.run(call)
            except StoreError as error:
                return failover.failed(ticket, error).decide(call)
            if not circuits.is_untroubled:
                circuits.passage_of(ticket).succeeded()
            failover.saw(call, decision)
            return decision
        if call.shadow and self._failover.circuits.are_several:  # which may be on other servers
            return await drive_async(shadowed(call), self.run)
        if call.verb is Verb.RESET:
            self._failover.fallback.reset(call.plan)
        attempt = self._failover.attempt(call.plan)
        if _was_taken_here(call.charge):
            return attempt.decide(call)
        with attempt as may_ask:
            if may_ask:
                return attempt.answered(call, await self._store.run(call))
        return attempt.decide(call)

    def bind(self, family: Family) -> AsyncCheck:
        failover, circuits, careful = self._failover, self._failover.circuits, plain_async_check(self, family)
        if circuits.are_several:
            return careful
        bound = self._store.bind(family)

        async def check(key: str, cost: int = 1) -> Decision:
            if not circuits.is_untroubled:  # what is not acceptable must not become the probe, so look first
                return await careful(key, cost)
            circuits.calls += 1  # an event loop has one thread
            ticket = circuits.ticket
            try:
                decision = await bound(key, cost)
            except StoreError as error:
                return failover.failed(ticket, error).decide(call_for(family, key, cost))
            if not circuits.is_untroubled:
                circuits.passage_of(ticket).succeeded()
            failover.fallback.saw(family.plan(key), decision)
            return decision

        return check

    async def ready(self) -> None:
        """Return when the inner store can decide now, else raise its StoreError: for health checks."""
        await self._store.ready()

    def statistics(self) -> Statistics:
        """Return what happened so far, for metrics."""
        return self._failover.statistics()

    async def close(self) -> None:
        self._failover.fallback.close()
        await self._store.close()


class _Failover:
    """What both stores share: the circuits, who answers instead, and the counters. Nothing here waits for a store."""

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        mode: str | Callable[[Limit], Mode] = Mode.LOCAL,
        nodes: int = 1,
        max_keys: int = MAX_KEYS,
        failures: int = breakers.THRESHOLD,
        pause: float = breakers.PAUSE_US / 1_000_000,
        longest_pause: float = breakers.LONGEST_PAUSE_US / 1_000_000,
    ) -> None:
        whole("nodes", nodes, 1, MAX_NODES, InvalidStore)
        pause_us, longest_us = microseconds("pause", pause), microseconds("longest_pause", longest_pause)
        self.fallback = chosen(mode, nodes, max_keys, store.clock)
        self.circuits = Circuits(
            store,
            lambda: Breaker(threshold=failures, pause_us=pause_us, longest_pause_us=longest_us),
            store.clock.ticks,
        )
        self.degraded: Counter[tuple[Mode, Reason]] = Counter()
        self._silent_until = 0

    def say_late(self) -> None:
        """Log that an answer came late, if that was not said in the last moments."""
        now = self.circuits.ticks()
        if now >= self._silent_until:
            self._silent_until = now + LATE_EVERY_US
            _LOG.warning(
                "an answer of the store came after its deadline, so this node had decided (%d so far): the store, "
                "the network or this process is slow",
                self.circuits.late,
            )

    def attempt(self, plan: Plan = ()) -> _Attempt:
        """Begin a call about `plan`; it may be any where there is one server."""
        return _Attempt(self, self.circuits.passage(plan))

    def failed(self, ticket: int, error: StoreError) -> _Attempt:
        """Note that a call failed that went through the only circuit with this ticket; returns who answers it."""
        attempt = _Attempt(self, self.circuits.passage_of(ticket))
        attempt.failed(error)
        return attempt

    def saw(self, call: Call, decision: Decision) -> None:
        """Note what the store has answered to a call."""
        if call.plan:
            self.fallback.saw(call.plan, decision)
        for plan, each in zip(call.shadow, decision.shadow, strict=True):
            self.fallback.saw(plan, each)

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
            )


class _Attempt:
    """One call. As a context manager: says whether to ask the store, notes how that failed, and keeps StoreErrors in.

    After a with block in which the store did not answer, it decides.
    """

    __slots__ = ("_failover", "passage")

    def __init__(self, failover: _Failover, passage: Passage) -> None:
        self._failover, self.passage = failover, passage

    def __enter__(self) -> bool:
        return self.passage.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, StoreError):
            self.failed(error)
            return True
        if error is not None:
            self.passage.abandoned()
        return False

    def answered(self, call: Call, decision: Decision) -> Decision:
        """Note that the store answered, and return what it did."""
        self.passage.succeeded(decision)
        self._failover.saw(call, decision)
        return decision

    def failed(self, error: StoreError) -> None:
        """Note that the store did not answer; if it does after all, that is noted when it comes."""
        self.passage.failed(error)
        if isinstance(error, OutcomeUnknown):
            error.told_late = self._answered_late

    def _answered_late(self, plan: Plan, decision: Decision) -> None:
        self.passage.answered_late()
        self._failover.fallback.saw(plan, decision)
        self._failover.say_late()

    def decide(self, call: Call) -> Decision:
        """Answer instead of the store."""
        failover, passage = self._failover, self.passage
        if call.shadow:
            return drive(shadowed(call), self.decide)
        if call.verb is Verb.RESET:
            raise passage.error()
        if call.verb is Verb.REFUND and not self._is_ours(call.charge):
            call = Call(Verb.PEEK, call.plan, 1)
        decision = failover.fallback.answer(call, passage.wait_us())
        with failover.circuits.lock:
            failover.degraded[failover.fallback.mode_of(call.plan), passage.reason] += 1
        return marked(decision, passage.reason)

    def _is_ours(self, charge: Charge | None) -> bool:
        """Is it to be given back here? What the store took never is, nor what it has perhaps given back already."""
        if charge is None:
            return self.passage.reason is not Reason.OUTCOME_UNKNOWN
        return _was_taken_here(charge)


def _was_taken_here(charge: Charge | None) -> bool:
    """Was a charge taken by this node, in place of the store? Then it goes back here."""
    return charge is not None and charge.degraded in set(Reason)
