"""The interface of admission, for self-protection and caller keys: it comes before any work on a request.

Each connection has an `Admission`, which admits its requests one by one. Most are answered at once; those that must
wait are held until they are answered, so that the requests in flight are known for each connection and in total.
Without an admission, every request is admitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from headgate.server.wire.grpc.calls import RpcError, StatusCode
from headgate.server.wire.messages import Fields, Headers, HttpResponse, Peer


class NotAdmitted(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request that is not admitted, over HTTP or gRPC."""

    status: int
    """The HTTP status, such as 503 or 401."""
    code: StatusCode
    detail: str
    headers: Fields = ()
    """Further HTTP headers, such as ``retry-after``."""
    trailers: Fields = ()
    """Further gRPC trailers, such as ``grpc-retry-pushback-ms``."""

    def response(self) -> HttpResponse:
        return HttpResponse.of_problem(self.status, self.detail, self.headers)

    def error(self) -> RpcError:
        return RpcError(self.code, self.detail, self.trailers)


class Admission(Protocol):
    """Admits the requests of one connection. It is on the hot path, and never waits."""

    def admit(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit a request, or return a refusal. Over HTTP/2 `headers` begin with pseudo-headers, such as ``:path``."""

    def hold(self) -> None:
        """Count an admitted request that has to wait as in flight."""

    def release(self) -> None:
        """Count it no more: it was answered, or abandoned by its client."""

    def admit_stream(self, path: bytes, headers: Headers) -> NotAdmitted | None:
        """Admit a call that lasts until its client ends it, or return a refusal; `release_stream` ends it."""

    def release_stream(self) -> None: ...


Admit: TypeAlias = Callable[[Peer], Admission]
"""Returns the admission of a new connection."""
AdmitMore: TypeAlias = Callable[[int, Peer], NotAdmitted | None]
"""Takes the number of further checks in a request, and its peer; returns why they are not admitted."""


def admit_any(requests: int, peer: Peer) -> None:
    """Admit any number."""
