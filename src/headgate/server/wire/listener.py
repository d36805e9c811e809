"""The ports of a process: they accept connections, and close without losing a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from headgate.server.wire.admission import Admit
from headgate.server.wire.grpc.calls import Methods
from headgate.server.wire.grpc.service import GrpcService
from headgate.server.wire.http1.protocol import Http1Protocol
from headgate.server.wire.http2.protocol import Http2Protocol
from headgate.server.wire.http2.requests import HttpService
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import Handler, HttpRequest, HttpResponse
from headgate.server.wire.registry import ConnectionRegistry
from headgate.server.wire.socket_end import FirstBytes
from headgate.server.wire.tls import Tls

_BACKLOG = 2048
_IN_TRANSIT = 0.1
"""Seconds for requests in transit, which clients sent before they noticed the shutdown."""
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds of silence before a client is probed, seconds between probes, and how many may go unanswered."""


class Listener:
    """Serves HTTP and gRPC on any number of ports. There is one per process, for the running event loop.

    `limits` are for all connections together; without `admit`, all requests are admitted.
    """

    def __init__(self, limits: WireLimits = DEFAULT, admit: Admit | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._registry = ConnectionRegistry(limits, admit, self._loop)
        self._servers: list[asyncio.Server] = []
        self._factories: dict[socket.socket, tuple[Callable[[], FirstBytes], dict[str, Any]]] = {}
        """The connection factory and the TLS options of each port."""
        self._late: set[asyncio.Task[None]] = set()
        """Connections accepted while the port closes."""

    @property
    def connections(self) -> int:
        return len(self._registry.connections)

    async def serve_http(
        self,
        handler: Handler,
        bound: socket.socket,
        tls: Tls | None = None,
        statuses: Mapping[bytes, int] = MappingProxyType({}),
    ) -> None:
        """Serve HTTP/1.1, and HTTP/2 to clients that start with it or negotiate it by ALPN.

        The listening socket is closed with this listener. `statuses` replace those of malformed HTTP/1.1 requests
        (400, 431 and others), by path.
        """
        registry = self._registry
        await self._serve(
            lambda: Http1Protocol(registry, handler, statuses=statuses),
            lambda: Http2Protocol(registry, lambda connection: HttpService(connection, handler, registry.date)),
            bound,
            tls,
        )

    async def serve_grpc(self, methods: Methods, bound: socket.socket, tls: Tls | None = None) -> None:
        """Serve gRPC over HTTP/2 on a listening socket."""
        registry, limits = self._registry, replace(self._registry.limits, free_resets=True)
        await self._serve(
            lambda: Http1Protocol(registry, _only_http2, is_single=True),
            lambda: Http2Protocol(registry, lambda connection: GrpcService(connection, methods), limits),
            bound,
            tls,
        )

    async def drain(self, grace: float) -> bool:
        """Accept no more connections, finish the requests in progress, and close, within `grace` seconds.

        Returns whether all requests were answered.
        """
        registry = self._registry
        registry.is_draining = True
        self._stop_listening()
        for bound in self._factories:
            self._accept_queued(bound)
        self._close_ports()
        for connection in list(registry.connections):
            connection.drain()
        end = self._loop.time() + grace
        await asyncio.sleep(min(_IN_TRANSIT, grace))
        while (registry.connections or self._late) and self._loop.time() < end:
            for connection in list(registry.connections):
                connection.finish_draining()
            await asyncio.sleep(min(0.02, grace))
        was_clean = not registry.connections and not self._late
        await self.close()
        return was_clean

    async def close(self) -> None:
        self._registry.is_draining = True
        self._stop_listening()
        self._close_ports()
        for task in self._late:
            task.cancel()
        self._registry.close()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        while self._registry.connections:  # noqa: ASYNC110  they close in a turn or two
            await asyncio.sleep(0)

    async def _serve(
        self,
        http1: Callable[[], asyncio.Protocol],
        http2: Callable[[], asyncio.Protocol],
        bound: socket.socket,
        tls: Tls | None,
    ) -> None:
        bound.setblocking(False)
        _probe_silent_clients(bound)
        factory, options = partial(FirstBytes, self._registry, http1, http2), _tls_options(tls, self._registry.limits)
        self._servers.append(await self._loop.create_server(factory, sock=bound.dup(), backlog=_BACKLOG, **options))
        self._factories[bound] = factory, options

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()

    def _close_ports(self) -> None:
        """Close the sockets; connections in the queue of a port are reset."""
        for bound in self._factories:
            bound.close()

    def _accept_queued(self, bound: socket.socket) -> None:
        """Accept the connections in the queue of a port: to their clients they are established."""
        with suppress(OSError):  # until the queue is empty
            while True:
                accepted, _ = bound.accept()
                accepted.setblocking(False)
                task = self._loop.create_task(self._accept(bound, accepted))
                self._late.add(task)
                task.add_done_callback(self._late.discard)

    async def _accept(self, bound: socket.socket, accepted: socket.socket) -> None:
        factory, options = self._factories[bound]
        with suppress(OSError):  # the client has left, or does not speak TLS
            await self._loop.connect_accepted_socket(factory, accepted, **options)


def _tls_options(tls: Tls | None, limits: WireLimits) -> dict[str, Any]:
    """Return the TLS options of the event loop; a shutdown waits for the last response to be read."""
    if tls is None:
        return {}
    times = {"ssl_handshake_timeout": limits.header_time, "ssl_shutdown_timeout": limits.write_time}
    return {"ssl": tls.context, **times}


def _probe_silent_clients(bound: socket.socket) -> None:
    """Enable keepalive, inherited from the port by its connections: no other deadline ends a call that streams."""
    if bound.family == socket.AF_UNIX:  # the system reports the end at once
        return
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        if hasattr(socket, option):  # not every system has all of them
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def _only_http2(_: HttpRequest) -> HttpResponse:
    return HttpResponse.of_problem(505, "This port serves gRPC, which requires HTTP/2.")
