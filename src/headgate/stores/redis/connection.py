"""One blocking connection to a server."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from math import ceil
from struct import pack
from time import monotonic

import hiredis

from headgate.core.errors import OutcomeUnknown, StoreUnavailable
from headgate.stores.redis import wire
from headgate.stores.redis.address import Address

_A_MOMENT = 0.001
"""Seconds for which a connection that has just answered is taken to be alive."""


class Connection:
    """One conversation at a time; broken for good by its first failure.

    Args:
        address: whom to connect to.
        greeting: what to say first, unless it is about limits.
        patience: seconds for all that; default: what the address says.
    """

    def __init__(
        self, address: Address, greeting: Sequence[bytes] | None = None, patience: float | None = None
    ) -> None:
        self.address = address
        self._reader = hiredis.Reader()
        self._used_at = 0.0
        give_up = monotonic() + (address.connect_timeout if patience is None else patience)
        self._socket = self._connected(give_up)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._greet(wire.greeting(address) if greeting is None else greeting, give_up)
        except BaseException:
            self.close()
            raise

    def _connected(self, give_up: float) -> socket.socket:
        address = self.address
        error: Exception | None = None
        try:
            if address.path:
                places = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.path)]
            else:
                places = address.names.places(address.host, address.port, give_up)  # type: ignore[assignment]
        except (OSError, ValueError) as unknown:  # ValueError: a host that cannot be a name
            raise wire.unconnected(address, unknown) from None
        for family, kind, protocol, _, place in places:
            connected = socket.socket(family, kind, protocol)
            try:
                connected.settimeout(max(0.001, give_up - monotonic()))
                connected.connect(place)
                return self._prepared(connected)
            except OSError as failure:
                connected.close()
                error = failure
            except BaseException:
                connected.close()
                raise
        raise wire.unconnected(address, error or OSError("no address"))

    def _prepared(self, connected: socket.socket) -> socket.socket:
        address = self.address
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not address.path:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            return address.tls.context().wrap_socket(connected, server_hostname=address.host)
        # Replies are waited for by poll, which is quicker than a socket with a time limit, and as exact.
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
            if error := wire.objection(self.address, command, reply):
                raise error

    def converse(self, commands: list[bytes], give_up: float) -> object:
        """Send `commands`, and return the reply to the last of them; an error reply is returned, not raised."""
        if give_up <= monotonic():
            raise StoreUnavailable(f"{self.address}: not reached in time")
        try:
            self._send(b"".join(commands), give_up)
            for _ in commands:
                reply = self._next(give_up)
        except (TimeoutError, BlockingIOError):  # the latter: it could not be sent in time
            self.close()
            raise OutcomeUnknown(f"{self.address}: no answer in time") from None
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise wire.lost(self.address, error) from None
        except BaseException:  # interrupted in the middle: the reply would be taken for the next one's
            self.close()
            raise
        self._used_at = monotonic()
        return reply

    def is_replicated(self, replicas: int, give_up: float) -> bool:
        """Wait until so many replicas have what was written here, for half of the time left; say whether they have.

        What is lost meanwhile is this answer only, and the connection with it: what was written before is written.
        """
        seconds, pause, reminders, enough = max(0, give_up - monotonic()) / 2, wire.REMIND_AFTER, 0, False
        remind_at = monotonic() + seconds + pause
        try:
            self._send(wire.replication(replicas, seconds), give_up)
            while True:
                try:
                    reply = self._next(min(give_up, remind_at))
                    break
                except TimeoutError:
                    if monotonic() >= give_up:
                        raise
                    self._send(wire.REMINDER, give_up)
                    reminders, pause, remind_at = reminders + 1, pause * 2, monotonic() + pause
            enough = wire.is_replicated(replicas, reply)
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
            self._reader.feed(self._received(_left(give_up)))
        return reply

    def _received(self, left: float) -> bytes:
        if self.address.tls:
            self._socket.settimeout(left)
        elif not self._poll.poll(ceil(left * 1000)):
            raise TimeoutError
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionResetError("closed by the server")
        return data

    def is_quiet(self, now: float) -> bool:
        """Is the connection as it was left? The server may have closed it meanwhile, and then it is readable."""
        if self._reader.has_data():
            return False
        return 0 <= now - self._used_at < _A_MOMENT or not self._poll.poll(0)

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
