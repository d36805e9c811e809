"""What a method of a gRPC service is, and what it is called with. Messages are bytes here: services encode them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeAlias

import msgspec

from headgate.server.wire.messages import NOBODY, Headers, Peer


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call with one message."""

    message: bytes
    metadata: Headers = []
    """All headers of the request that are no pseudo-headers."""
    peer: Peer = NOBODY
    timeout: float | None = None
    """Seconds that the caller waits, if it says so."""


class Stream(Protocol):
    """A call with any number of messages both ways. Iterating ends when the client has sent its last one."""

    metadata: Headers
    peer: Peer

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def send(self, message: bytes) -> None:
        """Send a message; returns when the client is ready for more."""
        ...


Unary: TypeAlias = Callable[[Call], Coroutine[Any, Any, bytes]]
"""Answers a call with a message, or raises RpcError. It runs at once, without a task: see `wire.eager`."""
Streaming: TypeAlias = Callable[[Stream], Coroutine[Any, Any, None]]
"""Serves a stream in a task of its own; it is cancelled when the client goes away, or its deadline passes."""


class Methods(msgspec.Struct, frozen=True):
    """Methods by path, such as ``b"/grpc.health.v1.Health/Check"``."""

    unary: dict[bytes, Unary] = {}
    streaming: dict[bytes, Streaming] = {}
    unreadable: dict[bytes, bytes] = {}
    """What a unary call is answered whose message cannot be had: too long, compressed in an unknown way. By default,
    with an error; but a caller may take any error for consent."""

    def __or__(self, other: Methods) -> Methods:
        return Methods(self.unary | other.unary, self.streaming | other.streaming, self.unreadable | other.unreadable)
