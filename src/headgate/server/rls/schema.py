"""Envoy's messages as protobuf knows them, in a pool of their own.

Other packages, such as xds-protos, put files of the same names into protobuf's default pool; two would not get along
there. These classes are for what is not hot (the JSON form, tests, reflection): see `decoding` and `encoding` for the
rest.
"""

from __future__ import annotations

from importlib.resources import files

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headgate.server.proto_text import read

PATHS = (
    "envoy/type/v3/ratelimit_unit.proto",
    "envoy/config/core/v3/base.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    "envoy/service/ratelimit/v3/rls.proto",
)
"""Each after those that it imports."""
SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
_GOOGLE = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
_FROM_GOOGLE = ("Duration", "Struct", "Timestamp", "UInt64Value")


def file_descriptors() -> list[FileDescriptorProto]:
    """Return the files that describe the service, those of Google's that they import first."""
    google = [FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in _GOOGLE]
    folder = files("headgate.server.rls").joinpath("protos")
    texts = {path: folder.joinpath(path).read_text(encoding="utf-8") for path in PATHS}
    return google + read(texts, {f".google.protobuf.{name}": False for name in _FROM_GOOGLE})


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in file_descriptors():
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()


def message_class(name: str) -> type[Message]:
    """Return the class of a message of the service, such as "RateLimitRequest"."""
    found: type[Message] = GetMessageClass(POOL.FindMessageTypeByName(f"envoy.service.ratelimit.v3.{name}"))
    return found


RateLimitRequest = message_class("RateLimitRequest")
RateLimitResponse = message_class("RateLimitResponse")
