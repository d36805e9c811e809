"""The addresses of a host name and the TLS certificates, both current for each new connection."""

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
"""Seconds for which addresses are valid that were found too late for their caller."""

AddressInfo: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
"""As returned by `socket.getaddrinfo`."""
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class Certificates:
    """The certificates for TLS with a server, in PEM files that may be replaced at any time.

    Raises OSError (such as `ssl.SSLError`) for an unreadable or invalid file, ValueError for an encrypted key.

    Args:
        ca: the authorities that servers need; default: those of the system.
        cert: the certificate of this client, if any.
        key: of `cert`, unless that contains it.
    """

    def __init__(self, ca: str | None, cert: str | None, key: str | None) -> None:
        self._ca, self._cert, self._key = ca, cert, key
        trusted = ca or ssl.get_default_verify_paths().cafile
        self._files = [Path(file) for file in (trusted, cert, key) if file]
        self._state = self._stat()
        self._context = self._read()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Changed files are read; while they are invalid, the old ones stay.

        (One of them may be replaced a moment before the other.)
        """
        try:
            state = self._stat()
            if state != self._state:
                self._state = state
                self._context = self._read()
                _LOG.info("new connections to the store use the new certificates: %s", ", ".join(map(str, self._files)))
        except (OSError, ValueError) as error:
            _LOG.warning(
                "the new certificates for the store cannot be used, so the previous ones stay in use: %s", error
            )
        return self._context

    def _stat(self) -> _State:
        """Return properties that change with the files."""
        seen = [file.stat() for file in self._files]
        return tuple([(each.st_mtime_ns, each.st_size, each.st_ino) for each in seen])

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca)
        if self._cert:
            # Without a password here, OpenSSL would ask for that of an encrypted key on the terminal.
            context.load_cert_chain(self._cert, self._key, password="")
        return context


class Names:
    """Resolves host names in threads, since a name server may be slower than a caller's deadline.

    An address that comes too late for one caller is there for the next.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._searches: dict[tuple[str, int], _Search] = {}
        self._process = os.getpid()

    def addresses(self, host: str, port: int, give_up: float) -> Sequence[AddressInfo]:
        """Return the addresses of `host`, by `give_up` in terms of `monotonic`. Raises OSError or ValueError."""
        if found := _numeric(host, port):
            return found
        search = self._search(host, port)
        try:
            return search.found.result(max(0, give_up - monotonic()))
        except TimeoutError:
            if search.found.done():  # the name server's own timeout
                raise
            search.is_late = True
            raise TimeoutError("the host name was not resolved in time") from None

    async def addresses_soon(self, host: str, port: int) -> Sequence[AddressInfo]:
        """Do the same for an event loop; the caller sets the deadline."""
        if found := _numeric(host, port):
            return found
        search = self._search(host, port)
        finding = wrap_future(search.found)
        finding.add_done_callback(lambda each: each.cancelled() or each.exception())  # the caller may have left
        try:
            return await shield(finding)
        finally:
            search.is_late |= not search.found.done()

    def _search(self, host: str, port: int) -> _Search:
        """Return the search in progress, or one that ended late; otherwise, begin one."""
        with self._lock:
            if self._process != os.getpid():  # a forked child has none of the threads
                self._process, self._searches = os.getpid(), {}
            search = self._searches.get((host, port))
            if search is None or search.is_over:
                search = self._searches[host, port] = _Search()
                threading.Thread(target=search.run, args=(host, port), name="headgate-names", daemon=True).start()
        return search


class _Search:
    def __init__(self) -> None:
        self.found: Future[Sequence[AddressInfo]] = Future()
        self.is_late = False
        """Whether a caller stopped waiting for it."""
        self._found_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the next caller must search again: this one ended in time, too long ago, or with an error."""
        if not self.found.done():
            return False
        return not self.is_late or self.found.exception() is not None or monotonic() - self._found_at > KEPT

    def run(self, host: str, port: int) -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as unknown:  # ValueError: an invalid host name
            self.found.set_exception(unknown)
        else:
            self._found_at = monotonic()
            self.found.set_result(addresses)


def _numeric(host: str, port: int) -> Sequence[AddressInfo]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        return []
