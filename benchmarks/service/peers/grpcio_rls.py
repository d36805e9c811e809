"""A trivial rate limit service under grpcio's asyncio server: parses the request and answers OK. It decides nothing."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.service.asking import RLS_METHOD, RLS_SERVICE

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
OK = 1


def messages() -> dict[str, Any]:
    """Return the classes of the messages, as far as a trivial answer needs them."""
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


async def serve(port: int) -> None:
    """Serve until the process ends."""
    classes = messages()
    response, status = classes["Response"], classes["Status"]

    async def should_rate_limit(request: Any, _: Any) -> Any:
        statuses = [status(code=OK, limit_remaining=len(each.entries)) for each in request.descriptors]
        return response(overall_code=OK, statuses=statuses)

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
    asyncio.run(serve(int(sys.argv[1])))
