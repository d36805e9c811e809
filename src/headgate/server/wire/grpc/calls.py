"""The interface of gRPC services: methods, calls, and their statuses. Services encode the messages."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import msgspec

from headgate.server.wire.messages import NOBODY, Fields, Headers, Peer

_log = logging.getLogger(__name__)


class StatusCode(IntEnum):
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
    """Raised by a method to end its call with a status other than OK."""

    def __init__(self, code: StatusCode, message: str, trailers: Fields = ()) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.trailers = trailers
        """Trailing metadata, such as ``grpc-retry-pushback-ms``."""


DEADLINE_PASSED = RpcError(StatusCode.DEADLINE_EXCEEDED, "The deadline of the call has passed.")


def error_of(error: BaseException, path: bytes) -> RpcError:
    """Return the error for the client; an unexpected one is logged."""
    if isinstance(error, RpcError):
        return error
    _log.error("%s failed", path.decode(errors="replace"), exc_info=error)
    return RpcError(StatusCode.INTERNAL, "The call failed. The error is in the server's log.")


class UnaryCall(msgspec.Struct, gc=False):
    message: bytes
    metadata: Headers = []
    """All headers of the request except pseudo-headers."""
    peer: Peer = NOBODY
    timeout: float | None = None
    """Seconds that the caller waits, if it has a deadline."""
    is_abandoned: bool = False
    """Whether the caller no longer waits: it cancelled, its deadline passed, or its connection was lost."""


class MessageStream(Protocol):
    """A call with any number of messages in both directions. Iteration ends after the client's last message."""

    metadata: Headers
    peer: Peer

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def send(self, message: bytes) -> None:
        """Send a message; returns when the client can take more."""


UnaryMethod: TypeAlias = Callable[[UnaryCall], bytes | Coroutine[Any, Any, bytes]]
"""Answers a call with a message, or raises RpcError: at once or, if it may have to wait, by a coroutine, which runs
without a task: see `headgate.eager`."""
StreamingMethod: TypeAlias = Callable[[MessageStream], Coroutine[Any, Any, None]]
"""Serves a stream in its own task, which is cancelled when the client leaves or its deadline passes."""


async def answer_of(method: UnaryMethod, call: UnaryCall) -> bytes:
    message = method(call)
    return message if isinstance(message, bytes) else await message


class Methods(msgspec.Struct, frozen=True):
    """Methods by path, such as ``b"/grpc.health.v1.Health/Check"``."""

    unary: dict[bytes, UnaryMethod] = {}
    streaming: dict[bytes, StreamingMethod] = {}
    unreadable: dict[bytes, bytes] = {}
    """The answer to a unary call whose message is too long, or compressed in an unknown way. By default an error, which
    some callers treat as consent."""

    def __or__(self, other: Methods) -> Methods:
        return Methods(self.unary | other.unary, self.streaming | other.streaming, self.unreadable | other.unreadable)
