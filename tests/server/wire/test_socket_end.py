"""Our end of a socket, with a client at the other: what is read, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from headgate.server.wire.limits import WireLimits
from headgate.server.wire.socket_end import SocketEnd
from tests.server.wire.serving import PATIENCE

LIMITS = WireLimits(write_time=10.0)
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Reader(asyncio.Protocol):
    """Notes what arrives, and the end."""

    def __init__(self) -> None:
        self.data = b""
        self._more = asyncio.Event()
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._more.set()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  that it is lost is enough
        self.lost.set_result(None)

    async def read(self, data: bytes) -> None:
        """Wait until this has arrived, in all."""
        async with asyncio.timeout(PATIENCE):
            while self.data != data:
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketEnd, Reader, socket.socket]]:
    """Return our end, what it has read, and the client."""
    ours, client = socket.socketpair()
    client.settimeout(PATIENCE)
    transport, reader = await asyncio.get_running_loop().create_connection(Reader, sock=ours)
    end = SocketEnd()
    end.transport = transport
    with client:
        try:
            yield end, reader, client
        finally:
            end.abort()
            await asyncio.wait_for(reader.lost, PATIENCE)


def run(new_loop: NewLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


@LOOPS
def test_nothing_is_read_while_it_is_held(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with connected() as (end, reader, client):
            client.sendall(b"one")
            await reader.read(b"one")
            for _ in range(2):
                end.pause()
            client.sendall(b"two")
            for _ in range(3):
                await asyncio.sleep(0)
            assert (end.is_paused, end.has_unread, reader.data) == (True, True, b"one")
            for _ in range(2):
                end.resume()
            await reader.read(b"onetwo")
            assert (end.is_paused, end.has_unread) == (False, False)

    run(new_loop, work)


@LOOPS
def test_a_client_that_sends_no_more_is_closed_at_once(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with connected() as (end, reader, client):
            assert end.outlives_client
            assert not end.close(is_sending=False)
            assert (end.is_closing, end.outlives_client) == (True, False)
            await asyncio.wait_for(asyncio.shield(reader.lost), PATIENCE)
            assert client.recv(1) == b""

    run(new_loop, work)


@LOOPS
def test_a_client_that_still_sends_is_told_the_end_and_read_on(new_loop: NewLoop) -> None:
    async def work() -> None:
        async with connected() as (end, reader, client):
            assert end.close(is_sending=True)
            assert end.is_closing
            assert await asyncio.to_thread(client.recv, 1) == b""
            client.sendall(b"late")
            await reader.read(b"late")
            client.shutdown(socket.SHUT_WR)
            await asyncio.wait_for(asyncio.shield(reader.lost), PATIENCE)

    run(new_loop, work)


@pytest.mark.parametrize(
    ("is_closing", "is_blocked", "is_unsent", "patience"),
    [
        (True, False, False, 2.0),
        (True, False, True, 10.0),
        (True, True, False, 2.0),
        (False, True, True, 10.0),
        (False, False, True, None),
    ],
)
@LOOPS
def test_it_ends_when_the_client_takes_too_long(
    new_loop: NewLoop, *, is_closing: bool, is_blocked: bool, is_unsent: bool, patience: float | None
) -> None:
    async def work() -> None:
        async with connected() as (end, _, _client):
            transport = end.transport
            assert transport is not None
            if is_unsent:
                transport.write(bytes(10_000_000))
            assert (end.unsent > 0) is is_unsent
            end.is_closing = is_closing

            def look(now: float) -> bool:
                return end.look(now, LIMITS, is_blocked=is_blocked)

            is_one = patience is not None
            longest = 1000.0 if patience is None else patience
            assert (look(5.0), look(5.0 + longest), transport.is_closing()) == (is_one, is_one, False)
            assert (look(5.1 + longest), transport.is_closing()) == (is_one, is_one)

    run(new_loop, work)


def test_without_a_connection_nothing_happens() -> None:
    end = SocketEnd()
    end.pause()
    end.resume()
    end.abort()
    assert not end.close(is_sending=True)
    assert (end.is_paused, end.is_closing, end.unsent, end.has_unread, end.outlives_client) == (
        False,
        False,
        0,
        False,
        False,
    )
