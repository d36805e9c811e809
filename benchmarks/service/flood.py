"""A load of gRPC for many users, each of whose answers is looked at: ``python -m benchmarks.service.flood``.

h2load sends the same message every time; services may remember what they have just seen. This sends that of a user who
is drawn by a Zipf law, and costs hardly more: it is HTTP/2 as far as a client needs it that knows what will be
answered. It shares no code with the server, so that both cannot be wrong in the same way.

At a constant rate, whatever the answers take, what is due is sent every millisecond (h2load does every 10). A request
takes from when it was due to its answer, so what comes late because of earlier ones counts as late.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
from collections.abc import Iterator, Sequence
from struct import Struct
from time import perf_counter
from typing import cast

import hpack
import msgspec
import uvloop

from benchmarks.service.asking import Question, questions, weights
from benchmarks.service.load import Latency, Load, framed, percentiles

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER = Struct(">IBI")
_HEADER_SIZE = 9
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW = 4
_WIDEST = (1 << 31) - 1
_GIVEN = 65_535
_MESSAGE = _HEADER_SIZE + 5
_TICK = 0.001
"""Seconds between the looks at what is due."""


class Flood:
    """What all connections to a port together have to ask, for these users in this order, and what came of it."""

    def __init__(self, question: Question, port: int, users: Sequence[int]) -> None:
        self.left, self.answered, self.allowed, self.refused, self._total = len(users), 0, 0, 0, len(users)
        messages = {number: framed(question.body_of(number)) for number in {*users}}
        self.messages: Iterator[bytes] = iter([messages[number] for number in users])
        """What each request says, in their order."""
        self.is_allowed = question.is_allowed
        self.port, self.path = port, question.path
        self.took_us: list[int] = []
        """How long each request took that was asked when it was due."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def took(self, answered: int, allowed: int, refused: int) -> None:
        """Count calls that ended, and what was decided: one that ended without a decision failed."""
        self.answered += answered
        self.allowed += allowed
        self.refused += refused
        if self.answered >= self._total and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, why: str) -> None:
        """Give up."""
        if not self.ended.done():
            self.ended.set_exception(ConnectionError(why))


class Client(asyncio.Protocol):
    """One connection, with so many calls in flight; with none at first, it asks what it is told to."""

    def __init__(self, flood: Flood, streams: int) -> None:
        self._flood, self._streams = flood, streams
        self._stream, self._data = 1, b""
        self._due: dict[int, float] = {}
        """When the calls in flight were due, if they were."""
        self._transport: asyncio.Transport
        names = {":method": "POST", ":scheme": "http", ":authority": f"127.0.0.1:{flood.port}", ":path": flood.path}
        fields = [*names.items(), ("content-type", "application/grpc"), ("te", "trailers")]
        encoder = hpack.Encoder()
        self._first = bytes(encoder.encode(fields))
        self._block = bytes(encoder.encode(fields))
        """The same headers when the server has them in its table."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        window = Struct(">HI").pack(_INITIAL_WINDOW, _WIDEST)
        wider = (_WIDEST - _GIVEN).to_bytes(4, "big")
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, wider))
        self.ask(self._streams)

    def data_received(self, data: bytes) -> None:
        if self._data:
            data = self._data + data
        position, end = 0, len(data)
        answered = allowed = decided = 0
        while position + _HEADER_SIZE <= end:
            word, flags, stream = _HEADER.unpack_from(data, position)
            stop = position + _HEADER_SIZE + (word >> 8)
            if stop > end:
                break
            kind = word & 0xFF
            if kind == _DATA:
                decided += 1
                allowed += self._flood.is_allowed(data[position + _MESSAGE : stop])
            elif kind == _HEADERS:
                answered += flags & _END_STREAM
                if flags & _END_STREAM and self._due:
                    self._flood.took_us.append(int((perf_counter() - self._due.pop(stream)) * 1e6))
            else:
                self._control(kind, flags, data[position + _HEADER_SIZE : stop])
            position = stop
        self._data = data[position:]
        if answered and self._streams:
            self.ask(answered)
        self._flood.took(answered, allowed, decided - allowed)

    def connection_lost(self, error: Exception | None) -> None:
        self._flood.fail(f"a connection was lost: {error}")

    def close(self) -> None:
        self._transport.close()

    def ask_due(self, due: Sequence[float]) -> None:
        """Ask as many questions as were due at these times."""
        self._due.update(zip(range(self._stream, self._stream + 2 * len(due), 2), due, strict=True))
        self.ask(len(due))

    def ask(self, most: int) -> None:
        """Ask so many questions, as far as there are any left."""
        flood, stream, block, parts = self._flood, self._stream, self._block, []
        for _ in range(min(most, flood.left)):
            if stream == 1:
                block = self._first
            message = next(flood.messages)
            parts += [
                _HEADER.pack(len(block) << 8 | _HEADERS, _END_HEADERS, stream),
                block,
                _HEADER.pack(len(message) << 8 | _DATA, _END_STREAM, stream),
                message,
            ]
            block = self._block
            stream += 2
            flood.left -= 1
        self._stream = stream
        self._transport.write(b"".join(parts))

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in {_RESET, _GOAWAY}:
            self._flood.fail(f"the server refuses: {'RST_STREAM' if kind == _RESET else 'GOAWAY'} {payload!r}")
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._transport.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))


async def flood(asking: Flood, connections: int, streams: int) -> Load:
    """Ask as fast as answers come."""
    start = perf_counter()
    clients = await _connected(asking, connections, streams)
    await asking.ended
    return _ended(asking, clients, start)


async def pour(asking: Flood, connections: int, rate: float) -> Latency:
    """Ask so many questions in a second."""
    requests = asking.left
    clients = await _connected(asking, connections, 0)
    start, asked = perf_counter(), 0
    while asked < requests:
        until = min(requests, int((perf_counter() - start) * rate))
        for number, client in enumerate(clients):
            client.ask_due([start + each / rate for each in range(asked + number, until, connections)])
        asked = max(asked, until)
        await asyncio.sleep(_TICK)
    await asking.ended
    found = _ended(asking, clients, start)
    if asking.allowed < requests:
        raise ConnectionError(f"{requests - asking.allowed} of {requests} requests were not allowed")
    return percentiles(rate, found, asking.took_us)


async def _connected(asking: Flood, connections: int, streams: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [
        (await loop.create_connection(lambda: Client(asking, streams), "127.0.0.1", asking.port))[1]
        for _ in range(connections)
    ]


def _ended(asking: Flood, clients: Sequence[Client], start: float) -> Load:
    seconds = perf_counter() - start
    for client in clients:
        client.close()
    return Load(asking.answered, seconds, asking.answered - asking.allowed - asking.refused, asking.refused)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def main(arguments: Sequence[str]) -> None:
    """Run as a command, and say as JSON how it went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service.flood")
    for name in ("--port", "--requests", "--users", "--connections"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--question", choices=list(questions()), required=True)
    parser.add_argument("--in-turn", action="store_true", help="users ask one after the other; else they are drawn")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--streams", type=int, help="as fast as answers come, with so many calls in flight")
    how.add_argument("--rate", type=float, help="so many in a second")
    options = parser.parse_args(arguments)
    gc.disable()  # it would stop the load now and then, and there is nothing to collect
    print(msgspec.json.encode(uvloop.run(_run(options))).decode())


def drawn(users: int, requests: int) -> list[int]:
    """Return who sends each of so many requests."""
    return random.choices(range(users), cum_weights=weights(users), k=requests)


async def _run(options: argparse.Namespace) -> Load | Latency:
    users, requests = options.users, options.requests
    numbers = [number % users for number in range(requests)] if options.in_turn else drawn(users, requests)
    asking = Flood(questions()[options.question], options.port, numbers)
    if options.rate:
        return await pour(asking, options.connections, options.rate)
    return await flood(asking, options.connections, options.streams)


if __name__ == "__main__":
    main(sys.argv[1:])
