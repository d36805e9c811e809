"""Where the REST API is listened for: uvicorn on a socket, with bounds on what clients without a key may take.

uvicorn waits for the head of a request as long as it takes, and reads however much is sent; here both end. Of
connections that have shown no good key there are few, altogether and from one address, and they are not kept for long:
when another comes, the oldest makes room. So nobody without a key keeps operators out, who are the latest to come.
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
"""Seconds in which the head of a request has to be complete, from its first byte or from the connection's beginning."""
HEAD_BYTES = 65_536
"""The most bytes of a head."""
KEEP_ALIVE, KEEP_ALIVE_WITHOUT_KEY = 30, 5
"""Seconds for which a connection is kept without a request."""
MOST_WITHOUT_KEY, MOST_OF_ADDRESS = 100, 50
"""Connections that have shown no good key: altogether, and from one address."""
MOST_WITH_KEY = 200
"""The other connections."""
_PAUSE = 1.0
_LOG = logging.getLogger("headgate.admin")


class AdminListener:
    """The REST API on a socket, begun again should it fail: decisions do not depend on it, and nobody else would.

    Args:
        listening: where to answer.
        application: makes what answers.
        tls: certificate and key, as files; empty for none.
    """

    def __init__(self, listening: socket, application: Callable[[], Any], tls: tuple[str, str] = ("", "")) -> None:
        self._listening, self._application, self._tls = listening, application, tls
        self._ended = asyncio.Event()
        self._server: _Server | None = None

    async def run(self) -> None:
        """Answer until the end is told."""
        while not self._ended.is_set():
            try:
                self._server = _Server(self._config())
                await self._server.serve([self._listening.dup()])  # it closes what it gets
            except (Exception, SystemExit):  # noqa: BLE001  by the latter, uvicorn says that it cannot begin
                _LOG.exception("the admin plane has failed: it begins again in %g s", _PAUSE)
            else:
                if not self._ended.is_set():
                    _LOG.error("the admin plane has ended: it begins again in %g s", _PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await self._ended.wait()

    def end(self) -> None:
        """Let `run` come to its end: requests under way are answered first."""
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
            proxy_headers=False,  # whoever is on this machine could say to be anybody, and guess keys without end
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=5,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )


class _Server(uvicorn.Server):
    """A server beside others in one process: signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(HttpToolsProtocol):
    """A connection whose requests have to begin in time, with heads of a bounded size."""

    has_key = False
    """Whether a request on it had a good key."""
    address = ""
    used = 0.0
    """When it began, or had its last request with a key."""
    _is_in_head = True
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address, self.used = address_of(self.client), self.loop.time()
        self._patience = self.loop.call_later(HEAD_TIMEOUT, self._give_up)
        self.timeout_keep_alive = KEEP_ALIVE_WITHOUT_KEY
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hurry(is_on=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
            self._hurry(is_on=True)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(problem.of_status(431, f"The head of a request is at most {HEAD_BYTES} bytes long."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ADMITTED] = self._admit

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._hurry(is_on=False)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(problem.bad_request(msg))

    def _admit(self) -> None:
        """Take note that a request had a good key."""
        self.has_key, self.timeout_keep_alive = True, KEEP_ALIVE
        self.used = self.loop.time()
        self._make_room()

    def _make_room(self) -> None:
        """Close connections that there are too many of, like this one: of those without a request, the oldest."""
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

    def _hurry(self, *, is_on: bool) -> None:
        """Begin to wait for the end of a head, unless that has begun, or stop."""
        if is_on and self._patience is None:
            self._patience = self.loop.call_later(HEAD_TIMEOUT, self._give_up)
        elif not is_on and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self._refuse(problem.of_status(408, f"The head of a request has to arrive within {HEAD_TIMEOUT:g} s."))

    def _refuse(self, found: problem.ProblemDocument) -> None:
        """Answer, and close: what comes next on this connection cannot be told apart from what is refused."""
        body = found.encode()
        self.transport.write(
            f"HTTP/1.1 {found.status} {HTTPStatus(found.status).phrase}\r\ncontent-type: {problem.CONTENT_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()
