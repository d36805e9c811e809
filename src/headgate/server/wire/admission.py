"""Whether a request is let in at all, before anything is done for it: the seam for self-protection and caller keys.

Each connection takes a `Seat` when it opens. Its requests are admitted one by one, and released when they have been
answered, so that a gate knows what is in flight on a connection, and in all. Without a gate nothing of this is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headgate.server.wire.grpc.status import Code
from headgate.server.wire.messages import Fields, Headers, Peer


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """A request that is not let in, over HTTP and over gRPC."""

    status: int
    """Of HTTP, such as 503 or 401."""
    code: Code
    detail: str
    headers: Fields = ()
    """That go with it over HTTP, such as ``retry-after``."""
    trailers: Fields = ()
    """That go with it over gRPC, such as ``grpc-retry-pushback-ms``."""


class Seat(Protocol):
    """A connection, as a gate knows it."""

    def admit(self, path: bytes, headers: Headers) -> Refusal | None:
        """Let a request in, or say why not. What was let in is released later; what was refused is not.

        Over HTTP/2 `headers` begin with pseudo-headers, such as ``:path``.
        """
        ...

    def release(self) -> None:
        """Tell that a request that was let in is over: answered, or given up by its client."""
        ...

    def admit_stream(self, path: bytes, headers: Headers) -> Refusal | None:
        """Let in a call that lasts until its client ends it, or say why not; it is released by `release_stream`."""
        ...

    def release_stream(self) -> None:
        """Tell that a call that lasted is over."""
        ...

    def leave(self) -> None:
        """Tell that the connection is gone; all of its requests have been released."""
        ...


Charge: TypeAlias = Callable[[int, Peer], Refusal | None]
"""Told how many questions a request has beyond the first, and whose it is; answers why they are not let in."""


def free_of_charge(requests: int, peer: Peer) -> None:
    """Let in any number."""


class Gate(Protocol):
    """Who decides. One for each process; it is asked on the hot path, and never waits."""

    def sit(self, peer: Peer) -> Seat:
        """Return a seat for a new connection."""
        ...
