"""The Redis store for callers that may block: one blocking connection per call in progress, kept for the next."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence
from time import monotonic

import hiredis

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreUnavailable
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
        self._idle: list[_Connection] = []
        self._begin()

    def _begin(self) -> None:
        """Start without connections; again in a forked child, which must not share its parent's sockets and locks."""
        inherited, self._idle = self._idle, []
        self._free = threading.BoundedSemaphore(self._address.connections or CONNECTIONS)
        self._process = os.getpid()
        for connection in inherited:
            connection.close()

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

    def _ask(self, question: scripts.Question) -> Sequence[int]:
        if self._process != os.getpid():
            self._begin()
        free, idle, asked_at = self._free, self._idle, monotonic()
        if not free.acquire(timeout=self._address.timeout):
            raise StoreUnavailable(f"{self._address}: all connections are in use")
        try:
            waited = monotonic() - asked_at
            connection = self._connection()
            give_up = monotonic() + self._address.timeout - waited
            reply = connection.converse([self._encoded(question)], give_up)
            for _ in range(wire.RELOADS):  # a script that is forgotten has done nothing: load it, ask again
                if not wire.is_forgotten(reply):
                    break
                reply = connection.converse([wire.LOAD, self._encoded(question)], give_up)
            idle.append(connection)
            if idle is not self._idle:  # the store was closed meanwhile
                connection.close()
        finally:
            free.release()
        if isinstance(reply, Exception):
            raise wire.refusal(self._address, reply)
        return scripts.answers(reply, [question])[0]

    def _encoded(self, question: scripts.Question) -> bytes:
        return scripts.evaluation([question], self._manual.now() if self._manual else None)

    def _connection(self) -> _Connection:
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
        give_up = monotonic() + address.connect_timeout
        self._socket = self._connected()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._greet(give_up)
        except BaseException:
            self.close()
            raise

    def _connected(self) -> socket.socket:
        address = self._address
        try:
            if address.path:
                connected = socket.socket(socket.AF_UNIX)
            else:
                connected = socket.create_connection((address.host, address.port), address.connect_timeout)
            try:
                return self._prepared(connected)
            except BaseException:
                connected.close()
                raise
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            raise wire.unconnected(address, error) from None

    def _prepared(self, connected: socket.socket) -> socket.socket:
        address = self._address
        if address.path:
            connected.settimeout(address.connect_timeout)
            connected.connect(address.path)
            return connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return address.tls.wrap_socket(connected, server_hostname=address.host) if address.tls else connected

    def _greet(self, give_up: float) -> None:
        for command in wire.greeting(self._address):
            try:
                reply = self.converse([command], give_up)
            except OutcomeUnknown as lost:
                raise StoreUnavailable(str(lost)) from None
            if error := wire.objection(self._address, command, reply):
                raise error

    def converse(self, commands: list[bytes], give_up: float) -> object:
        """Send `commands`, and return the reply to the last of them; an error reply is returned, not raised."""
        try:
            self._await(give_up)
            self._socket.sendall(b"".join(commands))
            for _ in commands:
                while (reply := self._reader.gets()) is False:
                    self._await(give_up)
                    self._reader.feed(self._received())
        except TimeoutError:
            self.close()
            raise OutcomeUnknown(f"{self._address}: no answer in time") from None
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise wire.lost(self._address, error) from None
        except BaseException:  # interrupted in the middle: the reply would be taken for the next one's
            self.close()
            raise
        return reply

    def _await(self, give_up: float) -> None:
        """Let what comes next on the socket take until `give_up`, however many pieces came before."""
        left = give_up - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _received(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed by the server")
        return data

    def is_quiet(self) -> bool:
        """Is the connection as it was left? The server may have closed it meanwhile, and then it is readable."""
        return not self._reader.has_data() and not self._poll.poll(0)

    def close(self) -> None:
        self._socket.close()
