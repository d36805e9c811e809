"""Whether a request is admitted, before anything is done for it: the seam for self-protection and caller keys.

Each connection has an `Admission`. Its requests are admitted one by one. Most are answered at once; those that have to
wait are held until they have been answered, so that whoever decides knows what is in flight on a connection, and in
all. Without an admission, every request is admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headgate.server.wire.grpc.calls import RpcError, StatusCode
from headgate.server.wire.messages import Fields, Headers, HttpResponse, Peer


class NotAdmitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that is not admitted, over HTTP and over gRPC."""

    status: int
    """Of HTTP, such as 503 or 401."""
    code: StatusCode
    detail: str
    headers: Fields = ()
    """That go with it over HTTP, such as ``retry-after``."""
    trailers: Fields = ()
    """That go with it over gRPC, such as ``grpc-retry-pushback-ms``."""

    def response(self) -> HttpResponse:
        """Return it as a response."""
        return HttpResponse.of_problem(self.status, self.detail, self.headers)

    def error(self) -> RpcError:
        """Return it as the end of a call."""
        return RpcError(self.code, self.detail, self.trailers)


class Admission(Protocol):
    """Decides about the requests of one connection. It is asked on the hot path, and never waits."""

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit a request, or say why not.

        Over HTTP/2 `headers` begin with pseudo-headers, such as ``:path``.
        """
        ...

    def hold(self) -> None:
        """Note that an admitted request has to wait: it is in flight until it is released."""
        ...

    def release(self) -> None:
        """Note that a request that was held is over: answered, or given up by its client."""
        ...

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit a call that lasts until its client ends it, or say why not; it is released by `release_stream`."""
        ...

    def release_stream(self) -> None:
        """Note that a call that lasted is over."""
        ...


Admit: TypeAlias = Callable[[Peer], Admission]
"""Returns the admission of a new connection."""
AdmitMore: TypeAlias = Callable[[int, Peer], NotAdmitted | None]
"""Takes how many questions a request has beyond the first, and whose it is; returns why they are not admitted."""


def admit_any(requests: int, peer: Peer) -> None:
    """Admit any number."""
