"""How a call ended, by the numbers of gRPC."""

from __future__ import annotations

from enum import IntEnum

from headgate.server.wire.messages import Fields


class Code(IntEnum):
    """The status of a call."""

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
    """What a method raises to end its call otherwise than with OK."""

    def __init__(self, code: Code, message: str, trailers: Fields = ()) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.trailers = trailers
        """Metadata that goes with it, such as ``grpc-retry-pushback-ms``."""
