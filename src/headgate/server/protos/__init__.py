"""The messages of all gRPC services, as protobuf knows them: Envoy's, our own, health and reflection.

`descriptors.binpb` is what protoc reads in the .proto files beside it; a test compares them. To write it again::

    python -m tests.server.test_protos

What is answered on the hot path is written by hand, with `varint` and `framed`.

The messages are in a pool of their own: other packages, such as xds-protos, put files of the same names into protobuf's
default pool, where two of them would not get along.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

COMPILED = "descriptors.binpb"
_SMALL = tuple([bytes([number]) for number in range(128)])
_GOOGLE = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def _described() -> list[FileDescriptorProto]:
    google = [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in _GOOGLE]
    compiled = files("headgate.server.protos").joinpath(COMPILED).read_bytes()
    return [*google, *FileDescriptorSet.FromString(compiled).file]


FILES = tuple(_described())
"""What describes the services, each file after those that it imports."""
_POOL = DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message by its whole name, such as ``headgate.v1.CheckRequest``."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


RateLimitRequest = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
RateLimitResponse = message_class("envoy.service.ratelimit.v3.RateLimitResponse")


def varint(number: int) -> bytes:
    """Return a number that is not negative, in as few bytes as it takes."""
    if number < 128:
        return _SMALL[number]
    if number < 16_384:
        return bytes((number & 127 | 128, number >> 7))
    if number < 2_097_152:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def framed(tag: bytes, content: bytes) -> bytes:
    """Return a field with bytes, or with a message."""
    return tag + varint(len(content)) + content
