"""Listening sockets: bound once, before any worker starts, and left without losing a client.

Each worker has a socket of its own for every port (SO_REUSEPORT), so that the kernel spreads connections evenly. They
are bound, and kept open, by the process that supervises the workers: connections that wait in the queue of a worker
that dies are served by the one that replaces it, not reset.

A listening socket that is closed resets whoever is in its queue. So one that is to be closed first refuses new
connections, what is in its queue is accepted, and then it is empty.

Each connection is an open file, so how many files a process may open bounds its connections (`room_for`).
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
"""For all that is not a connection of a client: ports, the store, rules, counters, the event loop."""
_ATTACH_FILTER = 26
_FILTER = (  # of the TCP header, byte 13: if SYN is set, drop the packet, else take it
    (0x30, 0, 0, 13),
    (0x45, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


@dataclass(frozen=True, slots=True)
class Port:
    """One port that is listened on, by a socket for each worker."""

    name: str
    """What is spoken there: "http" or "grpc"."""
    sockets: tuple[socket.socket, ...]

    @property
    def number(self) -> int:
        """The port, also where any free one was asked for."""
        return int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Close all its sockets."""
        for each in self.sockets:
            each.close()


def listen(name: str, host: str, port: int, count: int = 1) -> Port:
    """Bind `count` sockets to one port and listen. Raises UsageError, which says why that cannot be."""
    family, address = _resolved(name, host, port)
    try:
        first = _bound(family, address, shared=False)
        if count == 1:
            return Port(name, (_listening(first),))
        # Sockets that share a port would also share it with another service that does: the first one found that out.
        address = (address[0], first.getsockname()[1], *address[2:])
        first.close()
        sockets = [_bound(family, address, shared=True) for _ in range(count)]
        return Port(name, tuple(_listening(each) for each in sockets))
    except OSError as error:
        raise UsageError(_explained(error, name, host, port)) from None


def listen_at(name: str, paths: Sequence[str]) -> Port:
    """Listen on Unix sockets, one for each worker: whoever may enter their folder may connect. Raises UsageError."""
    port = Port(name, tuple(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in paths))
    for bound, path in zip(port.sockets, paths, strict=True):
        try:
            bound.bind(path)
        except OSError as error:  # it is there, or longer than the system allows
            port.close()
            raise UsageError(f"cannot listen at {path} for {name}: {error.strerror or error}") from None
        bound.setblocking(False)
        _listening(bound)
    return port


def examine(name: str, host: str, port: int) -> bool:
    """Find out whether a port could be listened on, without doing so. Raises UsageError, which says why it could not.

    Returns:
        Whether it is free now: another program may have it, such as the service whose settings are examined.
    """
    family, address = _resolved(name, host, port)
    try:
        _bound(family, address, shared=False).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise UsageError(_explained(error, name, host, port)) from None
    return True


def stop_accepting(listening: socket.socket) -> bool:
    """Take no new connections, but keep those that wait to be accepted.

    Clients that try to connect get no answer, and are refused when the socket is closed, or served by whoever listens
    on the port then. Where the system cannot do this (it is not Linux, or has no memory left for filters of users
    without privileges), new ones keep coming until it is closed. So they do on a Unix socket.

    Returns:
        Whether it takes no more of them.
    """
    if not sys.platform.startswith("linux") or listening.family == socket.AF_UNIX:
        return False
    code = ctypes.create_string_buffer(b"".join([pack("HBBI", *instruction) for instruction in _FILTER]))
    program = pack("HP", len(_FILTER), ctypes.addressof(code))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError as error:
        _LOG.debug("connections are taken until the port is closed, as no filter can be set: %s", error)
        return False
    return True


def stand_aside(listening: socket.socket) -> None:
    """Leave new connections to the other sockets of the port, as nobody serves this one; until it listens again.

    Those that wait in its queue are reset: they would wait for nothing.
    """
    with suppress(OSError):  # it does not listen, or the system cannot do this (it is not Linux)
        listening.shutdown(socket.SHUT_RDWR)


def room_for(connections: int) -> int:
    """Return for how many connections there is room, up to what is wanted.

    Many systems let a process open 1024 files unless it asks for more, which it may up to another limit. Beyond that,
    connections would be closed without a word; so fewer are accepted then, and the log says so.
    """
    wanted = connections + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has another limit beside the hard one
        raised = soft
    if raised >= wanted:
        return connections
    room = max(1, raised - _SPARE_FILES)
    _LOG.warning(
        "%d connections at most, not %d: this process may open %d files only (ulimit -n)", room, connections, raised
    )
    return room


def _resolved(name: str, host: str, port: int) -> tuple[int, tuple[str | int, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host!r} for {name}: {getattr(error, 'strerror', None) or error}") from None
    return found[0][0], cast("tuple[str | int, ...]", found[0][4])


def _bound(family: int, address: tuple[str | int, ...], *, shared: bool) -> socket.socket:
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


def _listening(bound: socket.socket) -> socket.socket:
    bound.listen(BACKLOG)
    return bound


def _explained(error: OSError, name: str, host: str, port: int) -> str:
    where = f"cannot listen on {host} port {port} for {name}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: another program does; stop it, or choose --{name}-port (0 takes any that is free)"
    if error.errno == errno.EACCES:
        return f"{where}: only the administrator may take ports below 1024; choose --{name}-port"
    return f"{where}: {error.strerror}"
