"""Blocking connections to one server: one per call in progress, kept for the next."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from struct import pack
from time import monotonic

import hiredis

from headgate.clock import Clock
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.stores.redis import readiness, scripts, wire
from headgate.stores.redis.address import Address
from headgate.stores.redis.answers import Answer, Unconfirmed
from headgate.stores.redis.discovery import Inquiry, T

CONNECTIONS = 16
_A_MOMENT = 0.001
"""Seconds for which a connection that has just answered is taken to be alive."""


class Pool:
    """The connections to one server.

    Args:
        address: how to talk to it.
        clock: makes the script decide at this clock's time rather than at the server's, if given.
        locate: finds out where the server is, for each new connection; unless it is at `address`.
    """

    def __init__(self, address: Address, clock: Clock | None, locate: Callable[[], Address] | None = None) -> None:
        self._address, self._clock, self._locate = address, clock, locate
        self._idle: list[Connection] = []
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
                yet. The address tells, unless given.
            asking: whether the server is asked for what it does not own yet.
        """
        if self._process != os.getpid():
            self._begin()
        free, idle = self._free, self._idle
        now = monotonic()
        give_up = give_up or now + self._address.timeout
        if give_up <= now:
            raise StoreUnavailable(f"{self._address}: not reached in {self._address.timeout:g} s")
        try:
            free.get(timeout=give_up - now)
        except Empty:
            raise StoreUnavailable(f"{self._address}: all connections are in use") from None
        try:
            connection = self._idle_connection(now)
            if connection is None:
                began = monotonic()
                connection = Connection(self._locate() if self._locate else self._address)
                give_up += monotonic() - began  # to connect takes its own time
            reply, replicated = self._converse(connection, question, give_up, asking=asking)
            if isinstance(reply, Exception) and str(reply).partition(" ")[0] in wire.MISLED:
                connection.close()
                self.close()
            else:
                idle.append(connection)
                if idle is not self._idle:  # the pool was closed meanwhile
                    connection.close()
        finally:
            free.put(None)
        if isinstance(reply, Exception):
            raise wire.refusal(self._address, reply)
        answer = scripts.answers(reply, [question])[0]
        return answer if replicated else Unconfirmed(answer)

    def ready(self) -> None:
        """Raise StoreError unless the server answers."""
        self.ask(readiness.probe())

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
        if not self._address.replicas or isinstance(reply, Exception):
            return reply, True
        waited = connection.converse([wire.replication(self._address, (give_up - monotonic()) / 2)], give_up)
        return reply, wire.is_replicated(self._address, waited)

    def _idle_connection(self, now: float) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if now - connection.used_at < _A_MOMENT or connection.is_quiet():
                return connection
            connection.close()

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


class Connection:
    """One conversation at a time; broken for good by its first failure.

    Args:
        address: whom to connect to.
        greeting: what to say first, unless it is about limits.
        patience: seconds for all that; the address tells, unless given.
    """

    def __init__(
        self, address: Address, greeting: Sequence[bytes] | None = None, patience: float | None = None
    ) -> None:
        greeting = wire.greeting(address) if greeting is None else greeting
        patience = address.connect_timeout if patience is None else patience
        self._address = address
        self._reader = hiredis.Reader()
        give_up = monotonic() + patience
        self._socket = self._connected(max(0.001, patience))
        self.used_at = 0.0
        self._patience = 0.0  # what the socket has been told
        if not address.tls:
            self._socket.settimeout(None)  # the system keeps the time, which spares two calls of it for each question
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._greet(greeting, give_up)
        except BaseException:
            self.close()
            raise

    def _connected(self, patience: float) -> socket.socket:
        address = self._address
        try:
            if address.path:
                connected = socket.socket(socket.AF_UNIX)
            else:
                connected = socket.create_connection((address.host, address.port), patience)
            try:
                return self._prepared(connected, patience)
            except BaseException:
                connected.close()
                raise
        except (OSError, ValueError) as error:  # ValueError: a host that cannot be a name
            raise wire.unconnected(address, error) from None

    def _prepared(self, connected: socket.socket, patience: float) -> socket.socket:
        address = self._address
        if address.path:
            connected.settimeout(patience)
            connected.connect(address.path)
            return connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return address.tls.wrap_socket(connected, server_hostname=address.host) if address.tls else connected

    def _greet(self, greeting: Sequence[bytes], give_up: float) -> None:
        for command in greeting:
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
        except (TimeoutError, BlockingIOError):
            self.close()
            raise OutcomeUnknown(f"{self._address}: no answer in time") from None
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise wire.lost(self._address, error) from None
        except BaseException:  # interrupted in the middle: the reply would be taken for the next one's
            self.close()
            raise
        self.used_at = monotonic()
        return reply

    def _await(self, give_up: float) -> None:
        """Let what comes next on the socket take until `give_up`, however many pieces came before."""
        left = give_up - monotonic()
        if left <= 0:
            raise TimeoutError
        if not 0.9 * left <= self._patience <= left:  # what the socket was told last may be near enough
            self._patience = left
            if self._address.tls:
                self._socket.settimeout(left)
            else:
                seconds = pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

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
