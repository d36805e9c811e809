"""Trivial servers for comparison, as programs: ``python -m benchmarks.service.peers NAME PORT``.

``uvicorn`` and ``grpcio`` parse requests and allow them, without deciding. ``uvloop`` does not parse them: it is the
minimum of a server in Python that reads a request and writes a response.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import uvicorn
import uvloop
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.service.requests import RLS_METHOD, RLS_SERVICE

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_TEXT = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_NUMBER = descriptor_pb2.FieldDescriptorProto.TYPE_UINT32
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
_MANY = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_FIELDS = {
    "Entry": (("key", 1, _TEXT, _ONE, ""), ("value", 2, _TEXT, _ONE, "")),
    "Descriptor": (("entries", 1, _MESSAGE, _MANY, "Entry"),),
    "Request": (
        ("domain", 1, _TEXT, _ONE, ""),
        ("descriptors", 2, _MESSAGE, _MANY, "Descriptor"),
        ("hits_addend", 3, _NUMBER, _ONE, ""),
    ),
    "Status": (("code", 1, _NUMBER, _ONE, ""), ("limit_remaining", 3, _NUMBER, _ONE, "")),
    "Response": (("overall_code", 1, _NUMBER, _ONE, ""), ("statuses", 2, _MESSAGE, _MANY, "Status")),
}
_OK = 1
_CONSTANT = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 66\r\n\r\n"
    b'{"allowed":true,"limit":1000,"remaining":999,"rule_id":"per-user"}'
)


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Allow every check, in ASGI."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    user = json.loads(body)["principal"]["user"]
    answer = json.dumps({"allowed": True, "limit": 1000, "remaining": 999, "rule_id": user}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def serve_http(port: int) -> None:
    """Serve checks under uvicorn until the process ends."""
    uvicorn.run(
        application,
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )


class ConstantProtocol(asyncio.Protocol):
    """Responds with a constant to each read that begins a request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):  # not the rest of a request
            self._write(_CONSTANT)


async def serve_constant(port: int) -> None:
    """Serve the constant until the process ends."""
    server = await asyncio.get_running_loop().create_server(ConstantProtocol, "127.0.0.1", port)
    await server.serve_forever()


def messages() -> dict[str, Any]:
    """Return the classes of RLS messages that a trivial response needs."""
    file = descriptor_pb2.FileDescriptorProto(name="peer.proto", package="peer", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=f".peer.{of}" if of else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"peer.{name}")) for name in _FIELDS}


async def serve_rls(port: int) -> None:
    """Serve a rate limit service under grpcio's asyncio server until the process ends."""
    classes = messages()
    response, status = classes["Response"], classes["Status"]

    async def should_rate_limit(request: Any, _: Any) -> Any:
        statuses = [status(code=_OK, limit_remaining=len(each.entries)) for each in request.descriptors]
        return response(overall_code=_OK, statuses=statuses)

    handler = grpc.unary_unary_rpc_method_handler(
        should_rate_limit,
        request_deserializer=classes["Request"].FromString,
        response_serializer=response.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RLS_SERVICE, {RLS_METHOD: handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    _, which, where = sys.argv
    if which == "uvicorn":
        serve_http(int(where))
    elif which == "uvloop":
        uvloop.run(serve_constant(int(where)))
    else:
        asyncio.run(serve_rls(int(where)))
