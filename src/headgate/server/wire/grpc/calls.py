"""Methods of gRPC services, what they are called with, and how a call ends. Messages are bytes, encoded by services."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import msgspec

from headgate.server.wire.messages import NOBODY, Fields, Headers, Peer

_log = logging.getLogger(__name__)


class StatusCode(IntEnum):
    """The status of a call, by its number in gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """What a method raises to end its call with a status other than OK."""

    def __init__(self, code: StatusCode, message: str, trailers: Fields = ()) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.trailers = trailers
        """Metadata that goes with it, such as ``grpc-retry-pushback-ms``."""


def error_of(error: BaseException, path: bytes) -> RpcError:
    """Return what the client is told of an error that a method raised; an unexpected one is logged."""
    if isinstance(error, RpcError):
        return error
    _log.error("%s failed", path.decode(errors="replace"), exc_info=error)
    return RpcError(StatusCode.INTERNAL, "The call failed. The error is in the server's log.")


class UnaryCall(msgspec.Struct, gc=False):
    """A call with one message."""

    message: bytes
    metadata: Headers = []
    """All headers of the request except pseudo-headers."""
    peer: Peer = NOBODY
    timeout: float | None = None
    """Seconds that the caller waits, if it says so."""
    is_abandoned: bool = False
    """Whether the caller waits no more: it has cancelled the call, its time is up, or its connection is gone."""


class MessageStream(Protocol):
    """A call with any number of messages both ways. Iterating ends when the client has sent its last one."""

    metadata: Headers
    peer: Peer

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def send(self, message: bytes) -> None:
        """Send a message; returns when the client is ready for more."""
        ...


UnaryMethod: TypeAlias = Callable[[UnaryCall], bytes | Coroutine[Any, Any, bytes]]
"""Answers a call with a message, or raises RpcError: at once or, where it may have to wait, by a coroutine, which runs
without a task: see `wire.eager`."""
StreamingMethod: TypeAlias = Callable[[MessageStream], Coroutine[Any, Any, None]]
"""Serves a stream in a task of its own; it is cancelled when the client goes away, or its deadline passes."""


async def answer_of(method: UnaryMethod, call: UnaryCall) -> bytes:
    """Return the answer of a method, when it is there."""
    message = method(call)
    return message if isinstance(message, bytes) else await message


class Methods(msgspec.Struct, frozen=True):
    """Methods by path, such as ``b"/grpc.health.v1.Health/Check"``."""

    unary: dict[bytes, UnaryMethod] = {}
    streaming: dict[bytes, StreamingMethod] = {}
    unreadable: dict[bytes, bytes] = {}
    """The answer to a unary call whose message cannot be read because it is too long or compressed in an unknown way.
    The default is an error; but some callers take any error for consent."""

    def __or__(self, other: Methods) -> Methods:
        return Methods(self.unary | other.unary, self.streaming | other.streaming, self.unreadable | other.unreadable)
