"""A load of gRPC for many users, with each response verified: ``python -m benchmarks.service.flood``.

h2load sends the same message every time, which services may cache. This client draws the user of each message by a
Zipf law at hardly more cost: its HTTP/2 is only complete enough for the expected responses. It shares no code with the
server, so both cannot have the same bug.

At a constant rate, due requests are sent every millisecond (by h2load every 10). A request is timed from its due time,
so delays by earlier requests count.
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

from benchmarks.service.load import Latency, Load, framed, percentiles
from benchmarks.service.requests import RequestKind, request_kinds, weights

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
"""Seconds between checks for due requests."""


class Flood:
    """The requests of all connections to a port, for these users in this order, and their results."""

    def __init__(self, request: RequestKind, port: int, users: Sequence[int]) -> None:
        self.left, self.answered, self.allowed, self.refused, self._total = len(users), 0, 0, 0, len(users)
        messages = {number: framed(request.body_of(number)) for number in {*users}}
        self.messages: Iterator[bytes] = iter([messages[number] for number in users])
        """The message of each request, in order."""
        self.is_allowed = request.is_allowed
        self.port, self.path = port, request.path
        self.took_us: list[int] = []
        """The duration of each request, from its due time."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def took(self, answered: int, allowed: int, refused: int) -> None:
        """Count calls that ended, and their decisions: a call without a decision failed."""
        self.answered += answered
        self.allowed += allowed
        self.refused += refused
        if self.answered >= self._total and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, why: str) -> None:
        """End with an error."""
        if not self.ended.done():
            self.ended.set_exception(ConnectionError(why))


class Client(asyncio.Protocol):
    """One connection with `streams` calls in flight; with 0, it sends only what is due (`send_due`)."""

    def __init__(self, flood: Flood, streams: int) -> None:
        self._flood, self._streams = flood, streams
        self._stream, self._data = 1, b""
        self._due: dict[int, float] = {}
        """The due times of calls in flight."""
        self._transport: asyncio.Transport
        names = {":method": "POST", ":scheme": "http", ":authority": f"127.0.0.1:{flood.port}", ":path": flood.path}
        fields = [*names.items(), ("content-type", "application/grpc"), ("te", "trailers")]
        encoder = hpack.Encoder()
        self._first = bytes(encoder.encode(fields))
        self._block = bytes(encoder.encode(fields))
        """The same headers once they are in the server's table."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        window = Struct(">HI").pack(_INITIAL_WINDOW, _WIDEST)
        wider = (_WIDEST - _GIVEN).to_bytes(4, "big")
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, wider))
        self.send(self._streams)

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
            self.send(answered)
        self._flood.took(answered, allowed, decided - allowed)

    def connection_lost(self, error: Exception | None) -> None:
        self._flood.fail(f"a connection was lost: {error}")

    def close(self) -> None:
        self._transport.close()

    def send_due(self, due: Sequence[float]) -> None:
        """Send requests with these due times."""
        self._due.update(zip(range(self._stream, self._stream + 2 * len(due), 2), due, strict=True))
        self.send(len(due))

    def send(self, most: int) -> None:
        """Send up to `most` requests, while some are left."""
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


async def flood(sending: Flood, connections: int, streams: int) -> Load:
    """Send requests as fast as responses arrive."""
    start = perf_counter()
    clients = await _connected(sending, connections, streams)
    await sending.ended
    return _ended(sending, clients, start)


async def pour(sending: Flood, connections: int, rate: float) -> Latency:
    """Send requests at a constant rate per second."""
    requests = sending.left
    clients = await _connected(sending, connections, 0)
    start, sent = perf_counter(), 0
    while sent < requests:
        until = min(requests, int((perf_counter() - start) * rate))
        for number, client in enumerate(clients):
            client.send_due([start + each / rate for each in range(sent + number, until, connections)])
        sent = max(sent, until)
        await asyncio.sleep(_TICK)
    await sending.ended
    found = _ended(sending, clients, start)
    if sending.allowed < requests:
        raise ConnectionError(f"{requests - sending.allowed} of {requests} requests were not allowed")
    return percentiles(rate, found, sending.took_us)


async def _connected(sending: Flood, connections: int, streams: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [
        (await loop.create_connection(lambda: Client(sending, streams), "127.0.0.1", sending.port))[1]
        for _ in range(connections)
    ]


def _ended(sending: Flood, clients: Sequence[Client], start: float) -> Load:
    seconds = perf_counter() - start
    for client in clients:
        client.close()
    return Load(sending.answered, seconds, sending.answered - sending.allowed - sending.refused, sending.refused)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload) << 8 | kind, flags, stream) + payload


def main(arguments: Sequence[str]) -> None:
    """Run as a command, and print the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service.flood")
    for name in ("--port", "--requests", "--users", "--connections"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--request", choices=list(request_kinds()), required=True)
    parser.add_argument("--in-turn", action="store_true", help="users ask one after the other; else they are drawn")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--streams", type=int, help="as fast as answers come, with so many calls in flight")
    how.add_argument("--rate", type=float, help="so many in a second")
    options = parser.parse_args(arguments)
    gc.disable()  # it would stop the load now and then, and there is nothing to collect
    print(msgspec.json.encode(uvloop.run(_run(options))).decode())


def drawn(users: int, requests: int) -> list[int]:
    """Return the user of each request."""
    return random.choices(range(users), cum_weights=weights(users), k=requests)


async def _run(options: argparse.Namespace) -> Load | Latency:
    users, requests = options.users, options.requests
    numbers = [number % users for number in range(requests)] if options.in_turn else drawn(users, requests)
    sending = Flood(request_kinds()[options.request], options.port, numbers)
    if options.rate:
        return await pour(sending, options.connections, options.rate)
    return await flood(sending, options.connections, options.streams)


if __name__ == "__main__":
    main(sys.argv[1:])
