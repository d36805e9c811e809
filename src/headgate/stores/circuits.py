"""The circuits of a store: a breaker for each of its servers.

A call needs the servers that its limits live on, and goes through if the circuits of all of them let it. How it went is
told to the circuit of each server by itself: those that answered, and the one that did not. A server that nothing lives
on any more is forgotten.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import NamedTuple

from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.core.plan import Call, Plan
from headgate.locks import new_lock
from headgate.stores.base import Sharded
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit

ONLY_SERVER = ""
"""The name of the server of a store that does not tell them apart, and of one that is not known yet."""
_CLOSED = Circuit.CLOSED
_LOG = logging.getLogger("headgate.stores")


class Reason(StrEnum):
    """Why the store did not decide."""

    STORE_UNAVAILABLE = "storage_unavailable"
    """It could not be asked; it surely took nothing."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It was asked and did not answer; perhaps it took the cost."""
    CIRCUIT_OPEN = "circuit_open"
    """It was not asked, since it failed before."""
    OVERLOADED = "overloaded"
    """It is healthy, but had no room for the call, which was never sent or surely took nothing."""


DECIDED_HERE = frozenset(Reason)
"""What `Decision.degraded` says of what this node decided in place of the store."""


def reason_of(error: StoreError) -> Reason:
    """Return why the store did not decide, by what it raised."""
    if isinstance(error, StoreBusy):
        return Reason.OVERLOADED
    return Reason.STORE_UNAVAILABLE if isinstance(error, StoreUnavailable) else Reason.OUTCOME_UNKNOWN


class Circuits:
    """All circuits of a store, and what happened to its calls; safe for threads.

    Args:
        store: the store, for the names of its servers if it tells them apart.
        made: returns a new breaker.
        ticks: tells the time.
    """

    def __init__(self, store: object, made: Callable[[], Breaker], ticks: Callable[[], int]) -> None:
        self.lock = new_lock()
        self.ticks = ticks
        self.calls = 0
        self.failures: Counter[Reason] = Counter()
        self.late = 0  # answers that came after their calls had failed
        self._made = made
        self._sharded = store if isinstance(store, Sharded) else None
        self._only = made() if self._sharded is None else None
        self._breakers = {ONLY_SERVER: self._only} if self._only is not None else {}
        self._openings = self._recoveries = 0  # of circuits that are forgotten
        self.is_calm = True
        """Are all circuits closed, with no failure to forget? Then an answer of the store changes nothing."""
        self._usual: Passage | None = None  # of all calls to the only server, while that is so
        self.look()

    def is_apart(self, call: Call) -> bool:
        """May shadow plans of a call be on other servers than its own plan? Then each is a call of its own."""
        if self._sharded is None:
            return False
        own = {*self._sharded.servers_of(call.plan)}
        return any(not own.issuperset(self._sharded.servers_of(plan)) for plan in call.shadow)

    def enter(self, plan: Plan) -> Passage:
        """Begin a call about `plan`. Whoever is let through reports how it went."""
        with self.lock:
            self.calls += 1
            if self._usual is not None:
                return self._usual
            servers, breakers = self._needed(plan)
            is_closed = all(breaker.state is _CLOSED for breaker in breakers.values())
            now = 0 if is_closed else self.ticks()
            tickets = {}
            if all(breaker.may_ask(now) for breaker in breakers.values()):
                tickets = {server: breaker.ask(now) for server, breaker in breakers.items()}
        return Passage(self, breakers, servers, tickets)

    def look(self) -> None:
        """See whether all is well, after circuits were told how calls went; the lock must be held."""
        self.is_calm = all(breaker.is_untroubled for breaker in self._breakers.values())
        self._usual = None
        if self.is_calm and self._only is not None:
            self._usual = Passage(self, self._breakers, (), {ONLY_SERVER: self._only.epoch})

    def trip(self, error: StoreError) -> None:
        """Take the store to be away, until a probe finds that it is not: all its servers, as far as they are known."""
        with self.lock:
            now = self.ticks()
            known = self._breakers or {ONLY_SERVER: self._added(ONLY_SERVER)}
            gone = [server for server, breaker in known.items() if breaker.trip(now)]
            self.look()
        for server in gone:
            _say_gone(server, error)

    def without_asking(self, plan: Plan) -> Passage:
        """Return the way of a call that is not for the store: it is not let through, and not counted."""
        with self.lock:
            servers, breakers = self._needed(plan)
        return Passage(self, breakers, servers, {})

    def _needed(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, Breaker]]:
        """Return the servers of the limits of `plan`, and the circuits of those servers."""
        if self._sharded is None:
            return (), self._breakers
        servers = self._sharded.servers_of(plan)
        if not all(server in self._breakers for server in servers):
            self._forget()
        return servers, {server: self._breakers.get(server) or self._added(server) for server in servers}

    def statistics(self) -> tuple[Mapping[str, BreakerStatistics], int, int]:
        """Return what each circuit has seen, and how often any opened and closed; the lock must be held."""
        self._forget()
        seen = {server: each.statistics() for server, each in self._breakers.items()}
        openings = self._openings + sum(each.openings for each in seen.values())
        return seen, openings, self._recoveries + sum(each.recoveries for each in seen.values())

    def _added(self, server: str) -> Breaker:
        return self._breakers.setdefault(server, self._made())

    def _forget(self) -> None:
        """Forget the circuits of servers that have no part of the store, once it is known which have."""
        servers = () if self._sharded is None else self._sharded.servers()
        for server in [each for each in self._breakers if each not in servers] if servers else ():
            seen = self._breakers.pop(server).statistics()
            self._openings += seen.openings
            self._recoveries += seen.recoveries
        self.look()


class Passage:
    """The way of a call through the circuits of its servers; while all is well, of many calls."""

    __slots__ = ("_breakers", "_circuits", "_servers", "tickets")

    def __init__(
        self, circuits: Circuits, breakers: Mapping[str, Breaker], servers: tuple[str, ...], tickets: dict[str, int]
    ) -> None:
        self._circuits, self._breakers, self._servers = circuits, breakers, servers
        self.tickets = tickets
        """What to report with, for each server; none: the store is not asked."""

    def succeeded(self, decision: Decision) -> None:
        """Note that the store answered. Parts of a decision may be missing: their servers did not."""
        silent = self._silent(decision) if decision.degraded else ()
        if not silent and all(each.is_untroubled for each in self._breakers.values()):
            return
        back, gone = [], []
        with self._circuits.lock:
            for server, breaker in self._breakers.items():
                if server in silent:
                    if breaker.failed(self.tickets[server], self._circuits.ticks()):
                        gone.append(server)
                elif breaker.succeeded(self.tickets[server]):
                    back.append(server)
            self._circuits.look()
        _say_back(back)
        for server in gone:
            _say_gone(server, "a part of its answers is missing")

    def failed(self, error: BaseException) -> Absence:
        """Note that the store did not answer: the server that the error names, or all that were needed.

        An error that says nothing about the store, such as misuse or a caller that was cancelled, is raised again.
        """
        circuits, gone = self._circuits, []
        is_busy = isinstance(error, StoreBusy)  # no news: the store as such is well
        with circuits.lock:
            now = circuits.ticks()
            for server, breaker in self._breakers.items():
                if not isinstance(error, StoreError) or is_busy or error.server not in {"", server}:
                    breaker.abandoned(self.tickets[server], now)
                elif breaker.failed(self.tickets[server], now, error.incident):
                    gone.append(server)
            if not isinstance(error, StoreError):
                raise error
            reason = reason_of(error)
            circuits.failures[reason] += 1
            circuits.look()
        for server in gone:
            _say_gone(server, error)
        return Absence(self, reason, error)

    def refused(self) -> Absence:
        """Return that the store is not asked."""
        return Absence(self, Reason.CIRCUIT_OPEN, None)

    def answered_late(self, failed: str) -> None:
        """Note that the server that failed has answered after all; its name is empty if it is not known."""
        back = []
        with self._circuits.lock:
            self._circuits.late += 1
            for server, breaker in self._breakers.items():
                if failed in {"", server} and breaker.answered_late(self.tickets[server]):
                    back.append(server)
            self._circuits.look()
        _say_back(back)

    def wait_us(self) -> int:
        """Return how many microseconds from now the store is asked again; at least 1."""
        with self._circuits.lock:
            now = self._circuits.ticks()
            return max([breaker.wait_us(now) for breaker in self.troubled().values()])

    def troubled(self) -> Mapping[str, Breaker]:
        """Return the circuits that are not closed; all, if they all are."""
        return {server: each for server, each in self._breakers.items() if each.state is not _CLOSED} or self._breakers

    def _silent(self, decision: Decision) -> Collection[str]:
        """Return the servers whose part of a decision is missing."""
        parts = zip(self._servers, decision.limits, strict=False)
        return {server for server, part in parts if part.degraded == Reason.STORE_UNAVAILABLE}


class Absence(NamedTuple):
    """That the store did not answer a call, and why."""

    passage: Passage
    reason: Reason
    error: StoreError | None
    """What it raised, if it was asked."""

    def to_raise(self) -> StoreError:
        """Return an error for callers that must know that the store did not answer."""
        if self.error:
            return self.error
        where, wait_us = _named(", ".join(self.passage.troubled())), self.passage.wait_us()
        return StoreUnavailable(f"the store{where} failed before, and is asked again in {wait_us / 1e6:g} s")


def _named(server: str) -> str:
    return f" (shard {server})" if server else ""


def _say_back(servers: list[str]) -> None:
    for server in servers:
        _LOG.warning("the store%s answers again", _named(server))


def _say_gone(server: str, why: object) -> None:
    _LOG.warning("the store%s does not answer (%s): decided without it until it does", _named(server), why)
