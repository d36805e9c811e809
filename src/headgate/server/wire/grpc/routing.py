"""The route of a call: its method and terms, computed once for all calls with the same headers."""

from __future__ import annotations

from functools import partial

import msgspec

from headgate.server.wire.grpc import framing
from headgate.server.wire.grpc.calls import Methods, RpcError, StatusCode, StreamingMethod, UnaryMethod
from headgate.server.wire.http2.heads import Http2Head
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.messages import Headers
from headgate.web import problem


class Route(msgspec.Struct, frozen=True):
    """How to handle a call: one of `unary`, `streaming` and `refusal` is set."""

    path: bytes
    headers: Headers
    """For admission: those of the head."""
    metadata: Headers
    unary: UnaryMethod | None = None
    streaming: StreamingMethod | None = None
    refusal: tuple[bytes, bytes] | None = None
    """A header block and a body."""
    timeout: float | None = None
    """In seconds."""
    encoding: bytes = b"identity"
    unreadable: bytes | None = None
    """The answer to an unreadable message; None for an error."""


def route_of(methods: Methods, head: Http2Head) -> Route:
    route = partial(Route, head.path, head.headers, head.fields)
    values = dict(reversed(head.fields))  # the first of several counts
    kind = values.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/grpc" and not kind.startswith(b"application/grpc+"):
        return route(refusal=_refusal(415, "This port speaks gRPC: the content type must be application/grpc."))
    if head.method != b"POST":
        return route(refusal=_refusal(405, "gRPC calls must use POST.", (b"allow", b"POST")))
    seconds = None
    if (value := values.get(b"grpc-timeout")) is not None:
        seconds = framing.timeout(value)
        if seconds is None:
            text = "grpc-timeout must be up to 8 digits and one of H, M, S, m, u, n."
            return route(refusal=(framing.error_head(RpcError(StatusCode.INVALID_ARGUMENT, text)), b""))
    encoding = values.get(b"grpc-encoding", b"identity")
    unary = methods.unary.get(head.path)
    if unary is not None:
        unreadable = methods.unreadable.get(head.path)
        return route(unary=unary, timeout=seconds, encoding=encoding, unreadable=unreadable)
    streaming = methods.streaming.get(head.path)
    if streaming is not None:
        return route(streaming=streaming, timeout=seconds, encoding=encoding)
    text = f"There is no method {problem.shown(head.path.decode(errors='replace'))}."
    return route(refusal=(framing.error_head(RpcError(StatusCode.UNIMPLEMENTED, text)), b""))


def _refusal(status: int, detail: str, *more: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    body = problem.of_status(status, detail).encode()
    fields = (
        (b":status", b"%d" % status),
        (b"content-type", problem.CONTENT_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        *more,
    )
    return encode(fields), body
