"""What a new connection begins with: the places of a host name, and the certificates, both as they are now."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from asyncio import shield, wrap_future
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from headgate.locks import new_lock

_LOG = logging.getLogger("headgate.stores")
KEPT = 30.0
"""Seconds for which the places of a name that came too late are good."""

Place: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""As `socket.getaddrinfo` has it."""
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class Certificates:
    """The certificates for TLS with a server, in PEM files that may be replaced at any time.

    Args:
        ca: who is trusted to vouch for servers; by default the authorities of the system.
        cert: what this client shows, if it shows any.
        key: of `cert`, unless that has it.

    Raises:
        OSError: a file cannot be read, or is not what it should be (an `ssl.SSLError`).
        ValueError: the key is encrypted.
    """

    def __init__(self, ca: str | None, cert: str | None, key: str | None) -> None:
        self._ca, self._cert, self._key = ca, cert, key
        trusted = ca or ssl.get_default_verify_paths().cafile
        self._files = [Path(file) for file in (trusted, cert, key) if file]
        self._state = self._seen()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Files that have changed are read; while they are bad, the old ones.

        (One of them may be replaced a moment before the other.)
        """
        try:
            state = self._seen()
            if state != self._state:
                self._state = state
                self._context = self._read()
                _LOG.info("new connections to the store use the new certificates: %s", ", ".join(map(str, self._files)))
        except (OSError, ValueError) as error:
            _LOG.warning("new certificates for the store are not used, the old ones stay: %s", error)
        return self._context

    def _seen(self) -> _State:
        """Return what changes when a file does."""
        seen = [file.stat() for file in self._files]
        return tuple([(each.st_mtime_ns, each.st_size, each.st_ino) for each in seen])

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca)
        if self._cert:
            # Without a password here, one would be asked for on the terminal if the key is encrypted.
            context.load_cert_chain(self._cert, self._key, password="")
        return context


class Names:
    """Finds the places of host names, in threads: a name server may take longer than a caller has.

    What comes too late for one who asked is there for the next.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._searches: dict[tuple[str, int], _Search] = {}
        self._process = os.getpid()

    def places(self, host: str, port: int, give_up: float) -> Sequence[Place]:
        """Return the places of `host`, or raise OSError or ValueError; by `give_up` as `monotonic` tells time."""
        if found := _numeric(host, port):
            return found
        search = self._search(host, port)
        try:
            return search.found.result(max(0, give_up - monotonic()))
        except TimeoutError:
            if search.found.done():  # the name server's own
                raise
            search.is_late = True
            raise TimeoutError("the name of the host was not found in time") from None

    async def places_soon(self, host: str, port: int) -> Sequence[Place]:
        """Do the same for callers in an event loop, who set the time."""
        if found := _numeric(host, port):
            return found
        search = self._search(host, port)
        finding = wrap_future(search.found)
        finding.add_done_callback(lambda each: each.cancelled() or each.exception())  # perhaps nobody waits any more
        try:
            return await shield(finding)
        finally:
            search.is_late |= not search.found.done()

    def _search(self, host: str, port: int) -> _Search:
        """Return the search that is under way or came too late, or begin one."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has none of the threads
                self._process, self._searches = os.getpid(), {}
            search = self._searches.get((host, port))
            if search is None or search.is_over:
                search = self._searches[host, port] = _Search()
                threading.Thread(target=search.run, args=(host, port), name="headgate-names", daemon=True).start()
        return search


class _Search:
    """One look for the places of a name."""

    def __init__(self) -> None:
        self.found: Future[Sequence[Place]] = Future()
        self.is_late = False
        """Did somebody stop waiting for it?"""
        self._found_at = 0.0

    @property
    def is_over(self) -> bool:
        """Was it answered in time, or too long ago, or not at all? Then the next caller looks again."""
        if not self.found.done():
            return False
        return not self.is_late or self.found.exception() is not None or monotonic() - self._found_at > KEPT

    def run(self, host: str, port: int) -> None:
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as unknown:  # ValueError: a host that cannot be a name
            self.found.set_exception(unknown)
        else:
            self._found_at = monotonic()
            self.found.set_result(places)


def _numeric(host: str, port: int) -> Sequence[Place]:
    """Return the place of a host that is given by its number, for which nobody is asked."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        return []
