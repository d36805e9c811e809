"""The Redis store for callers that may block: one blocking connection per call in progress, kept for the next."""

from __future__ import annotations

import os
import select
import socket
import threading

import hiredis

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Family, Plan
from headgate.stores.base import Check
from headgate.stores.redis import scripts, wire
from headgate.stores.redis.address import Address

CONNECTIONS = 16


class RedisStore:
    """Keeps the state of limits in one Redis or Valkey server.

    Args:
        address: the server, and how to talk to it.
        clock: only for tests: makes the script decide at this clock's time rather than at the server's.
    """

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self._address = address
        self._manual = clock
        self.clock: Clock = clock or SystemClock()
        self._free = threading.BoundedSemaphore(address.connections or CONNECTIONS)
        self._idle: list[_Connection] = []
        self._process = os.getpid()

    def check(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, self._ask(scripts.question(scripts.CHECK, plan, cost)))

    def peek(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, self._ask(scripts.question(scripts.PEEK, plan, cost)))

    def refund(self, plan: Plan, cost: int) -> Decision:
        return scripts.decision_of(plan, self._ask(scripts.question(scripts.REFUND, plan, cost)))

    def reset(self, plan: Plan) -> None:
        self._ask(scripts.question(scripts.RESET, plan, 0))

    def bind(self, family: Family) -> Check:
        def check(key: str, cost: int = 1) -> Decision:
            plan = family.plan(key)
            if cost == 0 and type(cost) is int:
                return self.peek(plan, 1)
            return self.check(plan, family.checked_cost(cost))

        return check

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, question: scripts.Question) -> list[int]:
        if not self._free.acquire(timeout=self._address.timeout):
            raise StoreUnavailable(f"{self._address}: all connections are in use")
        try:
            connection = self._connection()
            reply = connection.converse(self._encoded(question))
            if wire.is_forgotten(reply):  # nothing was done; load it and ask once more
                connection.converse(wire.LOAD)
                reply = connection.converse(self._encoded(question))
            self._idle.append(connection)
            if isinstance(reply, Exception):
                raise wire.refusal(self._address, reply)
            return wire.numbers_of(reply, [question])
        finally:
            self._free.release()

    def _encoded(self, question: scripts.Question) -> bytes:
        return wire.evaluation([question], self._manual.now() if self._manual else None)

    def _connection(self) -> _Connection:
        if self._process != os.getpid():  # a forked child must not share its parent's sockets
            self._idle, self._process = [], os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return _Connection(self._address)
            if connection.is_quiet():
                return connection
            connection.close()


class _Connection:
    """One conversation at a time; broken for good by its first failure."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reader = hiredis.Reader()
        self._socket = self._connected()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(address.timeout)

    def _connected(self) -> socket.socket:
        address = self._address
        try:
            if address.path:
                connected = socket.socket(socket.AF_UNIX)
                connected.settimeout(address.connect_timeout)
                connected.connect(address.path)
                return connected
            connected = socket.create_connection((address.host, address.port), address.connect_timeout)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                return address.tls.wrap_socket(connected, server_hostname=address.host)
        except OSError as error:
            raise StoreUnavailable(f"{address}: cannot connect: {error}") from None
        return connected

    def _greet(self) -> None:
        for command in wire.greeting(self._address):
            try:
                reply = self.converse(command)
            except OutcomeUnknown as lost:
                raise StoreUnavailable(str(lost)) from None
            if error := wire.objection(self._address, command, reply):
                raise error

    def converse(self, command: bytes) -> object:
        """Send `command` and return its reply; an error reply is returned, not raised."""
        try:
            self._socket.sendall(command)
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._received())
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise self._lost(error) from None
        except BaseException:  # interrupted in the middle: the reply would be taken for the next one's
            self.close()
            raise
        return reply

    def _received(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed by the server")
        return data

    def is_quiet(self) -> bool:
        """Is the connection as it was left? The server may have closed it meanwhile, and then it is readable."""
        readable, _, _ = select.select([self._socket], [], [], 0)
        return not readable

    def _lost(self, error: Exception) -> StoreError:
        if isinstance(error, TimeoutError):
            return OutcomeUnknown(f"{self._address}: no answer in {self._address.timeout:g} s")
        return OutcomeUnknown(f"{self._address}: connection lost: {error}")

    def close(self) -> None:
        self._socket.close()
