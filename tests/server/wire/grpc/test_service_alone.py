"""A gRPC service without a socket: its state, and how long it is kept."""

from __future__ import annotations

import asyncio
from typing import Any

from headgate.server.wire.grpc.calls import MessageStream, Methods, StreamingMethod, UnaryCall
from headgate.server.wire.grpc.framing import framed
from headgate.server.wire.grpc.service import GrpcService
from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import ErrorCode
from headgate.server.wire.http2.hpack import encode
from tests.server.wire.http2.conversation import Unconnected

HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"api"), (b"content-type", b"application/grpc")]


class Connected:
    def __init__(self, methods: Methods) -> None:
        connection = Unconnected()
        self.machine, self.service = connection.machine, GrpcService(connection.as_protocol(), methods)
        self.say(frames.PREFACE, frames.settings([]))

    def say(self, *data: bytes) -> None:
        self.service.handle(self.machine.receive(b"".join(data), 0.0))

    def call(self, stream: int, path: bytes, *more: tuple[bytes, bytes]) -> None:
        block = encode([*HEAD[:3], (b":path", path), *HEAD[3:], *more])
        self.say(frames.headers(stream, block), frames.data(stream, framed(b""), end=True))


def waiting(streaming: StreamingMethod | None = None) -> tuple[Connected, asyncio.Future[bytes]]:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def wait(_: UnaryCall) -> bytes:
        return await answer

    return Connected(Methods({b"/t.T/Wait": wait}, {b"/t.T/Watch": streaming} if streaming else {})), answer


def timers() -> list[asyncio.TimerHandle]:
    loop: Any = asyncio.get_running_loop()
    return [handle for handle in loop._scheduled if not handle.cancelled()]


async def test_an_abandoned_call_leaves_no_timer() -> None:
    client, answer = waiting()
    client.call(1, b"/t.T/Wait", (b"grpc-timeout", b"1H"))
    assert len(timers()) == 1
    client.say(frames.reset(1, ErrorCode.CANCEL))
    assert (timers(), client.service.in_flight) == ([], 1)
    answer.set_result(b"")
    await asyncio.sleep(0)
    assert client.service.in_flight == 0


async def test_calls_share_a_timer_which_is_set_for_the_first_of_their_deadlines() -> None:
    client, answer = waiting()
    for stream, timeout in ((1, b"2H"), (3, b"1H"), (5, b"3H"), (7, b"20m")):
        client.call(stream, b"/t.T/Wait", (b"grpc-timeout", timeout))
        assert len(timers()) == 1
    (first,) = timers()
    assert first.when() < asyncio.get_running_loop().time() + 1
    for _ in range(3000):  # its deadline passes, and it is answered
        if 7 not in client.machine.streams.open:
            break
        await asyncio.sleep(0.01)
    assert sorted(client.machine.streams.open) == [1, 3, 5]
    (then,) = timers()
    assert 3500 < then.when() - asyncio.get_running_loop().time() < 3601, "the next is an hour away"
    client.service.lose()
    assert timers() == []
    answer.cancel()


def test_deadlines_of_calls_that_were_answered_do_not_pile_up() -> None:
    async def run() -> None:
        async def wait(call: UnaryCall) -> bytes:
            await asyncio.sleep(0)
            return call.message

        client = Connected(Methods({b"/t.T/Wait": wait}))
        for stream in range(1, 2001, 2):
            client.call(stream, b"/t.T/Wait", (b"grpc-timeout", b"1H"))
            await asyncio.sleep(0)
            assert len(client.service._deadlines._heap) <= 70
        assert not client.machine.streams.open

    asyncio.run(asyncio.wait_for(run(), 30))


async def test_streams_go_on_until_all_else_is_answered() -> None:
    ended = asyncio.Event()

    async def watch(_: MessageStream) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    client, answer = waiting(watch)
    client.call(1, b"/t.T/Watch")
    client.call(3, b"/t.T/Wait")
    for _ in range(5):
        client.service.leave()
        await asyncio.sleep(0)
    assert client.service.in_flight == 2
    answer.set_result(b"")
    await asyncio.sleep(0)
    client.service.leave()
    async with asyncio.timeout(30):
        await ended.wait()
