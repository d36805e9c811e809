"""Random calls in random pieces: no errors, each stream gets a response or ends, and nothing is left."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.grpc.calls import MessageStream, Methods, RpcError, StatusCode, UnaryCall
from headgate.server.wire.grpc.framing import framed
from headgate.server.wire.grpc.service import GrpcService
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.hpack import encode
from headgate.server.wire.limits import WireLimits
from tests.server.wire.http2.conversation import Unconnected

LIMITS = WireLimits(message_bytes=50)


async def echo(call: UnaryCall) -> bytes:
    return call.message


async def echo_later(call: UnaryCall) -> bytes:
    await asyncio.sleep(0)
    if call.message[:1] == b"x":
        raise RpcError(StatusCode.ABORTED, "no")
    return call.message


async def echo_all(stream: MessageStream) -> None:
    async for message in stream:
        await stream.send(message)


METHODS = Methods({b"/t/Echo": echo, b"/t/Later": echo_later}, {b"/t/All": echo_all})
FIRST = [(b":method", b"POST"), (b":scheme", b"http")]
HEADS = st.fixed_dictionaries(
    {
        b":path": st.sampled_from([b"/t/Echo", b"/t/Later", b"/t/All", b"/t/None", b"/"]),
        b"content-type": st.sampled_from([b"application/grpc", b"application/grpc+proto", b"text/plain"]),
    },
    optional={
        b"grpc-timeout": st.sampled_from([b"1H", b"0n", b"x", b"5m"]),
        b"grpc-encoding": st.sampled_from([b"identity", b"gzip"]),
    },
)
PAYLOADS = st.one_of(
    st.binary(max_size=20), st.binary(max_size=60).map(framed), st.just(framed(b"a") * 3), st.just(framed(b"")[:3])
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), HEADS, st.booleans()),
        st.tuples(st.just("whole"), HEADS, PAYLOADS),
        st.tuples(st.just("data"), st.integers(0, 5), PAYLOADS, st.booleans()),
        st.tuples(st.just("reset"), st.integers(0, 5)),
        st.tuples(st.just("turn")),
        st.tuples(st.just("look"), st.floats(0, 100)),
    ),
    max_size=30,
)


@given(STEPS, st.integers(1, 200))
async def test_any_calls_in_any_pieces(steps: list[tuple[str, *tuple[object, ...]]], size: int) -> None:  # noqa: C901  one step after the other
    connection = Unconnected(LIMITS)
    machine, service = connection.machine, GrpcService(connection.as_protocol(), METHODS)
    opened: list[int] = []

    def receive(data: bytes) -> None:
        for place in range(0, len(data), size):
            service.handle(machine.receive(data[place : place + size], 0.0))
        machine.streams.outgoing()

    receive(frames.PREFACE + frames.settings([]))
    for step in steps:
        match step:
            case ("open", dict() as head, bool() as end):
                opened.append(2 * len(opened) + 1)
                receive(frames.headers(opened[-1], encode([*FIRST, *head.items()]), end=end))
            case ("whole", dict() as head, bytes() as payload):
                opened.append(2 * len(opened) + 1)
                block = encode([*FIRST, *head.items()])
                receive(frames.headers(opened[-1], block) + frames.data(opened[-1], payload, end=True))
            case ("data", int() as index, bytes() as payload, bool() as end) if index < len(opened):
                receive(frames.data(opened[index], payload, end=end))
            case ("reset", int() as index) if index < len(opened):
                receive(frames.reset(opened[index], frames.ErrorCode.CANCEL))
            case ("turn",):
                await asyncio.sleep(0)
            case ("look", float() as now):
                service.enforce_timeouts(now)
    service.lose()
    for _ in range(5):
        await asyncio.sleep(0)
    assert service.in_flight == 0
    assert not service._expected
    assert not service._waiting
