"""The socket of the admin plane: requests that never end, many connections, and restarts after failures."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from headgate.admin import listener
from headgate.admin.keys import AdminKeys
from headgate.admin.listener import AdminListener
from headgate.admin.security import Gatekeeper

KEY = "hg_an-operators-own-key-of-some-length"
QUESTION = b"GET / HTTP/1.1\r\nhost: here\r\n"


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def application(_scope: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def answering(made: Callable[[], Any] = lambda: application) -> AsyncIterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        served = AdminListener(listening, made)
        running = asyncio.create_task(served.run())
        try:
            yield listening.getsockname()
        finally:
            served.end()
            await running


async def exchanged(address: tuple[str, int], *parts: bytes) -> tuple[bytes, bytes]:
    """Send parts one after the other, and read to the end: head and body of all answers."""
    reader, writer = await asyncio.open_connection(*address)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    async with answering() as address:
        yield address


async def test_a_head_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]) -> None:
    monkeypatch.setattr(listener, "HEAD_TIMEOUT", 0.2)
    begun = b"", b"G", QUESTION, QUESTION + b"x-slow: "
    for head, body in await asyncio.gather(*[exchanged(address, each) for each in begun]):
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["status"] == 408


async def test_so_is_the_head_of_a_second_request(monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(QUESTION + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 ")
    monkeypatch.setattr(listener, "HEAD_TIMEOUT", 0.2)  # from the first byte of the next one
    writer.write(b"GET /")
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_head_that_is_too_long_is_refused(address: tuple[str, int]) -> None:
    """Only what is sent up to the last byte that is too much: otherwise the answer may be lost with the connection."""
    for fields in (b"x-a: ", b"x-a: b\r\n" * 1000 + b"x-b: "):
        begun = QUESTION + fields
        head, body = await exchanged(address, begun, b"a" * (listener.HEAD_BYTES + 1 - len(begun)))
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["status"] == 431


async def test_a_long_body_is_not_a_long_head(address: tuple[str, int]) -> None:
    size = 300_000
    length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % size
    head, body = await exchanged(address, QUESTION + length, *[b"a" * 50_000] * 6)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b"300000"


async def test_other_protocols_get_a_problem_document(address: tuple[str, int]) -> None:
    head, body = await exchanged(address, b"\x16\x03\x01 what\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in head
    assert json.loads(body)["title"] == "Bad Request"


def test_it_begins_again_after_a_failure(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Decisions go on meanwhile; operators find it again at the same address."""
    monkeypatch.setattr(listener, "_PAUSE", 0.01)
    made = 0

    def failing_at_first() -> Any:
        nonlocal made
        made += 1
        if made < 3:
            raise RuntimeError("cannot begin")
        return application

    async def main() -> None:
        async with answering(failing_at_first) as address:
            head, _ = await exchanged(address, QUESTION + b"connection: close\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")

    with caplog.at_level(logging.ERROR, "headgate.admin"):
        asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert made == 3


async def test_a_client_is_where_its_connection_comes_from() -> None:
    """Whatever its headers say, also on this machine: failed log-ins are counted by address."""
    seen = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await application(scope, receive, send)

    async with answering(lambda: noting) as address:
        said = b"x-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: https\r\nconnection: close\r\n\r\n"
        await exchanged(address, QUESTION + said)
    assert seen == [("127.0.0.1", "http")]


async def test_connections_without_a_key_do_not_keep_operators_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of them makes room, and one that has shown its key stays."""
    for name in ("KEEP_ALIVE", "KEEP_ALIVE_WITHOUT_KEY"):
        monkeypatch.setattr(listener, name, 600)
    public, private = b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n", QUESTION.replace(b"GET /", b"GET /api/v1/rules")
    keyed = private + b"authorization: Bearer " + KEY.encode() + b"\r\n\r\n"

    async def answered(address: tuple[str, int], request: bytes, source: str = "127.0.0.1") -> Stream:
        stream = await asyncio.open_connection(*address, local_addr=(source, 0))
        await again(stream, request)
        return stream

    async def again(stream: Stream, request: bytes) -> None:
        stream[1].write(request)
        assert (await stream[0].readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 ")

    async with answering(lambda: Gatekeeper(application, AdminKeys(None, KEY))) as address:
        operator = await answered(address, keyed)
        crowd = [await answered(address, public, f"127.0.0.{2 + number % 8}") for number in range(400)]
        await again(operator, keyed)
        late = await answered(address, keyed)
        near = [await answered(address, public, "127.0.0.77") for _ in range(listener.MOST_OF_ADDRESS + 9)]
        for reader, _ in (*crowd[: -listener.MOST_WITHOUT_KEY], *near[:9]):
            with suppress(ConnectionError):
                assert not await reader.read()  # it is closed
        for stream in (operator, late):
            await again(stream, keyed)
        for _, writer in (operator, late, *crowd, *near):
            writer.close()
