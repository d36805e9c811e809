"""Our end of a socket: when it gives up a slow client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest
import uvloop

from headgate.server.wire.limits import WireLimits
from headgate.server.wire.socket_end import SocketEnd

LIMITS = WireLimits(write_time=10.0)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        for new_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(test(**arguments))

    return run


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketEnd, asyncio.Transport]]:
    ours, client = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    end = SocketEnd()
    end.transport = transport
    with client:
        yield end, transport
    end.abort()
    await asyncio.sleep(0)


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
@on_both_loops
async def test_it_ends_when_the_client_takes_too_long(
    *, is_closing: bool, is_blocked: bool, is_unsent: bool, patience: float | None
) -> None:
    async with connected() as (end, transport):
        if is_unsent:
            transport.write(bytes(10_000_000))
        assert (end.unsent > 0) is is_unsent
        end.is_closing = is_closing

        def look(now: float) -> bool:
            return end.enforce_timeouts(now, LIMITS, is_blocked=is_blocked)

        is_one = patience is not None
        longest = 1000.0 if patience is None else patience
        assert (look(5.0), look(5.0 + longest), transport.is_closing()) == (is_one, is_one, False)
        assert (look(5.1 + longest), transport.is_closing()) == (is_one, is_one)


def test_without_a_connection_nothing_happens() -> None:
    end = SocketEnd()
    end.pause()
    end.resume()
    end.abort()
    assert not end.close(is_sending=True)
    assert not any((end.is_paused, end.is_closing, end.unsent, end.has_unread, end.outlives_client))
