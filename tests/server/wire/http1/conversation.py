"""An HTTP/1 connection in a test: requests in, responses out."""

from __future__ import annotations

import re

from headgate.server.wire.http1.connection import Http1Connection
from headgate.server.wire.http1.parsing import Http1Heads
from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.messages import DateHeader, HttpRequest, HttpResponse


def connection(limits: WireLimits = DEFAULT) -> Http1Connection:
    return Http1Connection(limits, Http1Heads(limits), DateHeader())


def exchange(machine: Http1Connection, data: bytes, answer: HttpResponse | None = None) -> list[HttpRequest]:
    response = HttpResponse(200, b"yes") if answer is None else answer
    requests: list[HttpRequest] = []
    number = machine.received
    found = machine.receive(data)
    while found:
        for request in found:
            requests.append(request)
            machine.answer(number, response)
            number += 1
        found = machine.receive(b"") if machine.has_more else []
    return requests


def statuses(outgoing: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", outgoing)]


def request(*headers: str, line: str = "POST /check HTTP/1.1", host: str = "Host: api") -> bytes:
    return "".join([f"{each}\r\n" for each in (line, host, *headers) if each]).encode("latin-1") + b"\r\n"
