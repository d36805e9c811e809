from __future__ import annotations

import pytest

from headgate.server.wire.grpc.calls import Methods, UnaryCall
from headgate.server.wire.grpc.plans import Plans
from headgate.server.wire.http2.events import Head
from headgate.server.wire.http2.heads import read_head


async def echo(call: UnaryCall) -> bytes:
    return call.message


METHODS = Methods({b"/t.T/Echo": echo})


def head(*, is_kept: bool, path: bytes = b"/t.T/Echo") -> Head:
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"content-type", b"application/grpc")]
    return read_head(headers, is_kept=is_kept)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_plan_is_made_once_if_its_head_can_come_again(*, is_kept: bool) -> None:
    """What cannot would be remembered in vain, as much of it as a client likes to send."""
    plans, asked = Plans(METHODS), head(is_kept=is_kept)
    first = plans.of(asked)
    assert first.unary is echo
    assert (plans.of(asked) is first) == is_kept


def test_heads_that_differ_have_plans_that_differ_however_many_there_are() -> None:
    plans = Plans(METHODS)
    heads = [head(is_kept=True, path=b"/t.T/Echo" if number % 2 else b"/t.T/None") for number in range(200)]
    for _ in range(2):
        for number, each in enumerate(heads):
            plan = plans.of(each)
            assert plan.head is each
            assert (plan.unary is echo) == bool(number % 2)
