"""A call with any number of messages in both directions, served in a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headgate.server.wire.grpc import framing
from headgate.server.wire.grpc.calls import DEADLINE_PASSED, RpcError, StatusCode, error_of
from headgate.server.wire.grpc.routing import Route
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.http2.protocol import Http2Protocol


class StreamingCall:
    """Implements `MessageStream`.

    The client may send what fits into the window, and more as the method takes messages; the method waits while the
    client does not read.
    """

    def __init__(self, connection: Http2Protocol, number: int, route: Route, forget: Callable[[], None]) -> None:
        self.metadata, self.peer = route.metadata, connection.peer
        self._streams, self._connection = connection.streams, connection
        self._number, self._route, self._forget = number, route, forget
        self._messages = framing.MessageReader(connection.limits.message_bytes, route.encoding)
        self._acknowledged = 0
        """Bytes of the next message that are acknowledged, so that the client can send the rest of it."""
        self._ended = False
        self._error: RpcError | None = None
        """Ends the call, whatever the method does."""
        self._has_begun = False
        """Whether response headers were sent."""
        self._is_cancelled = False
        """Whether the client has left: nothing more is sent."""
        self._more, self._window, self._written = asyncio.Event(), asyncio.Event(), asyncio.Event()
        connection.streams.withhold(number)
        loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if route.timeout is not None:
            self._timer = loop.call_later(route.timeout, self.end, DEADLINE_PASSED)
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._finish)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        messages = self._messages
        while True:
            message = messages.take()
            if message is not None:
                self._acknowledge(framing.PREFIX + messages.size - self._acknowledged)
                self._acknowledged = 0
                yield message
                continue
            self._acknowledge(messages.pending - self._acknowledged)
            self._acknowledged = messages.pending
            if self._ended:
                if messages.pending:
                    raise RpcError(StatusCode.INTERNAL, "The call ended within a message.")
                return
            self._more.clear()
            await self._more.wait()

    async def send(self, message: bytes) -> None:
        """Send a message; returns when the client can take more."""
        streams = self._streams
        if not self._has_begun:
            self._has_begun = True
            streams.send_headers(self._number, framing.HEAD, end=False)
        before = streams.waiting
        streams.send_data(self._number, framing.framed(message), end=False)
        is_blocked = streams.waiting > before
        self._connection.flush_soon()
        if is_blocked:
            self._window.clear()
            await self._window.wait()
        await asyncio.sleep(0)  # lets others run, and the message be written
        while self._connection.is_blocked:
            self._written.clear()
            await self._written.wait()

    def receive(self, data: bytes, *, ended: bool) -> None:
        self._messages.receive(data)
        self._ended = self._ended or ended
        self._more.set()

    def widen(self) -> None:
        """Continue to send: the client's window has room again."""
        self._window.set()

    def resume(self) -> None:
        """Continue to send: the connection has room again."""
        self._written.set()

    def cancel(self) -> None:
        """Cancel the call: the client has left."""
        self._is_cancelled = True
        self._task.cancel()

    def end(self, error: RpcError) -> None:
        if self._error is None:
            self._error = error
            self._task.cancel()

    async def _run(self) -> None:
        method = self._route.streaming
        if method is not None:
            await method(self)

    def _acknowledge(self, size: int) -> None:
        if size:
            self._streams.acknowledge(self._number, size)
            self._connection.flush_soon()

    def _finish(self, task: asyncio.Task[None]) -> None:
        del self._task  # breaks a reference cycle through the frames of the canceller
        if self._timer is not None:
            self._timer.cancel()
        error = self._error
        if task.cancelled():
            error = error or RpcError(StatusCode.CANCELLED, "The call was cancelled.")
        elif (mistake := task.exception()) is not None:
            failure = error_of(mistake, self._route.path)
            error = error or failure
        if not self._is_cancelled:
            try:
                self._send_status(error)
            except ValueError as mistake:  # its trailers are invalid
                self._send_status(error_of(mistake, self._route.path))
            self._connection.flush_soon()
        self._forget()

    def _send_status(self, error: RpcError | None) -> None:
        trailers = framing.OK if error is None else encode(framing.status(error))
        if not self._has_begun and error is not None:
            self._streams.respond(self._number, framing.HEAD + trailers, b"")
            return
        if not self._has_begun:
            self._has_begun = True
            self._streams.send_headers(self._number, framing.HEAD, end=False)
        self._streams.send_headers(self._number, trailers, end=True)
