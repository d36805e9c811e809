"""Listening sockets: bound before any worker starts, and closed without losing a client.

Each worker has its own socket for every port (SO_REUSEPORT), so that the kernel distributes connections evenly. The
supervisor binds the sockets and keeps them open: connections in the queue of a worker that dies are served by its
replacement, not reset.

Closing a listening socket resets the connections in its queue. So a socket first refuses new connections, and is closed
once its queue is empty.

Each connection is an open file, so the limit of open files bounds the connections (`room_for`).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import pack
from typing import cast

from headgate.core.errors import UsageError

_LOG = logging.getLogger("headgate.server")
BACKLOG = 2048
"""Connections that may wait to be accepted; the system may allow fewer."""
_SPARE_FILES = 128
"""Files that are not client connections: ports, the store, rules, counters, the event loop."""
_ATTACH_FILTER = 26
_FILTER = (  # byte 13 of the TCP header: drop the packet if SYN is set
    (0x30, 0, 0, 13),
    (0x45, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


@dataclass(frozen=True, slots=True)
class Port:
    """A port, with one listening socket for each worker."""

    name: str
    """Its protocol: "http" or "grpc"."""
    sockets: tuple[socket.socket, ...]

    @property
    def number(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def listen(name: str, host: str, port: int, count: int = 1) -> Port:
    """Bind `count` sockets to one port and listen. Raises UsageError."""
    family, address = _resolve(name, host, port)
    try:
        first = _bind(family, address, shared=False)
        sockets = [first]
        if count > 1:
            # Sockets with SO_REUSEPORT could also share the port with another service; the first one would have failed.
            address = (address[0], first.getsockname()[1], *address[2:])
            first.close()
            sockets = [_bind(family, address, shared=True) for _ in range(count)]
        for each in sockets:
            each.listen(BACKLOG)
    except OSError as error:
        raise UsageError(_explain(error, name, host, port)) from None
    return Port(name, tuple(sockets))


def listen_at(name: str, paths: Sequence[str]) -> Port:
    """Listen on Unix sockets, one for each worker; access to their folder controls access. Raises UsageError."""
    port = Port(name, tuple(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in paths))
    for bound, path in zip(port.sockets, paths, strict=True):
        try:
            bound.bind(path)
        except OSError as error:  # it exists, or its path is too long for the system
            port.close()
            raise UsageError(f"cannot listen on {path} for {name}: {error.strerror or error}") from None
        bound.setblocking(False)
        bound.listen(BACKLOG)
    return port


def examine(name: str, host: str, port: int) -> bool:
    """Return whether a port is free, without listening on it. Raises UsageError if it can never be listened on."""
    family, address = _resolve(name, host, port)
    try:
        _bind(family, address, shared=False).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise UsageError(_explain(error, name, host, port)) from None
    return True


def stop_accepting(listening: socket.socket) -> bool:
    """Refuse new connections, but keep those in the queue. Returns whether that is possible.

    A client that tries to connect gets no reply, until the socket is closed or another one listens on the port. It is
    not possible on a Unix socket, on systems other than Linux, or without memory for filters of unprivileged users:
    then connections keep coming until the socket is closed.
    """
    if not sys.platform.startswith("linux") or listening.family == socket.AF_UNIX:
        return False
    code = ctypes.create_string_buffer(b"".join([pack("HBBI", *instruction) for instruction in _FILTER]))
    program = pack("HP", len(_FILTER), ctypes.addressof(code))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError as error:
        _LOG.debug("no filter can be set, so the port accepts connections until it is closed: %s", error)
        return False
    return True


def stop_listening(listening: socket.socket) -> None:
    """Leave new connections to the port's other sockets until this one, which no worker serves, listens again.

    The connections in its queue are reset instead of waiting in vain.
    """
    with suppress(OSError):  # it does not listen, or the system is not Linux
        listening.shutdown(socket.SHUT_RDWR)


def room_for(connections: int) -> int:
    """Return how many connections, up to `connections`, the limit of open files leaves room for; raises it if needed.

    Beyond that limit the system would close connections without a reply, so fewer are accepted, with a warning.
    """
    wanted = connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has a further limit
        raised = soft
    if raised >= wanted:
        return connections
    room = max(1, raised - _SPARE_FILES)
    _LOG.warning(
        "accepting at most %d connections instead of %d: this process can open only %d files (ulimit -n)",
        room,
        connections,
        raised,
    )
    return room


def _resolve(name: str, host: str, port: int) -> tuple[int, tuple[str | int, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host!r} for {name}: {getattr(error, 'strerror', None) or error}") from None
    return found[0][0], cast("tuple[str | int, ...]", found[0][4])


def _bind(family: int, address: tuple[str | int, ...], *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _explain(error: OSError, name: str, host: str, port: int) -> str:
    where = f"cannot listen on {host} port {port} for {name}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another program listens on it; stop that, or choose --{name}-port (0 takes any free port)"
    if error.errno == errno.EACCES:
        return f"{where}: only the administrator may use ports below 1024; choose --{name}-port"
    return f"{where}: {error.strerror}"
