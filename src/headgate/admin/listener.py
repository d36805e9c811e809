"""The HTTP server of the admin plane: uvicorn, with limits on the time, bytes and connections of clients without a key.

uvicorn has no timeout and no size limit for the head of a request; both are added here. The number of connections that
have not sent a valid key is bounded, in total and for each address: a new one closes the oldest of them. So clients
without a key cannot keep operators out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from http import HTTPStatus
from socket import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.admin.security import ADMITTED, address_of
from headgate.web import problem

HEAD_TIMEOUT = 10.0
"""Seconds within which the head of a request must be complete, from its first byte or from the connection's start."""
HEAD_BYTES = 65_536
"""Maximum size of a head."""
KEEP_ALIVE, KEEP_ALIVE_WITHOUT_KEY = 30, 5
"""Seconds after which an idle connection is closed."""
MOST_WITHOUT_KEY, MOST_OF_ADDRESS, MOST_WITH_KEY = 100, 50, 200
"""Connections that have not sent a valid key, in total and from one address; and those that have."""
_PAUSE = 1.0
_LOG = logging.getLogger("headgate.admin")


class AdminListener:
    """Serves the admin plane on a socket, and restarts it if it fails; decisions continue meanwhile.

    `application` returns the ASGI application; `tls` are the files of the certificate and the key.
    """

    def __init__(self, listening: socket, application: Callable[[], Any], tls: tuple[str, str] = ("", "")) -> None:
        self._listening, self._application, self._tls = listening, application, tls
        self._ended = asyncio.Event()
        self._server: _Server | None = None

    async def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._server = _Server(self._config())
                await self._server.serve([self._listening.dup()])  # it closes what it gets
            except (Exception, SystemExit):  # noqa: BLE001  uvicorn exits if it cannot start
                _LOG.exception("the admin plane failed; it restarts in %g s", _PAUSE)
            else:
                if not self._ended.is_set():
                    _LOG.error("the admin plane stopped; it restarts in %g s", _PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await self._ended.wait()

    def end(self) -> None:
        """Stop `run`, after requests in progress."""
        self._ended.set()
        if self._server is not None:
            self._server.should_exit = True

    def _config(self) -> uvicorn.Config:
        certificate, key = self._tls
        return uvicorn.Config(
            self._application(),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # otherwise a local client could forge its address, and guess keys without limit
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=5,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )


class _Server(uvicorn.Server):
    """A server that leaves signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(HttpToolsProtocol):
    """A connection whose heads are bounded in time and size."""

    has_key = False
    """Whether one of its requests had a valid key."""
    address = ""
    used = 0.0
    """The time of its start, or of its last request with a key."""
    _is_in_head = True
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address, self.used = address_of(self.client), self.loop.time()
        self._start_timer()
        self.timeout_keep_alive = KEEP_ALIVE_WITHOUT_KEY
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
            self._start_timer()
        super().data_received(data)
        if self._is_in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(problem.of_status(431, f"The head of a request must have at most {HEAD_BYTES} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ADMITTED] = self._admit

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(problem.bad_request(msg))

    def _admit(self) -> None:
        self.has_key, self.timeout_keep_alive = True, KEEP_ALIVE
        self.used = self.loop.time()
        self._make_room()

    def _make_room(self) -> None:
        """Close the oldest connection, an idle one if possible, if there are too many of this one's kind."""
        alike = [each for each in self.connections if isinstance(each, _Connection) and each.has_key == self.has_key]
        near = [each for each in alike if each.address == self.address]
        bounds = [(alike, MOST_WITH_KEY)] if self.has_key else [(near, MOST_OF_ADDRESS), (alike, MOST_WITHOUT_KEY)]
        for some, most in bounds:
            if len(some) > most:
                gone = min([each for each in some if each is not self], key=lambda each: (each.is_busy, each.used))
                self.connections.discard(gone)
                gone.transport.abort()
                return

    @property
    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_TIMEOUT, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        if not self.transport.is_closing():
            self._refuse(problem.of_status(408, f"The head of a request must arrive within {HEAD_TIMEOUT:g} s."))

    def _refuse(self, found: problem.ProblemDocument) -> None:
        """Send a problem and close the connection: the end of the refused request is unknown."""
        body = found.encode()
        self.transport.write(
            f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}\r\ncontent-type: {problem.CONTENT_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()
