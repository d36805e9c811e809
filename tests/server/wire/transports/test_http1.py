"""What a transport adds to the machine of HTTP/1: turns, and an end."""

from __future__ import annotations

import socket
import struct
from typing import Any

from headgate.server.wire.listener import Address
from headgate.server.wire.messages import Request, Response
from headgate.server.wire.transports.http1 import Http1
from tests.server.wire.http1.conversation import request
from tests.server.wire.serving import Server, Turnstile, connect, echo, read_responses, serving
from tests.server.wire.test_listener import Bouncer
from tests.servers import until

GET = request(line="GET / HTTP/1.1")


def port_of(server: Server, handler: Any = echo) -> int:
    address = server.run(server.listener.serve_http(handler, Address()))
    assert isinstance(address, Address)
    return address.port


def test_what_arrives_with_the_end_of_the_client_is_answered() -> None:
    """Its turn has not come then."""

    async def arrive(server: Server) -> None:
        (guest,) = [each for each in server.listener._house.guests if isinstance(each, Http1)]
        assert guest._end.transport is not None
        guest.data_received(GET)
        if not guest.eof_received():  # as a transport does
            guest._end.transport.close()

    with serving() as server, connect(port_of(server)) as client:
        client.sendall(GET)
        read_responses(client)
        server.run(arrive(server))
        read_responses(client)


def test_a_seat_is_left_when_the_last_request_is_over_and_not_before() -> None:
    gate = Bouncer()
    with serving(gate=gate) as server:
        turnstile = Turnstile(server)

        async def wait(_: Request) -> Response:
            await turnstile.pass_through()
            return Response(200)

        with connect(port_of(server, wait)) as client:
            client.sendall(request("please: yes", line="GET / HTTP/1.1"))
            turnstile.wait()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset
        until(lambda: server.listener.connections == 0, "it is gone")
        assert gate.seen[-1] == "admit /"
        turnstile.open()
        until(lambda: gate.seen[-2:] == ["release", "leave"], "all is released")
