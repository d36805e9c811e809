"""The messages of all gRPC services, as protobuf knows them: Envoy's, our own, health and reflection.

`descriptors.binpb` is what protoc reads in the .proto files beside it; a test compares them. To write it again::

    python -m tests.server.test_protos

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
