"""What a transport adds to the machine of HTTP/1: turns, and an end."""

from __future__ import annotations

import socket
import struct

from headgate.server.wire.http1.protocol import Http1Protocol
from headgate.server.wire.messages import HttpRequest, HttpResponse
from tests.server.wire.http1.conversation import request
from tests.server.wire.serving import Server, Turnstile, connect, read_responses, serving
from tests.server.wire.test_listener import Bouncer
from tests.servers import until

GET = request(line="GET / HTTP/1.1")


def test_what_arrives_with_the_end_of_the_client_is_answered() -> None:
    """Its turn has not come then."""

    async def arrive(server: Server) -> None:
        (connection,) = [each for each in server.listener._registry.connections if isinstance(each, Http1Protocol)]
        assert connection._end.transport is not None
        connection.data_received(GET)
        if not connection.eof_received():  # as a transport does
            connection._end.transport.close()

    with serving() as server, connect(server.http()) as client:
        client.sendall(GET)
        read_responses(client)
        server.run(arrive(server))
        read_responses(client)


def test_a_connection_is_forgotten_when_the_last_request_is_over_and_not_before() -> None:
    door = Bouncer()
    with serving(admit=door.admission) as server:
        turnstile = Turnstile(server)

        async def wait(_: HttpRequest) -> HttpResponse:
            await turnstile.pass_through()
            return HttpResponse(200)

        with connect(server.http(wait)) as client:
            client.sendall(request("please: yes", line="GET / HTTP/1.1"))
            turnstile.wait()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it is reset
        until(lambda: server.listener.connections == 0, "it is gone")
        assert door.seen[-2:] == ["admit /", "hold"]
        turnstile.open()
        until(lambda: door.seen[-2:] == ["release", "forget"], "all is released")
