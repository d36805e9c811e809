"""The protobuf messages of all gRPC services: Envoy's, our own, health and reflection.

`descriptors.binpb` is compiled from the .proto files beside it; a test compares them. To compile them again::

    python -m tests.test_protos

On the hot path, messages are encoded by hand: see `headgate.protobuf`.

The messages have a descriptor pool of their own: other packages, such as xds-protos, register files with the same names
in protobuf's default pool, which would conflict.
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


def _descriptors() -> list[FileDescriptorProto]:
    google = [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in _GOOGLE]
    compiled = files("headgate.protos").joinpath(COMPILED).read_bytes()
    return [*google, *FileDescriptorSet.FromString(compiled).file]


FILES = tuple(_descriptors())
"""The descriptors of the services, each file after those that it imports."""
POOL = DescriptorPool()
for _file in FILES:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of a message by its full name, such as ``headgate.v1.CheckRequest``."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


RateLimitRequest = message_class("envoy.service.ratelimit.v3.RateLimitRequest")
RateLimitResponse = message_class("envoy.service.ratelimit.v3.RateLimitResponse")
