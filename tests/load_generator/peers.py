"""Small servers to load: some answer, and some do what no server should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc

from headgate.load_generator.targets import Target

Behaviour: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
RLS = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
ALLOWED, DENIED = b"\x08\x01", b"\x08\x02"


def response(body: bytes, status: int = 200, *fields: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 %d Any" % status, b"content-length: %d" % len(body), *fields, b"", body])


YES = response(b'{"allowed": true}')
NO = response(b'{"allowed": false}')


async def question(reader: asyncio.StreamReader) -> bytes:
    """Read a request; empty at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def answering(*answers: bytes) -> Behaviour:
    """Give these answers in turn."""
    count = 0

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while await question(reader):
            writer.write(answers[count % len(answers)])
            count += 1

    return behave


@asynccontextmanager
async def peer(behave: Behaviour) -> AsyncIterator[Target]:
    """A server in this loop."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behave(reader, writer)
        finally:
            writer.close()

    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def grpc_peer(answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[tuple[Target, grpc.Server]]:
    """A server of grpcio, which answers Envoy's question."""
    server = grpc.server(ThreadPoolExecutor(4))
    handlers: dict[str, Any] = {"ShouldRateLimit": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RLS.split("/")[1], handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Target("127.0.0.1", port, grpc=True), server
    finally:
        server.stop(None).wait()
