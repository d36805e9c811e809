"""The circuits of a store: a breaker for each of its servers.

A call needs the servers of its limits, and is permitted if the circuits of all of them permit it. Its result is
recorded for each server separately: those that answered, and the one that did not. Servers without limits are
forgotten.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.core.plan import Call, Plan
from headgate.locks import new_lock
from headgate.stores.base import Sharded
from headgate.stores.breaker import Breaker, BreakerStatistics, Circuit

ONLY_SERVER = ""
"""The name of the server of a store that has no names for servers, and of a server that is not known yet."""
_CLOSED = Circuit.CLOSED
_LOG = logging.getLogger("headgate.stores")


class Reason(StrEnum):
    STORE_UNAVAILABLE = "storage_unavailable"
    """It could not be reached; it certainly took nothing."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """It did not answer; it may have taken the cost."""
    CIRCUIT_OPEN = "circuit_open"
    """It was not called, since it had failed before."""
    OVERLOADED = "overloaded"
    """It is healthy but had no room for the call, which took nothing."""


DECIDED_HERE = frozenset(Reason)
"""Values of `Decision.degraded` for decisions of this node in place of the store."""


def reason_of(error: StoreError) -> Reason:
    """Return why the store did not decide, by its error."""
    if isinstance(error, StoreBusy):
        return Reason.OVERLOADED
    return Reason.STORE_UNAVAILABLE if isinstance(error, StoreUnavailable) else Reason.OUTCOME_UNKNOWN


class Circuits:
    """All circuits of a store, which may name its servers, and counters of its calls; thread-safe."""

    def __init__(self, store: object, new_breaker: Callable[[], Breaker], ticks: Callable[[], int]) -> None:
        self.lock = new_lock()
        self.ticks = ticks
        self.calls = 0
        self.failures: Counter[Reason] = Counter()
        self.late = 0  # answers that arrived after their calls had failed
        self._new_breaker = new_breaker
        self._sharded = store if isinstance(store, Sharded) else None
        self._breakers = {ONLY_SERVER: new_breaker()} if self._sharded is None else {}
        self._openings = self._recoveries = 0  # of forgotten circuits
        self.is_healthy = True
        """Whether all circuits are closed without failures: an answer changes nothing."""
        self._shared: Attempt | None = None  # of all calls to the only server, while that is healthy
        self.refresh()

    def is_apart(self, call: Call) -> bool:
        """Whether shadow plans of a call may be on other servers than its own plan, and are calls of their own."""
        if self._sharded is None:
            return False
        own = {*self._sharded.servers_of(call.plan)}
        return any(not own.issuperset(self._sharded.servers_of(plan)) for plan in call.shadow)

    def begin(self, plan: Plan) -> Attempt:
        """Begin a call about `plan`. If it is permitted, its result must be reported."""
        with self.lock:
            self.calls += 1
            if self._shared is not None:
                return self._shared
            servers, breakers = self._needed(plan)
            is_closed = all(breaker.state is _CLOSED for breaker in breakers.values())
            now = 0 if is_closed else self.ticks()
            tickets = {}
            if all(breaker.permits(now) for breaker in breakers.values()):
                tickets = {server: breaker.permit(now) for server, breaker in breakers.items()}
        return Attempt(self, breakers, servers, tickets)

    def refresh(self) -> None:
        """Update `is_healthy` after reports to the circuits; the lock must be held."""
        self.is_healthy = all(breaker.is_healthy for breaker in self._breakers.values())
        self._shared = None
        if self.is_healthy and self._sharded is None:
            self._shared = Attempt(self, self._breakers, (), {ONLY_SERVER: self._breakers[ONLY_SERVER].epoch})

    def trip(self, error: StoreError) -> None:
        """Open the circuits of all known servers until a probe succeeds, since the store is known to be down."""
        with self.lock:
            now = self.ticks()
            known = self._breakers or {ONLY_SERVER: self._add(ONLY_SERVER)}
            gone = [server for server, breaker in known.items() if breaker.trip(now)]
            self.refresh()
        _log_outages(gone, error)

    def bypass(self, plan: Plan) -> Attempt:
        """Return the attempt of a call that is not for the store: not permitted, and not counted."""
        with self.lock:
            servers, breakers = self._needed(plan)
        return Attempt(self, breakers, servers, {})

    def _needed(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, Breaker]]:
        if self._sharded is None:
            return (), self._breakers
        servers = self._sharded.servers_of(plan)
        if not all(server in self._breakers for server in servers):
            self._forget()
        return servers, {server: self._breakers.get(server) or self._add(server) for server in servers}

    def statistics(self) -> tuple[Mapping[str, BreakerStatistics], int, int]:
        """Return the statistics of each circuit, and how often any opened and closed; the lock must be held."""
        self._forget()
        seen = {server: each.statistics() for server, each in self._breakers.items()}
        openings = self._openings + sum(each.openings for each in seen.values())
        return seen, openings, self._recoveries + sum(each.recoveries for each in seen.values())

    def _add(self, server: str) -> Breaker:
        return self._breakers.setdefault(server, self._new_breaker())

    def _forget(self) -> None:
        """Forget the circuits of servers that are not part of the store, once its servers are known."""
        servers = () if self._sharded is None else self._sharded.servers()
        for server in [each for each in self._breakers if each not in servers] if servers else ():
            seen = self._breakers.pop(server).statistics()
            self._openings += seen.openings
            self._recoveries += seen.recoveries
        self.refresh()


class Attempt:
    """A call that passes the circuits of its servers; healthy circuits share one for all calls."""

    __slots__ = ("_breakers", "_circuits", "_servers", "tickets")

    def __init__(
        self, circuits: Circuits, breakers: Mapping[str, Breaker], servers: tuple[str, ...], tickets: dict[str, int]
    ) -> None:
        self._circuits, self._breakers, self._servers = circuits, breakers, servers
        self.tickets = tickets
        """The tickets of its servers; empty if the call is not permitted."""

    def succeeded(self, decision: Decision) -> None:
        """Record an answer of the store. Parts of it may be missing: their servers did not answer."""
        silent = self._silent(decision) if decision.degraded else ()
        if not silent and all(each.is_healthy for each in self._breakers.values()):
            return
        back, gone = [], []
        with self._circuits.lock:
            for server, breaker in self._breakers.items():
                if server in silent:
                    if breaker.failed(self.tickets[server], self._circuits.ticks()):
                        gone.append(server)
                elif breaker.succeeded(self.tickets[server]):
                    back.append(server)
            self._circuits.refresh()
        _log_recoveries(back)
        _log_outages(gone, "some of its responses are missing")

    def failed(self, error: BaseException) -> Reason:
        """Record a failure of the server that the error names, or of all that were needed; returns its reason.

        An error that is not about the store, such as misuse or cancellation, is raised again.
        """
        circuits, gone = self._circuits, []
        is_busy = isinstance(error, StoreBusy)  # the store itself is healthy
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
            circuits.refresh()
        _log_outages(gone, error)
        return reason

    def refusal(self) -> StoreUnavailable:
        """Return the error of a call that is not permitted."""
        where, wait_us = _named(", ".join(self._open_circuits())), self.wait_us()
        return StoreUnavailable(f"the store{where} failed before, and is tried again in {wait_us / 1e6:g} s")

    def answered_late(self, failed: str) -> None:
        """Record that the failed server has answered after all; its name is empty if it is not known."""
        back = []
        with self._circuits.lock:
            self._circuits.late += 1
            for server, breaker in self._breakers.items():
                if failed in {"", server} and breaker.answered_late(self.tickets[server]):
                    back.append(server)
            self._circuits.refresh()
        _log_recoveries(back)

    def wait_us(self) -> int:
        """Return microseconds until the store is called again; at least 1."""
        with self._circuits.lock:
            now = self._circuits.ticks()
            return max([breaker.wait_us(now) for breaker in self._open_circuits().values()])

    def _open_circuits(self) -> Mapping[str, Breaker]:
        """Return the circuits that are not closed; all of them if all are closed."""
        return {server: each for server, each in self._breakers.items() if each.state is not _CLOSED} or self._breakers

    def _silent(self, decision: Decision) -> Collection[str]:
        """Return the servers whose part of a decision is missing."""
        parts = zip(self._servers, decision.limits, strict=False)
        return {server for server, part in parts if part.degraded == Reason.STORE_UNAVAILABLE}


def _named(server: str) -> str:
    return f" (shard {server})" if server else ""


def _log_recoveries(servers: list[str]) -> None:
    for server in servers:
        _LOG.warning("the store%s responds again", _named(server))


def _log_outages(servers: list[str], why: object) -> None:
    message = "the store%s is unavailable (%s): requests are decided without it until it responds"
    for server in servers:
        _LOG.warning(message, _named(server), why)
