from __future__ import annotations

import pytest

from headgate.server.wire.grpc.calls import Methods, UnaryCall
from headgate.server.wire.grpc.routing import Routes
from headgate.server.wire.http2.heads import Http2Head, read_head


async def echo(call: UnaryCall) -> bytes:
    return call.message


METHODS = Methods({b"/t.T/Echo": echo})


def head(*, is_cached: bool, path: bytes = b"/t.T/Echo") -> Http2Head:
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"content-type", b"application/grpc")]
    return read_head(headers, is_cached=is_cached)


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_route_is_made_once_if_its_head_can_come_again(*, is_cached: bool) -> None:
    """What cannot would be remembered in vain, as much of it as a client likes to send."""
    routes, asked = Routes(METHODS), head(is_cached=is_cached)
    first = routes.of(asked)
    assert first.unary is echo
    assert (routes.of(asked) is first) == is_cached


def test_heads_that_differ_have_routes_that_differ_however_many_there_are() -> None:
    routes = Routes(METHODS)
    heads = [head(is_cached=True, path=b"/t.T/Echo" if number % 2 else b"/t.T/None") for number in range(200)]
    for _ in range(2):
        for number, each in enumerate(heads):
            route = routes.of(each)
            assert route.head is each
            assert (route.unary is echo) == bool(number % 2)
