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

from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.core.plan import Plan
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
        self._only = made()
        self._breakers = {ONLY_SERVER: self._only} if self._sharded is None else {}
        self._openings = self._recoveries = 0  # of circuits that are forgotten

    @property
    def are_several(self) -> bool:
        """Does the store tell its servers apart?"""
        return self._sharded is not None

    @property
    def is_untroubled(self) -> bool:
        """Is the only circuit closed, with no failure to forget? Then a call needs no passage unless it fails."""
        return self._only.is_untroubled

    @property
    def ticket(self) -> int:
        """What a call that goes through the only circuit, while that is closed, reports with."""
        return self._only.epoch

    def passage(self, plan: Plan) -> Passage:
        """Return the way of a call about `plan`."""
        if self._sharded is None:
            return Passage(self, self._breakers)
        servers = self._sharded.servers_of(plan)
        with self.lock:
            if not all(server in self._breakers for server in servers):
                self._forget()
            breakers = {server: self._breakers.get(server) or self._added(server) for server in servers}
        return Passage(self, breakers, servers)

    def passage_of(self, ticket: int) -> Passage:
        """Return the way of a call that went through the only circuit with this ticket."""
        passage = Passage(self, self._breakers)
        passage.tickets[ONLY_SERVER] = ticket
        return passage

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


class Passage:
    """The way of one call through the circuits of its servers."""

    __slots__ = ("_breakers", "_circuits", "_error", "_servers", "reason", "tickets")

    def __init__(self, circuits: Circuits, breakers: Mapping[str, Breaker], servers: tuple[str, ...] = ()) -> None:
        self._circuits, self._breakers, self._servers = circuits, breakers, servers
        self.tickets: dict[str, int] = {}
        self.reason = Reason.CIRCUIT_OPEN
        """Why the store did not decide, if it did not."""
        self._error: StoreError | None = None

    @property
    def is_calm(self) -> bool:
        """Are all circuits closed?"""
        return all(breaker.state is _CLOSED for breaker in self._breakers.values())

    def enter(self) -> bool:
        """Say whether to ask the store. Whoever is let through reports how it went."""
        circuits = self._circuits
        with circuits.lock:
            circuits.calls += 1
            now = 0 if self.is_calm else circuits.ticks()  # no clock is read while all is well
            if all(breaker.may_ask(now) for breaker in self._breakers.values()):
                self.tickets = {server: breaker.ask(now) for server, breaker in self._breakers.items()}
        return bool(self.tickets)

    def succeeded(self, decision: Decision | None = None) -> None:
        """Note that the store answered. Parts of a refusal may be missing: their servers did not."""
        silent = self._silent(decision) if decision is not None and decision.degraded else ()
        if not silent and all(breaker.is_untroubled for breaker in self._breakers.values()):
            return
        back, gone = [], []
        with self._circuits.lock:
            for server, breaker in self._breakers.items():
                if server in silent:
                    if breaker.failed(self.tickets[server], self._circuits.ticks()):
                        gone.append(server)
                elif breaker.succeeded(self.tickets[server]):
                    back.append(server)
        for server in back:
            _LOG.warning("the store%s answers again", _named(server))
        for server in gone:
            _say_gone(server, "a part of its answers is missing")

    def failed(self, error: StoreError) -> None:
        """Note that the store did not answer: the server that the error names, or all that were needed."""
        circuits, self._error = self._circuits, error
        unavailable = isinstance(error, StoreUnavailable)
        self.reason = Reason.STORE_UNAVAILABLE if unavailable else Reason.OUTCOME_UNKNOWN
        is_busy = isinstance(error, StoreBusy)  # no news: the store as such is well
        gone = []
        with circuits.lock:
            circuits.failures[self.reason] += 1
            now = circuits.ticks()
            for server, breaker in self._breakers.items():
                if is_busy or error.server not in {"", server}:
                    breaker.abandoned(self.tickets[server], now)
                elif breaker.failed(self.tickets[server], now, error.incident):
                    gone.append(server)
        for server in gone:
            _say_gone(server, error)

    def answered_late(self) -> None:
        """Note that the server that failed has answered after all."""
        server, back = self._error.server if self._error else "", []
        with self._circuits.lock:
            self._circuits.late += 1
            for each, breaker in self._breakers.items():
                if server in {"", each} and breaker.answered_late(self.tickets[each]):
                    back.append(each)
        for each in back:
            _LOG.warning("the store%s answers again", _named(each))

    def abandoned(self) -> None:
        """Note that nobody will know: misuse, or a caller that was cancelled."""
        with self._circuits.lock:
            for server, breaker in self._breakers.items():
                breaker.abandoned(self.tickets[server], self._circuits.ticks())

    def wait_us(self) -> int:
        """Return how many microseconds from now the store is asked again; at least 1."""
        with self._circuits.lock:
            now = self._circuits.ticks()
            return max([breaker.wait_us(now) for breaker in self._troubled().values()])

    def error(self) -> StoreError:
        """Return why the store did not answer, to be raised."""
        if self._error:
            return self._error
        where = _named(", ".join(self._troubled()))
        return StoreUnavailable(f"the store{where} failed before, and is asked again in {self.wait_us() / 1e6:g} s")

    def _troubled(self) -> Mapping[str, Breaker]:
        """Return the circuits that are not closed; all, if they all are."""
        return {server: each for server, each in self._breakers.items() if each.state is not _CLOSED} or self._breakers

    def _silent(self, decision: Decision) -> Collection[str]:
        """Return the servers whose part of a decision is missing."""
        parts = zip(self._servers, decision.limits, strict=False)
        return {server for server, part in parts if part.degraded == Reason.STORE_UNAVAILABLE}


def _named(server: str) -> str:
    return f" (shard {server})" if server else ""


def _say_gone(server: str, why: object) -> None:
    _LOG.warning("the store%s does not answer (%s): decided without it until it does", _named(server), why)
