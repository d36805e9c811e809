"""Blocking connections to one server: one for each call in progress, kept for the next."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from queue import Empty, SimpleQueue
from struct import pack
from time import monotonic

import hiredis

from headgate.clock import Clock
from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from headgate.flows import drive
from headgate.stores.redis import protocol, script
from headgate.stores.redis.address import Address
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.script import Query

CONNECTIONS = 16
_FRESH = 0.001
"""Seconds for which a connection is assumed to be alive after a reply."""


class BlockingConnection:
    """A connection for one call at a time; its first failure closes it.

    It begins with the commands of `greeting`, by default those of a connection for limits. Connecting and greeting take
    `patience` seconds at most, by default as in the address.
    """

    def __init__(
        self, address: Address, greeting: Sequence[bytes] | None = None, patience: float | None = None
    ) -> None:
        self.address = address
        self._reader = hiredis.Reader()
        self._used_at = 0.0
        give_up = monotonic() + (address.connect_timeout if patience is None else patience)
        self._socket = self._connect(give_up)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._greet(protocol.greeting(address, script.LOAD) if greeting is None else greeting, give_up)
        except BaseException:
            self.close()
            raise

    def _connect(self, give_up: float) -> socket.socket:
        address = self.address
        error: Exception | None = None
        try:
            if address.path:
                addresses = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.path)]
            else:
                addresses = address.names.addresses(address.host, address.port, give_up)  # type: ignore[assignment]
        except (OSError, ValueError) as unknown:  # ValueError: an invalid host name
            raise protocol.connection_failure(address, unknown) from None
        for family, kind, number, _, target in addresses:
            connected = socket.socket(family, kind, number)
            try:
                connected.settimeout(max(0.001, give_up - monotonic()))
                connected.connect(target)
                return self._prepare(connected)
            except OSError as failure:
                connected.close()
                error = failure
            except BaseException:
                connected.close()
                raise
        raise protocol.connection_failure(address, error or OSError("no address"))

    def _prepare(self, connected: socket.socket) -> socket.socket:
        address = self.address
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not address.path:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            return address.tls.context().wrap_socket(connected, server_hostname=address.host)
        # poll waits for replies: it is faster than a socket with a timeout, and as exact.
        seconds = max(address.timeout, address.connect_timeout)
        connected.settimeout(None)
        connected.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        )
        return connected

    def _greet(self, greeting: Sequence[bytes], give_up: float) -> None:
        for command in greeting:
            try:
                reply = self.converse([command], give_up)
            except OutcomeUnknown as lost:
                raise StoreUnavailable(str(lost)) from None
            if error := protocol.objection(self.address, command, reply):
                raise error

    def converse(self, commands: list[bytes], give_up: float) -> object:
        """Send `commands`, and return the reply to the last one; an error reply is returned, not raised."""
        if give_up <= monotonic():
            raise StoreUnavailable(f"{self.address}: not reached in time")
        try:
            self._send(b"".join(commands), give_up)
            for _ in commands:
                reply = self._next(give_up)
        except (TimeoutError, BlockingIOError):  # BlockingIOError: it could not be sent in time
            self.close()
            raise OutcomeUnknown(f"{self.address}: no response in time") from None
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise protocol.connection_loss(self.address, error) from None
        except BaseException:  # interrupted: the next call would read this reply
            self.close()
            raise
        self._used_at = monotonic()
        return reply

    def is_replicated(self, replicas: int, give_up: float) -> bool:
        """Return whether this many replicas have the writes of this connection, after half of the time left at most.

        A failure loses only this answer and the connection: earlier writes stay.
        """
        seconds, pause, reminders, enough = max(0, give_up - monotonic()) / 2, protocol.REMIND_AFTER, 0, False
        remind_at = monotonic() + seconds + pause
        try:
            self._send(protocol.replication(replicas, seconds), give_up)
            while True:
                try:
                    reply = self._next(min(give_up, remind_at))
                    break
                except TimeoutError:
                    if monotonic() >= give_up:
                        raise
                    self._send(protocol.REMINDER, give_up)
                    reminders, pause, remind_at = reminders + 1, pause * 2, monotonic() + pause
            enough = protocol.is_replicated(replicas, reply)
            for _ in range(reminders):
                self._next(give_up)
        except (OSError, hiredis.ProtocolError):
            self.close()
        except BaseException:
            self.close()
            raise
        self._used_at = monotonic()
        return enough

    def _send(self, data: bytes, give_up: float) -> None:
        if self.address.tls:
            self._socket.settimeout(_left(give_up))
        self._socket.sendall(data)

    def _next(self, give_up: float) -> object:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._receive(_left(give_up)))
        return reply

    def _receive(self, left: float) -> bytes:
        if self.address.tls:
            self._socket.settimeout(left)
        elif not self._poll.poll(ceil(left * 1000)):
            raise TimeoutError
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed by the server")
        return data

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing has arrived since the last reply: a connection that the server closed is readable."""
        if self._reader.has_data():
            return False
        return 0 <= now - self._used_at < _FRESH or not self._poll.poll(0)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()


def _left(give_up: float) -> float:
    left = give_up - monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def send_to(address: Address, command: bytes, seconds: float) -> object:
    """Send one command on a connection of its own; returns the reply, or the exception."""
    give_up = monotonic() + seconds
    try:
        connection = BlockingConnection(address, protocol.login(address), seconds)
        try:
            reply = connection.converse([command], give_up)
        finally:
            connection.close()
    except StoreError as error:
        return error
    return protocol.refusal(address, reply) if isinstance(reply, Exception) else reply


class Pool:
    """The connections to the server at an address, or to that which the sentinels name for each new connection.

    With a clock, the script decides at its time instead of the server's.
    """

    def __init__(self, address: Address, clock: Clock | None, sentinels: Sentinels | None = None) -> None:
        self._address, self._clock, self._sentinels = address, clock, sentinels
        self._replicas = address.replicas  # the most that any call required
        self._idle: list[BlockingConnection] = []
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

    def run(self, query: Query, give_up: float = 0, *, asking: bool = False) -> Decision:
        """Return the answer to a query, after the command ASKING if the slot is moving to the server.

        The deadline is `give_up` by `monotonic`, by default as in the address, extended by the time to connect.
        """
        with self._connection(give_up) as (connection, until):
            reply, replicated = self._converse(connection, query, until, asking=asking)
            if isinstance(reply, Exception) and str(reply).partition(" ")[0] in protocol.MISLED:
                connection.close()
                self.close()
                if self._sentinels:
                    self._sentinels.doubt(connection.address)
        if isinstance(reply, Exception):
            raise protocol.refusal(connection.address, reply)
        answer = script.decisions(reply, [query], connection.address)[0]
        if isinstance(answer, StoreError):
            raise answer
        return answer if replicated else script.mark_unconfirmed(answer)

    def ready(self) -> None:
        """Raise StoreError unless the server could decide."""
        self.run(script.query(script.probe()))
        self.vet()

    def vet(self) -> None:
        with self._connection() as (connection, until):
            for command in protocol.vetting(self._address, self._replicas):
                reply = connection.converse([command], until)
                if error := protocol.objection(self._address, command, reply, strict=True):
                    raise error

    @contextmanager
    def _connection(self, give_up: float = 0) -> Iterator[tuple[BlockingConnection, float]]:
        """Lend a connection for the length of a with block, and return the deadline of the call with it."""
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
                give_up += monotonic() - began  # connecting has its own timeout
            try:
                yield connection, give_up
            finally:
                if not connection.is_closed:
                    idle.append(connection)
                    if idle is not self._idle:  # the pool was closed meanwhile
                        connection.close()
        finally:
            free.put(None)

    def _converse(
        self, connection: BlockingConnection, query: Query, give_up: float, *, asking: bool
    ) -> tuple[object, bool]:
        commands = [protocol.ASKING] if asking else []
        reply: object = None
        for attempt in range(protocol.RELOADS + 1):  # a missing script has done nothing: load it and repeat
            evaluation = script.evaluation([query], self._clock.now() if self._clock else None)
            load = [script.LOAD] if attempt else []
            reply = connection.converse([*load, *commands, evaluation], give_up)
            if not protocol.is_forgotten(reply):
                break
        replicas = max(self._address.replicas, query.replicas)
        if not replicas or isinstance(reply, Exception):
            return reply, True
        self._replicas = max(self._replicas, replicas)
        return reply, connection.is_replicated(replicas, give_up)

    def _idle_connection(self, now: float) -> BlockingConnection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_quiet(now):
                return connection
            connection.close()

    def _new_connection(self, now: float) -> BlockingConnection:
        """Connect, unless that has just failed."""
        if now < self._retry_at:
            raise StoreUnavailable(self._trouble)
        address = self._address
        try:
            if sentinels := self._sentinels:
                address = drive(sentinels.primary(), lambda step: send_to(*step, sentinels.patience))
            connection = BlockingConnection(address)
        except StoreError as error:
            if sentinels:
                sentinels.doubt(address)
            self._failures += 1
            self._retry_at, self._trouble = monotonic() + protocol.pause_after(self._failures), str(error)
            raise
        self._failures = 0
        return connection

    def close(self) -> None:
        """Close idle connections; those in use are closed after their calls."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
