"""Blocking connections to one server: one per call in progress, kept for the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

from headgate.clock import Clock
from headgate.core.errors import StoreBusy, StoreError, StoreUnavailable
from headgate.stores.redis import readiness, scripts, wire
from headgate.stores.redis.address import Address
from headgate.stores.redis.answers import Answer, Unconfirmed
from headgate.stores.redis.connection import Connection
from headgate.stores.redis.discovery import Inquiry, Sentinels, T
from headgate.stores.redis.resting import pause_after

CONNECTIONS = 16


class _Loan(NamedTuple):
    """A connection in use."""

    connection: Connection
    give_up: float
    """When to stop waiting for an answer."""
    free: SimpleQueue[None]
    idle: list[Connection]
    """Where it goes afterwards."""


class Pool:
    """The connections to one server.

    Args:
        address: how to talk to it.
        clock: makes the script decide at this clock's time rather than at the server's, if given.
        sentinels: are asked for each new connection where the server is; unless it is at `address`.
    """

    def __init__(self, address: Address, clock: Clock | None, sentinels: Sentinels | None = None) -> None:
        self._address, self._clock, self._sentinels = address, clock, sentinels
        self._replicas = address.replicas  # the most that were asked for
        self._idle: list[Connection] = []
        self._failures, self._retry_at, self._trouble = 0, 0.0, ""
        self._begin()

    def _begin(self) -> None:
        """Start without connections; again in a forked child, which must not share its parent's sockets and locks."""
        inherited, self._idle = self._idle, []
        self._free: SimpleQueue[None] = SimpleQueue()  # permits; quicker than a semaphore
        for _ in range(self._address.connections or CONNECTIONS):
            self._free.put(None)
        self._process = os.getpid()
        for connection in inherited:
            connection.close()

    def ask(self, question: scripts.Question, give_up: float = 0, *, asking: bool = False) -> Answer:
        """Return the answer to `question`.

        Args:
            question: what to ask.
            give_up: when to stop waiting for the answer, as `monotonic` tells time; later if there is no connection
                yet. Default: what the address says.
            asking: whether the server is asked for what it does not own yet.
        """
        loan = self._loan(give_up)
        connection = loan.connection
        try:
            reply, replicated = self._converse(connection, question, loan.give_up, asking=asking)
            if isinstance(reply, Exception) and str(reply).partition(" ")[0] in wire.MISLED:
                connection.close()
                self.close()
                if self._sentinels:
                    self._sentinels.doubt(connection.address)
        finally:
            self._take_back(loan)
        if isinstance(reply, Exception):
            raise wire.refusal(connection.address, reply)
        answer = scripts.answers(reply, [question])[0]
        return answer if replicated else Unconfirmed(answer)

    def ready(self) -> None:
        """Raise StoreError unless the server could decide."""
        self.ask(readiness.probe())
        self.vet()

    def vet(self) -> None:
        """Raise StoreError if the server would be refused now, were it not in use already."""
        loan = self._loan()
        try:
            for command in wire.vetting(self._address, self._replicas):
                reply = loan.connection.converse([command], loan.give_up)
                if error := wire.objection(self._address, command, reply, strict=True):
                    raise error
        finally:
            self._take_back(loan)

    def _loan(self, give_up: float = 0) -> _Loan:
        """Take a connection, and the right to have one: both are to be taken back."""
        if self._process != os.getpid():
            self._begin()
        free, idle, now = self._free, self._idle, monotonic()
        give_up = give_up or now + self._address.timeout
        if give_up <= now:
            raise StoreUnavailable(f"{self._address}: not reached in {self._address.timeout:g} s")
        try:
            free.get(timeout=give_up - now)
        except Empty:
            raise StoreBusy(f"{self._address}: all connections are in use") from None
        try:
            began = monotonic()
            connection = self._idle_connection(began)
            if connection is None:
                connection = self._new_connection(began)
                give_up += monotonic() - began  # to connect takes its own time
        except BaseException:
            free.put(None)
            raise
        return _Loan(connection, give_up, free, idle)

    def _take_back(self, loan: _Loan) -> None:
        connection, _, free, idle = loan
        if not connection.is_closed:
            idle.append(connection)
            if idle is not self._idle:  # the pool was closed meanwhile
                connection.close()
        free.put(None)

    def _converse(
        self, connection: Connection, question: scripts.Question, give_up: float, *, asking: bool
    ) -> tuple[object, bool]:
        commands = [wire.ASKING] if asking else []
        reply: object = None
        for attempt in range(wire.RELOADS + 1):  # a script that is forgotten has done nothing: load it, ask again
            evaluation = scripts.evaluation([question], self._clock.now() if self._clock else None)
            load = [wire.LOAD] if attempt else []
            reply = connection.converse([*load, *commands, evaluation], give_up)
            if not wire.is_forgotten(reply):
                break
        replicas = max(self._address.replicas, question.replicas)
        if not replicas or isinstance(reply, Exception):
            return reply, True
        self._replicas = max(self._replicas, replicas)
        return reply, connection.is_replicated(replicas, give_up)

    def _idle_connection(self, now: float) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_quiet(now):
                return connection
            connection.close()

    def _new_connection(self, now: float) -> Connection:
        """Connect, unless that has just failed: then rest."""
        if now < self._retry_at:
            raise StoreUnavailable(self._trouble)
        address = self._address
        try:
            if sentinels := self._sentinels:
                address = inquire(sentinels.primary(), lambda: sentinels.patience)
            connection = Connection(address)
        except StoreError as error:
            if sentinels:
                sentinels.doubt(address)
            self._failures += 1
            self._retry_at, self._trouble = monotonic() + pause_after(self._failures), str(error)
            raise
        self._failures = 0
        return connection

    def close(self) -> None:
        """Hang up, but for calls in progress."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def inquire(inquiry: Inquiry[T], patience: Callable[[], float]) -> T:
    """Drive an inquiry; each server gets `patience` seconds."""
    try:
        address, question = next(inquiry)
        while True:
            address, question = inquiry.send(_inquired(address, question, patience()))
    except StopIteration as stop:
        found: T = stop.value
        return found


def _inquired(address: Address, question: bytes, patience: float) -> object:
    give_up = monotonic() + patience
    try:
        connection = Connection(address, wire.introduction(address), patience)
        try:
            reply = connection.converse([question], give_up)
        finally:
            connection.close()
    except StoreError as error:
        return error
    return wire.refusal(address, reply) if isinstance(reply, Exception) else reply
